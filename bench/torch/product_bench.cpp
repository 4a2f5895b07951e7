// Compares the CPU's products with LibTorch's: MKL through at::linear, and FBGEMM for narrow
// weights. Prints Markdown tables.
//
//   build/release/bin/bench_products
//
// Weights are read from memory: products cycle through copies that together are eight times as
// large as the last-level cache. A shape whose weights fit into a quarter of a second-level cache
// is measured there, with one copy. A probe measures the memory bandwidth in the same run. Times
// are medians of wall times of one product, with the preparation of its activations.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fbgemm_linear_fp16_weight_fp32_activation.h>
#include <ATen/ops/fbgemm_linear_int8_weight_fp32_activation.h>
#include <ATen/ops/fbgemm_linear_quantize_weight.h>
#include <ATen/ops/fbgemm_pack_gemm_matrix_fp16.h>
#include <ATen/ops/fbgemm_pack_quantized_matrix.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/base/flags.h"

namespace tandem::bench {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

struct Shape {
  int64_t outs = 0;
  int64_t in = 0;
};

struct Settings {
  std::vector<Shape> shapes;
  std::vector<int64_t> rows = {1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128, 256};
  std::vector<std::string> only;
  int threads = 2;
  bool pin = false;
  double seconds = 0.5;
  bool least = false;
};

// A product of `rows` rows with copy `copy` of a matrix.
using Product = std::function<void(size_t copy, int64_t rows)>;

struct Contender {
  std::string name;
  double weight_bytes;  // per weight
  std::function<Product(Shape shape, size_t copies)> make;
};

// Random activations and weights, shared by all contenders.
struct Operands {
  at::Tensor x, out;
  at::Tensor weight;

