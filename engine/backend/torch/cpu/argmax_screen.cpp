#include "engine/backend/torch/cpu/argmax_screen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kColumns = QuantizedMatrix::kColumns;
constexpr int64_t kPanels = 256;  // of a range of a parallel loop

// Sums in several lanes, which the compiler vectorizes.
template <class F>
float sum(int64_t n, const F& of) {
  float lane[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t k = 0; k < 16; ++k) lane[k] += of(i + k);
  }
  for (; i < n; ++i) lane[0] += of(i);
  float all = 0;
  for (const float part : lane) all += part;
  return all;
}

// An upper bound of the magnitude of a row after its norm and its rounding to 8 bits. Rounding in
// groups of 32 adds at most sqrt(32) / 2 / 127 of it.
float magnitude(const Rows<float>& x, int64_t row, std::vector<float>& scratch) {
  const float* from = x.x + row * x.in;
  if (x.norm.kind != NormKind::kNone) {
    scratch.resize(static_cast<size_t>(x.in));
    norm_row(scratch.data(), from, x.norm, x.in);
    from = scratch.data();
  }
  return 1.03F * std::sqrt(sum(x.in, [=](int64_t i) { return from[i] * from[i]; }));
}

// The greatest element of a row that is known exactly.
struct Best {
  float y = -std::numeric_limits<float>::infinity();
  int64_t column = -1;  // the lowest of a tie

  void add(const float* row, int64_t first, int64_t end) {
    for (int64_t c = first; c < end; ++c) {
      if (row[c] > y || (row[c] == y && c < column)) *this = {row[c], c};
    }
  }
};

// Of one product.
struct Scratch {
  std::vector<float> normed;
  std::vector<float> magnitude;  // by row
  std::vector<float> rough;      // [row][panel] the greatest element of the copy's product
  std::vector<float> upper;      // [row][panel] the greatest upper bound
  std::vector<Best> best;        // by row
  std::vector<bool> known;       // by panel: it was multiplied with the weights
  std::vector<int32_t> panels;   // to multiply, ascending
  std::vector<int32_t> columns;  // the first ones of these
};

// Of numbers for all columns of a panel, which are overwritten.
float greatest(float (&of)[kColumns]) {
  for (int64_t half = kColumns / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) of[i] = std::max(of[i], of[i + half]);
  }
  return of[0];
}

// The greatest y[i], and the greatest y[i] + error[i] * magnitude, of n <= kColumns elements.
std::pair<float, float> greatest_of(const float* y, const float* error, float magnitude,
                                    int64_t n) {
  float rough[kColumns], upper[kColumns];
  if (n < kColumns) {
    std::fill_n(rough, kColumns, -std::numeric_limits<float>::infinity());
    std::fill_n(upper, kColumns, -std::numeric_limits<float>::infinity());
  } else {
    n = kColumns;  // a constant, for the compiler
  }
  for (int64_t i = 0; i < n; ++i) {
    rough[i] = y[i];
    upper[i] = y[i] + error[i] * magnitude;
  }
  return {greatest(rough), greatest(upper)};
}

void sort_unique(std::vector<int32_t>& numbers) {
  std::ranges::sort(numbers);
  const auto same = std::ranges::unique(numbers);
  numbers.erase(same.begin(), same.end());
}

// Sets s.panels to those from `begin` on that are not known and may have a greater element of a
// needed row.
void find_missing(Scratch& s, std::span<const int32_t> expected, int64_t begin) {
  const auto panels = std::ssize(s.known);
  s.panels.clear();
  bool needed = true;
  for (int64_t r = 0; r < std::ssize(s.best); ++r) {
    const Best& best = s.best[static_cast<size_t>(r)];
    for (int64_t p = begin; p < panels && needed; ++p) {
      if (s.upper[static_cast<size_t>(r * panels + p)] < best.y) continue;
      if (!s.known[static_cast<size_t>(p)]) s.panels.push_back(static_cast<int32_t>(p));
    }
    // If `best` is not the greatest, this is called again.
    const int32_t next = r < std::ssize(expected) ? expected[static_cast<size_t>(r)] : -1;
    needed = next < 0 || (needed && best.column == next);
  }
  sort_unique(s.panels);
}

}  // namespace

bool ArgmaxScreen::suits(const QuantizedMatrix& weights) {
  if (weights.segments().size() != 1 || weights.layout() != Layout::kInOrder) return false;
  const QuantType type = weights.segments().front().format.type;
  return type == QuantType::kQ6K || type == QuantType::kQ80;
}

ArgmaxScreen::ArgmaxScreen(QuantizedMatrix copy, const QuantizedMatrix& weights)
    : copy_(std::move(copy)), error_(static_cast<size_t>(weights.outs())) {
  TANDEM_CHECK(suits(weights) && copy_.outs() == weights.outs() && copy_.in() == weights.in());
  const int64_t in = weights.in();
  // Both products round each group's sum and each addition of it to fp32. The terms of Q6_K are
  // sums of two groups. The magnitudes of all terms add up to at most |W_c| |x|.
  const int64_t roundings = in / 32 + 8;
  const float rounding = 0x1p-24F * 3 * static_cast<float>(roundings);
  parallel_for(weights.outs(), kColumns, [&](int64_t c, int64_t end) {
    std::vector<float> exact(static_cast<size_t>(in)), rough(static_cast<size_t>(in));
    for (; c < end; ++c) {
      weights.unpack(c, exact.data());
      copy_.unpack(c, rough.data());
      const float rest = sum(in, [w = exact.data(), v = rough.data()](int64_t i) {
        return (w[i] - v[i]) * (w[i] - v[i]);
      });
      const float all = sum(in, [w = exact.data(), v = rough.data()](int64_t i) {
        const float both = std::abs(w[i]) + std::abs(v[i]);
        return both * both;
      });
      error_[static_cast<size_t>(c)] = std::sqrt(rest) * (1 + 0x1p-12F) + std::sqrt(all) * rounding;
    }
  });
}

