// Low-rank additions on the emulated device: close to fp64, and a row has the same bits in any
// batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels/lora.h"
#include "tests/engine/backend/torch/cuda/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

struct LoraCase {
  int64_t in = 40;
  std::vector<int64_t> outs = {24};     // by matrix
  std::vector<std::vector<int>> ranks;  // by adapter and matrix; 0: it does not change the matrix
  int distinct = 16;                    // rows of x that batches take from
  bool add = true;
};

// A row of a batch: which row of x, and which adapter it has (-1: none).
struct LoraRow {
  int x = 0;
  int adapter = -1;
};

// Adapters of a layer, and its rows. To: the type of the product that is added to
template <class T, class To>
class LoraRig {
 public:
  using R = Residual<T>;
  using Matrices = LoraMatrices<Ptr<const R>>;

  LoraRig(const LoraCase& shape, uint64_t seed) : s(shape) {
    for (const int64_t n : s.outs) columns_ += n;
    x_ = random_as<T>(s.distinct * s.in, seed);
    before_ = random_as<To>(s.distinct * columns_, seed + 1);
    for (size_t i = 0; i < s.ranks.size(); ++i) add_adapter(s.ranks[i], seed + 10 * (i + 1));
  }

  int64_t columns() const { return columns_; }

  // [rows, columns] after a launch; without `add`, rows without an adapter are NaN. Empty: such a
  // row was written.
  std::vector<double> run(const std::vector<LoraRow>& rows) const {
    const auto n = static_cast<int64_t>(rows.size());
    std::vector<double> x, before;
    const DeviceArray<Ptr<const Matrices>> adapter("adapters", n);
    for (int64_t r = 0; r < n; ++r) {
      const LoraRow& row = rows[static_cast<size_t>(r)];
      x.insert(x.end(), x_.begin() + row.x * s.in, x_.begin() + (row.x + 1) * s.in);
      before.insert(before.end(), before_.begin() + row.x * columns_,
                    before_.begin() + (row.x + 1) * columns_);
      if (row.adapter < 0) {
        adapter.set(r, nullptr);
      } else {
        adapter.set(r, *adapters_[static_cast<size_t>(row.adapter)].layers);
      }
    }
    const DeviceArray<T> on_device("x", x);
    const DeviceArray<To> to =
        s.add ? DeviceArray<To>("to", before) : DeviceArray<To>("to", n * columns_);
    const DeviceArray<R> ranks("ranks", n * (most_ranks_ + kSpare));
    LoraArguments<T> a;
    a.adapter = adapter;
    a.layer = kLayer;
    a.rows = static_cast<int>(n);
    a.x = on_device;
    a.in = s.in;
    a.ranks = ranks;
    a.most_ranks = most_ranks_ + kSpare;
    a.columns = columns_;
    a.add = s.add;
    add_lora<T, To>({}, a, to.ptr());
    std::vector<double> all;
    for (int64_t i = 0; i < to.size(); ++i) {
      const bool adapted = rows[static_cast<size_t>(i / columns_)].adapter >= 0;
      if (!s.add && to.is_written(i) != adapted) return {};
      all.push_back(s.add || adapted ? static_cast<double>(to[i]) : NAN);
    }
    return all;
  }

