// Products with quantized weights on the emulated device: bit-identical to the documented order of
// summation, and close to the CPU's result.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/cuda/kernels/quantized_pack.h"
#include "tests/engine/backend/torch/cuda/kernels/product_check.h"

namespace tandem::cuda {

struct BlocksShape {
  cpu::QuantType type = cpu::QuantType::kQ40;
  int64_t outs = 40;
  int64_t in = 288;
  ProductThen then = ProductThen::kStore;
  bool bias = false;
  bool whole = false;   // rows and scales whose sums are exact in any order
  bool in_fp32 = true;  // for kStore: the output type
  int64_t first = 0;    // columns to compute; 0: all
  int64_t blocks = 3;   // maximum
  Activation activation = Activation::kSilu;
  bool normed = false;  // rows are fp32 and normalized first
  int64_t beside = 0;   // preceding columns of another matrix, for kStore and kAdd
  bool added = false;   // as ProductShape
};

// Sixteen rows, a matrix, and the product of any of the rows.
template <class T>
class BlocksRig {
 public:
  BlocksRig(const BlocksShape& shape, uint64_t seed)
      : s(shape), added_(shape.outs, seed + 1), random_(seed) {
    const bool gated = s.then == ProductThen::kGate;
    const int64_t side = gated ? s.outs / 2 : s.outs;
    std::vector<cpu::QuantizedMatrix::Part> parts(gated ? 2 : 1, {s.type, side});
    matrix_ =
        cpu::QuantizedMatrix(parts, s.in, gated ? cpu::Layout::kPairs : cpu::Layout::kInOrder);
    for (int64_t row = 0; row < s.outs; ++row) matrix_.pack(row, blocks_of_a_row().data());
    for (int64_t i = 0; i < kMostProductRows * s.in; ++i) x_.push_back(number(i));
    for (int64_t i = 0; i < s.in; ++i) norm_weight_.push_back(rounded(normal()));
    for (int64_t i = 0; i < s.outs; ++i) bias_.push_back(rounded(normal()));
    for (int64_t i = 0; i < kMostProductRows * s.outs; ++i) residual_.push_back(rounded(normal()));
    device_shape = block_shape(matrix_);
    std::vector<std::byte> packed(static_cast<size_t>(device_shape.words()) * 16);
    const int64_t half = device_shape.tiles() / 2;  // packing may be divided by tiles
    pack_blocks(packed.data(), matrix_, 0, device_shape, half, device_shape.tiles());
    pack_blocks(packed.data(), matrix_, 0, device_shape, 0, half);
    std::vector<uint4> words(static_cast<size_t>(device_shape.words()));
    std::memcpy(words.data(), packed.data(), packed.size());
    weights_.emplace("weights", words);
  }

  int64_t width() const { return device_shape.width(); }
  int64_t columns() const { return s.first > 0 ? s.first : width(); }
  double& x(int64_t row, int64_t i) { return x_[static_cast<size_t>(row * s.in + i)]; }

  // Rows as quantized by the device.
  struct Rounded {
    DeviceArray<uint32_t> codes;
    DeviceArray<GroupScale> scales;
  };
  Rounded rounded_rows(const std::vector<int>& rows) const {
    const auto n = static_cast<int64_t>(rows.size());
    const int steps = device_shape.steps();
    Rounded r{{"codes", BlockRows::code_words(steps, n)},
              {"scales", BlockRows::scale_count(steps)}};
    if (s.normed) {
      const DeviceArray<float> from("residual", taken(x_, rows, s.in));
      const DeviceArray<float> weight("norm weight", norm_weight_);
      quantize_rows<float>({}, {r.codes, r.scales}, from, static_cast<int>(n), s.in,
                           {false, weight, nullptr, kEps});
      return r;
    }
    const DeviceArray<T> from("x", taken(x_, rows, s.in));
    quantize_rows<T>({}, {r.codes, r.scales}, from, static_cast<int>(n), s.in);
    return r;
  }

