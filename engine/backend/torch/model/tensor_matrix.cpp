// Matrices that products of a table of operations (ops.h) read: a tensor, a tensor with a copy
// packed for few rows, blocks, and fp8.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/profile.h"

namespace tandem {
namespace {

int64_t bytes_of(const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); }

// Products of few rows by a kernel, others by LibTorch.
class OpsMatrix : public WeightMatrix {
 public:
  OpsMatrix(const Ops& ops, bool pairs) : ops_(ops), pairs_(pairs) {}

  void multiply(at::Tensor& out, const LinearInput& x, const Epilogue& e,
                const ProductScratch& scratch) const final {
    if (x.x.size(0) <= most_few_rows() && pairs_ == (e.then == ProductThen::kGate)) {
      const StepProfile::Section section(StepProfile::kProduct);
      return few_rows(out, x, e);
    }
    switch (e.then) {
      case ProductThen::kStore: {
        const at::Tensor& rows = rows_of(x);
        const StepProfile::Section section(StepProfile::kProduct);
        return linear(out, rows, e.bias);
      }
      case ProductThen::kAdd: {
        const at::Tensor& rows = rows_of(x);
        const StepProfile::Section section(StepProfile::kProduct);
        return add_linear(out, rows, e.bias, *scratch.sums);
      }
      case ProductThen::kActivate:
        multiply(out, x, {.bias = e.bias, .columns = e.columns}, scratch);
        return ops_.activate(out, e.activation);
      case ProductThen::kGate: {
        at::Tensor& both = scratch.pairs->rows(out.size(0));
        multiply(both, x, {.bias = e.bias, .columns = e.columns}, scratch);
        if (e.added != nullptr) ops_.add_rows(both, *e.added);
        return ops_.gate(out, both, e.activation);
      }
    }
  }

 protected:
  // The most rows of few_rows(); 0: there is no such product.
  virtual int most_few_rows() const { return 0; }
  virtual void few_rows(at::Tensor& /*out*/, const LinearInput& /*x*/,
                        const Epilogue& /*e*/) const {
    TORCH_CHECK(false, "a matrix without a product of few rows");
  }
  // As Ops::linear() and Ops::add_linear().
  virtual void linear(at::Tensor& out, const at::Tensor& rows, const at::Tensor& bias) const = 0;
  virtual void add_linear(at::Tensor& residual, const at::Tensor& rows, const at::Tensor& bias,
                          at::Tensor& scratch) const = 0;

  // The input's rows, for products that do not apply norms.
  const at::Tensor& rows_of(const LinearInput& x) const {
    if (x.norm == nullptr) return x.x;
    ops_.norm(*x.normed, x.x, *x.norm);
    return *x.normed;
  }

  const Ops& ops_;
  const bool pairs_;  // Ops::packed_numbers()
};

// Products of many rows read the matrix as a tensor.
class NumbersMatrix : public OpsMatrix {
 public:
  using OpsMatrix::OpsMatrix;

 protected:
  // [outs, in] of the rows' type
  virtual at::Tensor numbers() const = 0;

  void linear(at::Tensor& out, const at::Tensor& rows, const at::Tensor& bias) const final {
    ops_.linear(out, rows, numbers(), bias);
  }
  void add_linear(at::Tensor& residual, const at::Tensor& rows, const at::Tensor& bias,
                  at::Tensor& scratch) const final {
    ops_.add_linear(residual, rows, numbers(), bias, scratch);
  }
};

class TensorMatrix : public NumbersMatrix {
 public:
  TensorMatrix(at::Tensor weight, bool pairs, const Ops& ops)
      : NumbersMatrix(ops, pairs), weight_(std::move(weight)) {}

  int64_t in() const final { return weight_.size(1); }
  int64_t outs() const final { return weight_.size(0); }
  int64_t bytes() const final { return bytes_of(weight_); }
  at::Tensor tensor() const final { return weight_; }
  void look_up(at::Tensor& to, const int32_t* row) const final { ops_.embed(to, weight_, row); }
  int64_t packed_bytes() const final {
    if (ops_.pack == nullptr) return 0;
    return static_cast<int64_t>(weight_.element_size()) *
           ops_.packed_numbers(outs(), in(), weight_.scalar_type(), pairs_);
  }
  std::unique_ptr<WeightMatrix> packed() const final;

 protected:
  at::Tensor numbers() const final { return weight_; }

