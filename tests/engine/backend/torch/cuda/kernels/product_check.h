// Products of a few rows on the emulated device: bit-identical to the documented order of
// summation, and close to the CPU's result.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/cuda/kernels/product.h"
#include "tests/engine/backend/torch/cuda/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

struct ProductShape {
  int64_t outs = 40;
  int64_t in = 72;
  ProductThen then = ProductThen::kStore;
  bool bias = false;
  bool whole = false;   // small integers, whose sums are exact in any order
  bool in_fp32 = true;  // for kStore: the output type
  int64_t first = 0;    // columns to compute; 0: all
  int64_t blocks = 3;   // maximum
  Activation activation = Activation::kSilu;
  bool added = false;  // of kGate: two of three rows get AddedNumbers
};

// Numbers that are added to a product before its gate, for some of sixteen rows.
struct AddedNumbers {
  AddedNumbers(int64_t columns, uint64_t seed)
      : columns(columns), numbers(random_as<float>(kMostProductRows * columns, seed)) {}

  // The place of a row's numbers; -1: it has none.
  static int32_t place(int row) { return row % 3 == 1 ? -1 : kMostProductRows - 1 - row; }
  float to(float y, int row, int64_t column) const {
    if (place(row) < 0) return y;
    return y + static_cast<float>(numbers[static_cast<size_t>(place(row) * columns + column)]);
  }

  int64_t columns;
  std::vector<double> numbers;
};

// AddedNumbers on the device, for a launch with these rows.
struct AddedOnDevice {
  AddedOnDevice(const AddedNumbers& all, const std::vector<int>& rows)
      : numbers("added", all.numbers), places("places", places_of(rows)) {}
  template <class Arguments>
  void set(Arguments& a) const {
    a.added = numbers;
    a.added_row = places;
  }

  static std::vector<int32_t> places_of(const std::vector<int>& rows) {
    std::vector<int32_t> all;
    for (const int r : rows) all.push_back(AddedNumbers::place(r));
    return all;
  }
  DeviceArray<float> numbers;
  DeviceArray<int32_t> places;
};

// Sixteen rows, a matrix, and the product of any of the rows.
template <class T>
class ProductRig {
 public:
  ProductRig(const ProductShape& shape, uint64_t seed)
      : s(shape), added(shape.outs, seed + 1), random_(seed) {
    x = numbers(kMostProductRows * s.in, 1);
    weights = numbers(s.outs * s.in, s.whole ? 1 : 1 / std::sqrt(static_cast<double>(s.in)));
    bias = numbers(s.outs, 1);
    residual = numbers(kMostProductRows * s.outs, 1);
    packed_shape = {s.outs, s.in, s.then == ProductThen::kGate};
    packed.emplace("packed", packed_shape.words() * 8);
    pack<T>({}, *packed, DeviceArray<T>("weights", weights), packed_shape);
  }

  int64_t width() const { return packed_shape.width(); }
  int64_t columns() const { return s.first > 0 ? s.first : width(); }

  // [rows, columns()] for these rows.
  std::vector<float> run(const std::vector<int>& rows) const {
    const DeviceArray<T> plain("x", taken(x, rows, s.in));
    const DeviceArray<T> b("bias", bias);
    const auto n = static_cast<int64_t>(rows.size());
    ProductArguments<T> a;
    a.shape = packed_shape;
    a.weights = *packed;
    a.rows = static_cast<int>(n);
    a.x = plain;
    a.then = s.then;
    a.activation = s.activation;
    a.end = s.first;
    if (s.bias) a.bias = b;
    const AddedOnDevice additions(added, rows);
    if (s.added) additions.set(a);
    const bool add = s.then == ProductThen::kAdd;
    const bool in_fp32 = add || (s.then == ProductThen::kStore && s.in_fp32);
    const DeviceArray<T> out("out", in_fp32 ? 0 : n * width());
    const DeviceArray<float> sums("sums",
                                  add ? taken(residual, rows, width()) : std::vector<double>{});
    const DeviceArray<float> logits("logits", in_fp32 && !add ? n * width() : 0);
    if (in_fp32) {
      a.sums = add ? sums : logits;
    } else {
      a.out = out;
    }
    product<T>({}, a, s.blocks);
    std::vector<float> all;
    for (int64_t i = 0; i < n * width(); ++i) {
      if (i % width() >= columns()) {
        if (in_fp32 ? logits.is_written(i) : out.is_written(i)) return {};
        continue;
      }
      all.push_back(add ? sums[i] : in_fp32 ? logits[i] : static_cast<float>(out[i]));
    }
    return all;
  }