  // [rows, columns()] for these rows.
  std::vector<float> run(const std::vector<int>& rows) const {
    const auto n = static_cast<int64_t>(rows.size());
    const Rounded from = rounded_rows(rows);
    const DeviceArray<T> b("bias", bias_);
    BlockArguments<T> a;
    a.shape = device_shape;
    a.weights = *weights_;
    a.x = {from.codes, from.scales};
    a.rows = static_cast<int>(n);
    a.then = s.then;
    a.activation = s.activation;
    a.end = s.first;
    if (s.bias) a.bias = b;
    const AddedOnDevice additions(added_, rows);
    if (s.added) additions.set(a);
    const bool add = s.then == ProductThen::kAdd;
    const bool in_fp32 = add || (s.then == ProductThen::kStore && s.in_fp32);
    const int64_t stride = s.beside + width();
    a.stride = stride;
    const DeviceArray<T> out("out", in_fp32 ? 0 : n * stride);
    std::vector<double> before;
    for (const int r : rows) {
      before.insert(before.end(), static_cast<size_t>(s.beside), 0.5);
      before.insert(before.end(), residual_.begin() + r * width(),
                    residual_.begin() + (r + 1) * width());
    }
    const DeviceArray<float> sums("sums", add ? before : std::vector<double>{});
    const DeviceArray<float> logits("logits", in_fp32 && !add ? n * stride : 0);
    if (in_fp32) {
      a.sums = (add ? sums : logits).ptr() + s.beside;
    } else {
      a.out = out.ptr() + s.beside;
    }
    block_product<T>({}, a, s.blocks);
    std::vector<float> all;
    for (int64_t i = 0; i < n * stride; ++i) {
      const int64_t column = i % stride - s.beside;
      if (column >= 0 && column < columns()) {
        all.push_back(add ? sums[i] : in_fp32 ? logits[i] : static_cast<float>(out[i]));
      } else if (add       ? column < 0 && sums[i] != 0.5f
                 : in_fp32 ? logits.is_written(i)
                           : out.is_written(i)) {
        return {};
      }
    }
    return all;
  }

  // Expected result of run(), bit for bit: eight warps take steps of four groups in turn.
  std::vector<float> wanted(const std::vector<int>& rows) const {
    std::vector<float> all;
    for (const int r : rows) {
      const std::vector<double> own = row_of(r);
      for (int64_t c = 0; c < columns(); ++c) {
        const auto at = [&](int64_t out) {
          const float y = ordered(own, out) +
                          (s.bias ? static_cast<float>(bias_[static_cast<size_t>(out)]) : 0);
          return s.added ? added_.to(y, r, out) : y;
        };
        float y = at(c);
        if (s.then == ProductThen::kGate) y = activated(y, s.activation) * at(width() + c);
        if (s.then == ProductThen::kActivate) y = activated(y, s.activation);
        if (s.then == ProductThen::kAdd) {
          y = static_cast<float>(residual_[static_cast<size_t>(r * width() + c)]) + y;
        }
        const bool narrow = s.then == ProductThen::kGate || s.then == ProductThen::kActivate ||
                            (s.then == ProductThen::kStore && !s.in_fp32);
        all.push_back(narrow ? static_cast<float>(static_cast<T>(y)) : y);
      }
    }
    return all;
  }

