// Layout of one layer's keys and values in CPU pages.
#pragma once

#include <cstdint>

namespace tandem::cpu {

// Keys are stored by dimension: the elements of one dimension are contiguous over a page's rows, so
// scores of several keys are computed without sums across vector lanes. Values are stored by row.
//
// K: float, double or BFloat16.
template <class K>
struct PagedKv {
  int kv_heads = 0;
  int head_dim = 0;
  int page_rows = 0;
  K* keys = nullptr;    // [pages, kv_heads, head_dim, page_rows]
  K* values = nullptr;  // [pages, kv_heads, page_rows, head_dim]

  // Dimension i of a slot's key is key(...)[i * page_rows].
  K* key(int64_t page, int64_t head, int64_t slot) const { return keys + block(page, head) + slot; }
  K* value(int64_t page, int64_t head, int64_t slot) const {
    return values + block(page, head) + slot * head_dim;
  }

 private:
  int64_t block(int64_t page, int64_t head) const {
    return (page * kv_heads + head) * head_dim * page_rows;
  }
};

}  // namespace tandem::cpu
