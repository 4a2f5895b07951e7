#include "engine/backend/torch/model/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/model/load.h"
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
    case DType::kInt4:  // of inputs that are not in blocks
      return cpu::WeightType::kInt8;
    case DType::kFloat64:
      return cpu::WeightType::kDouble;
    default:
      return cpu::WeightType::kFloat;
  }
}

template <class F>
int64_t sum_of(const std::vector<BlockMatrix>& all, const F& of) {
  int64_t n = 0;
  for (const BlockMatrix& m : all) n += of(m);
  return n;
}

// Whether the file has some of the matrices in blocks.
bool is_in_blocks(const TensorSource& source, const LinearSpec& spec) {
  return std::ranges::any_of(spec.names, [&](const std::string& name) {
    const TensorView* const view = source.find(name + ".weight");
    return view != nullptr && view->block != nullptr;
  });
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

}  // namespace

at::ScalarType WeightStore::rows() const {
  if (dtype == DType::kFloat64) return at::kDouble;
  if (device.is_cpu() || dtype == DType::kFloat32) return at::kFloat;
  return dtype == DType::kFloat16 ? at::kHalf : at::kBFloat16;
}

at::ScalarType WeightStore::residual() const {
  return dtype == DType::kFloat64 ? at::kDouble : at::kFloat;
}

const at::Tensor& Linear::rows(const LinearInput& x) const {
  if (x.norm == nullptr) return x.x;
  ops_->norm(*x.normed, x.x, *x.norm);
  return *x.normed;
}

absl::StatusOr<Linear> Linear::load(const TensorSource& source, const WeightStore& store,
                                    const LinearSpec& spec, cpu::Layout layout) {
  Linear l;
  l.ops_ = &store.ops();
  l.pairs_ = layout == cpu::Layout::kPairs;
  l.rows_ = store.rows();
  if (store.dtype == DType::kStored) {
    TANDEM_ASSIGN_OR_RETURN(l.quantized_, load_quantized(source, spec, layout));
    l.expanded_ = l.quantized_.empty() && is_in_blocks(source, spec);
  } else if (store.dtype == DType::kInt4) {
    TANDEM_ASSIGN_OR_RETURN(l.quantized_, load_rounded(source, spec, layout));
  }
  if (!l.quantized_.empty() && !store.packed()) {
    for (size_t i = 0; i < l.quantized_.segments().size(); ++i) {
      l.blocks_.push_back(l.ops_->pack_blocks(l.quantized_, i, store.device));
    }
    l.quantized_ = {};
  }
  if (!l.quantized_.empty() || !l.blocks_.empty()) {
    // as it is
  } else if (store.device.is_cpu()) {
    TANDEM_ASSIGN_OR_RETURN(l.packed_,
                            load_packed(source, spec, weight_type(store.dtype),
                                        store.packed() ? layout : cpu::Layout::kInOrder));
    if (!store.packed()) {
      l.weight_ = unpacked(l.packed_);
      l.packed_ = {};
    }
  } else {
    TANDEM_ASSIGN_OR_RETURN(l.weight_, load_matrix(source, spec, store.rows(), store.device));
  }
  TANDEM_ASSIGN_OR_RETURN(l.bias_, load_bias(source, spec, store.rows(), store.device));
  return l;
}

