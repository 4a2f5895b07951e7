// Page tables for handmade works. They live as long as the test program.
#pragma once

#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::test {

inline std::span<const PageId> page_table(std::vector<PageId> pages) {
  static std::deque<std::vector<PageId>> tables;
  return tables.emplace_back(std::move(pages));
}

// Pages first, first + 1, ...
inline std::span<const PageId> page_table(int first, int count) {
  std::vector<PageId> pages;
  for (int i = 0; i < count; ++i) pages.emplace_back(first + i);
  return page_table(std::move(pages));
}

}  // namespace tandem::test