  // One element of the product, summed in the order of product.h.
  float ordered(const std::vector<double>& rows, int64_t row, int64_t out) const {
    float sum = 0;
    for (int64_t warp = 0; warp < 8; ++warp) {
      float own = 0;
      for (int64_t first = warp * 32; first < s.in; first += 256) {
        for (int half = 0; half < 2; ++half) {
          double step = own;
          for (int i = 0; i < 16; ++i) {
            const int64_t k = first + i / 4 * 8 + half * 4 + i % 4;
            if (k >= s.in) continue;
            step += rows[static_cast<size_t>(row * s.in + k)] *
                    weights[static_cast<size_t>(out * s.in + k)];
          }
          own = static_cast<float>(step);
        }
      }
      sum += own;
    }
    return sum;
  }

  // Expected result of run(), bit for bit.
  std::vector<float> wanted(const std::vector<int>& rows) const {
    const std::vector<double> in = taken(x, rows, s.in);
    const auto n = static_cast<int64_t>(rows.size());
    std::vector<float> all;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < columns(); ++c) {
        const auto at = [&](int64_t out) {
          const float y = ordered(in, r, out) +
                          (s.bias ? static_cast<float>(bias[static_cast<size_t>(out)]) : 0.0f);
          return s.added ? added.to(y, rows[static_cast<size_t>(r)], out) : y;
        };
        float y = at(c);
        if (s.then == ProductThen::kGate) y = activated(y, s.activation) * at(width() + c);
        if (s.then == ProductThen::kActivate) y = activated(y, s.activation);
        if (s.then == ProductThen::kAdd) {
          const auto i = static_cast<size_t>(rows[static_cast<size_t>(r)] * width() + c);
          y = static_cast<float>(residual[i]) + y;
        }
        const bool rounded = s.then == ProductThen::kGate || s.then == ProductThen::kActivate ||
                             (s.then == ProductThen::kStore && !s.in_fp32);
        all.push_back(rounded ? static_cast<float>(static_cast<T>(y)) : y);
      }
    }
    return all;
  }

  // The CPU's product of the same inputs, [rows, columns()].
  std::vector<float> on_cpu(const std::vector<int>& rows) const {
    const bool gated = s.then == ProductThen::kGate;
    cpu::PackedMatrix matrix(is_half<T> ? cpu::WeightType::kHalf : cpu::WeightType::kBFloat16,
                             s.outs, s.in, gated ? cpu::Layout::kPairs : cpu::Layout::kInOrder);
    std::vector<uint16_t> bits;
    for (const double w : weights) bits.push_back(static_cast<T>(w).bits);
    matrix.pack(0, s.outs, bits.data());
    const std::vector<float> host_x = in<float>(taken(x, rows, s.in));
    const std::vector<float> b = in<float>(bias);
    const cpu::Rows<float> from{host_x.data(), static_cast<int64_t>(rows.size()), s.in, {}};
    std::vector<float> all = in<float>(taken(residual, rows, width()));
    const cpu::Then then = gated                         ? cpu::Then::kGate
                           : s.then == ProductThen::kAdd ? cpu::Then::kAdd
                                                         : cpu::Then::kStore;
    cpu::product(all.data(), from, matrix, s.bias ? b.data() : nullptr, then, s.activation);
    if (s.then == ProductThen::kActivate) {
      cpu::for_activation(s.activation, [&]<Activation activation>() {
        cpu::activate<activation, float, float>(all.data(), static_cast<int64_t>(all.size()));
      });
    }
    std::vector<float> some;
    for (size_t i = 0; i < all.size(); ++i) {
      if (static_cast<int64_t>(i) % width() < columns()) some.push_back(all[i]);
    }
    return some;
  }

  const ProductShape s;
  const AddedNumbers added;
  PackedShape packed_shape;
  std::vector<double> x, weights, bias, residual;
  std::optional<DeviceArray<T>> packed;

 private:
  std::vector<double> numbers(int64_t n, double scale) {
    std::normal_distribution<double> normal;
    std::vector<double> all;
    for (int64_t i = 0; i < n; ++i) {
      const double whole = static_cast<double>(random_() % 7) - 3;
      all.push_back(s.whole ? whole : static_cast<double>(static_cast<T>(normal(random_) * scale)));
    }
    return all;
  }

  static std::vector<double> taken(const std::vector<double>& from, const std::vector<int>& rows,
                                   int64_t width) {
    std::vector<double> all;
    for (const int r : rows) {
      all.insert(all.end(), from.begin() + r * width, from.begin() + (r + 1) * width);
    }
    return all;
  }

  std::mt19937_64 random_;
};

