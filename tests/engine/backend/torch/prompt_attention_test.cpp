// Attention of long chunks of prompts by a library, here LibTorch's on the CPU, over keys and
// values gathered from pages. prompt_chunks_test.cpp runs the device's own library.
#include "engine/backend/torch/prompt_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/platform.h"
#include "tests/engine/backend/torch/cpu/attention_case.h"

namespace tandem {
namespace {

using Sizes = std::vector<std::pair<int, int>>;  // past and added rows of the sequences

struct Piece {
  int first, rows;
  bool chunk;
  int most_keys, together;

  friend bool operator==(const Piece&, const Piece&) = default;
};

std::vector<Piece> pieces(const RowColumns& columns) {
  std::vector<Piece> all;
  for (const RowPiece& p : pieces_of(columns)) {
    all.push_back({p.first, p.rows, p.chunk, p.most_keys, p.together});
  }
  return all;
}

AttentionShape chains(int window = 0) { return {.window = window, .tree = false}; }

TEST(PromptPieces, LongChainsAreChunks) {
  const AttentionCase c(chains(), {{0, 70}, {130, 1}, {9, 3}, {40, 17}, {9, 16}}, 1);
  EXPECT_EQ(pieces(c.columns), (std::vector<Piece>{{0, 70, true, 70, 70},
                                                   {70, 4, false, 131, 3},
                                                   {74, 17, true, 57, 17},
                                                   {91, 16, false, 25, 16}}));
  const AttentionCase alone(chains(), {{100, 65}}, 2);
  EXPECT_EQ(pieces(alone.columns), (std::vector<Piece>{{0, 65, true, 165, 65}}));
}

TEST(PromptPieces, OtherRowsAreNot) {
  EXPECT_TRUE(pieces_of(AttentionCase(chains(), {{0, 16}}, 1).columns).empty());
  EXPECT_TRUE(pieces_of(AttentionCase(chains(), {{10, 16}, {20, 16}}, 1).columns).empty());
  EXPECT_TRUE(pieces_of(AttentionCase({.tree = true}, {{3, 90}}, 1).columns).empty());
  EXPECT_TRUE(pieces_of(AttentionCase({.cross = true}, {{90, 90}}, 1).columns).empty());
  RowColumns both_ways = AttentionCase(chains(), {{0, 70}}, 1).columns;
  both_ways.near_first.resize(70);
  EXPECT_TRUE(pieces_of(both_ways).empty());
}

// The plan's window cuts off keys from the 81st row on.
TEST(PromptPieces, AChunkEndsWhereTheWindowBegins) {
  const AttentionCase c(chains(/*window=*/80), {{0, 200}}, 1);
  EXPECT_EQ(pieces(c.columns),
            (std::vector<Piece>{{0, 80, true, 80, 80}, {80, 120, false, 200, 120}}));
}

TEST(PromptPieces, ATreeBehindAChainIsNoPartOfIt) {
  AttentionCase c(chains(), {{5, 100}}, 1);
  // The last row is a sibling of the one before.
  c.columns.dense_end[99] = 104;
  c.columns.extra_begin[99] = 0;
  c.columns.extra_end[99] = 1;
  EXPECT_EQ(pieces(c.columns),
            (std::vector<Piece>{{0, 99, true, 104, 99}, {99, 1, false, 105, 1}}));
}

// Pages as on CUDA: [pages, kv_heads, page_rows, head_dim].
int gathers = 0;
void gather(at::Tensor& to, const RowView& rows, int row, const LayerKv& kv, int first_head) {
  ++gathers;
  for (int64_t key = 0; key < to.size(2); ++key) {
    const int64_t page = rows.pages[rows.table[row] + key / rows.page_rows];
    for (int kind = 0; kind < 2; ++kind) {
      const at::Tensor& from = kind == 0 ? kv.keys : kv.values;
      to.select(0, kind).select(1, key).copy_(
          from.select(0, page).select(1, key % rows.page_rows).narrow(0, first_head, to.size(1)));
    }
  }
}

void attend(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
            double scale, int window) {
  const int64_t rows = q.size(0), n = keys.size(1);
  at::Tensor mask = at::ones({rows, n}, at::kBool).tril(n - rows);
  if (window > 0)
    mask = mask.logical_and(at::ones({rows, n}, at::kBool).triu(n - rows - window + 1));
  const int64_t group = q.size(1) / keys.size(0);
  const auto heads = [&](const at::Tensor& t) {
    return t.repeat_interleave(group, 0).unsqueeze(0);
  };
  out.copy_(at::scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), heads(keys),
                                             heads(values), mask, 0, false, scale)
                .squeeze(0)
                .transpose(0, 1));
}