 private:
  const at::Tensor weight_;
};

// A tensor, and the same weights packed for few rows.
class TilesMatrix final : public TensorMatrix {
 public:
  TilesMatrix(const at::Tensor& weight, bool pairs, const Ops& ops)
      : TensorMatrix(weight, pairs, ops), tiles_(ops.pack(weight, pairs)) {}

 protected:
  int most_few_rows() const override { return kMostPackedRows; }
  void few_rows(at::Tensor& out, const LinearInput& x, const Epilogue& e) const override {
    ops_.packed_product(out, x, tiles_, outs(), e);
  }

 private:
  const at::Tensor tiles_;
};

std::unique_ptr<WeightMatrix> TensorMatrix::packed() const {
  if (packed_bytes() == 0) return nullptr;
  return std::make_unique<TilesMatrix>(weight_, pairs_, ops_);
}

class BlocksMatrix final : public NumbersMatrix {
 public:
  BlocksMatrix(std::vector<BlockMatrix> parts, at::ScalarType rows, bool pairs, const Ops& ops)
      : NumbersMatrix(ops, pairs), parts_(std::move(parts)), rows_(rows) {
    for (const BlockMatrix& part : parts_) {
      outs_ += part.outs;
      bytes_ += bytes_of(part.data);
    }
  }

  int64_t in() const override { return parts_.front().in; }
  int64_t outs() const override { return outs_; }
  int64_t bytes() const override { return bytes_; }
  int most_rows() const override { return kMostBlockRows; }

  void look_up(at::Tensor& to, const int32_t* row) const override {
    const StepProfile::Section section(StepProfile::kEmbed);
    TORCH_CHECK(parts_.size() == 1, "an embedding in several parts");
    ops_.unpack_blocks(to, parts_.front(), row);
  }

 protected:
  int most_few_rows() const override { return kMostBlockRows; }
  void few_rows(at::Tensor& out, const LinearInput& x, const Epilogue& e) const override {
    ops_.block_product(out, x, parts_, e);
  }
  at::Tensor numbers() const override {
    const at::TensorOptions like = parts_.front().data.options();
    at::Tensor all = at::empty({outs_, in()}, like.dtype(rows_));
    int64_t first = 0;
    for (const BlockMatrix& part : parts_) {
      at::Tensor some = all.narrow(0, first, part.outs);
      ops_.unpack_blocks(some, part, nullptr);
      first += part.outs;
    }
    return all;
  }

 private:
  const std::vector<BlockMatrix> parts_;  // their columns are concatenated
  const at::ScalarType rows_;
  int64_t outs_ = 0;
  int64_t bytes_ = 0;
};

class Fp8Matrix final : public OpsMatrix {
 public:
  Fp8Matrix(Fp8Weights weights, const Ops& ops)
      : OpsMatrix(ops, /*pairs=*/false), weights_(std::move(weights)) {}

  int64_t in() const override { return weights_.codes.size(1); }
  int64_t outs() const override { return weights_.codes.size(0); }
  int64_t bytes() const override { return bytes_of(weights_.codes) + bytes_of(weights_.scales); }
  void look_up(at::Tensor& /*to*/, const int32_t* /*row*/) const override {
    TORCH_CHECK(false, "an embedding in fp8");
  }

 protected:
  void linear(at::Tensor& out, const at::Tensor& rows, const at::Tensor& bias) const override {
    ops_.fp8_product(out, rows, weights_, bias);
  }
  void add_linear(at::Tensor& residual, const at::Tensor& rows, const at::Tensor& bias,
                  at::Tensor& scratch) const override {
    linear(scratch, rows, bias);
    residual.add_(scratch);
  }

 private:
  const Fp8Weights weights_;
};

}  // namespace

std::unique_ptr<WeightMatrix> make_matrix(at::Tensor weight, bool pairs, const Ops& ops) {
  return std::make_unique<TensorMatrix>(std::move(weight), pairs, ops);
}

std::unique_ptr<WeightMatrix> make_matrix(const cpu::QuantizedMatrix& matrix, at::Device device,
                                          at::ScalarType rows, const Ops& ops) {
  std::vector<BlockMatrix> parts;
  for (size_t i = 0; i < matrix.segments().size(); ++i) {
    parts.push_back(ops.pack_blocks(matrix, i, device));
  }
  return std::make_unique<BlocksMatrix>(std::move(parts), rows,
                                        matrix.layout() == cpu::Layout::kPairs, ops);
}

std::unique_ptr<WeightMatrix> make_matrix(Fp8Weights weights, const Ops& ops) {
  return std::make_unique<Fp8Matrix>(std::move(weights), ops);
}

}  // namespace tandem