  Operands(Shape s, int64_t most_rows)
      : x(at::empty({most_rows, s.in})),
        out(at::empty({most_rows, s.outs})),
        weight(at::empty({s.outs, s.in})) {
    std::minstd_rand random(1);
    for (at::Tensor* t : {&x, &weight}) {
      auto* at = static_cast<float*>(t->mutable_data_ptr());
      for (int64_t i = 0; i < t->numel(); ++i) {
        at[i] = static_cast<float>(random() % 20001) * 1e-4f - 1;
      }
    }
  }
  const float* rows() const { return static_cast<const float*>(x.const_data_ptr()); }
  float* to() { return static_cast<float*>(out.mutable_data_ptr()); }
};

Contender own(const char* name, cpu::WeightType type, double bytes,
              const std::shared_ptr<Operands>& operands) {
  return {name, bytes, [=](Shape s, size_t copies) {
            const at::ScalarType element = type == cpu::WeightType::kBFloat16 ? at::kBFloat16
                                           : type == cpu::WeightType::kHalf   ? at::kHalf
                                                                              : at::kFloat;
            const at::Tensor weight = operands->weight.to(element);
            auto matrices = std::make_shared<std::vector<cpu::PackedMatrix>>();
            for (size_t i = 0; i < copies; ++i) {
              matrices->emplace_back(type, s.outs, s.in).pack(0, s.outs, weight.const_data_ptr());
            }
            return [=](size_t copy, int64_t rows) {
              cpu::product(operands->to(), {operands->rows(), rows, s.in}, (*matrices)[copy],
                           static_cast<const float*>(nullptr));
            };
          }};
}

// Random blocks of a GGUF type. Scales are finite: no byte has the highest bit of an exponent.
Contender stored(const char* name, cpu::QuantType type, const std::shared_ptr<Operands>& operands) {
  const cpu::QuantFormat format = cpu::quant_format(type);
  const int block = format.block_bytes();
  return {name, static_cast<double>(block) / format.inputs(), [=](Shape s, size_t copies) {
            std::vector<std::byte> row(static_cast<size_t>(s.in / format.inputs() * block));
            std::minstd_rand random(1);
            auto matrices = std::make_shared<std::vector<cpu::QuantizedMatrix>>();
            for (size_t i = 0; i < copies; ++i) {
              matrices->emplace_back(std::vector<cpu::QuantizedMatrix::Part>{{type, s.outs}}, s.in);
              for (int64_t r = 0; r < s.outs; ++r) {
                for (std::byte& b : row) b = static_cast<std::byte>(random() & 0x3b);
                matrices->back().pack(r, row.data());
              }
            }
            return [=](size_t copy, int64_t rows) {
              cpu::product(operands->to(), {operands->rows(), rows, s.in}, (*matrices)[copy],
                           nullptr);
            };
          }};
}

Contender linear(const char* name, at::ScalarType type, double bytes,
                 const std::shared_ptr<Operands>& operands) {
  return {name, bytes, [=](Shape, size_t copies) {
            std::vector<at::Tensor> weights;
            for (size_t i = 0; i < copies; ++i)
              weights.push_back(operands->weight.to(type, false, true));
            const at::Tensor x = operands->x.to(type);
            return
                [=](size_t copy, int64_t rows) { at::linear(x.narrow(0, 0, rows), weights[copy]); };
          }};
}

Contender fbgemm_half(const std::shared_ptr<Operands>& operands) {
  return {"FBGEMM fp16 weights", 2, [=](Shape s, size_t copies) {
            std::vector<at::Tensor> weights;
            for (size_t i = 0; i < copies; ++i) {
              weights.push_back(at::fbgemm_pack_gemm_matrix_fp16(operands->weight));
            }
            const at::Tensor bias = at::empty({s.outs}).zero_();
            return [=](size_t copy, int64_t rows) {
              at::fbgemm_linear_fp16_weight_fp32_activation(operands->x.narrow(0, 0, rows),
                                                            weights[copy], bias);
            };
          }};
}

Contender fbgemm_int8(const std::shared_ptr<Operands>& operands) {
  return {"FBGEMM int8, dynamic", 1, [=](Shape s, size_t copies) {
            std::vector<at::Tensor> packed;
            const auto [weight, offsets, scale, zero] =
                at::fbgemm_linear_quantize_weight(operands->weight);
            for (size_t i = 0; i < copies; ++i) {
              packed.push_back(at::fbgemm_pack_quantized_matrix(weight));
            }
            const at::Tensor bias = at::empty({s.outs}).zero_();
            return [=, weight = weight, offsets = offsets, scale = scale, zero = zero](
                       size_t copy, int64_t rows) {
              at::fbgemm_linear_int8_weight_fp32_activation(
                  operands->x.narrow(0, 0, rows), weight, packed[copy], offsets, scale, zero, bias);
            };
          }};
}

std::vector<Contender> contenders(const std::shared_ptr<Operands>& operands) {
  using cpu::WeightType;
  return {own("fp32", WeightType::kFloat, 4, operands),
          own("bf16", WeightType::kBFloat16, 2, operands),
          own("fp16", WeightType::kHalf, 2, operands),
          own("int8", WeightType::kInt8, 1, operands),
          stored("Q4_0", cpu::QuantType::kQ40, operands),
          stored("Q5_0", cpu::QuantType::kQ50, operands),
          stored("Q8_0", cpu::QuantType::kQ80, operands),
          stored("Q4_K", cpu::QuantType::kQ4K, operands),
          stored("Q6_K", cpu::QuantType::kQ6K, operands),
          linear("at::linear fp32", at::kFloat, 4, operands),
          linear("at::linear bf16", at::kBFloat16, 2, operands),
          fbgemm_half(operands),
          fbgemm_int8(operands)};
}

Microseconds typical(std::vector<Microseconds> times, bool least) {
  const size_t at = least ? 0 : times.size() / 2;
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(at), times.end());
  return times[at];
}

// Each copy in turn for so long, at least once around.
Microseconds measure(const Settings& s, const Product& product, size_t copies, int64_t rows) {
  std::vector<Microseconds> times;
  const auto start = std::chrono::steady_clock::now();
  const int repeats = copies == 1 ? 16 : 1;  // a product in a cache is too short to time
  product(copies - 1, rows);
  for (size_t i = 0;; ++i) {
    const auto before = std::chrono::steady_clock::now();
    for (int r = 0; r < repeats; ++r) product(i % copies, rows);
    const auto after = std::chrono::steady_clock::now();
    times.push_back(Microseconds(after - before) / repeats);
    if (times.size() >= std::max<size_t>(copies, 9) &&
        std::chrono::duration<double>(after - start).count() > s.seconds) {
      return typical(std::move(times), s.least);
    }
  }
}

