// LoRA adapters in the form that kernels read: the matrices of an adapter, and which rows have it.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

inline constexpr int kMostLoraMatrices = 3;  // of a stacked layer: queries, keys, values

// One adapter's additions to a stacked linear layer: to the columns of matrix m, scale[m] * b[m]^T
// of those numbers of a x that belong to m. In the memory of the kernels' device.
// Numbers: a pointer to numbers of type R (ops.h)
template <class Numbers>
struct LoraMatrices {
  Numbers a = nullptr;  // [ranks of all matrices, in]; null: the adapter does not change the layer
  Numbers b[kMostLoraMatrices] = {};           // [rank, columns]; null: no addition to the matrix
  int32_t rank_end[kMostLoraMatrices] = {};    // matrix m has ranks [rank_end[m - 1] or 0, this)
  int32_t column_end[kMostLoraMatrices] = {};  // the same for its columns
  double scale[kMostLoraMatrices] = {};
};
using LoraLayer = LoraMatrices<const void*>;

// The adapters of a batch's rows on the host.
struct LoraColumns {
  // [rows] the adapter's layers, in the kernels' memory: part p of layer i is element
  // i * kLoraParts + p. Null: the row has no adapter.
  std::vector<const LoraLayer*> adapter;
  std::vector<int32_t> added;  // [rows] the row's own number; -1: it has no adapter
  int rank = 0;                // at least that of every matrix; 0: no row has an adapter
  uint32_t parts = 0;          // bit p: an adapter changes LoraPart p
};

// The same for kernels. Both arrays are in their memory.
struct LoraView {
  const LoraLayer* const* adapter = nullptr;
  const int32_t* added = nullptr;
  int rank = 0;
  uint32_t parts = 0;
};

}  // namespace tandem
