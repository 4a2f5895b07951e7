#include "engine/host/requests/request.h"

namespace tandem {

const char* contract_name(Contract c) {
  switch (c) {
    case Contract::kAny:
      return "ANY";
    case Contract::kLossy:
      return "LOSSY";
    case Contract::kDistribution:
      return "DISTRIBUTION";
    case Contract::kExact:
      return "EXACT";
  }
  return "?";
}

bool searches_beams(const GenerateRequest& request) {
  const SettingValue* width = find_setting(request.beam, "width");
  const auto* whole = width ? std::get_if<int64_t>(width) : nullptr;
  return whole && *whole > 1;
}

}  // namespace tandem