// Bytes per microsecond at which the team reads memory.
double read_bandwidth(const Settings& s, size_t bytes) {
  using Line = uint64_t __attribute__((vector_size(32)));
  static cpu::PackedMatrix memory;  // for its huge pages
  constexpr int64_t kPart = 1 << 20;
  constexpr int64_t kSlices = 16;  // each is timed
  const auto parts = static_cast<int64_t>(bytes) / (kPart * kSlices);
  if (memory.empty()) {
    memory = cpu::PackedMatrix(cpu::WeightType::kFloat, kSlices * parts * 256, 1024);
    std::memset(const_cast<std::byte*>(memory.panel(0)), 1, static_cast<size_t>(memory.bytes()));
  }
  static std::atomic<uint64_t> sink;
  double best = 0;
  for (const int64_t ahead : {0, 1024, 4096}) {
    std::vector<Microseconds> times;
    for (int64_t i = 0; i < 5 * kSlices; ++i) {
      const std::byte* const slice = memory.panel(0) + i % kSlices * parts * kPart;
      const auto before = std::chrono::steady_clock::now();
      cpu::parallel_for(parts, 2, [&](int64_t begin, int64_t end) {
        Line sum[8] = {};
        const std::byte* at = slice + begin * kPart;
        for (const std::byte* to = slice + end * kPart; at < to; at += sizeof sum) {
          for (size_t l = 0; ahead > 0 && l < std::size(sum); ++l) {
            __builtin_prefetch(at + ahead + l * sizeof(Line));
          }
          for (size_t l = 0; l < std::size(sum); ++l) {
            Line line;
            std::memcpy(&line, at + l * sizeof line, sizeof line);
            sum[l] += line;
          }
        }
        for (const Line& l : sum) sink += l[0] + l[1] + l[2] + l[3];
      });
      times.emplace_back(std::chrono::steady_clock::now() - before);
    }
    best = std::max(best, static_cast<double>(parts * kPart) / typical(times, s.least).count());
  }
  return best;
}

void print_row(const std::string& name, const std::vector<double>& numbers, const char* format) {
  std::printf("| %s |", name.c_str());
  for (const double n : numbers) {
    std::printf(" ");
    std::printf(format, n);
    std::printf(" |");
  }
  std::printf("\n");
}

void print_head(const Settings& s, const char* what) {
  std::printf("\n| %s |", what);
  for (const int64_t r : s.rows) std::printf(" %ld |", static_cast<long>(r));
  std::printf("\n|---|");
  for (size_t i = 0; i < s.rows.size(); ++i) std::printf("---:|");
  std::printf("\n");
}

void run_shape(const Settings& s, Shape shape, size_t far_bytes) {
  const int64_t weights = shape.outs * shape.in;
  const bool near = weights * 4 <= sysconf(_SC_LEVEL2_CACHE_SIZE) + (1 << 16);
  const int64_t most_rows = *std::max_element(s.rows.begin(), s.rows.end());
  const auto operands = std::make_shared<Operands>(shape, most_rows);
  struct Result {
    std::string name;
    std::vector<double> times;
    double bandwidth, probe;
  };
  std::vector<Result> results;
  for (const Contender& c : contenders(operands)) {
    if (!s.only.empty() && std::find(s.only.begin(), s.only.end(), c.name) == s.only.end())
      continue;
    const double bytes = static_cast<double>(weights) * c.weight_bytes;
    const auto copies =
        near ? size_t{1}
             : std::max<size_t>(2, static_cast<size_t>(static_cast<double>(far_bytes) / bytes) + 1);
    const Product product = c.make(shape, copies);
    Result r{c.name, {}, 0, read_bandwidth(s, far_bytes)};
    for (const int64_t rows : s.rows) r.times.push_back(measure(s, product, copies, rows).count());
    r.bandwidth = bytes / r.times.front();
    results.push_back(std::move(r));
  }
  std::printf("\n## %ld x %ld, weights %s\n", static_cast<long>(shape.outs),
              static_cast<long>(shape.in), near ? "in the second-level cache" : "in memory");
  print_head(s, "microseconds by rows");
  for (const Result& r : results) print_row(r.name, r.times, "%.0f");
  print_head(s, "relative to its first");
  for (const Result& r : results) {
    std::vector<double> relative;
    for (const double t : r.times) relative.push_back(t / r.times.front());
    print_row(r.name, relative, "%.2f");
  }
  const auto mkl = std::find_if(results.begin(), results.end(),
                                [](const Result& r) { return r.name == "at::linear fp32"; });
  if (mkl != results.end()) {
    print_head(s, "times as fast as at::linear fp32");
    for (const Result& r : results) {
      std::vector<double> faster;
      for (size_t i = 0; i < r.times.size(); ++i) faster.push_back(mkl->times[i] / r.times[i]);
      print_row(r.name, faster, "%.2f");
    }
  }
  if (near) return;
  std::printf("\n| %ld row%s | GB/s | probe, GB/s | share |\n|---|---:|---:|---:|\n",
              static_cast<long>(s.rows.front()), s.rows.front() == 1 ? "" : "s");
  for (const Result& r : results) {
    std::printf("| %s | %.1f | %.1f | %.0f %% |\n", r.name.c_str(), r.bandwidth / 1e3,
                r.probe / 1e3, 100 * r.bandwidth / r.probe);
  }
  std::fflush(stdout);
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

// The size of one processor's last-level cache. (sysconf() reports that of a virtual machine's
// host.)
int64_t last_cache_bytes() {
  int64_t kib = 0;
  for (int i = 0;; ++i) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    if (!(file >> kib)) break;  // "32768K"
  }
  return std::max<int64_t>(kib, 4096) << 10;
}

