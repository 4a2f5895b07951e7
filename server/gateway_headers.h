// Headers of an inference gateway: for whom it forwards a request, and with what priority. They
// count only from the clients in server.trusted_gateways, because others could use them to take the
// share of another client.
#pragma once

#include <optional>
#include <string>

#include "server/server_config.h"

namespace tandem {

struct GatewayHeaders {
  std::string fairness_id;  // empty: none
  std::string objective;
};

// `find` returns the value of a header by its lower-case name, or an empty string. llm-d's names
// come before those of gateway-api-inference-extension.
template <class Find>
GatewayHeaders gateway_headers(const Find& find) {
  const auto first_of = [&find](const char* name, const char* older) {
    std::string value = find(name);
    return value.empty() ? std::string(find(older)) : value;
  };
  return {first_of("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"),
          first_of("x-llm-d-inference-objective", "x-gateway-inference-objective")};
}

struct Sender {
  std::string client;           // for fairness and quotas
  std::optional<int> priority;  // of the objective, in place of the request's
};

// `identity`: of the peer. A fairness id that is no printable ASCII text of at most 128 bytes, and
// an objective that server.objectives lacks, are ignored.
Sender sender_of(const ServerConfig& config, std::string identity, const GatewayHeaders& headers);

}  // namespace tandem
