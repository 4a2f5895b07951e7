#include "engine/backend/torch/cpu/targets.h"

#include <hwy/highway.h>

#include <atomic>

#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem::cpu {
namespace {

// Extensions of AVX3. Each includes the previous ones, but kBf16 includes kGfni only if the
// processor has it (all but Cooper Lake).
enum Extension { kNone, kVnni, kGfni, kBf16 };
constexpr const char* kAvx3[] = {"AVX3", "AVX3_VNNI", "AVX3_GFNI", "AVX3_BF16"};

bool has_gfni() {
#if HWY_ARCH_X86
  static const bool kHas = __builtin_cpu_supports("gfni") != 0;
  return kHas;
#else
  return false;
#endif
}

Extension best_extension() {
#if HWY_ARCH_X86
  if (!__builtin_cpu_supports("avx512vnni")) return kNone;
  if (__builtin_cpu_supports("avx512bf16")) return kBf16;
  return has_gfni() ? kGfni : kVnni;
#else
  return kNone;
#endif
}

bool four_bytes(Extension used) {
  const int64_t best = hwy::SupportedAndGeneratedTargets().front();
  return best == HWY_AVX2 || (best == HWY_AVX3 && used >= kVnni);
}

// Cached multiplies_fours(). Kernels ask per row, and the query takes microseconds, in a virtual
// machine tens of them.
std::atomic<bool>& fours() {
  static std::atomic<bool> known{four_bytes(best_extension())};
  return known;
}

std::atomic<Extension>& extension() {
  static std::atomic<Extension> used{best_extension()};
  return used;
}

int64_t& forced() {
  static int64_t target = 0;  // 0: none
  return target;
}

struct Target {
  int64_t bit;  // Highway's bit
  Extension extension;
  std::string name;
};

// Targets that are compiled in and supported by the machine, best first. (SupportedTargets()
// considers the processor only.)
std::vector<Target> all_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<Target> all;
  for (const int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    if (bit != HWY_AVX3) {
      all.push_back({bit, kNone, hwy::TargetName(bit)});
      continue;
    }
    for (int e = best_extension(); e >= kNone; --e) {
      if (e == kGfni && !has_gfni()) continue;
      all.push_back({bit, static_cast<Extension>(e), kAvx3[e]});
    }
  }
  hwy::SetSupportedTargetsForTest(forced());
  return all;
}

}  // namespace

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const Target& t : all_targets()) names.push_back(t.name);
  return names;
}

std::string target() {
  const int64_t bit = hwy::SupportedAndGeneratedTargets().front();
  return bit == HWY_AVX3 ? kAvx3[extension().load()] : hwy::TargetName(bit);
}

absl::Status force_target(absl::string_view name) {
  forced() = 0;
  extension() = best_extension();
  bool known = name.empty();
  for (const Target& t : all_targets()) {
    if (t.name != name) continue;
    forced() = t.bit;
    extension() = t.extension;
    known = true;
  }
  hwy::SetSupportedTargetsForTest(forced());
  fours() = four_bytes(extension());
  return known ? absl::OkStatus() : out_of_range("target", name, absl::StrJoin(targets(), " "));
}

bool prefetches_two_levels() {
#if HWY_ARCH_X86
  static const bool kIntel = __builtin_cpu_is("intel") != 0;
  return kIntel;
#else
  return false;
#endif
}

bool use_vnni() { return extension().load(std::memory_order_relaxed) >= kVnni; }
bool use_gfni() { return extension().load(std::memory_order_relaxed) >= kGfni && has_gfni(); }
bool multiplies_fours() { return fours().load(std::memory_order_relaxed); }
bool use_bf16() { return extension().load(std::memory_order_relaxed) >= kBf16; }

}  // namespace tandem::cpu