inline std::vector<int> first_rows(int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

inline std::string same_bits(const std::string& what, const std::vector<float>& got,
                             const std::vector<float>& want) {
  if (got.size() != want.size()) return absl::StrCat(what, ": ", got.size(), " numbers");
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      return absl::StrCat(what, "[", i, "]: ", got[i], " instead of ", want[i]);
    }
  }
  return "";
}

// Checks random rows: exact in the documented order, and near the CPU's result (equal for
// integers).
template <class T>
std::string check_product(const ProductShape& s, int rows, uint64_t seed) {
  const ProductRig<T> rig(s, seed);
  const std::vector<int> all = first_rows(rows);
  const std::vector<float> got = rig.run(all);
  const std::string what = absl::StrCat(rows, " x ", s.in, " x ", s.outs);
  const std::string bits = same_bits(what, got, rig.wanted(all));
  if (!bits.empty() || s.added) return bits;
  const std::vector<float> cpu = rig.on_cpu(all);
  if (s.whole && s.then != ProductThen::kGate) return same_bits(what + " on the CPU", got, cpu);
  return compare(what, std::vector<double>(got.begin(), got.end()), cpu, 2 * tolerance<T>());
}

// A row has the same bits in any batch and for any order of threads. counts: batch sizes; empty:
// all.
template <class T>
std::string check_product_rows(const ProductShape& s, uint64_t seed, std::vector<int> counts = {}) {
  const ProductRig<T> rig(s, seed);
  const auto row = [&](const std::vector<float>& all, int i) {
    return std::vector<float>(all.begin() + i * rig.columns(),
                              all.begin() + (i + 1) * rig.columns());
  };
  const int most = kMostProductRows;
  std::vector<std::vector<float>> alone;
  for (int r = 0; r < most; ++r) {
    emulator::seed(seed + static_cast<uint64_t>(r));
    alone.push_back(rig.run({r}));
  }
  std::mt19937_64 random(seed);
  if (counts.empty()) counts = first_rows(most + 1);
  for (const int n : counts) {
    if (n < 2 || n > most) continue;
    std::vector<int> some = first_rows(most);
    std::shuffle(some.begin(), some.end(), random);
    some.resize(static_cast<size_t>(n));
    const std::vector<float> all = rig.run(some);
    for (int i = 0; i < n; ++i) {
      const std::string wrong = same_bits(absl::StrCat("row ", i, " of ", n), row(all, i),
                                          alone[static_cast<size_t>(some[static_cast<size_t>(i)])]);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace tandem::cuda