void Linear::product(at::Tensor& out, const LinearInput& input, cpu::Then then,
                     Activation activation, int64_t first) const {
  const at::Tensor& x = input.x;
  const int64_t width = then == cpu::Then::kGate ? outs() / 2 : outs();
  TORCH_CHECK(out.is_contiguous() && out.size(0) == x.size(0) && out.size(1) == width,
              "product of ", x.size(0), " x ", width, " into ", out.sizes());
  const auto run = [&]<class O, class A>() {
    const auto expect = c10::CppTypeToScalarType<A>::value;
    TORCH_CHECK(x.scalar_type() == expect, expect, " products with rows of ", x.scalar_type());
    const auto data = [](const at::Tensor& t) {
      return t.defined() ? static_cast<const A*>(t.const_data_ptr()) : nullptr;
    };
    cpu::Rows<A> rows{.x = data(x), .rows = x.size(0), .in = x.size(1)};
    if (const Norm* n = input.norm; n != nullptr) {
      rows.norm = {n->kind, data(n->weight), data(n->bias), n->eps};
    }
    auto* to = static_cast<O*>(out.mutable_data_ptr());
    if constexpr (std::is_same_v<O, float> && std::is_same_v<A, float>) {
      if (!quantized_.empty()) {
        return cpu::product(to, rows, quantized_, data(bias_), then, activation, first);
      }
    }
    cpu::product(to, rows, packed_, data(bias_), then, activation, first);
  };
  const bool exact = packed_.type() == cpu::WeightType::kDouble;
  if (exact && out.scalar_type() == at::kDouble) return run.operator()<double, double>();
  TORCH_CHECK(out.scalar_type() == at::kFloat, "product into ", out.scalar_type());
  exact ? run.operator()<float, double>() : run.operator()<float, float>();
}

int64_t Linear::packed_bytes() const {
  if (ops_ == nullptr || ops_->pack == nullptr || !weight_.defined()) return 0;
  return static_cast<int64_t>(weight_.element_size()) *
         ops_->packed_numbers(weight_.size(0), weight_.size(1), weight_.scalar_type(), pairs_);
}

void Linear::pack() {
  if (packed_bytes() > 0) tiles_ = ops_->pack(weight_, pairs_);
}

bool Linear::few_rows(at::Tensor& out, const LinearInput& input, ProductThen then,
                      Activation activation, int64_t first) const {
  const int64_t most = tiles_.defined() ? kMostPackedRows : !blocks_.empty() ? kMostBlockRows : 0;
  if (input.x.size(0) > most || pairs_ != (then == ProductThen::kGate)) return false;
  const StepProfile::Section section(StepProfile::kProduct);
  if (!blocks_.empty()) {
    ops_->block_product(out, input.x,
                        {.parts = blocks_,
                         .bias = bias_,
                         .norm = input.norm,
                         .normed = input.normed,
                         .then = then,
                         .activation = activation,
                         .first = first});
    return true;
  }
  ops_->packed_product(out, input.x,
                       {.weights = tiles_,
                        .outs = outs(),
                        .bias = bias_,
                        .norm = input.norm,
                        .normed = input.normed,
                        .then = then,
                        .activation = activation,
                        .first = first});
  return true;
}

