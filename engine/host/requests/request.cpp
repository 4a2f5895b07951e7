#include "engine/host/requests/request.h"

#include "engine/base/enum_names.h"

namespace tandem {
namespace {

constexpr auto kContractNames = enum_names<Contract>({
    {Contract::kAny, "ANY"},
    {Contract::kLossy, "LOSSY"},
    {Contract::kDistribution, "DISTRIBUTION"},
    {Contract::kExactUpToRounding, "EXACT_UP_TO_ROUNDING"},
    {Contract::kExact, "EXACT"},
});

}  // namespace

const char* contract_name(Contract c) { return kContractNames[c].data(); }

bool searches_beams(const GenerateRequest& request) {
  const SettingValue* width = find_setting(request.beam, "width");
  const auto* whole = width ? std::get_if<int64_t>(width) : nullptr;
  return whole && *whole > 1;
}

}  // namespace tandem