  // The same in fp64.
  std::vector<double> wanted(const std::vector<LoraRow>& rows) const {
    std::vector<double> all;
    for (const LoraRow& row : rows) {
      if (row.adapter < 0 && !s.add) {
        all.insert(all.end(), static_cast<size_t>(columns_), NAN);
        continue;
      }
      std::vector<double> y(static_cast<size_t>(columns_));
      if (s.add) {
        std::copy_n(before_.begin() + row.x * columns_, columns_, y.begin());
      }
      if (row.adapter >= 0) add_to(y, row.x, adapters_[static_cast<size_t>(row.adapter)]);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  const LoraCase s;

 private:
  static constexpr int kLayer = 3;  // those before it have other matrices
  static constexpr int kSpare = 2;  // ranks between two rows that no adapter has

  struct Adapter {
    std::vector<double> a;
    std::vector<std::vector<double>> b;  // by matrix
    std::vector<int> ranks;
    std::vector<double> scale;
    std::vector<std::unique_ptr<DeviceArray<R>>> on_device;
    std::unique_ptr<DeviceArray<Matrices>> layers;
  };

  void add_adapter(const std::vector<int>& ranks, uint64_t seed) {
    Adapter w;
    w.ranks = ranks;
    int all_ranks = 0;
    for (const int rank : ranks) all_ranks += rank;
    most_ranks_ = std::max(most_ranks_, all_ranks);
    w.a = scaled(all_ranks * s.in, static_cast<double>(s.in), seed);
    w.layers = std::make_unique<DeviceArray<Matrices>>("layers", kLayer + 1);
    Matrices own;
    const auto place = [&](const char* name, const std::vector<double>& numbers) {
      w.on_device.push_back(std::make_unique<DeviceArray<R>>(name, numbers));
      return Ptr<const R>(*w.on_device.back());
    };
    if (all_ranks > 0) own.a = place("a", w.a);
    int32_t rank_end = 0, column_end = 0;
    for (size_t m = 0; m < kMostLoraMatrices; ++m) {
      if (m < ranks.size()) {
        w.scale.push_back(0.5 + 0.25 * static_cast<double>(m));
        w.b.push_back(scaled(ranks[m] * s.outs[m], ranks[m], seed + m + 1));
        rank_end += ranks[m];
        column_end += static_cast<int32_t>(s.outs[m]);
        own.scale[m] = w.scale.back();
        if (ranks[m] > 0) own.b[m] = place("b", w.b.back());
      }
      own.rank_end[m] = rank_end;
      own.column_end[m] = column_end;
    }
    for (int64_t i = 0; i < kLayer; ++i) w.layers->set(i, {});
    w.layers->set(kLayer, own);
    adapters_.push_back(std::move(w));
  }

  // Exact in R, and divided by the root of `by`.
  static std::vector<double> scaled(int64_t n, double by, uint64_t seed) {
    std::vector<double> all = random_as<R>(n, seed);
    for (double& x : all) x = static_cast<double>(static_cast<R>(x / std::sqrt(std::max(by, 1.0))));
    return all;
  }

  void add_to(std::vector<double>& y, int x, const Adapter& w) const {
    int64_t rank = 0, column = 0;
    for (size_t m = 0; m < w.ranks.size(); ++m) {
      for (int j = 0; j < w.ranks[m]; ++j, ++rank) {
        double sum = 0;
        for (int64_t k = 0; k < s.in; ++k) {
          sum += x_[static_cast<size_t>(x * s.in + k)] * w.a[static_cast<size_t>(rank * s.in + k)];
        }
        for (int64_t c = 0; c < s.outs[m]; ++c) {
          y[static_cast<size_t>(column + c)] +=
              w.scale[m] * sum * w.b[m][static_cast<size_t>(j * s.outs[m] + c)];
        }
      }
      column += s.outs[m];
    }
  }

  int64_t columns_ = 0;
  int most_ranks_ = 0;
  std::vector<double> x_, before_;
  std::vector<Adapter> adapters_;
};

// `n` rows in a random order: runs of one adapter, single ones, and rows without.
inline std::vector<LoraRow> lora_rows(const LoraCase& s, int n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<LoraRow> rows;
  const auto adapters = static_cast<uint64_t>(s.ranks.size()) + 1;
  while (static_cast<int>(rows.size()) < n) {
    const int adapter = static_cast<int>(random() % adapters) - 1;
    const uint64_t run = random() % 3 == 0 ? 1 + random() % 9 : 1;
    for (uint64_t i = 0; i < run && static_cast<int>(rows.size()) < n; ++i) {
      rows.push_back({static_cast<int>(random() % static_cast<uint64_t>(s.distinct)), adapter});
    }
  }
  return rows;
}

// Close to fp64; rows without an adapter are unchanged.
template <class T, class To = T>
std::string check_lora(const LoraCase& s, const std::vector<LoraRow>& rows, uint64_t seed) {
  const LoraRig<T, To> rig(s, seed);
  const std::vector<double> got = rig.run(rows), want = rig.wanted(rows);
  if (got.size() != want.size()) return "a row without an adapter was written, or no other";
  for (size_t i = 0; i < want.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / rig.columns();
    const bool adapted = rows[static_cast<size_t>(row)].adapter >= 0;
    if (!adapted && !s.add) continue;
    const double most = adapted ? 2 * tolerance<To>() * (1 + std::abs(want[i])) : 0;
    if (!(std::abs(got[i] - want[i]) <= most)) {
      return absl::StrCat("row ", row, " of ", rows.size(), ", column ",
                          static_cast<int64_t>(i) % rig.columns(), ": ", got[i], " instead of ",
                          want[i]);
    }
  }
  return "";
}
template <class T, class To = T>
std::string check_lora(const LoraCase& s, int rows, uint64_t seed) {
  return check_lora<T, To>(s, lora_rows(s, rows, seed), seed);
}

// Rows have the bits that they have alone, in batches of these sizes.
template <class T, class To = T>
std::string check_lora_bits(const LoraCase& s, const std::vector<int>& counts, uint64_t seed) {
  const LoraRig<T, To> rig(s, seed);
  const auto n = static_cast<size_t>(rig.columns());
  std::vector<std::vector<double>> alone;  // by row of x and adapter
  for (int x = 0; x < s.distinct; ++x) {
    for (int adapter = -1; adapter < static_cast<int>(s.ranks.size()); ++adapter) {
      emulator::seed(seed + alone.size());
      alone.push_back(rig.run({{x, adapter}}));
    }
  }
  for (const int count : counts) {
    const std::vector<LoraRow> rows = lora_rows(s, count, seed + static_cast<uint64_t>(count));
    const std::vector<double> all = rig.run(rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto own = static_cast<size_t>(rows[r].x) * (s.ranks.size() + 1) +
                       static_cast<size_t>(rows[r].adapter + 1);
      for (size_t c = 0; c < n; ++c) {
        const double got = all.at(r * n + c), want = alone[own].at(c);
        if (std::bit_cast<uint64_t>(got) != std::bit_cast<uint64_t>(want)) {
          return absl::StrCat("row ", r, " of ", count, ", column ", c, ": ", got, " instead of ",
                              want);
        }
      }
    }
  }
  return "";
}

// add_rows(): some rows get numbers of another array, in any order.
template <class T>
std::string check_added_rows(int64_t rows, int64_t width, uint64_t seed) {
  using R = Residual<T>;
  const std::vector<double> before = random_as<T>(rows * width, seed);
  const std::vector<double> sums = random_as<R>(rows * width, seed + 1);
  std::vector<int32_t> places;
  for (int64_t r = 0; r < rows; ++r) {
    places.push_back(r % 3 == 1 ? -1 : static_cast<int32_t>(rows - 1 - r));
  }
  const DeviceArray<T> to("to", before);
  const DeviceArray<R> added("sums", sums);
  const DeviceArray<int32_t> place("places", places);
  add_rows<T>({}, to.ptr(), added, place, rows, width);
  for (int64_t i = 0; i < rows * width; ++i) {
    const int64_t from = places[static_cast<size_t>(i / width)];
    const auto x = static_cast<R>(before[static_cast<size_t>(i)]);
    const R want =
        from < 0 ? x
                 : static_cast<R>(static_cast<T>(
                       x + static_cast<R>(sums[static_cast<size_t>(from * width + i % width)])));
    if (static_cast<R>(to[i]) != want) return absl::StrCat("number ", i);
  }
  return "";
}

}  // namespace tandem::cuda