  // The CPU's product of the same inputs, [rows, columns()].
  std::vector<float> on_cpu(const std::vector<int>& rows) const {
    const std::vector<double> in = taken(x_, rows, s.in);
    const std::vector<float> from(in.begin(), in.end()), b(bias_.begin(), bias_.end());
    const std::vector<double> before = taken(residual_, rows, width());
    std::vector<float> all(before.begin(), before.end());
    const cpu::Then then = s.then == ProductThen::kGate  ? cpu::Then::kGate
                           : s.then == ProductThen::kAdd ? cpu::Then::kAdd
                                                         : cpu::Then::kStore;
    const std::vector<float> weight(norm_weight_.begin(), norm_weight_.end());
    cpu::Rows<float> x{from.data(), static_cast<int64_t>(rows.size()), s.in, {}};
    if (s.normed) x.norm = {NormKind::kRms, weight.data(), nullptr, kEps};
    cpu::product(all.data(), x, matrix_, s.bias ? b.data() : nullptr, then, s.activation);
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

  // Unpacks all or selected rows on the device and the CPU. Returns "" if they are equal.
  template <class To>
  std::string unpacked(const std::vector<int>& rows = {}) const {
    const std::vector<int> every = first(static_cast<int>(s.outs));
    const DeviceArray<int32_t> named("rows", rows);
    const auto n = static_cast<int64_t>(rows.empty() ? s.outs : rows.size());
    const DeviceArray<To> to("numbers", n * s.in);
    if (rows.empty()) {
      unpack_blocks<To>({}, to, *weights_, device_shape, nullptr, 0);
    } else {
      unpack_blocks<To>({}, to, *weights_, device_shape, named, n);
    }
    std::vector<float> want(static_cast<size_t>(s.in));
    for (int64_t r = 0; r < n; ++r) {
      const int row = (rows.empty() ? every : rows)[static_cast<size_t>(r)];
      if (row >= 0) matrix_.unpack(row, want.data());
      for (int64_t k = 0; k < s.in; ++k) {
        const int64_t at = r * s.in + k;
        if (to.is_written(at) != (row >= 0)) return absl::StrCat("row ", row, " written or not");
        if (row < 0) continue;
        const auto w = static_cast<float>(static_cast<To>(want[static_cast<size_t>(k)]));
        if (static_cast<float>(to[at]) != w) return absl::StrCat("row ", row, " input ", k);
      }
    }
    return "";
  }

  const BlocksShape s;
  BlockShape device_shape;

 private:
  static constexpr float kEps = 1e-5f;
  static std::vector<int> first(int n) {
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  double normal() { return std::normal_distribution<double>()(random_); }
  static double rounded(double x) { return static_cast<double>(static_cast<T>(x)); }

  // Integer rows have 127 in each group, so that its scale is 1.
  double number(int64_t i) {
    if (!s.whole) return rounded(normal());
    return i % kGroupInputs == 5 ? 127 : static_cast<double>(random_() % 7) - 3;
  }

  std::vector<std::byte> blocks_of_a_row() {
    const cpu::QuantFormat f = cpu::quant_format(s.type);
    std::vector<std::byte> all;
    for (int64_t block = 0; block < s.in / f.inputs(); ++block) {
      const size_t at = all.size();
      for (int i = 0; i < f.block_bytes(); ++i) {
        all.push_back(static_cast<std::byte>(random_() & 255));
      }
      const bool two = f.scales == QuantScales::kTwoLevels || f.scales == QuantScales::kScaleAndMin;
      const size_t halves = f.scales == QuantScales::kSixteens ? 208 : 0;
      for (size_t i = 0; i < (two ? 2 : 1); ++i) {
        const Half d(s.whole ? 0.5f : static_cast<float>(0.01 + 0.002 * std::abs(normal())));
        std::memcpy(all.data() + at + halves + 2 * i, &d.bits, 2);
      }
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

  // A group's int8 codes, scale and sums.
  struct Group {
    std::vector<int> codes;
    float scale = 1;
    int sums[2] = {};
  };
  Group group_of(const std::vector<double>& x, int64_t group) const {
    Group g;
    float most = 0;
    const auto at = [&](int64_t i) {
      return static_cast<float>(x[static_cast<size_t>(group * kGroupInputs + i)]);
    };
    for (int64_t i = 0; i < kGroupInputs; ++i) most = std::max(most, std::abs(at(i)));
    for (int64_t i = 0; i < kGroupInputs; ++i) {
      g.codes.push_back(most == 0 ? 0 : static_cast<int>(std::rint(at(i) * (127 / most))));
      g.sums[i / 16] += g.codes.back();
    }
    if (most > 0) g.scale = most / 127;
    return g;
  }

  // Values of a row, after the norm if any.
  std::vector<double> row_of(int64_t row) const {
    const std::vector<double> own = taken(x_, {static_cast<int>(row)}, s.in);
    if (!s.normed) return own;
    const DeviceArray<float> before("residual", own), weight("norm weight", norm_weight_);
    const DeviceArray<float> after("normed", s.in);
    norm<float>({}, after, before, {false, weight, nullptr, kEps}, 1, s.in);
    return after.numbers();
  }

  // A weight is d s q - dmin n. Codes are recovered from the unpacked values, which are exact
  // except for the last rounding; scales are read from the blocks.
  float ordered(const std::vector<double>& row, int64_t out) const {
    const cpu::QuantFormat f = cpu::quant_format(s.type);
    const std::vector<UnitLine> lines = lines_of(out);
    float sum = 0;
    for (int warp = 0; warp < kProductWarps; ++warp) {
      float total = 0;
      for (int64_t step = warp; step < device_shape.steps(); step += kProductWarps) {
        for (int64_t g = step * kStepGroups;
             g < std::min<int64_t>((step + 1) * kStepGroups, device_shape.groups()); ++g) {
          const Group x = group_of(row, g);
          const UnitLine& line = lines[static_cast<size_t>(g)];
          int q[2] = {};
          for (size_t i = 0; i < 32; ++i) q[i / 16] += (line.codes[i] - f.zero) * x.codes[i];
          if (f.scales == QuantScales::kSixteens) {
            const float two = std::fma(static_cast<float>(q[1]), line.scale[1],
                                       static_cast<float>(q[0]) * line.scale[0]);
            total = std::fma(two, x.scale, total);
            continue;
          }
          total = std::fma(static_cast<float>(q[0] + q[1]), line.scale[0] * x.scale, total);
          if (f.scales != QuantScales::kScale) {
            total =
                std::fma(-line.less, x.scale * static_cast<float>(x.sums[0] + x.sums[1]), total);
          }
        }
      }
      sum += total;
    }
    return sum;
  }

  struct UnitLine {
    int codes[32];
    float scale[2] = {};  // of the first and of the last 16 inputs
    float less = 0;
  };
  // Reads the CPU's layout by its documentation, independently of the packer.
  std::vector<UnitLine> lines_of(int64_t out) const {
    const auto& segment = matrix_.segments().front();
    const int64_t side = device_shape.pairs ? out / width() : 0;
    const int64_t i = out - side * width();
    const int64_t unit = device_shape.pairs ? 2 * (i / 16) + side : i / 16;
    const auto column = static_cast<size_t>(i % 16);
    const std::byte* const from = matrix_.panel(segment, unit / 2) + unit % 2 * segment.unit_bytes;
    const cpu::QuantFormat& f = segment.format;
    const auto half = [](const std::byte* at) {
      Half h;
      std::memcpy(&h.bits, at, 2);
      return static_cast<float>(h);
    };
    std::vector<UnitLine> all(static_cast<size_t>(device_shape.groups()));
    for (size_t g = 0; g < all.size(); ++g) {
      const auto block = g * 32 / static_cast<size_t>(f.inputs());
      const std::byte* const scales =
          from + block * static_cast<size_t>(cpu::QuantizedMatrix::scale_bytes(f));
      const bool sixteens = f.scales == QuantScales::kSixteens;
      float scale = half(scales + (sixteens ? 256 : 0) + 2 * column);
      if (f.scales == QuantScales::kScaleAndMin) all[g].less = -half(scales + 32 + 2 * column);
      if (f.scales == QuantScales::kTwoLevels) {
        const auto six = [&](size_t n) {
          uint32_t w[3];
          for (size_t k = 0; k < 3; ++k) std::memcpy(&w[k], scales + 64 + 64 * k + 4 * column, 4);
          const uint32_t rest = w[0] >> 30 | w[1] >> 30 << 2 | w[2] >> 30 << 4;
          return static_cast<float>(n < 15 ? w[n / 5] >> n % 5 * 6 & 63 : rest);
        };
        scale *= six(g % 8);
        all[g].less = half(scales + 32 + 2 * column) * six(8 + g % 8);
      }
      for (size_t i = 0; i < 2; ++i) {
        const auto s8 = static_cast<int8_t>(scales[(g % 8 * 2 + i) * 16 + column]);
        all[g].scale[i] = sixteens ? scale * static_cast<float>(s8) : scale;
      }
      const std::byte* const codes =
          from + segment.codes_at + static_cast<int64_t>(g) * cpu::QuantizedMatrix::code_bytes(f);
      for (size_t k = 0; k < 32; ++k) {
        const size_t quad = f.bits == 8 ? k / 4 : k / 4 % 4;
        const auto byte = static_cast<int>(codes[64 * quad + 4 * column + k % 4]);
        all[g].codes[k] = f.bits == 8 ? byte : k < 16 ? byte & 15 : byte >> 4;
        const auto upper = [&](size_t at) {
          return static_cast<int>(codes[256 + at + 4 * column + k % 4]);
        };
        if (f.bits == 5) all[g].codes[k] |= (upper(0) >> k / 4 & 1) << 4;
        if (f.bits == 6) all[g].codes[k] |= (upper(k / 16 * 64) >> k / 4 % 4 * 2 & 3) << 4;
      }
    }
    return all;
  }

  const AddedNumbers added_;
  cpu::QuantizedMatrix matrix_;
  std::vector<double> x_, norm_weight_, bias_, residual_;
  std::optional<DeviceArray<uint4>> weights_;
  std::mt19937_64 random_;
};

// Like check_product().
template <class T>
std::string check_blocks(const BlocksShape& s, int rows, uint64_t seed) {
  const BlocksRig<T> rig(s, seed);
  const std::vector<int> all = first_rows(rows);
  const std::vector<float> got = rig.run(all);
  const std::string what = absl::StrCat(rows, " x ", s.in, " x ", s.outs);
  std::string bits = same_bits(what, got, rig.wanted(all));
  if (!bits.empty() || s.added) return bits;
  const std::vector<float> cpu = rig.on_cpu(all);
  if (s.whole && s.then != ProductThen::kGate) return same_bits(what + " on the CPU", got, cpu);
  return compare(what, std::vector<double>(got.begin(), got.end()), cpu, 2 * tolerance<T>());
}

// Like check_product_rows().
template <class T>
std::string check_blocks_rows(const BlocksShape& s, uint64_t seed, const std::vector<int>& counts) {
  const BlocksRig<T> rig(s, seed);
  std::vector<std::vector<float>> alone;
  for (int r = 0; r < kMostProductRows; ++r) {
    emulator::seed(seed + static_cast<uint64_t>(r));
    alone.push_back(rig.run({r}));
  }
  std::mt19937_64 random(seed);
  for (const int n : counts) {
    std::vector<int> some = first_rows(kMostProductRows);
    std::shuffle(some.begin(), some.end(), random);
    some.resize(static_cast<size_t>(n));
    const std::vector<float> all = rig.run(some);
    for (int i = 0; i < n; ++i) {
      const std::vector<float> row(all.begin() + i * rig.columns(),
                                   all.begin() + (i + 1) * rig.columns());
      const std::string wrong = same_bits(absl::StrCat("row ", i, " of ", n), row,
                                          alone[static_cast<size_t>(some[static_cast<size_t>(i)])]);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

// A row with NaN gives NaN, and other rows do not change.
template <class T>
std::string check_blocks_nan(const BlocksShape& s, uint64_t seed) {
  BlocksRig<T> rig(s, seed);
  const std::vector<float> before = rig.run({0, 1, 2});
  rig.x(1, 40) = std::nan("");
  const std::vector<float> after = rig.run({0, 1, 2});
  const auto n = static_cast<size_t>(rig.columns());
  for (size_t i = 0; i < after.size(); ++i) {
    const bool bad = i / n == 1;
    if (std::isnan(after[i]) != bad) return absl::StrCat("number ", i, ": ", after[i]);
    if (!bad && after[i] != before[i]) return absl::StrCat("number ", i, " changed");
  }
  return "";
}

}  // namespace tandem::cuda