int other_rows = 0;
void others(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
            double scale, const DistanceBias& bias) {
  EXPECT_EQ(rows.pieces, nullptr);
  other_rows += rows.rows;
  const at::Tensor keys = kv.keys.transpose(2, 3).contiguous();
  cpu_ops().attention(out, qkv, rows, {kv.heads, kv.kv_heads, kv.head_dim, keys, kv.values}, scale,
                      bias);
}

class PromptAttentionOf : public testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Heads, PromptAttentionOf,
                         testing::Values(std::pair(4, 4), std::pair(6, 2), std::pair(7, 1)),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "_on_" +
                                  std::to_string(info.param.second);
                         });

TEST_P(PromptAttentionOf, IsTheOwnAttention) {
  const c10::InferenceMode inference;
  at::manual_seed(3);
  const auto [heads, kv_heads] = GetParam();
  const Sizes sizes{{0, 70}, {33, 1}, {200, 90}, {7, 3}, {1, 65}, {30, 17}};
  constexpr int kChunks = 4, kOthers = 4, kDim = 16;
  for (const int page_rows : {4, 16}) {
    for (const int window : {0, 30, 1000}) {
      const AttentionShape s{heads, kv_heads, kDim, page_rows, 0, /*tree=*/false};
      const AttentionCase c(s, sizes, static_cast<uint64_t>(page_rows + window));
      // Rows that no sequence has are NaN.
      at::Tensor keys = at::full({c.page_count, kv_heads, page_rows, kDim}, NAN);
      at::Tensor values = keys.clone();
      for (size_t q = 0; q < sizes.size(); ++q) {
        for (int row = 0; row < c.cache_rows[q]; ++row) {
          const int page = c.page_of[q][static_cast<size_t>(row / page_rows)];
          keys.select(0, page).select(1, row % page_rows).copy_(at::randn({kv_heads, kDim}));
          values.select(0, page).select(1, row % page_rows).copy_(at::randn({kv_heads, kDim}));
        }
      }
      const at::Tensor qkv = at::randn({c.rows(), (heads + 2 * kv_heads) * kDim});
      const std::vector<RowPiece> all = pieces_of(c.columns);
      RowView rows = c.view();
      rows.window = window;
      rows.pieces = all.data();
      rows.piece_count = static_cast<int>(all.size());
      at::Tensor want = at::empty({c.rows(), heads * kDim});
      const at::Tensor by_dimension = keys.transpose(2, 3).contiguous();
      cpu_ops().attention(want, qkv, rows, {heads, kv_heads, kDim, by_dimension, values}, c.scale(),
                          {});
      // All heads at once, and two and one at a time.
      const int64_t bytes_of_head = int64_t{2} * 290 * kDim * 4;
      for (const int at_once : {kv_heads, 2, 1}) {
        at::Tensor got = at::full({c.rows(), heads * kDim}, NAN);
        gathers = other_rows = 0;
        attend_pieces({gather, attend, others}, got, qkv, rows,
                      {heads, kv_heads, kDim, keys, values}, c.scale(), at_once * bytes_of_head);
        EXPECT_EQ(other_rows, kOthers);
        EXPECT_GE(gathers, kChunks - 1 + (kv_heads + at_once - 1) / at_once);
        EXPECT_LT((got - want).abs().max().item<double>(), 1e-5)
            << "window " << window << ", page_rows " << page_rows << ", at once " << at_once;
      }
    }
  }
}

TEST(PromptAttention, ScratchIsBounded) {
  EXPECT_EQ(gathered_bytes(32, 128, 4096, 2), int64_t{64} << 20);
  EXPECT_EQ(gathered_bytes(32, 128, 32768, 2), kMostGatheredBytes);
  EXPECT_EQ(gathered_bytes(8, 128, int64_t{1} << 20, 2), int64_t{512} << 20);  // of one head
  // The CPU reads pages.
  EXPECT_EQ(cpu_platform().prompt_bytes({.layers = 2, .kv_heads = 32, .head_dim = 128}, 4096), 0);
}

}  // namespace
}  // namespace tandem