int64_t ArgmaxScreen::bytes_for(int64_t outs, int64_t in) {
  const int64_t columns = (outs + kColumns - 1) / kColumns * kColumns;
  const int64_t copy = in / 32 * quant_format(QuantType::kQ40).block_bytes();
  return columns * copy + outs * static_cast<int64_t>(sizeof(float));
}

double ArgmaxScreen::product(float* out, const Rows<float>& all, const QuantizedMatrix& weights,
                             const Columns& columns) const {
  constexpr float kGreatest = 1e20F;  // of magnitudes whose products do not overflow
  thread_local Scratch s;
  const int64_t outs = weights.outs();
  Rows<float> x = all;
  const int64_t end = columns.argmax;
  int64_t begin = 0;  // the first panel to screen
  if (columns.whole > 0) {
    cpu::product(out, all, weights, nullptr, Then::kStore, Activation::kSilu,
                 {.first = columns.first});
    begin = (columns.first + kColumns - 1) / kColumns;
    x.rows = columns.whole;
  }
  const int64_t rows = x.rows, panels = (end + kColumns - 1) / kColumns;
  if (begin == panels) return 0;
  const auto multiply = [&](const QuantizedMatrix& by, const Columns& some) {
    cpu::product(out, x, by, nullptr, Then::kStore, Activation::kSilu, some);
  };
  // Columns::first = 0 would mean all columns, so the first panel is always multiplied.
  const auto multiply_panels = [&](const QuantizedMatrix& by) {
    s.columns.clear();
    for (const int32_t p : s.panels) s.columns.push_back(p * static_cast<int32_t>(kColumns));
    multiply(by, {.first = 1, .more = s.columns});
  };
  s.magnitude.clear();
  for (int64_t r = 0; r < rows; ++r) s.magnitude.push_back(magnitude(x, r, s.normed));
  if (!std::ranges::all_of(s.magnitude, [](float m) { return m < kGreatest; })) {
    multiply(weights, {.first = end});
    return 1;
  }

  s.best.assign(static_cast<size_t>(rows), {});
  const auto know = [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < rows; ++r) {
      s.best[static_cast<size_t>(r)].add(out + r * outs, first, last);
    }
  };
  know(0, std::min(end, begin * kColumns));
  s.panels.resize(static_cast<size_t>(panels - begin));
  std::iota(s.panels.begin(), s.panels.end(), static_cast<int32_t>(begin));
  if (begin > 0) {
    multiply_panels(copy_);  // the first panel is multiplied with the weights below
  } else {
    multiply(copy_, {.first = end});
  }
  s.rough.resize(static_cast<size_t>(rows * panels));
  s.upper.resize(static_cast<size_t>(rows * panels));
  const auto bound = [=, error = error_.data(), magnitude = s.magnitude.data(),
                      rough = s.rough.data(), upper = s.upper.data()](int64_t from, int64_t to) {
    for (int64_t p = std::max(from, begin); p < to; ++p) {
      const int64_t first = p * kColumns, n = std::min(kColumns, end - first);
      for (int64_t r = 0; r < rows; ++r) {
        std::tie(rough[r * panels + p], upper[r * panels + p]) =
            greatest_of(out + r * outs + first, error + first, magnitude[r], n);
      }
    }
  };
  parallel_for(panels, kPanels, bound);

  // First the panels with the greatest rough elements, then all that may have a greater element.
  s.known.assign(static_cast<size_t>(panels), false);
  s.panels.clear();
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = s.rough.begin() + r * panels;
    s.panels.push_back(static_cast<int32_t>(std::max_element(row + begin, row + panels) - row));
  }
  sort_unique(s.panels);
  int64_t read = 0;
  do {
    multiply_panels(weights);
    for (const int32_t p : s.panels) {
      s.known[static_cast<size_t>(p)] = true;
      know(p * kColumns, std::min(end, (p + 1) * kColumns));
    }
    read += std::ssize(s.panels);
    find_missing(s, columns.expected, begin);
    if (4 * (read + std::ssize(s.panels)) > panels - begin) {
      multiply(weights, {.first = end});
      return 1;
    }
  } while (!s.panels.empty());
  return static_cast<double>(read) / static_cast<double>(panels - begin);
}

bool ScreenShares::next(int64_t rows) {
  Mean& mean = by_rows_[static_cast<size_t>(rows - 1)];
  if (mean.share.load(std::memory_order_relaxed) < kMost) return true;
  return mean.skipped.fetch_add(1, std::memory_order_relaxed) % kRetry == kRetry - 1;
}

void ScreenShares::add(int64_t rows, double share) {
  Mean& mean = by_rows_[static_cast<size_t>(rows - 1)];
  const int count = mean.count.fetch_add(1, std::memory_order_relaxed);
  const float weight = 1 / static_cast<float>(std::min(count + 4, 64));
  const float before = mean.share.load(std::memory_order_relaxed);
  mean.share.store(before + (static_cast<float>(share) - before) * weight,
                   std::memory_order_relaxed);
}

bool ScreenShares::hopeless() const {
  return by_rows_[0].count.load(std::memory_order_relaxed) > 128 &&
         by_rows_[0].share.load(std::memory_order_relaxed) > 0.6F;
}

}  // namespace tandem::cpu
