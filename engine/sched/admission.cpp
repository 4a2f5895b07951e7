#include "engine/sched/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/mutation.h"
#include "engine/base/status.h"
#include "engine/sched/timers.h"

namespace tandem {
namespace {

// True: the role runs the request's tokens once, not the sequence. Its beams share the rows.
bool runs_once(const SequenceSpec& spec, size_t role) {
  return spec.roles()[role].prompt_only || spec.runs_fixed_tokens(role);
}

// The rows of a role whose sequence has `tokens` tokens.
int64_t rows_of(const SequenceSpec& spec, size_t role, int64_t tokens) {
  return runs_once(spec, role) ? static_cast<int64_t>(spec.request_tokens(role).size()) : tokens;
}

// The most hidden rows that a role leaves in one round.
int64_t hidden_of(const SequenceSpec& spec, size_t role) {
  return spec.cast->conditions(role) ? static_cast<int64_t>(spec.request_tokens(role).size()) : 0;
}

}  // namespace

Admission::Admission(const LimitsConfig& limits, const Dispatcher* dispatcher,
                     const RequestBook* requests, PageQueue* page_queue, Metrics* metrics)
    : limits_(limits),
      dispatcher_(dispatcher),
      requests_(requests),
      page_queue_(page_queue),
      metrics_(metrics),
      waiting_(limits),
      users_(dispatcher->models(), 0),
      placement_(dispatcher, &users_) {}

absl::Status Admission::check(const SequenceSpec& first, int choices, TimePoint now,
                              RejectReason* reason) const {
  *reason = RejectReason::kTooLarge;
  absl::Status status = can_ever_fit(first, choices);
  if (!status.ok()) return status;
  *reason = RejectReason::kDeviceLost;
  status = dispatcher_->can_serve(first);
  if (!status.ok()) return status;
  status = waiting_.check(first.prompt_tokens(), reason);
  return status.ok() ? status : with_retry_hint(status, retry_hint(now));
}

// The first sequence in the page queue can preempt all others, so it suffices that one choice fits
// alone at its maximum length.
absl::Status Admission::can_ever_fit(const SequenceSpec& spec, int choices) const {
  if (choices > limits_.max_running) {
    return absl::InvalidArgumentError(absl::StrCat("n: ", choices, "; allowed: at most ",
                                                   limits_.max_running, " (limits.max_running)"));
  }
  const int64_t tokens =
      static_cast<int64_t>(spec.prompt.size()) + spec.stops.max_new_tokens + spec.extra_rows;
  const auto too_large = [&](int64_t capacity, absl::string_view of) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt tokens + max_new_tokens: ", spec.prompt.size(), " + ", spec.stops.max_new_tokens,
        spec.extra_rows > 0 ? absl::StrCat(" (and ", spec.extra_rows, " rows for guesses)") : "",
        spec.width > 1 ? absl::StrCat(" in each of ", spec.width, " beams") : "",
        "; allowed: at most ", capacity, " together, ", of));
  };
  for (size_t i = 0; i < spec.roles().size(); ++i) {
    const CastRole& role = spec.roles()[i];
    const int64_t rows = rows_of(spec, i, tokens);
    if (role.encodes && rows > limits_.step_rows) {  // its pass is never divided
      return absl::InvalidArgumentError(absl::StrCat("source tokens: ", rows, "; allowed: at most ",
                                                     limits_.step_rows, " (limits.step_rows)"));
    }
    // Preempted caches are recomputed one by one, without the pages that forks shared.
    const int width = runs_once(spec, i) ? 1 : spec.width;
    for (const ModelId model : dispatcher_->replicas(role.model)) {  // any may be chosen
      const ModelPools& pools = dispatcher_->pools(model);
      const int64_t capacity = pools.kv.total() / width * pools.page_rows;
      if (rows > capacity) return too_large(capacity, "the KV memory of the model");
      if (hidden_of(spec, i) > pools.values.total()) {
        return absl::InvalidArgumentError(
            absl::StrCat("prompt tokens: ", spec.prompt.size(), ", for which the method keeps ",
                         hidden_of(spec, i), " hidden rows at once; allowed: at most ",
                         pools.values.total(), " of the model"));
      }
      const int64_t frontier_capacity = pools.frontier.total() * pools.page_rows;
      if (role.frontier_pages(pools.layers, pools.page_rows, rows) > pools.frontier.total()) {
        return too_large(frontier_capacity, "the model's memory for rows between two layers");
      }
    }
  }
  return absl::OkStatus();
}

