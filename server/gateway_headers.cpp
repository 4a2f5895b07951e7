#include "server/gateway_headers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace tandem {
namespace {

constexpr size_t kMaxFairnessId = 128;

bool is_client_name(const std::string& text) {
  return !text.empty() && text.size() <= kMaxFairnessId &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
}

}  // namespace

Sender sender_of(const ServerConfig& config, std::string identity, const GatewayHeaders& headers) {
  Sender out{std::move(identity), std::nullopt};
  if (!config.trusted_gateways.contains(out.client)) return out;
  if (is_client_name(headers.fairness_id)) out.client = headers.fairness_id;
  const auto objective = config.objectives.find(headers.objective);
  if (objective != config.objectives.end()) out.priority = objective->second;
  return out;
}

}  // namespace tandem
