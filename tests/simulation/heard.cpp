#include "tests/simulation/heard.h"

#include "engine/base/status.h"

namespace tandem::simulation {

Heard::Heard(World* world, size_t request, int choice, std::vector<Token> answer)
    : world_(world), request_(request), choice_(choice), answer_(std::move(answer)) {}

void Heard::on_admitted() {
  if (admitted_ || ends_ > 0) {
    world_->broken(absl::StrCat("request ", request_, " is admitted twice, or late"));
  }
  admitted_ = true;
  world_->note(1000 + id_of(request_, choice_));
}

void Heard::on_tokens(std::span<Emitted> more) {
  const std::string who = absl::StrCat("request ", request_, ", choice ", choice_);
  if (ends_ > 0) world_->broken(absl::StrCat(who, " hears tokens after its end"));
  if (!admitted_) world_->broken(absl::StrCat(who, " hears tokens before it is admitted"));
  // Tokens of the round under way may still arrive.
  if (loop_knows_stall && ++after_stall > 1) {
    world_->broken(absl::StrCat(who, " is written to although its reader does not read"));
  }
  for (const Emitted& e : more) {
    if (tokens_.size() >= answer_.size() || answer_[tokens_.size()] != e.token) {
      world_->broken(absl::StrCat(who, " (", kind_name(request().kind), ") hears ", e.token,
                                  " as token ", tokens_.size()));
    }
    if (e.provenance.corrected && sure_to_agree()) {
      world_->broken(absl::StrCat(who, " corrects a draft that both models draw alike"));
    }
    tokens_.push_back(e.token);
    world_->note(2000 + static_cast<uint64_t>(e.token));
  }
}

// A draft of the same model is the token that its target draws, except for drafts of masks.
bool Heard::sure_to_agree() const {
  const FakeModelConfig& large = world_->plan.model[0];
  const FakeModelConfig& small = world_->plan.model[1];
  return request().kind == MethodKind::kSpeculative && request().speculative.num_masks == 0 &&
         !request().lora.valid() && large.seed == small.seed && large.layers == small.layers;
}

void Heard::on_end(const SequenceEnd& e) {
  world_->loop->visit([&](const SequenceRun& run) {
    if (run.id() == id_of(request_, choice_) && world_->clock.now() >= world_->plan.loss) {
      on_lost_device_ = world_->runs_on(run, world_->plan.lost_device);
    }
  });
  if (++ends_ > 1) world_->broken(absl::StrCat("request ", request_, " ends twice"));
  end_ = e;
  world_->note(3000 + static_cast<uint64_t>(e.status.code()));
}

Phase Heard::phase() const {
  Phase phase = !admitted_ ? Phase::kWaiting : tokens_.empty() ? Phase::kPrefill : Phase::kDecoding;
  world_->loop->visit([&](const SequenceRun& run) {
    if (run.id() != id_of(request_, choice_)) return;
    if (run.state() == SequenceRun::kPaused) phase = Phase::kPaused;
    if (run.state() == SequenceRun::kHeld) phase = Phase::kHeld;
  });
  return phase;
}

void Heard::unexplained() {
  world_->broken(absl::StrCat("request ", request_, ", choice ", choice_,
                              ", has no reason to end with ", end_.status.ToString(), " ",
                              finish_reason_name(end_.reason)));
}

void Heard::check_end() {
  const Request& q = request();
  Coverage& sum = world_->report.coverage;
  ++sum.requests;
  if (ends_ != 1) {
    world_->broken(
        absl::StrCat("request ", request_, ", choice ", choice_, " ended ", ends_, " times"));
    return;
  }
  if (end_.completion_tokens != static_cast<int64_t>(tokens_.size())) unexplained();
  sum.reused_tokens += end_.stats.cached_tokens;
  if (!q.salt.empty() && choice_ == 0 && end_.stats.cached_tokens > 0) {
    world_->broken(absl::StrCat("request ", request_, " is given ", end_.stats.cached_tokens,
                                " rows of others in spite of its salt"));
  }
  if (q.giant && admitted_) unexplained();
  switch (end_.status.code()) {
    case absl::StatusCode::kOk:
      if (end_.reason == FinishReason::kTimeLimit) {
        if (q.time_limit == kNever) unexplained();
        ++sum.cut;
      } else if (end_.reason == FinishReason::kCancelled) {
        if (!cancelled) unexplained();
        ++sum.cut;
      } else {
        if (tokens_ != answer_) {
          world_->broken(absl::StrCat("request ", request_, " ends OK after ", tokens_.size(),
                                      " of ", answer_.size(), " tokens"));
        }
        ++sum.answered;
        if (!q.source.empty()) ++sum.sources;
      }
      break;
    case absl::StatusCode::kInvalidArgument:
      if (!q.giant || admitted_) unexplained();
      ++sum.refused;
      break;
    case absl::StatusCode::kCancelled:
      if (!cancelled) unexplained();
      ++sum.cancelled;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      if (q.deadline == kNever) unexplained();
      ++sum.deadlines;
      break;
    case absl::StatusCode::kInternal:
      if (!struck) unexplained();
      ++sum.device_failures;
      break;
    case absl::StatusCode::kUnavailable:
      if (!shut_down && !on_lost_device_) unexplained();
      ++(on_lost_device_ ? sum.lost : sum.shut_down);
      break;
    case absl::StatusCode::kResourceExhausted:
      if (admitted_ || stalled) {
        if (!no_memory && !stalled) unexplained();
        ++sum.device_failures;
      } else {
        ++sum.refused;
        // Overload errors carry a retry delay.
        if (!end_.status.GetPayload(kRetryPayload)) {
          world_->broken(absl::StrCat(
              "request ", request_, " is refused without a retry hint: ", end_.status.ToString()));
        }
      }
      break;
    default:
      unexplained();
  }
}

}  // namespace tandem::simulation