// Held sequences need no slot, up to max_waiting of them.
int Admission::slots_used() const { return running_ + std::max(0, held_ - limits_.max_waiting); }

void Admission::count(const SequenceRun& run, int by) {
  running_ += by;
  const auto& roles = run.spec().roles();
  for (size_t i = 0; i < roles.size(); ++i) {
    const auto same = [&](const CastRole& r) { return r.model == roles[i].model; };
    if (std::any_of(roles.begin(), roles.begin() + static_cast<ptrdiff_t>(i), same)) continue;
    users_[roles[i].model.index()] += by;
  }
}

Admission::Next Admission::next() {
  if (waiting_.empty()) {
    hint_.idle();
    return {};
  }
  std::vector<const SequenceRun*> blocked;
  for (SequenceRun* run : waiting_.heads()) {
    const auto n = static_cast<int>(requests_->at(run->request()).choices.size());
    if (slots_used() + n > limits_.max_running && !mutated(Mutation::kIgnoreMaxRunning)) {
      break;  // in all lines, so that smaller requests do not overtake
    }
    const bool behind = std::any_of(blocked.begin(), blocked.end(), [run](const SequenceRun* b) {
      return b->shares_pools_with(*run);
    });
    if (!behind) {
      std::vector<ModelId> models = place(*run, n);
      if (has_room(*run, models, n)) return {run, std::move(models)};
    }
    blocked.push_back(run);
  }
  return {};
}

std::vector<ModelId> Admission::place(const SequenceRun& run, int choices) const {
  const auto has_choice = [this](const CastRole& r) {
    return dispatcher_->replicas(r.model).size() > 1;
  };
  if (!dispatcher_->has_replicas() || run.spec().placed) return {};
  if (std::ranges::none_of(run.spec().roles(), has_choice)) return {};
  return placement_.place(run, [&](size_t role, ModelId model) {
    std::vector<const PagePool*> lacking;
    find_lacking(run, role, model, choices, &lacking);
    return lacking.empty() && !page_queue_->blocks(model);
  });
}

void Admission::find_lacking(const SequenceRun& run, size_t role, ModelId model, int choices,
                             std::vector<const PagePool*>* lacking) const {
  const CastRole& played = run.spec().roles()[role];
  const ModelPools& pools = dispatcher_->pools(model);
  const auto prompt = static_cast<int64_t>(run.spec().prompt.size());
  const int64_t rows = rows_of(run.spec(), role, prompt + 1);
  int64_t pages = (rows + pools.page_rows - 1) / pools.page_rows;
  // Choices share a cached prompt, but not caches of other tokens.
  const bool fixed = run.spec().runs_fixed_tokens(role);
  pages = fixed ? pages * choices : pages + choices - 1;
  const int64_t available = pools.kv.available();
  if (pages > available && !fixed) pages = run.first_pages(role, pools) + choices - 1;
  if (pages > available) lacking->push_back(&pools.kv);
  if (played.frontier_pages(pools.layers, pools.page_rows, rows) > pools.frontier.available()) {
    lacking->push_back(&pools.frontier);
  }
}

bool Admission::has_room(const SequenceRun& run, const std::vector<ModelId>& models, int choices) {
  const auto& roles = run.spec().roles();
  const auto model = [&](size_t role) { return models.empty() ? roles[role].model : models[role]; };
  bool used = false;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (page_queue_->blocks(model(i))) return false;
    used |= users_[model(i).index()] > 0;
  }
  for (;;) {
    std::vector<const PagePool*> lacking;
    for (size_t i = 0; i < roles.size(); ++i) find_lacking(run, i, model(i), choices, &lacking);
    if (lacking.empty()) return true;
    if (!page_queue_->preempt_held(lacking)) return !used;  // unused: all pages will be released
    metrics_->preemptions.add();
  }
}

void Admission::served(TimePoint now) {
  if (!waiting_.empty()) hint_.served(now);
}

TimePoint Admission::queue_end(const SequenceSpec& spec) const {
  return spec.submitted + duration(limits_.queue_seconds);
}

absl::Status Admission::queue_timeout(const SequenceSpec& spec, TimePoint now) const {
  return with_retry_hint(with_reason(absl::ResourceExhaustedError(absl::StrCat(
                                         "waited ", seconds(now - spec.submitted),
                                         " s in the queue; allowed: ", limits_.queue_seconds,
                                         " s (limits.queue_seconds); try again later")),
                                     "QUEUE_TIMEOUT"),
                         retry_hint(now));
}

}  // namespace tandem
