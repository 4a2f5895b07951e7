// Open requests, from arrival until their last choice has ended. Updates the clients' shares
// (fairness.h) and the metrics of their methods (metrics.h).
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/sched/fairness.h"
#include "engine/sched/metrics.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

struct OpenRequest {
  std::vector<SequenceRun*> choices;    // that have not ended, in order
  std::vector<SequenceRun*> following;  // of these, not started yet
  Account* account = nullptr;
  bool admitted = false;
  bool paused = false;
  SequenceEnd end;  // of the first choice, or of the failed one
};

class RequestBook {
 public:
  RequestBook(FairnessOptions fairness, Metrics* metrics)
      : ledger_(std::move(fairness)), metrics_(metrics) {}

  // REQUIRES: the id is new.
  OpenRequest& open(RequestId id, const std::string& client);
  OpenRequest* find(RequestId id) {
    const auto it = requests_.find(id);
    return it == requests_.end() ? nullptr : &it->second;
  }
  OpenRequest& at(RequestId id) { return requests_.at(id); }
  const OpenRequest& at(RequestId id) const { return requests_.at(id); }

  // `first`: the spec of its first choice.
  void admit(OpenRequest& request, const SequenceSpec& first, TimePoint now);
  void pause(OpenRequest& request, bool on);
  void charge_tokens(Account* account, int64_t count) { ledger_.charge_tokens(account, count); }
  // Its last choice, `last`, has ended: counts the request once and removes it.
  void close(RequestId id, const SequenceSpec& last, TimePoint now);
  // Counts a request that was never opened.
  void refuse(const SequenceSpec& first, const absl::Status& status, RejectReason reason);

 private:
  Ledger ledger_;
  Metrics* const metrics_;
  std::unordered_map<RequestId, OpenRequest> requests_;
};

}  // namespace tandem
