#include "engine/backend/torch/model/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

cpu::WeightType weight_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return cpu::WeightType::kBFloat16;
    case DType::kFloat16:
      return cpu::WeightType::kHalf;
    case DType::kInt8:
      return cpu::WeightType::kInt8;
    case DType::kFloat64:
      return cpu::WeightType::kDouble;
    default:
      return cpu::WeightType::kFloat;
  }
}

// The numbers that a packed matrix holds, in the type that it is computed in.
at::Tensor unpacked(const cpu::PackedMatrix& m) {
  const bool exact = m.type() == cpu::WeightType::kDouble;
  at::Tensor all = at::empty({m.outs(), m.in()}, exact ? at::kDouble : at::kFloat);
  for (int64_t r = 0; r < m.outs(); ++r) {
    if (exact) {
      m.unpack(r, static_cast<double*>(all.mutable_data_ptr()) + r * m.in());
    } else {
      m.unpack(r, static_cast<float*>(all.mutable_data_ptr()) + r * m.in());
    }
  }
  return all;
}

// For the length of a call: memory of prepared rows that all layers of a lane share.
class SharedInput {
 public:
  explicit SharedInput(const at::Tensor& x) { input().set(x); }
  ~SharedInput() { input().set({}); }
  LinearInput& operator*() const { return input(); }

 private:
  static LinearInput& input() {
    thread_local LinearInput mine;
    return mine;
  }
};

}  // namespace

at::ScalarType WeightStore::rows() const {
  if (dtype == DType::kFloat64) return at::kDouble;
  return !device.is_cpu() && dtype == DType::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

at::ScalarType WeightStore::residual() const {
  return dtype == DType::kFloat64 ? at::kDouble : at::kFloat;
}

const cpu::PreparedRows& LinearInput::as(cpu::RowType type) {
  if (prepared_ && rows_.type() == type) return rows_;
  if (type == cpu::RowType::kDouble) {
    TORCH_CHECK(x_.scalar_type() == at::kDouble, "fp64 weights with rows of ", x_.scalar_type());
    rows_.prepare(static_cast<const double*>(x_.const_data_ptr()), x_.size(0), x_.size(1));
  } else {
    TORCH_CHECK(x_.scalar_type() == at::kFloat, "fp32 products with rows of ", x_.scalar_type());
    rows_.prepare(type, static_cast<const float*>(x_.const_data_ptr()), x_.size(0), x_.size(1));
  }
  prepared_ = true;
  return rows_;
}

absl::StatusOr<Linear> Linear::load(const TensorSource& source, const WeightStore& store,
                                    const std::string& prefix,
                                    const std::vector<std::string>& names,
                                    const std::vector<int64_t>& outs, int64_t in, bool bias) {
  std::vector<std::string> weights, biases;
  std::vector<std::vector<int64_t>> weight_shapes, bias_shapes;
  for (size_t i = 0; i < names.size(); ++i) {
    weights.push_back(prefix + names[i] + ".weight");
    biases.push_back(prefix + names[i] + ".bias");
    weight_shapes.push_back({outs[i], in});
    bias_shapes.push_back({outs[i]});
  }
  Linear l;
  if (store.device.is_cpu()) {
    TANDEM_ASSIGN_OR_RETURN(l.packed_,
                            load_packed(source, weights, weight_shapes, weight_type(store.dtype)));
    if (!store.packed()) {
      l.weight_ = unpacked(l.packed_);
      l.packed_ = {};
    }
  } else {
    TANDEM_ASSIGN_OR_RETURN(
        l.weight_, load_stacked(source, weights, weight_shapes, store.rows(), store.device));
  }
  if (bias) {
    TANDEM_ASSIGN_OR_RETURN(l.bias_,
                            load_stacked(source, biases, bias_shapes, store.rows(), store.device));
  }
  return l;
}

void Linear::product(at::Tensor& out, LinearInput& x, bool add) const {
  const StepProfile::Section section(StepProfile::kProduct);
  if (packed_.empty()) {
    const at::Tensor y = at::linear(x.x(), weight_, bias_);
    add ? (void)out.add_(y) : (void)out.copy_(y);
    return;
  }
  const cpu::PreparedRows& rows = x.as(cpu::row_type(packed_.type()));
  const void* bias = bias_.defined() ? bias_.const_data_ptr() : nullptr;
  void* to = out.mutable_data_ptr();
  TORCH_CHECK(out.is_contiguous() && out.size(0) == rows.rows() && out.size(1) == packed_.outs(),
              "product of ", rows.rows(), " x ", packed_.outs(), " into ", out.sizes());
  if (packed_.type() != cpu::WeightType::kDouble) {
    TORCH_CHECK(out.scalar_type() == at::kFloat, "fp32 product into ", out.scalar_type());
    cpu::product(static_cast<float*>(to), rows, packed_, static_cast<const float*>(bias), add);
  } else if (out.scalar_type() == at::kDouble) {
    cpu::product(static_cast<double*>(to), rows, packed_, static_cast<const double*>(bias), add);
  } else {
    TORCH_CHECK(out.scalar_type() == at::kFloat, "fp64 product into ", out.scalar_type());
    cpu::product(static_cast<float*>(to), rows, packed_, static_cast<const double*>(bias), add);
  }
}

void Linear::into(at::Tensor& out, const at::Tensor& x, at::Tensor* scratch) const {
  into(out, *SharedInput(x), scratch);
}

void Linear::into(at::Tensor& out, LinearInput& input, at::Tensor* scratch) const {
  const at::Tensor& x = input.x();
  if (x.is_cpu()) return product(out, input, /*add=*/false);
  if (out.scalar_type() != x.scalar_type()) {
    into(*scratch, input);
    out.copy_(*scratch);
  } else if (bias_.defined()) {
    at::addmm_out(out, bias_, x, weight_.t());
  } else {
    at::mm_out(out, x, weight_.t());
  }
}

void Linear::add_to(at::Tensor& residual, const at::Tensor& x, at::Tensor& scratch) const {
  add_to(residual, *SharedInput(x), scratch);
}

void Linear::add_to(at::Tensor& residual, LinearInput& input, at::Tensor& scratch) const {
  const at::Tensor& x = input.x();
  if (x.is_cpu()) return product(residual, input, /*add=*/true);
  if (residual.scalar_type() == x.scalar_type()) {
    residual.addmm_(x, weight_.t());
    if (bias_.defined()) residual.add_(bias_);
    return;
  }
  into(scratch, input);
  residual.add_(scratch);
}

void Linear::look_up(at::Tensor& to, const int32_t* row) const {
  const int64_t in = packed_.in();
  const auto each = [&]<class R>(R* out) {
    cpu::parallel_for(to.size(0), std::max<int64_t>(1, 4096 / in),
                      [=, this](int64_t r, int64_t end) {
                        for (; r < end; ++r) {
                          if (row[r] >= 0) packed_.unpack(row[r], out + r * in);
                        }
                      });
  };
  if (to.scalar_type() == at::kDouble) {
    each(static_cast<double*>(to.mutable_data_ptr()));
  } else {
    each(static_cast<float*>(to.mutable_data_ptr()));
  }
}

int64_t Linear::parameters() const {
  const int64_t weights = packed_.empty() ? weight_.numel() : packed_.outs() * packed_.in();
  return weights + (bias_.defined() ? bias_.numel() : 0);
}

int64_t Linear::bytes() const {
  const auto of = [](const at::Tensor& t) {
    return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  };
  return (packed_.empty() ? 0 : packed_.bytes()) + of(weight_) + of(bias_);
}

}  // namespace tandem