int run(const std::vector<std::string>& args) {
  Settings s;
  std::vector<std::string> shapes, rows;
  std::optional<std::string> target;
  std::optional<double> threads, seconds;
  bool help = false;
  Flags flags;
  flags.texts("shape", "OUTSxIN", "of the weights, repeatable (4096x1024, 512x512)", &shapes);
  flags.texts("rows", "N,N,...", "numbers of rows (1 to 256)", &rows);
  flags.texts("only", "NAME", "fp32, bf16, \"at::linear fp32\" ..., repeatable (all)", &s.only);
  flags.number("threads", "N", "of each product (2)", 1, 1024, &threads);
  flags.text("target", "NAME", "AVX3_BF16, AVX3_GFNI, AVX3_VNNI, AVX3, AVX2, EMU128 (the best)",
             &target);
  flags.toggle("pin", "each of our threads to a processor of its own", &s.pin);
  flags.number("seconds", "S", "time spent on each number (0.5)", 0.001, 600, &seconds);
  flags.toggle("least", "least times instead of medians: for a machine that others use", &s.least);
  flags.toggle("help", "this text", &help);
  const auto rest = flags.parse(args);
  bool good = rest.ok() && rest->empty();
  if (shapes.empty()) shapes = {"4096x1024", "512x512"};
  for (const std::string& text : shapes) {
    const std::vector<std::string> parts = absl::StrSplit(text, 'x');
    Shape shape;
    good = good && parts.size() == 2 && absl::SimpleAtoi(parts[0], &shape.outs) &&
           absl::SimpleAtoi(parts[1], &shape.in) && shape.outs > 0 && shape.in > 0;
    s.shapes.push_back(shape);
  }
  if (!rows.empty()) s.rows.clear();
  for (const std::string& list : rows) {
    for (const auto& text : absl::StrSplit(list, ',')) {
      s.rows.push_back(0);
      good = good && absl::SimpleAtoi(text, &s.rows.back()) && s.rows.back() > 0;
    }
  }
  const absl::Status forced = cpu::force_target(target.value_or(""));
  if (!forced.ok()) std::fprintf(stderr, "%s\n", std::string(forced.message()).c_str());
  if (!good || help || !forced.ok()) {
    const std::string error = rest.ok() ? "" : std::string(rest.status().message()) + "\n";
    std::fprintf(stderr, "%s%s", error.c_str(), flags.help().c_str());
    return help ? 0 : 2;
  }
  s.threads = static_cast<int>(threads.value_or(s.threads));
  s.seconds = seconds.value_or(s.seconds);

  const c10::InferenceMode inference;
  at::set_num_threads(s.threads);
  cpu::set_team_size(s.threads, s.pin ? 0 : -1);
  const int64_t last_cache = last_cache_bytes();
  const auto far_bytes = static_cast<size_t>(8 * last_cache);
  std::printf("# Products\n\n%s, %ld processors, %ld MiB last cache; %d threads%s; target %s; %s\n",
              processor().c_str(), sysconf(_SC_NPROCESSORS_ONLN),
              static_cast<long>(last_cache >> 20), s.threads, s.pin ? ", pinned" : "",
              cpu::target().c_str(), s.least ? "least times" : "medians");
  std::printf("\nLibTorch: %s, %s, %s\n", at::get_mkl_version().c_str(),
              at::get_mkldnn_version().c_str(), at::get_cpu_capability().c_str());
  for (const Shape& shape : s.shapes) run_shape(s, shape, far_bytes);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::run({argv + 1, argv + argc}); }
