// Figures and checks of the kernels' program, and its shapes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace tandem::cuda::program {

// By default that of Llama-2-7B.
struct Shape {
  int64_t hidden = 4096, inner = 11008, vocab = 32000, long_vocab = 128256;
  int heads = 32, head_dim = 128, page_rows = 16;
  std::vector<int> kv_heads = {32, 8};
  std::vector<int> contexts = {256, 2048, 32768};
  std::vector<int> sequences = {1, 32};
  std::vector<int> rows_each = {1, 8};
  int multiprocessors = 132;
};

class Report {
 public:
  // Prints one line of JSON. more: further fields, each after ", ".
  void put(const std::string& name, double value, const char* unit, const std::string& more = "") {
    if (quiet) return;
    std::printf("{\"name\": \"kernels.%s\", \"value\": %.6g, \"unit\": \"%s\"%s}\n", name.c_str(),
                value, unit, more.c_str());
    std::fflush(stdout);
  }
  // A largest difference. NaN is too large.
  void check(const std::string& name, double worst, double most) {
    char text[64];
    std::snprintf(text, sizeof(text), ", \"most\": %g", most);
    put(name + ".difference", std::isfinite(worst) ? worst : 1e30, "of rms", text);
    if (!(worst <= most)) fail(name + ".difference", std::to_string(worst));
  }
  void same(const std::string& name, bool holds) {
    put(name, holds ? 1 : 0, "bool");
    if (!holds) fail(name, "differs");
  }
  void fail(const std::string& name, const std::string& why) {
    if (!quiet) std::fprintf(stderr, "kernels.%s: %s\n", name.c_str(), why.c_str());
    wrong.push_back(name);
  }

  bool quiet = false;
  std::vector<std::string> wrong;  // names of checks that failed
};

inline unsigned most_cores = 32;  // tests use one, so that TSan need not check emulated kernels

// f(begin, end) for parts of [0, n), on all cores.
template <class F>
void on_all_cores(int64_t n, const F& f) {
  const int64_t cores = std::max(1u, std::min(std::thread::hardware_concurrency(), most_cores));
  const int64_t part = std::max<int64_t>(1, n / (cores * 8));
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t begin; (begin = next.fetch_add(part)) < n;) f(begin, std::min(n, begin + part));
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min(cores, n / part); ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

// The largest difference from fp64, relative to the root mean square, beyond one rounding.
class Difference {
 public:
  // rounding: of the results, relative; 2^-8 for bf16
  explicit Difference(double rounding) : rounding_(rounding) {}

  void add(double got, double want) {
    const double off = std::abs(got - want) - rounding_ * std::abs(want);
    worst_ = off <= worst_     ? worst_
             : std::isnan(off) ? std::numeric_limits<double>::infinity()
                               : off;
    squares_ += want * want;
    ++n_;
  }
  double value() const {
    return n_ == 0 ? std::numeric_limits<double>::infinity()
                   : worst_ / std::max(1e-30, std::sqrt(squares_ / static_cast<double>(n_)));
  }

 private:
  double rounding_, worst_ = 0, squares_ = 0;
  int64_t n_ = 0;
};

inline constexpr double kExact = 1e-6;            // of fp32 results
inline constexpr double kBFloat16 = 1.0 / 256;    // one rounding, twice its half unit
inline constexpr double kMostOfSums = 1e-4;       // fp32 sums in another order
inline constexpr double kMostOfAttention = 1e-2;  // weights may be rounded to 16 bits

}  // namespace tandem::cuda::program
