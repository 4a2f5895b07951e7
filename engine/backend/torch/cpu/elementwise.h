// What happens to a row between the products, on the CPU: embedding, norm, rotary embedding and
// store into the cache, SwiGLU. Plain loops that the compiler vectorizes.
//
// T: type of products' inputs and outputs, of weights and of the cache (float, double, bf16).
// R: type of the residual stream and of arithmetic (float, or double for double).
// A row's results depend on that row alone: fixed order of summation, whatever the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cpu {

// Rows of `width` numbers that make a range worth handing to another thread.
inline int64_t rows_per_range(int64_t width) { return std::max<int64_t>(1, 16384 / width); }

// x[r] = table[token[r]], where token[r] >= 0. x: [rows, width], table: [vocab, width]
template <class T, class R>
void embed(R* x, const T* table, const int32_t* token, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    if (token[r] < 0) continue;
    const T* from = table + token[r] * width;
    for (int64_t i = 0; i < width; ++i) x[r * width + i] = static_cast<R>(from[i]);
  }
}

// out = x / sqrt(mean(x^2) + eps) * weight. x, out: [rows, width], weight: [width]
template <class T, class R>
void rms_norm(T* out, const R* x, const R* weight, double eps, int64_t rows, int64_t width) {
  parallel_for(rows, rows_per_range(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const R* from = x + r * width;
      T* to = out + r * width;
      const R mean = dot<R>(from, from, static_cast<int>(width)) / static_cast<R>(width);
      const R scale = R{1} / std::sqrt(mean + static_cast<R>(eps));
      for (int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(weight[i] * (from[i] * scale));
    }
  });
}

// Heads of the attention, and where one layer's keys and values lie.
template <class T>
struct Heads {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  T* keys = nullptr;    // [pages, kv_heads, page_rows, head_dim]
  T* values = nullptr;  // the same
};

// Rotates dimensions i and i + head_dim / 2 of one head (the layout of Hugging Face checkpoints).
template <class T, class R>
void rotate(T* to, const T* from, const R* cosine, const R* sine, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const R a = static_cast<R>(from[i]);
    const R b = static_cast<R>(from[i + half]);
    to[i] = static_cast<T>(a * cosine[i] - b * sine[i]);
    to[i + half] = static_cast<T>(b * cosine[i] + a * sine[i]);
  }
}

// qkv: [rows, (heads + 2 kv_heads) * head_dim]. Rotates queries in place, and keys into the cache;
// copies values there. cosine, sine: [positions, head_dim / 2]
template <class T, class R>
void rope_and_store(T* qkv, const RowView& rows, const Heads<T>& h, const R* cosine,
                    const R* sine) {
  const int64_t width = int64_t{h.heads + 2 * h.kv_heads} * h.head_dim;
  parallel_for(rows.rows, rows_per_range(width), [=, &rows](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const R* c = cosine + int64_t{rows.position[r]} * (h.head_dim / 2);
      const R* s = sine + int64_t{rows.position[r]} * (h.head_dim / 2);
      T* q = qkv + r * width;
      for (int i = 0; i < h.heads; ++i, q += h.head_dim) rotate(q, q, c, s, h.head_dim);
      const T* k = q;
      const T* v = k + int64_t{h.kv_heads} * h.head_dim;
      const int64_t page = rows.slot[r] / rows.page_rows;
      const int64_t slot = rows.slot[r] % rows.page_rows;
      for (int i = 0; i < h.kv_heads; ++i) {
        const int64_t at = ((page * h.kv_heads + i) * rows.page_rows + slot) * h.head_dim;
        rotate(h.keys + at, k + i * h.head_dim, c, s, h.head_dim);
        std::memcpy(h.values + at, v + i * h.head_dim, sizeof(T) * static_cast<size_t>(h.head_dim));
      }
    }
  });
}

// out = silu(gate) * up. gate_up: [rows, 2 * width], gate first; out: [rows, width]
template <class T, class R>
void silu_mul(T* out, const T* gate_up, int64_t rows, int64_t width) {
  parallel_for(rows, rows_per_range(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gate = gate_up + r * 2 * width;
      const T* up = gate + width;
      T* to = out + r * width;
      for (int64_t i = 0; i < width; ++i) {
        const R g = static_cast<R>(gate[i]);
        to[i] = static_cast<T>(g / (R{1} + exp_of(-g)) * static_cast<R>(up[i]));
      }
    }
  });
}

}  // namespace tandem::cpu
