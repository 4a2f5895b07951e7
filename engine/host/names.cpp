#include "engine/host/request.h"

namespace tandem {

const char* method_name(Method m) {
  switch (m) {
    case Method::kAuto:
      return "auto";
    case Method::kAutoregressive:
      return "autoregressive";
    case Method::kSpeculative:
      return "speculative";
    case Method::kBild:
      return "bild";
    case Method::kBita:
      return "bita";
    case Method::kPpd:
      return "ppd";
    case Method::kLlmToSlm:
      return "llm_to_slm";
  }
  return "?";
}

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
