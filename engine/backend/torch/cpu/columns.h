// Which columns of a product y = x W^T are needed. The CPU's own products compute only these, in
// whole panels; others compute more.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::cpu {

struct Columns {
  int64_t first = 0;              // the first ones; 0: all
  int64_t whole = 0;              // and all columns of the first `whole` rows; on CPUs only, else 0
  std::span<const int32_t> more;  // and these, ascending; on CPUs only, with whole = 0
  // Not 0: rows that need more than the first columns, or all with whole = 0, need no more than the
  // greatest of this many first elements, exactly. Others may be any numbers that are less. With
  // whole = 0 it equals `first`. Without `more`
  int64_t argmax = 0;
  // With argmax, by row: row r + 1 is needed only if row r is and this column is its greatest;
  // negative: row r + 1 is needed. Empty: all are.
  std::span<const int32_t> expected;
};

}  // namespace tandem::cpu
