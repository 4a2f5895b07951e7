#include "engine/host/models/pools.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Rows seldom stop between two layers.
constexpr int64_t kKvPagesPerFrontierPage = 8;

}  // namespace

PoolSize pool_size(int page_rows, int64_t pages, const HiddenStates& hidden) {
  const bool all_rows = hidden.retain_top || (hidden.condition && !hidden.encodes);
  PoolSize size;
  size.page_rows = page_rows;
  size.pages = pages;
  size.frontier_pages = all_rows ? pages : std::max<int64_t>(4, pages / kKvPagesPerFrontierPage);
  size.retains_top_hidden = hidden.retain_top;
  size.values = hidden.condition ? pages * page_rows : 0;
  return size;
}

int64_t bytes_of_page(const ModelShape& shape, const HiddenStates& hidden) {
  const int64_t rows = shape.frontier_page_bytes;
  if (!hidden.retain_top && !hidden.condition) {
    return shape.page_bytes + rows / kKvPagesPerFrontierPage;
  }
  return shape.page_bytes + (hidden.condition ? 2 : 1) * rows;
}

absl::StatusOr<std::vector<int64_t>> divide_pages(const std::vector<PoolRequest>& models,
                                                  int64_t budget_bytes, int max_running) {
  std::vector<int64_t> pages(models.size(), 0);
  std::vector<size_t> sharing;  // models without pages so far
  int64_t left = budget_bytes;
  for (const PoolRequest& m : models) left = std::max<int64_t>(0, left - m.other_bytes);
  for (size_t i = 0; i < models.size(); ++i) {
    const PoolRequest& m = models[i];
    pages[i] = m.wanted_pages;
    if (m.wanted_pages == 0) sharing.push_back(i);
    if (m.wanted_pages * m.page_bytes > left) {
      return absl::ResourceExhaustedError(
          absl::StrCat("kv_pages of model ", m.name, ": ", m.wanted_pages, " of ", m.page_bytes,
                       " bytes; allowed: at most ", std::max<int64_t>(0, left / m.page_bytes),
                       " with memory_bytes: ", budget_bytes));
    }
    left -= m.wanted_pages * m.page_bytes;
  }
  const auto bytes_per_row = [&] {
    double sum = 0;
    for (const size_t i : sharing) {
      sum += static_cast<double>(models[i].page_bytes) / models[i].page_rows;
    }
    return sum;
  };
  const auto context_pages = [](const PoolRequest& m) {
    return (int64_t{m.max_positions} + m.page_rows - 1) / m.page_rows;
  };
  const double all_bytes_per_row = bytes_per_row();
  int64_t rows = 0;
  for (bool again = true; again && !sharing.empty();) {
    rows = static_cast<int64_t>(static_cast<double>(left) / bytes_per_row());
    again = std::erase_if(sharing, [&](size_t i) {
              const int64_t most = context_pages(models[i]) * max_running;
              if (rows / models[i].page_rows < most) return false;
              pages[i] = most;
              left -= most * models[i].page_bytes;
              return true;
            }) > 0;
  }
  for (const size_t i : sharing) pages[i] = rows / models[i].page_rows;
  const auto without_page = std::find(pages.begin(), pages.end(), 0);
  if (without_page == pages.end()) return pages;
  const PoolRequest& m = models[static_cast<size_t>(without_page - pages.begin())];
  int64_t named = 0, contexts = 0;
  int page_rows = 0;
  for (const PoolRequest& r : models) {
    named += r.wanted_pages * r.page_bytes + r.other_bytes;
    if (r.wanted_pages > 0) continue;
    page_rows = std::max(page_rows, r.page_rows);
    contexts += context_pages(r) * r.page_bytes;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory_bytes: ", budget_bytes, "; model ", m.name, " needs ", m.page_bytes,
      " bytes for a page of ", m.page_rows, " rows; allowed: at least ",
      named + static_cast<int64_t>(std::ceil(all_bytes_per_row * page_rows)),
      " for a page of each model of the device, ", named + contexts, " for a whole context"));
}

absl::StatusOr<std::vector<int64_t>> DeviceBudget::divide(const std::string& device,
                                                          const std::vector<PoolRequest>& models,
                                                          int64_t budget_bytes, bool remaining,
                                                          int max_running) const {
  const int64_t others = taken();
  const int64_t left = remaining ? budget_bytes : std::max<int64_t>(0, budget_bytes - others);
  absl::StatusOr<std::vector<int64_t>> pages = divide_pages(models, left, max_running);
  if (pages.ok()) return pages;
  return annotate(
      pages.status(),
      absl::StrCat("device ", device,
                   others > 0 ? absl::StrCat(" (other models have ", others, " bytes)") : ""));
}

int64_t DeviceBudget::taken() const {
  int64_t bytes = 0;
  for (const auto& [model, of_model] : taken_) bytes += of_model;
  return bytes;
}

}  // namespace tandem