void Linear::into(at::Tensor& out, const LinearInput& input, int64_t first) const {
  if (is_packed()) {
    const StepProfile::Section section(StepProfile::kProduct);
    return product(out, input, cpu::Then::kStore, Activation::kSilu, first);
  }
  if (few_rows(out, input, ProductThen::kStore, Activation::kSilu, first)) return;
  const at::Tensor& x = rows(input);
  const StepProfile::Section section(StepProfile::kProduct);
  const at::Tensor weight = numbers();
  if (x.is_cpu() || x.scalar_type() == at::kDouble) {
    out.copy_(at::linear(x, weight, bias_));
  } else if (out.scalar_type() != x.scalar_type()) {
    at::mm_out(out, x, weight.t(), out.scalar_type());
    if (bias_.defined()) out.add_(bias_);
  } else if (bias_.defined()) {
    at::addmm_out(out, bias_, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
}

void Linear::add_to(at::Tensor& residual, const LinearInput& input, at::Tensor& scratch) const {
  if (is_packed()) {
    const StepProfile::Section section(StepProfile::kProduct);
    return product(residual, input, cpu::Then::kAdd);
  }
  if (few_rows(residual, input, ProductThen::kAdd)) return;
  const at::Tensor& x = rows(input);
  const StepProfile::Section section(StepProfile::kProduct);
  if (x.is_cpu()) {
    residual.add_(at::linear(x, numbers(), bias_));
  } else if (residual.scalar_type() == x.scalar_type()) {
    residual.addmm_(x, numbers().t());
    if (bias_.defined()) residual.add_(bias_);
  } else {
    into(scratch, x);
    residual.add_(scratch);
  }
}

void Linear::activate_into(at::Tensor& out, const LinearInput& input, Activation activation) const {
  if (few_rows(out, input, ProductThen::kActivate, activation)) return;
  into(out, input);
  ops_->activate(out, activation);
}

void Linear::gate_into(at::Tensor& out, const LinearInput& input, Activation activation,
                       RowBuffer& scratch) const {
  if (is_packed()) {
    const StepProfile::Section section(StepProfile::kProduct);
    return product(out, input, cpu::Then::kGate, activation);
  }
  if (few_rows(out, input, ProductThen::kGate, activation)) return;
  at::Tensor& both = scratch.rows(out.size(0));
  into(both, input);
  ops_->gate(out, both, activation);
}

at::Tensor Linear::numbers() const {
  if (blocks_.empty()) return weight_;
  const at::TensorOptions like = blocks_.front().data.options();
  at::Tensor all = at::empty({outs(), in()}, like.dtype(rows_));
  int64_t first = 0;
  for (const BlockMatrix& part : blocks_) {
    at::Tensor some = all.narrow(0, first, part.outs);
    ops_->unpack_blocks(some, part, nullptr);
    first += part.outs;
  }
  return all;
}

void Linear::look_up(at::Tensor& to, const int32_t* row) const {
  const StepProfile::Section section(StepProfile::kEmbed);
  if (!blocks_.empty()) {
    TORCH_CHECK(blocks_.size() == 1, "an embedding in several parts");
    return ops_->unpack_blocks(to, blocks_.front(), row);
  }
  const int64_t in = this->in();
  const auto each = [&]<class R>(R* out) {
    cpu::parallel_for(to.size(0), std::max<int64_t>(1, 4096 / in),
                      [=, this](int64_t r, int64_t end) {
                        for (; r < end; ++r) {
                          if (row[r] < 0) continue;
                          if constexpr (std::is_same_v<R, float>) {
                            if (!quantized_.empty()) {
                              quantized_.unpack(row[r], out + r * in);
                              continue;
                            }
                          }
                          packed_.unpack(row[r], out + r * in);
                        }
                      });
  };
  if (to.scalar_type() == at::kDouble) {
    each(static_cast<double*>(to.mutable_data_ptr()));
  } else {
    each(static_cast<float*>(to.mutable_data_ptr()));
  }
}

int Linear::most_rows() const {
  return blocks_.empty() ? std::numeric_limits<int>::max() : kMostBlockRows;
}

int64_t Linear::in() const {
  if (weight_.defined()) return weight_.size(1);
  if (!blocks_.empty()) return blocks_.front().in;
  return packed_.empty() ? quantized_.in() : packed_.in();
}

int64_t Linear::outs() const {
  if (weight_.defined()) return weight_.size(0);
  if (!blocks_.empty()) return sum_of(blocks_, [](const BlockMatrix& m) { return m.outs; });
  return packed_.empty() ? quantized_.outs() : packed_.outs();
}

int64_t Linear::parameters() const {
  const int64_t weights = weight_.numel() + packed_.outs() * packed_.in() +
                          quantized_.outs() * quantized_.in() +
                          sum_of(blocks_, [](const BlockMatrix& m) { return m.outs * m.in; });
  return weights + (bias_.defined() ? bias_.numel() : 0);
}

int64_t Linear::bytes() const {
  const auto of = [](const at::Tensor& t) {
    return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  };
  return (packed_.empty() ? 0 : packed_.bytes()) + quantized_.bytes() + of(weight_) + of(bias_) +
         sum_of(blocks_, [&](const BlockMatrix& m) { return of(m.data); });
}

}  // namespace tandem
