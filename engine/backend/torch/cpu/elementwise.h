// What happens to a row between the products, on the CPU: embedding, norm, rotary embedding and
// store into the cache, SwiGLU. Plain loops that the compiler vectorizes.
//
// T: type of products' inputs and outputs, and of embeddings (float, double, BFloat16).
// K: type of the cache (the same).
// R: type of the residual stream and of arithmetic (float, or double for double).
// A row's results depend on that row alone: fixed order of summation, whatever the batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/torch/cpu/kv.h"
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
      rms_norm_row(out + r * width, x + r * width, weight, eps, width);
    }
  });
}

// Rotates dimensions i and i + head_dim / 2 of one head (the layout of Hugging Face checkpoints).
// to: dimensions are `stride` apart
template <class To, class T, class R>
void rotate(To* to, int64_t stride, const T* from, const R* cosine, const R* sine, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const R a = static_cast<R>(from[i]);
    const R b = static_cast<R>(from[i + half]);
    to[i * stride] = static_cast<To>(a * cosine[i] - b * sine[i]);
    to[(i + half) * stride] = static_cast<To>(b * cosine[i] + a * sine[i]);
  }
}

// qkv: [rows, (heads + 2 kv_heads) * head_dim]. Rotates queries in place, and keys into the cache;
// copies values there. cosine, sine: [positions, head_dim / 2]
template <class T, class K, class R>
void rope_and_store(T* qkv, int heads, const RowView& rows, const PagedKv<K>& kv, const R* cosine,
                    const R* sine) {
  const int d = kv.head_dim;
  const int64_t width = int64_t{heads + 2 * kv.kv_heads} * d;
  parallel_for(rows.rows, rows_per_range(width), [=, &rows](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const R* c = cosine + int64_t{rows.position[r]} * (d / 2);
      const R* s = sine + int64_t{rows.position[r]} * (d / 2);
      T* q = qkv + r * width;
      for (int i = 0; i < heads; ++i, q += d) rotate(q, 1, q, c, s, d);
      const T* k = q;
      const T* v = k + int64_t{kv.kv_heads} * d;
      const int64_t page = rows.slot[r] / kv.page_rows;
      const int64_t slot = rows.slot[r] % kv.page_rows;
      for (int i = 0; i < kv.kv_heads; ++i, k += d, v += d) {
        rotate(kv.key(page, i, slot), kv.page_rows, k, c, s, d);
        K* value = kv.value(page, i, slot);
        for (int j = 0; j < d; ++j) value[j] = static_cast<K>(static_cast<R>(v[j]));
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
