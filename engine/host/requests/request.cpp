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

}  // namespace tandem
