#include "tests/simulation/watch.h"

#include <algorithm>
#include <limits>

#include "engine/base/status.h"

namespace tandem::simulation {
namespace {

// The most batches for which a runnable sequence may wait: passes run first in, first out, so it
// waits for at most one of each other sequence on each device. Slightly more than max_running run
// when readers resume. After a fault a device may run batches of one row for a while
// (DeviceScheduler::retry_smaller), so the rows of a client with less service come one by one.
int64_t patience(const Plan& plan) {
  constexpr int kUsualRows = 20;
  const int step_rows = plan.fault_every > 0 ? 1 : plan.limits.step_rows;
  return 24 + int64_t{4} * (plan.limits.max_running + 4) * (1 + kUsualRows / step_rows);
}

// The largest service of a crowd's request: its prompt, and its tokens twice (plan.cpp).
constexpr int64_t kCrowdCost = 8 + 2 * 6;

}  // namespace

void Watch::on_batch(int device, const Batch& batch) {
  const Plan& plan = world_->plan;
  ++world_->report.coverage.batches;
  if (batch.works.size() > 1 && batch.run_rows() > plan.limits.step_rows) {
    world_->broken(
        absl::StrCat("a batch of ", batch.run_rows(), " rows; allowed: ", plan.limits.step_rows));
  }
  std::deque<LaunchedBatch>& batches = under_way_[device];
  if (!batches.empty()) ++world_->report.coverage.batches_behind;
  LaunchedBatch& mine = batches.emplace_back();
  std::set<std::pair<ModelId, PageId>> written;
  for (const Work& w : batch.works) {
    const int page_rows = plan.pool[w.model.index() % kModels].page_rows;
    mine.requests.insert(w.request);
    last_active_[w.request] = batches_done_;
    for (const PageId page : w.pages) mine.read.emplace_back(w.model, page);
    for (const PageId page : w.memory_pages) mine.read.emplace_back(w.memory_model, page);
    for (int p = w.past / page_rows; p * page_rows < w.past + w.run_rows(); ++p) {
      const PageId page = w.pages[static_cast<size_t>(p)];
      if (!written.emplace(w.model, page).second) {
        world_->broken("a page that two passes of a batch write");
      }
      if (world_->loop->model_pools(w.model).kv.owners(page) > 1) {
        world_->broken("a page with two owners is written");
      }
    }
    // Penalties count final tokens only.
    const auto it = heard_->find(w.request);
    if (it == heard_->end()) continue;
    const Heard& client = *it->second;
    if (it->second->request().kind == MethodKind::kBeam) continue;  // hypotheses are not final
    const std::vector<Token>& prompt = client.request().prompt;
    const size_t final_rows = prompt.size() + client.tokens().size();
    for (size_t i = 0; i < w.history.size(); ++i) {
      const size_t row = static_cast<size_t>(w.history_begin) + i;
      if (row >= final_rows) break;
      const Token want = row < prompt.size() ? prompt[row] : client.tokens()[row - prompt.size()];
      if (w.history[i] != want && w.history[i] != -1) {
        world_->broken(absl::StrCat("a pass counts ", w.history[i], " as token ", row));
      }
    }
  }
}

void Watch::on_batch_done(int device) {
  under_way_[device].pop_front();
  ++batches_done_;
}

void Watch::after_step() {
  for (const auto& [id, client] : *heard_) {
    if (client->cancelled && client->active()) {
      world_->broken(absl::StrCat("sequence ", id, " continues after its cancel"));
    }
  }
  check_turns();
  check_pages();
  check_gone();
  check_order();
  const LimitsConfig& limits = world_->plan.limits;
  std::set<RequestId> waiting;
  int64_t tokens = 0, longest = 0;
  int running = 0, first = std::numeric_limits<int>::min();
  world_->loop->visit([&](const SequenceRun& run) {
    if (run.state() == SequenceRun::kWaiting && waiting.insert(run.request()).second) {
      const int64_t prompt = run.spec().prompt_tokens();
      tokens += prompt;
      longest = std::max(longest, prompt);
    }
    if (run.state() == SequenceRun::kRunning) first = std::max(first, run.spec().priority);
    running += run.state() == SequenceRun::kRunning || run.state() == SequenceRun::kPaused;
  });
  world_->loop->visit([&](const SequenceRun& run) { check_progress(run, first); });
  if (static_cast<int>(waiting.size()) > limits.max_waiting) {
    world_->broken(absl::StrCat(waiting.size(), " requests wait; allowed: ", limits.max_waiting));
  }
  // A single prompt may exceed the bound.
  if (tokens > std::max<int64_t>(limits.max_waiting_tokens, longest)) {
    world_->broken(
        absl::StrCat(tokens, " prompt tokens wait; allowed: ", limits.max_waiting_tokens));
  }
  // A held request does not queue again.
  int back = 0;
  for (const Request& q : world_->plan.requests) {
    back += q.resume <= world_->clock.now() ? q.choices : 0;
  }
  if (running > limits.max_running + back) {
    world_->broken(absl::StrCat(running, " sequences run; allowed: ", limits.max_running));
  }
}

void Watch::check_pages() {
  const std::string wrong = world_->loop->check_pages();
  if (!wrong.empty()) world_->broken(wrong);
  for (const auto& [device, batches] : under_way_) {
    for (const LaunchedBatch& batch : batches) {
      for (const auto& [model, page] : batch.read) {
        if (world_->loop->model_pools(model).kv.owners(page) > 0) continue;
        world_->broken("a page went back while a pass reads it");
        return;
      }
    }
  }
}

// An ended request is released, unless a device still runs its passes.
void Watch::check_gone() {
  int64_t may_live = 0;
  for (const auto& [id, client] : *heard_) {
    if (!client->submitted) continue;
    const bool in_batch = std::ranges::any_of(under_way_, [id = id](const auto& device) {
      return std::ranges::any_of(device.second,
                                 [id](const LaunchedBatch& b) { return b.requests.contains(id); });
    });
    if (!client->ended() || in_batch) ++may_live;
  }
  // The last one stays while copies between devices are under way.
  for (int m = 0; m < world_->plan.models(); ++m) {
    const bool moves = world_->loop->model_pools(ModelId(m)).kv.pinned() > 0;
    if (moves) may_live = std::max<int64_t>(may_live, 1);
  }
  if (world_->loop->live() > may_live) {
    world_->broken(absl::StrCat(world_->loop->live(), " sequences live; ", may_live, " may"));
  }
}

// Admission order: first in, first out per client; the client with less service first.
void Watch::check_turns() {
  const auto alike = [](const Request& a, const Request& b) {
    return a.priority == b.priority && a.kind == b.kind;
  };
  std::vector<const Heard*> waiting, fresh;
  for (const auto& [id, client] : *heard_) {
    if (choice_of(id) != 0 || !client->submitted) continue;
    if (client->admitted()) {
      if (admitted_.insert(id).second) fresh.push_back(client.get());
    } else if (!client->ended()) {
      waiting.push_back(client.get());
    }
  }
  for (const Heard* late : fresh) {
    for (const Heard* early : waiting) {
      const Request &a = early->request(), &b = late->request();
      if (a.client == b.client && alike(a, b) && early->order < late->order) {
        world_->broken(absl::StrCat("a later request of client ", a.client, " is admitted first"));
      }
    }
  }
  if (!world_->plan.crowd) return;
  std::map<std::string, int64_t> served;
  std::set<std::string> waits;
  for (const auto& [id, client] : *heard_) {
    const Request& q = client->request();
    if (client->admitted()) served[q.client] += static_cast<int64_t>(q.prompt.size());
    served[q.client] += 2 * static_cast<int64_t>(client->tokens().size());
  }
  for (const Heard* client : waiting) waits.insert(client->request().client);
  if (waits.size() < 2) {
    both_wait_since_.clear();
    return;
  }
  if (both_wait_since_.empty()) both_wait_since_ = served;
  // Running requests, and one more of each, do not count.
  const int64_t bound = kCrowdCost * (world_->plan.limits.max_running + 1);
  const int64_t flood = served["flood"] - both_wait_since_["flood"];
  const int64_t few = served["few"] - both_wait_since_["few"];
  if (std::abs(flood - few) > bound) {
    world_->broken(absl::StrCat("while both wait, one client has had ", flood,
                                " tokens of service and the other ", few));
  }
}

// No sequence gets pages before an earlier one that waits for the same pool.
void Watch::check_order() {
  std::map<RequestId, Observed> now;
  std::vector<const SequenceRun*> still, granted;
  world_->loop->visit([&](const SequenceRun& run) {
    now[run.id()] = {run.state(), run.rounds()};
    const auto before = states_.find(run.id());
    if (before == states_.end() || before->second.state != SequenceRun::kPaused) return;
    // A sequence that was granted pages and waits again was not overtaken.
    const bool same_round = before->second.rounds == run.rounds();
    if (run.state() == SequenceRun::kPaused && same_round) still.push_back(&run);
    if (run.state() == SequenceRun::kRunning) granted.push_back(&run);
  });
  const bool by_priority = world_->plan.limits.preemption == Preemption::kLowestPriority;
  const auto before = [by_priority](const SequenceRun* a, const SequenceRun* b) {
    const int pa = a->spec().priority, pb = b->spec().priority;
    return by_priority && pa != pb ? pa > pb : a->order() < b->order();
  };
  for (const SequenceRun* late : granted) {
    for (const SequenceRun* early : still) {
      if (before(early, late) && early->shares_pools_with(*late)) {
        world_->broken(absl::StrCat("sequence ", late->id(), " overtakes ", early->id(),
                                    " in the queue for pages"));
      }
    }
  }
  states_ = std::move(now);
}

// The runnable sequences that precede all others must run.
void Watch::check_progress(const SequenceRun& run, int first_priority) {
  int64_t& last = last_active_.try_emplace(run.id(), batches_done_).first->second;
  if (run.state() != SequenceRun::kRunning || run.spec().priority < first_priority) {
    last = batches_done_;
  } else if (batches_done_ - last > patience(world_->plan)) {
    world_->broken(absl::StrCat("sequence ", run.id(), " could run but has not for ",
                                batches_done_ - last, " batches"));
    last = batches_done_;
  }
}

void Watch::at_end() {
  if (world_->loop->live() != 0) {
    world_->broken(absl::StrCat(world_->loop->live(), " sequences never go away"));
  }
  for (int m = 0; m < world_->plan.models(); ++m) {
    const ModelPools& pools = world_->loop->model_pools(ModelId(m));
    const int64_t used = pools.kv.used() + pools.frontier.used() + pools.values.used();
    if (used > 0) {
      world_->broken(absl::StrCat("idle, and ", used, " pages are used"));
    }
  }
  check_metrics();
}

// The metrics equal the sums over the event log.
void Watch::check_metrics() {
  const Metrics& m = world_->metrics;
  int64_t tokens = 0, finished = 0, failed = 0, preemptions = 0, rejected = 0;
  int64_t passes = 0;
  for (const auto& [id, client] : *heard_) {
    if (!client->submitted) continue;
    tokens += static_cast<int64_t>(client->tokens().size());
    preemptions += client->end().stats.preemptions;
    passes += client->end().stats.large_passes + client->end().stats.small_passes;
    if (choice_of(id) != 0) continue;
    bool ok = true;
    for (int c = 0; c < client->request().choices; ++c) {
      ok &= heard_->at(id_of(request_of(id), c))->end().status.ok();
    }
    (ok ? finished : failed) += 1;
    const absl::Status& status = client->end().status;
    rejected += absl::IsInvalidArgument(status) || status.GetPayload(kRetryPayload).has_value();
  }
  int64_t counted_tokens = 0, counted_finished = 0, counted_failed = 0, counted_rejected = 0;
  double running = 0, waiting = 0;
  for (const Series& s : m.series) {
    counted_tokens += s.generated_tokens.value();
    for (const Counter& c : s.finished) counted_finished += c.value();
    for (const Counter& c : s.failed) counted_failed += c.value();
    running += s.requests_running.value();
    waiting += s.requests_waiting.value();
  }
  for (const Counter& c : m.rejected) counted_rejected += c.value();
  int64_t counted_passes = 0;
  for (const ModelSeries& s : m.models) {
    for (const Counter& c : s.passes) counted_passes += c.value();
  }
  const auto equal = [this](const char* what, int64_t counted, int64_t heard) {
    if (counted == heard) return;
    world_->broken(absl::StrCat("metrics count ", counted, " ", what, "; there were ", heard));
  };
  equal("generated tokens", counted_tokens, tokens);
  equal("finished requests", counted_finished, finished);
  equal("failed requests", counted_failed, failed);
  equal("rejected requests", counted_rejected, rejected);
  equal("preemptions", m.preemptions.value(), preemptions);
  equal("passes", counted_passes, passes);
  equal("running requests", static_cast<int64_t>(running), 0);
  equal("waiting requests", static_cast<int64_t>(m.requests_waiting.value()), 0);
  equal("waiting requests of the series", static_cast<int64_t>(waiting), 0);
}

}  // namespace tandem::simulation
