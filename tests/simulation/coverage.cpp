#include "tests/simulation/coverage.h"

#include "absl/strings/str_cat.h"

namespace tandem::simulation {

const char* kind_name(MethodKind kind) {
  constexpr const char* kNames[kKinds] = {"autoregressive", "speculative",      "n-gram",
                                          "BiLD",           "BiLD, early exit", "BiTA",
                                          "beam",           "LLM-to-SLM",       "PPD"};
  return kNames[static_cast<size_t>(kind)];
}

const char* phase_name(Phase phase) {
  constexpr const char* kNames[kPhases] = {"waiting", "prefill", "decoding", "waits for pages",
                                           "waits for its reader"};
  return kNames[static_cast<size_t>(phase)];
}

const char* event_name(Event event) {
  constexpr const char* kNames[kEvents] = {
      "cancel",    "deadline",   "time limit",     "device error", "NaN",        "no memory",
      "slow pass", "preemption", "stalled reader", "shutdown",     "device lost"};
  return kNames[static_cast<size_t>(event)];
}

void Coverage::count(MethodKind kind, Phase phase, Event event) {
  ++hit[static_cast<size_t>(kind)][static_cast<size_t>(phase)][static_cast<size_t>(event)];
  ++faults;
}

Coverage& Coverage::operator+=(const Coverage& o) {
  requests += o.requests;
  answered += o.answered;
  cut += o.cut;
  cancelled += o.cancelled;
  deadlines += o.deadlines;
  device_failures += o.device_failures;
  refused += o.refused;
  shut_down += o.shut_down;
  lost += o.lost;
  on_replicas += o.on_replicas;
  preemptions += o.preemptions;
  batches += o.batches;
  batches_behind += o.batches_behind;
  reused_tokens += o.reused_tokens;
  sources += o.sources;
  faults += o.faults;
  for (size_t k = 0; k < kKinds; ++k) {
    for (size_t p = 0; p < kPhases; ++p) {
      for (size_t e = 0; e < kEvents; ++e) hit[k][p][e] += o.hit[k][p][e];
    }
  }
  return *this;
}

std::string Coverage::summary() const {
  return absl::StrCat(requests, " requests: ", answered, " answered, ", cut, " cut, ", cancelled,
                      " cancelled, ", deadlines, " past their deadline, ", device_failures,
                      " failed by a device, ", refused, " refused, ", shut_down, " shut down, ",
                      lost, " lost with their device, ", on_replicas, " placed on replicas; ",
                      faults, " faults, ", preemptions, " preemptions, ", batches, " batches (",
                      batches_behind, " behind others), ", reused_tokens, " prompt tokens reused, ",
                      sources, " answered from a source");
}

std::string Coverage::table() const {
  std::string out = "| method | state |";
  std::string rule = "|---|---|";
  for (int e = 0; e < kEvents; ++e) {
    absl::StrAppend(&out, " ", event_name(static_cast<Event>(e)), " |");
    rule += "--:|";
  }
  absl::StrAppend(&out, "\n", rule, "\n");
  for (int k = 0; k < kKinds; ++k) {
    for (int p = 0; p < kPhases; ++p) {
      absl::StrAppend(&out, "| ", kind_name(static_cast<MethodKind>(k)), " | ",
                      phase_name(static_cast<Phase>(p)), " |");
      for (const int64_t n : hit[static_cast<size_t>(k)][static_cast<size_t>(p)]) {
        absl::StrAppend(&out, " ", n, " |");
      }
      out += "\n";
    }
  }
  return out;
}

}  // namespace tandem::simulation
