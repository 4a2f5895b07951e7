// Matrices that the CPU's own products read.
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/backend/torch/cpu/argmax_screen.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/tensor_access.h"
#include "engine/backend/torch/weights/gguf/round_blocks.h"

namespace tandem {
namespace {

cpu::Then then_of(ProductThen then) {
  return then == ProductThen::kAdd    ? cpu::Then::kAdd
         : then == ProductThen::kGate ? cpu::Then::kGate
                                      : cpu::Then::kStore;
}

// M: cpu::PackedMatrix or cpu::QuantizedMatrix
template <class M>
class CpuMatrix : public WeightMatrix {
 public:
  CpuMatrix(std::shared_ptr<const M> matrix, const Ops& ops)
      : matrix_(std::move(matrix)), ops_(ops) {}

  int64_t in() const override { return matrix_->in(); }
  int64_t outs() const override { return matrix_->outs(); }
  int64_t bytes() const override { return matrix_->bytes(); }

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

 protected:
  const std::shared_ptr<const M>& matrix() const { return matrix_; }
  const Ops& ops() const { return ops_; }

  template <class A>
  static cpu::Rows<A> rows_of(const LinearInput& input) {
    const at::Tensor& x = input.x;
    cpu::Rows<A> rows{.x = data<A>(x), .rows = x.size(0), .in = x.size(1)};
    if (const Norm* n = input.norm; n != nullptr) {
      rows.norm = {n->kind, data<A>(n->weight), data<A>(n->bias), n->eps};
    }
    return rows;
  }

 private:
  void product(at::Tensor& out, const LinearInput& input, const Epilogue& e) const {
    const at::Tensor& x = input.x;
    const int64_t width = e.then == ProductThen::kGate ? outs() / 2 : outs();
    TORCH_CHECK(out.is_contiguous() && out.size(0) == x.size(0) && out.size(1) == width,
                "product of ", x.size(0), " x ", width, " into ", out.sizes());
    if constexpr (std::is_same_v<M, cpu::PackedMatrix>) {
      if (matrix_->type() == cpu::WeightType::kDouble) {
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
    cpu::AddedRows<A> added;
    if (e.added != nullptr) added = {data<A>(std::as_const(e.added->sums)), e.added->row};
    cpu::product(data<O>(out), rows_of<A>(input), *matrix_, data<A>(e.bias), then_of(e.then),
                 e.activation, e.columns, e.added == nullptr ? nullptr : &added);
  }

  template <class R>
  void unpack_rows(R* to, int64_t rows, const int32_t* row) const {
    const int64_t in = matrix_->in();
    cpu::parallel_for(rows, std::max<int64_t>(1, 4096 / in), [=, this](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        if (row[r] >= 0) matrix_->unpack(row[r], to + r * in);
      }
    });
  }

  const std::shared_ptr<const M> matrix_;
  const Ops& ops_;
};

using CpuBlocks = CpuMatrix<cpu::QuantizedMatrix>;

// Rounds every row to Q4_0. Empty: a scale overflows fp16.
cpu::QuantizedMatrix rounded_to_4_bits(const cpu::QuantizedMatrix& from) {
  const auto in = static_cast<size_t>(from.in());
  cpu::QuantizedMatrix to({{cpu::QuantType::kQ40, from.outs()}}, from.in());
  const auto bytes =
      in / 32 * static_cast<size_t>(quant_format(cpu::QuantType::kQ40).block_bytes());
  std::atomic<bool> overflows = false;
  cpu::parallel_for(from.outs(), cpu::QuantizedMatrix::kUnit, [&](int64_t row, int64_t end) {
    std::vector<float> values(in);
    std::vector<std::byte> blocks(bytes);
    for (; row < end; ++row) {
      from.unpack(row, values.data());
      if (!round_row(BlockType::kQ40, values, blocks.data(), /*quick=*/true)) overflows = true;
      to.pack(row, blocks.data());
    }
  });
  return overflows ? cpu::QuantizedMatrix() : std::move(to);
}

// An output matrix with a copy that finds greatest elements. The copy is released if most products
// read most of the matrix all the same.
class ScreenedMatrix final : public CpuBlocks {
 public:
  ScreenedMatrix(std::shared_ptr<const cpu::QuantizedMatrix> matrix,
                 std::shared_ptr<const cpu::ArgmaxScreen> screen, const Ops& ops)
      : CpuBlocks(std::move(matrix), ops), screen_(std::move(screen)) {}

  void multiply(at::Tensor& out, const LinearInput& x, const Epilogue& e,
                const ProductScratch& scratch) const override {
    const int64_t rows = e.columns.whole > 0 ? e.columns.whole : x.x.size(0);
    const auto screen = screen_.load();
    if (e.columns.argmax == 0 || e.then != ProductThen::kStore || e.bias.defined() ||
        rows > cpu::ArgmaxScreen::kMostRows || screen == nullptr || !shares_.next(rows)) {
      return CpuBlocks::multiply(out, x, e, scratch);
    }
    const StepProfile::Section section(StepProfile::kProduct);
    shares_.add(rows, screen->product(data<float>(out), rows_of<float>(x), *matrix(), e.columns));
    if (shares_.hopeless()) screen_.store(nullptr);
  }

 private:
  mutable std::atomic<std::shared_ptr<const cpu::ArgmaxScreen>> screen_;
  mutable cpu::ScreenShares shares_;
};

// An output matrix, or an embedding.
class TokenMatrix final : public CpuBlocks {
 public:
  using CpuBlocks::CpuBlocks;

  int64_t packed_bytes() const override {
    constexpr int64_t kLeastBytes = 4 << 20;  // with less, a screen takes as long
    if (bytes() < kLeastBytes || !cpu::ArgmaxScreen::suits(*matrix())) return 0;
    return cpu::ArgmaxScreen::bytes_for(outs(), in());
  }
  std::unique_ptr<WeightMatrix> packed() const override {
    if (packed_bytes() == 0) return nullptr;
    cpu::QuantizedMatrix copy = rounded_to_4_bits(*matrix());
    if (copy.empty()) return nullptr;
    return std::make_unique<ScreenedMatrix>(
        matrix(), std::make_shared<cpu::ArgmaxScreen>(std::move(copy), *matrix()), ops());
  }
};

}  // namespace

std::unique_ptr<WeightMatrix> make_matrix(cpu::PackedMatrix matrix, const Ops& ops) {
  return std::make_unique<CpuMatrix<cpu::PackedMatrix>>(
      std::make_shared<const cpu::PackedMatrix>(std::move(matrix)), ops);
}

std::unique_ptr<WeightMatrix> make_matrix(cpu::QuantizedMatrix matrix, bool tokens,
                                          const Ops& ops) {
  auto shared = std::make_shared<const cpu::QuantizedMatrix>(std::move(matrix));
  if (tokens) return std::make_unique<TokenMatrix>(std::move(shared), ops);
  return std::make_unique<CpuBlocks>(std::move(shared), ops);
}

}  // namespace tandem
