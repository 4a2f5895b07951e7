#include "engine/base/enum_names.h"
#include "engine/host/request.h"

namespace tandem {
namespace {

constexpr auto kContractNames = enum_names<Contract>({
    {Contract::kAny, "ANY"},
    {Contract::kLossy, "LOSSY"},
    {Contract::kDistribution, "DISTRIBUTION"},
    {Contract::kExact, "EXACT"},
});

}  // namespace

const char* contract_name(Contract c) { return kContractNames[c].data(); }

}  // namespace tandem
