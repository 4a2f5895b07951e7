// Element-wise CPU kernels between the matrix products: embedding, norms, rotary embedding, storing
// keys and values, activations. Plain loops that the compiler vectorizes.
//
// T: type of product inputs and outputs, and of embeddings (float, double, BFloat16).
// K: type of the cache (the same choices).
// R: type of the residual stream and of arithmetic (float; double for double).
// A row's result depends on that row only: the order of summation does not depend on the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/activation.h"
#include "engine/backend/torch/cpu/kv.h"
#include "engine/backend/torch/cpu/norm.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cpu {

// Minimum rows of `width` elements that are worth handing to another thread.
inline int64_t rows_per_range(int64_t width) { return std::max<int64_t>(1, 16384 / width); }

// x = act(x), over n elements.
template <Activation kind, class T, class R>
void activate(T* x, int64_t n) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      x[i] = static_cast<T>(activated<kind>(static_cast<R>(x[i])));
    }
  });
}

// x[r] += table[position[r]] for rows with token[r] >= 0. x: [rows, width]
template <class T, class R>
void add_positions(R* x, const T* table, const int32_t* token, const int32_t* position,
                   int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    if (token[r] < 0) continue;
    const T* from = table + position[r] * width;
    for (int64_t i = 0; i < width; ++i) x[r * width + i] += static_cast<R>(from[i]);
  }
}

// x[r] *= scale for rows with token[r] >= 0. x: [rows, width]
template <class R>
void scale_rows(R* x, const int32_t* token, double scale, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    if (token[r] < 0) continue;
    for (int64_t i = 0; i < width; ++i) x[r * width + i] *= static_cast<R>(scale);
  }
}

// x[r] = table[token[r]] for rows with token[r] >= 0. x: [rows, width], table: [vocab, width]
template <class T, class R>
void embed(R* x, const T* table, const int32_t* token, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    if (token[r] < 0) continue;
    const T* from = table + token[r] * width;
    for (int64_t i = 0; i < width; ++i) x[r * width + i] = static_cast<R>(from[i]);
  }
}

// out = norm(x). x, out: [rows, width]
template <class T, class R>
void norm(T* out, const R* x, const Norm<R>& norm, int64_t rows, int64_t width) {
  parallel_for(rows, rows_per_range(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      norm_row(out + r * width, x + r * width, norm, width);
    }
  });
}

// x += norm(y). x, y: [rows, width]
template <class T, class R>
void add_norm(R* x, const T* y, const Norm<R>& norm, int64_t rows, int64_t width) {
  parallel_for(rows, rows_per_range(width), [=](int64_t begin, int64_t end) {
    thread_local std::vector<R> row;
    row.resize(static_cast<size_t>(width));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        row[static_cast<size_t>(i)] = static_cast<R>(y[r * width + i]);
      }
      norm_row(row.data(), row.data(), norm, width);
      for (int64_t i = 0; i < width; ++i) x[r * width + i] += row[static_cast<size_t>(i)];
    }
  });
}

// Normalizes each of `heads` heads of `head_dim` elements in place. Rows are `stride` apart.
template <class T, class R>
void norm_heads(T* x, int64_t stride, int heads, int head_dim, const Norm<R>& norm, int64_t rows) {
  parallel_for(rows, rows_per_range(int64_t{heads} * head_dim), [=](int64_t begin, int64_t end) {
    thread_local std::vector<R> head;
    head.resize(static_cast<size_t>(head_dim));
    for (int64_t i = begin * heads; i < end * heads; ++i) {
      T* at = x + i / heads * stride + i % heads * head_dim;
      for (int j = 0; j < head_dim; ++j) head[static_cast<size_t>(j)] = static_cast<R>(at[j]);
      norm_row(at, head.data(), norm, head_dim);
    }
  });
}

// Rotates dimensions i and i + head_dim / 2 of one head (Hugging Face layout). Dimensions of `to`
// are `stride` elements apart.
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

// qkv: [rows, (heads + 2 kv_heads) * head_dim]. Rotates queries in place, rotates keys into the
// cache and copies values into the cache. cosine, sine: [positions, head_dim / 2]; null: no
// rotation.
template <class T, class K, class R>
void rope_and_store(T* qkv, int heads, const RowView& rows, const PagedKv<K>& kv, const R* cosine,
                    const R* sine) {
  const int d = kv.head_dim;
  const int64_t width = int64_t{heads + 2 * kv.kv_heads} * d;
  parallel_for(rows.rows, rows_per_range(width), [=, &rows](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* q = qkv + r * width;
      const T* k = q + int64_t{heads} * d;
      const T* v = k + int64_t{kv.kv_heads} * d;
      const int64_t page = rows.slot[r] / kv.page_rows;
      const int64_t slot = rows.slot[r] % kv.page_rows;
      const int64_t angles = cosine == nullptr ? 0 : int64_t{rows.position[r]} * (d / 2);
      const R* c = cosine + angles;
      const R* s = sine + angles;
      if (cosine != nullptr) {
        for (int i = 0; i < heads; ++i, q += d) rotate(q, 1, q, c, s, d);
      }
      for (int i = 0; i < kv.kv_heads; ++i, k += d, v += d) {
        K* key = kv.key(page, i, slot);
        if (cosine != nullptr) {
          rotate(key, kv.page_rows, k, c, s, d);
        } else {
          for (int j = 0; j < d; ++j) key[j * kv.page_rows] = static_cast<K>(static_cast<R>(k[j]));
        }
        K* value = kv.value(page, i, slot);
        for (int j = 0; j < d; ++j) value[j] = static_cast<K>(static_cast<R>(v[j]));
      }
    }
  });
}

// out = act(gate) * up. gate_up: [rows, 2 * width], gate first. out: [rows, width]
template <Activation kind, class T, class R>
void gate(T* out, const T* gate_up, int64_t rows, int64_t width) {
  parallel_for(rows, rows_per_range(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gate = gate_up + r * 2 * width;
      const T* up = gate + width;
      T* to = out + r * width;
      for (int64_t i = 0; i < width; ++i) {
        to[i] = static_cast<T>(activated<kind>(static_cast<R>(gate[i])) * static_cast<R>(up[i]));
      }
    }
  });
}

}  // namespace tandem::cpu
