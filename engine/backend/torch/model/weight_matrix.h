// A weight matrix in one of the forms that products read, with one class per form.
//
// On CPU, products are this project's own (cpu/product.h) and read weights packed at load; rows
// between layers are fp32 (fp64 for fp64 weights). On CUDA, rows have the weights' type. Products
// are LibTorch's, or this project's for few rows of packed weights. Weights in blocks of 4 to 8
// bits stay in blocks; rows are bf16 then, and products of more than kMostBlockRows rows unpack the
// matrix for LibTorch's. Weights in fp8 have products of LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/ops.h"

namespace tandem {

// Scratch of a product, [rows, outs] of the rows' type.
struct ProductScratch {
  at::Tensor* sums = nullptr;  // of kAdd
  RowBuffer* pairs = nullptr;  // of kGate: both halves
};

class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;
  WeightMatrix(const WeightMatrix&) = delete;
  WeightMatrix& operator=(const WeightMatrix&) = delete;

  virtual int64_t in() const = 0;
  virtual int64_t outs() const = 0;
  virtual int64_t bytes() const = 0;  // without a packed copy

  // Applies the epilogue to x W^T. x: [rows, in]. out: [rows, outs], of kGate [rows, outs / 2]; of
  // the rows' type or fp32, of kAdd of the residual stream's.
  virtual void multiply(at::Tensor& out, const LinearInput& x, const Epilogue& e,
                        const ProductScratch& scratch) const = 0;

  // to[r] = W[row[r]] if row[r] >= 0. to: [rows, in] of WeightStore::residual()
  virtual void look_up(at::Tensor& to, const int32_t* row) const = 0;

  // The most rows of a product that does not unpack the whole matrix.
  virtual int most_rows() const { return std::numeric_limits<int>::max(); }
  // The matrix as a tensor, [outs, in]; undefined: it is stored in another form.
  virtual at::Tensor tensor() const { return {}; }

  // A second copy of the weights for products of few rows, on CPUs for those of Columns::argmax:
  // the bytes it takes, 0: there is no such product; and this matrix with it.
  virtual int64_t packed_bytes() const { return 0; }
  virtual std::unique_ptr<WeightMatrix> packed() const { return nullptr; }

 protected:
  WeightMatrix() = default;
};

// For cpu::product(). ops: for activations
std::unique_ptr<WeightMatrix> make_matrix(cpu::PackedMatrix matrix, const Ops& ops);
// tokens: an output matrix or embedding
std::unique_ptr<WeightMatrix> make_matrix(cpu::QuantizedMatrix matrix, bool tokens, const Ops& ops);
// For LibTorch's products. weight: [outs, in]; pairs: as Ops::packed_numbers()
std::unique_ptr<WeightMatrix> make_matrix(at::Tensor weight, bool pairs, const Ops& ops);
// For Ops::block_product(): a copy in the memory of `device`. rows: WeightStore::rows()
std::unique_ptr<WeightMatrix> make_matrix(const cpu::QuantizedMatrix& matrix, at::Device device,
                                          at::ScalarType rows, const Ops& ops);
// For Ops::fp8_product().
std::unique_ptr<WeightMatrix> make_matrix(Fp8Weights weights, const Ops& ops);

}  // namespace tandem
