#include "engine/backend/torch/cpu/targets.h"

#include <hwy/highway.h>

#include <atomic>

#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem::cpu {
namespace {

constexpr char kVnni[] = "AVX3_VNNI";

bool has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

std::atomic<bool>& vnni() {
  static std::atomic<bool> on{has_vnni()};
  return on;
}

int64_t& forced() {
  static int64_t target = 0;  // 0: none
  return target;
}

// All that were compiled and that the machine can run. (SupportedTargets() alone knows processors,
// not what was compiled.)
std::vector<int64_t> all_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<int64_t> all = hwy::SupportedAndGeneratedTargets();
  hwy::SetSupportedTargetsForTest(forced());
  return all;
}

}  // namespace

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const int64_t t : all_targets()) {
    if (t == HWY_AVX3 && has_vnni()) names.emplace_back(kVnni);
    names.emplace_back(hwy::TargetName(t));
  }
  return names;
}

std::string target() {
  const int64_t t = hwy::SupportedAndGeneratedTargets().front();
  return t == HWY_AVX3 && use_vnni() ? kVnni : hwy::TargetName(t);
}

absl::Status force_target(absl::string_view name) {
  forced() = 0;
  bool known = name.empty();
  for (const int64_t t : all_targets()) {
    const bool with_vnni = t == HWY_AVX3 && has_vnni() && name == kVnni;
    if (name != hwy::TargetName(t) && !with_vnni) continue;
    forced() = t;
    known = true;
  }
  vnni() = has_vnni() && (forced() == 0 || name == kVnni);
  hwy::SetSupportedTargetsForTest(forced());
  return known ? absl::OkStatus() : out_of_range("target", name, absl::StrJoin(targets(), " "));
}

bool use_vnni() { return vnni().load(std::memory_order_relaxed); }

}  // namespace tandem::cpu
