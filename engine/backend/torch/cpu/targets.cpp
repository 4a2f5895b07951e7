#include "engine/backend/torch/cpu/targets.h"

#include <hwy/highway.h>

#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace tandem::cpu {
namespace {

// SupportedTargets() knows processors, not what was compiled.
std::vector<int64_t> compiled_and_supported() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedAndGeneratedTargets();
}

int64_t& forced() {
  static int64_t target = 0;
  return target;
}

}  // namespace

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const int64_t t : compiled_and_supported()) names.emplace_back(hwy::TargetName(t));
  hwy::SetSupportedTargetsForTest(forced());
  return names;
}

std::string target() { return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()); }

absl::Status force_target(absl::string_view name) {
  forced() = 0;
  for (const int64_t t : compiled_and_supported()) {
    if (name == hwy::TargetName(t)) forced() = t;
  }
  hwy::SetSupportedTargetsForTest(forced());
  if (forced() != 0 || name.empty()) return absl::OkStatus();
  return out_of_range("target", name, absl::StrJoin(targets(), " "));
}

}  // namespace tandem::cpu
