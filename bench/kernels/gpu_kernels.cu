// Checks and times the kernels of engine/backend/torch/cuda/kernels on a device, without LibTorch:
// against fp64 on the host at the shapes of Llama-2-7B, then as times and shares of the bandwidth.
// Needs nvcc 13 only; see docs/gpu_check.md:
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/kernels/gpu_kernels.cu
//
// Prints one JSON object per line:
//
//   {"name": "kernels.product.gate_up.rows_1", "value": 41.2, "unit": "us", "GB/s": 4300, "share":
//   0.9}
//
// share: the bandwidth divided by that of the best read in this run. Names that end in .difference
// are the largest difference from fp64 beyond one rounding, relative to the root mean square. Names
// with unit "bool" must be 1. The exit status is 1 if a check fails, and 2 if an option is wrong.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/chain.h"
#include "bench/kernels/checks.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "bench/kernels/timing.h"

namespace tandem::cuda::program {
namespace {

constexpr char kHelp[] =
    "  --check        only the checks\n"
    "  --time         only the times\n"
    "  --only=NAME    parts whose names begin so: elementwise, fp8, rope, readout, product.qkv,\n"
    "                 blocks.q4_k, attention, chain; repeatable\n"
    "  --seconds=S    of each time (0.02)\n"
    "  --overlap=0|1  whether launches overlap (as the engine's)\n"
    "  --seed=N       of the random numbers (a fresh one, which is printed)\n"
    "  --small        small shapes, for compute-sanitizer\n";

struct Options {
  bool check = false, time = false, small = false;
  std::vector<std::string> only;
  double seconds = 0.02;
  uint64_t seed = std::random_device{}();

  // part: of a name, such as product.qkv
  bool wants(const std::string& part) const {
    if (only.empty()) return true;
    for (const std::string& name : only) {
      if (part.rfind(name, 0) == 0 || name.rfind(part + ".", 0) == 0) return true;
    }
    return false;
  }
};

// false: an unknown option or value.
bool parse(int argc, char** argv, Options& o) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    char* end = nullptr;
    if (word == "--check") {
      o.check = true;
    } else if (word == "--time") {
      o.time = true;
    } else if (word == "--small") {
      o.small = true;
    } else if (word.rfind("--only=", 0) == 0 && !value.empty()) {
      o.only.push_back(value);
    } else if (word.rfind("--seconds=", 0) == 0 && !value.empty()) {
      o.seconds = std::strtod(value.c_str(), &end);
      if (*end != 0 || !(o.seconds > 0 && o.seconds <= 60)) return false;
    } else if (word == "--overlap=0" || word == "--overlap=1") {
      launches_overlap = value == "1";
    } else if (word.rfind("--seed=", 0) == 0 && !value.empty()) {
      o.seed = std::strtoull(value.c_str(), &end, 10);
      if (*end != 0) return false;
    } else {
      return false;
    }
  }
  if (!o.check && !o.time) o.check = o.time = true;
  return true;
}

Shape small_shape() {
  Shape s;
  s.hidden = 512;
  s.inner = 768;
  s.vocab = 500;
  s.long_vocab = 3000;
  s.heads = 4;
  s.kv_heads = {4, 1};
  s.contexts = {40, 600};
  s.sequences = {1, 3};
  return s;
}

int run(const Options& o) {
  cudaDeviceProp device{};
  need(cudaGetDeviceProperties(&device, 0), "no device");
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  std::printf("{\"name\": \"kernels.device\", \"value\": \"%s\", \"unit\": \"\"}\n", device.name);
  std::printf("{\"name\": \"kernels.seed\", \"value\": %llu, \"unit\": \"\"}\n",
              static_cast<unsigned long long>(o.seed));
  Shape shape = o.small ? small_shape() : Shape{};
  shape.multiprocessors = device.multiProcessorCount;
  Report report;
  const auto wants = [&](const std::string& part) { return o.wants(part); };
  if (o.check) check_all(report, shape, o.seed, wants);
  Times times(report, shape, o.seconds, o.seed);
  if (o.time) {
    times.ceilings(o.small ? int64_t{1} << 24 : int64_t{4} << 30);
    times.all(wants);
  }
  if (o.wants("chain")) {
    const int context = o.small ? 40 : 256, most = o.small ? 80 : 2048;
    const int keys = std::max(Chain::kMostRows * context, most);
    const int64_t pages = keys / shape.page_rows + Chain::kMostRows;
    Chain chain(shape, o.small ? 2 : 32, pages, o.seed + 700);
    const ChainCase cases[] = {
        {1, 1, context}, {1, 1, most}, {1, 8, context}, {4, 1, context}, {16, 1, context}};
    for (const ChainCase& one : cases) {
      if (o.check) check_chain(report, chain, one);
      if (o.time) time_chain(report, times.timer(), times.read(), chain, one);
    }
  }
  report.put("failed", static_cast<double>(report.wrong.size()), "checks");
  for (const std::string& name : report.wrong) {
    std::fprintf(stderr, "wrong: kernels.%s (--seed=%llu)\n", name.c_str(),
                 static_cast<unsigned long long>(o.seed));
  }
  return report.wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tandem::cuda::program

int main(int argc, char** argv) {
  tandem::cuda::program::Options options;
  if (!tandem::cuda::program::parse(argc, argv, options)) {
    std::fprintf(stderr, "options:\n%s", tandem::cuda::program::kHelp);
    return 2;
  }
  try {
    return tandem::cuda::program::run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_kernels: %s\n", e.what());
    return 1;
  }
}
