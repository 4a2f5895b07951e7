#include "engine/sched/request_book.h"

#include "engine/base/check.h"
#include "engine/base/mutation.h"

namespace tandem {

OpenRequest& RequestBook::open(RequestId id, const std::string& client) {
  const auto [entry, fresh] = requests_.try_emplace(id);
  TANDEM_CHECK(fresh);
  entry->second.account = ledger_.open(client);
  return entry->second;
}

void RequestBook::admit(OpenRequest& request, const SequenceSpec& first, TimePoint now) {
  const int64_t prompt_tokens = first.prompt_tokens();
  request.admitted = true;
  ledger_.admit(request.account);
  ledger_.charge_prompt(request.account, prompt_tokens);
  if (Series* s = first.series) {
    s->requests_running.add(1);
    s->prompt_tokens.add(prompt_tokens);
    s->prompt_length.observe(static_cast<double>(prompt_tokens));
    s->queue_time.observe(seconds(now - first.submitted));
  }
  if (AdapterSeries* s = first.adapter_series) {
    s->requests_running.add(1);
    s->requests.add();
  }
}

void RequestBook::pause(OpenRequest& request, bool on) {
  request.paused = on;
  metrics_->requests_paused.add(on ? 1 : -1);
}

void RequestBook::close(RequestId id, const SequenceSpec& last, TimePoint now) {
  OpenRequest& request = requests_.at(id);
  ledger_.close(request.account, !request.admitted);
  if (request.paused) pause(request, false);
  if (AdapterSeries* s = last.adapter_series; s && request.admitted) s->requests_running.add(-1);
  if (Series* s = last.series) {
    const SequenceEnd& end = request.end;
    if (request.admitted && (!mutated(Mutation::kGaugeStays) || end.status.ok())) {
      s->requests_running.add(-1);
    }
    if (end.status.ok()) {
      s->finished[static_cast<size_t>(end.reason)].add();
    } else {
      s->failed[static_cast<size_t>(end.status.code())].add();
    }
    s->e2e_latency.observe(seconds(now - last.submitted));
    if (request.admitted) {
      s->prefill_time.observe(end.stats.prefill_seconds);
      s->decode_time.observe(end.stats.decode_seconds);
      s->answer_length.observe(static_cast<double>(end.completion_tokens));
    }
    if (end.completion_tokens > 0 && end.stats.large_passes > 0) {
      s->tokens_per_pass.observe(static_cast<double>(end.completion_tokens) /
                                 static_cast<double>(end.stats.large_passes));
    }
  }
  requests_.erase(id);
}

void RequestBook::refuse(const SequenceSpec& first, const absl::Status& status,
                         RejectReason reason) {
  metrics_->rejected[static_cast<size_t>(reason)].add();
  if (first.series) first.series->failed[static_cast<size_t>(status.code())].add();
}

}  // namespace tandem
