// Low-rank additions of LoRA adapters on the CPU: y += scale * B (A x), each row with its own A and
// B.
//
// Few rows have the same adapter, so time is spent on reading A and B. They are kept in the type of
// their file and widened in registers; rows and sums are fp32. One parallel loop computes all
// additions to a layer: a thread takes all rows of an adapter, up to kUnitRows of them, first A,
// then B. If there are too few such units for the threads, two loops divide ranks and then columns.
//
// A row's additions have the same bits in any batch, at any index and for any number of threads: a
// rank is summed in vectors over the inputs in ascending order, a column over the ranks in
// ascending order. Bits may differ between instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/prepared_rows.h"

namespace tandem::cpu {

// Numbers of A and B are in blocks: of consecutive inputs of a rank, and of consecutive columns of
// a rank. Numbers i and i + kLowRankBlock / 2 of a block of bf16 are neighbours; others are in
// order. The last block is filled with zeros.
inline constexpr int64_t kLowRankBlock = 32;

// One adapter's additions to a stacked linear layer. The memory belongs to others.
struct LowRankLayer {
  // To consecutive columns.
  struct Matrix {
    WeightType type = WeightType::kFloat;  // not kInt8; kDouble if A is
    const std::byte* b = nullptr;  // [blocks of columns, rank, kLowRankBlock]; null: no additions
    int64_t rank = 0;
    int64_t first_rank = 0;
    int64_t first_column = 0;
    int64_t columns = 0;
    double scale = 1;
  };
  WeightType type = WeightType::kFloat;
  const std::byte* a = nullptr;    // [ranks, blocks of inputs, kLowRankBlock]
  const std::byte* end = nullptr;  // of A and all B, which lie behind each other
  int64_t ranks = 0;               // of all matrices
  int64_t in = 0;
  std::vector<Matrix> matrices;  // in the order of their columns, which are those of the layer
};

// The bytes of A, of [ranks, in], and of B, of [columns, rank]. Multiples of 64.
int64_t low_rank_a_bytes(WeightType type, int64_t ranks, int64_t in);
int64_t low_rank_b_bytes(WeightType type, int64_t columns, int64_t rank);
// Set rows [first, first + n) of A, [ranks, in], or of B, [columns, rank]. from: [n, in] or [n,
// rank], of the element type (bf16 and fp16 as uint16_t); to: all of the matrix, zeros at first
void pack_low_rank_a(std::byte* to, WeightType type, int64_t in, int64_t first, int64_t n,
                     const void* from);
void pack_low_rank_b(std::byte* to, WeightType type, int64_t rank, int64_t first, int64_t n,
                     const void* from);

// The rows that one adapter changes.
struct LowRankRows {
  const LowRankLayer* layer = nullptr;
  const int64_t* rows = nullptr;  // [n] of x, ascending
  int64_t n = 0;
};

// to[r] += the additions for each row r of the groups. to: [x.rows, width]
void add_low_rank(float* to, int64_t width, const Rows<float>& x,
                  std::span<const LowRankRows> groups);
void add_low_rank(double* to, int64_t width, const Rows<double>& x,
                  std::span<const LowRankRows> groups);
// to[i] = the additions for the i-th row of the groups, in their order. to: [rows of all groups,
// width]
void low_rank_sums(float* to, int64_t width, const Rows<float>& x,
                   std::span<const LowRankRows> groups);
void low_rank_sums(double* to, int64_t width, const Rows<double>& x,
                   std::span<const LowRankRows> groups);

}  // namespace tandem::cpu
