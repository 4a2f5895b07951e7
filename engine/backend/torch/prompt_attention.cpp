#include "engine/backend/torch/prompt_attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace tandem {
namespace {

// Whether row r sees exactly the first rows of its sequence.
bool is_dense(const RowColumns& c, size_t r) {
  return c.first_key[r] == 0 && c.extra_begin[r] == c.extra_end[r];
}

bool follows(const RowColumns& c, size_t r) {
  return is_dense(c, r) && c.table[r] == c.table[r - 1] && c.dense_end[r] == c.dense_end[r - 1] + 1;
}

int64_t bytes_of_head(int head_dim, int64_t keys, int64_t element) {
  return 2 * keys * head_dim * element;
}

void attend_chunk(const PromptAttention& by, at::Tensor& out, const at::Tensor& qkv,
                  const RowView& rows, const RowPiece& chunk, const LayerKv& kv, double scale,
                  int64_t most_bytes) {
  const int keys = chunk.most_keys;
  const int64_t group = kv.heads / kv.kv_heads;
  const int64_t bytes =
      bytes_of_head(kv.head_dim, keys, static_cast<int64_t>(kv.keys.element_size()));
  const auto at_once =
      static_cast<int>(std::clamp<int64_t>(most_bytes / bytes, 1, int64_t{kv.kv_heads}));
  const int window = rows.window < keys ? rows.window : 0;
  const auto heads_of = [&](const at::Tensor& t) {
    return t.narrow(0, chunk.first, chunk.rows)
        .narrow(1, 0, int64_t{kv.heads} * kv.head_dim)
        .view({chunk.rows, kv.heads, kv.head_dim});
  };
  const at::Tensor queries = heads_of(qkv);
  const at::Tensor sums = heads_of(out);
  for (int first = 0; first < kv.kv_heads; first += at_once) {
    const int heads = std::min(at_once, kv.kv_heads - first);
    at::Tensor gathered = at::empty({2, heads, keys, kv.head_dim}, kv.keys.options());
    by.gather(gathered, rows, chunk.first, kv, first);
    at::Tensor to = sums.narrow(1, first * group, heads * group);
    by.attend(to, queries.narrow(1, first * group, heads * group), gathered.select(0, 0),
              gathered.select(0, 1), scale, window);
  }
}

}  // namespace

std::vector<RowPiece> pieces_of(const RowColumns& c) {
  std::vector<RowPiece> pieces;
  const auto n = static_cast<size_t>(c.rows());
  if (n <= kMostShortRows || !c.near_first.empty()) return pieces;
  const auto add = [&](size_t first, size_t end, bool chunk) {
    if (first == end) return;
    pieces.push_back({static_cast<int>(first), static_cast<int>(end - first), chunk,
                      c.most_keys(first, end), RowColumns::together(c.table, first, end)});
  };
  size_t rest = 0;  // the first row behind the last chunk
  for (size_t r = 0, end = 0; r < n; r = end) {
    end = r + 1;
    if (!is_dense(c, r)) continue;
    while (end < n && follows(c, end)) ++end;
    if (end - r <= kMostShortRows) continue;
    add(rest, r, false);
    add(r, end, true);
    rest = end;
  }
  if (rest > 0) add(rest, n, false);
  return pieces;
}

int64_t gathered_bytes(int kv_heads, int head_dim, int64_t keys, int64_t element) {
  const int64_t head = bytes_of_head(head_dim, keys, element);
  return std::min(head * kv_heads, std::max(head, kMostGatheredBytes));
}

void attend_pieces(const PromptAttention& by, at::Tensor& out, const at::Tensor& qkv,
                   const RowView& rows, const LayerKv& kv, double scale, int64_t most_bytes) {
  for (int i = 0; i < rows.piece_count; ++i) {
    const RowPiece& piece = rows.pieces[i];
    if (piece.chunk) {
      attend_chunk(by, out, qkv, rows, piece, kv, scale, most_bytes);
      continue;
    }
    at::Tensor part = out.narrow(0, piece.first, piece.rows);
    by.others(part, qkv.narrow(0, piece.first, piece.rows), rows.part(piece), kv, scale, {});
  }
}

}  // namespace tandem
