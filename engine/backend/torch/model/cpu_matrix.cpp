// Matrices that the CPU's own products read.
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/tensor_access.h"

namespace tandem {
namespace {

cpu::Then then_of(ProductThen then) {
  return then == ProductThen::kAdd    ? cpu::Then::kAdd
         : then == ProductThen::kGate ? cpu::Then::kGate
                                      : cpu::Then::kStore;
}

// M: cpu::PackedMatrix or cpu::QuantizedMatrix
template <class M>
class CpuMatrix final : public WeightMatrix {
 public:
  CpuMatrix(M matrix, const Ops& ops) : matrix_(std::move(matrix)), ops_(ops) {}

  int64_t in() const override { return matrix_.in(); }
  int64_t outs() const override { return matrix_.outs(); }
  int64_t bytes() const override { return matrix_.bytes(); }

  void multiply(at::Tensor& out, const LinearInput& x, const Epilogue& e,
                const ProductScratch& /*scratch*/) const override {
    {
      const StepProfile::Section section(StepProfile::kProduct);
      product(out, x, e);
    }
    if (e.then == ProductThen::kActivate) ops_.activate(out, e.activation);
  }

  void look_up(at::Tensor& to, const int32_t* row) const override {
    const StepProfile::Section section(StepProfile::kEmbed);
    if constexpr (std::is_same_v<M, cpu::PackedMatrix>) {
      if (to.scalar_type() == at::kDouble) return unpack_rows(data<double>(to), to.size(0), row);
    }
    unpack_rows(data<float>(to), to.size(0), row);
  }

 private:
  void product(at::Tensor& out, const LinearInput& input, const Epilogue& e) const {
    const at::Tensor& x = input.x;
    const int64_t width = e.then == ProductThen::kGate ? outs() / 2 : outs();
    TORCH_CHECK(out.is_contiguous() && out.size(0) == x.size(0) && out.size(1) == width,
                "product of ", x.size(0), " x ", width, " into ", out.sizes());
    if constexpr (std::is_same_v<M, cpu::PackedMatrix>) {
      if (matrix_.type() == cpu::WeightType::kDouble) {
        return out.scalar_type() == at::kDouble ? product_in<double, double>(out, input, e)
                                                : product_in<float, double>(out, input, e);
      }
    }
    product_in<float, float>(out, input, e);
  }

  // O: of the result, A: of rows
  template <class O, class A>
  void product_in(at::Tensor& out, const LinearInput& input, const Epilogue& e) const {
    const at::Tensor& x = input.x;
    const auto rows_type = c10::CppTypeToScalarType<A>::value;
    TORCH_CHECK(x.scalar_type() == rows_type, rows_type, " products with rows of ",
                x.scalar_type());
    TORCH_CHECK(out.scalar_type() == c10::CppTypeToScalarType<O>::value, "product into ",
                out.scalar_type());
    cpu::Rows<A> rows{.x = data<A>(x), .rows = x.size(0), .in = x.size(1)};
    if (const Norm* n = input.norm; n != nullptr) {
      rows.norm = {n->kind, data<A>(n->weight), data<A>(n->bias), n->eps};
    }
    cpu::AddedRows<A> added;
    if (e.added != nullptr) added = {data<A>(std::as_const(e.added->sums)), e.added->row};
    cpu::product(data<O>(out), rows, matrix_, data<A>(e.bias), then_of(e.then), e.activation,
                 e.columns, e.added == nullptr ? nullptr : &added);
  }

  template <class R>
  void unpack_rows(R* to, int64_t rows, const int32_t* row) const {
    const int64_t in = matrix_.in();
    cpu::parallel_for(rows, std::max<int64_t>(1, 4096 / in), [=, this](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        if (row[r] >= 0) matrix_.unpack(row[r], to + r * in);
      }
    });
  }

  const M matrix_;
  const Ops& ops_;
};

}  // namespace

std::unique_ptr<WeightMatrix> make_matrix(cpu::PackedMatrix matrix, const Ops& ops) {
  return std::make_unique<CpuMatrix<cpu::PackedMatrix>>(std::move(matrix), ops);
}

std::unique_ptr<WeightMatrix> make_matrix(cpu::QuantizedMatrix matrix, const Ops& ops) {
  return std::make_unique<CpuMatrix<cpu::QuantizedMatrix>>(std::move(matrix), ops);
}

}  // namespace tandem
