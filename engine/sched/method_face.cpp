#include "engine/sched/method_face.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

bool MethodFace::reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) {
  left_.clear();
  parts_->reservation.want(needs, tokens());
  waiter_ = waiter;
  if (!host_->ask_pages(run_)) return false;
  waiter_ = nullptr;
  return true;
}

// Rows of a prompt, say: between two layers they would be a pass that nothing can divide.
void MethodFace::refill(Stage stage) {
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const int layers = cache.pools()->layers;
  if (stage.to >= layers) return;
  const int have = cache.rows();
  const int end = std::min(parts_->reservation.frontier_begin(stage.cache),
                           static_cast<int>(tokens().size()) - 1);
  if (have >= end) return;
  Pass pass = blank_pass();
  pass.stage = {stage.cache, layers};
  for (int i = have; i < end; ++i) pass.add.chain(token_in(tokens()[static_cast<size_t>(i)]));
  submit_refill(std::move(pass));
}

FedRows MethodFace::feed(Stage stage) {
  if (!parts_->caches.is_fed()) return {};
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const CacheSet::Feed feed = parts_->caches.feed_of(cache);
  if (!feed.source.cache.valid() || cache.rows() >= feed.rows) return {};
  if (planted(Bug::kRefillWithTokens) && stats().preemptions > 0) return {};
  const auto known = [&] { return std::ranges::find(left_, feed.source.cache, &Left::source); };
  if (known() == left_.end()) {
    Pass pass = blank_pass();
    pass.stage = feed.source;
    for (int i = parts_->caches.find(feed.source.cache)->rows(); i < feed.rows; ++i) {
      pass.add.chain(token_in(tokens()[static_cast<size_t>(i)]));
    }
    submit(std::move(pass))->detach();
  }
  const auto left = known();
  TANDEM_CHECK(left != left_.end() && left->first <= cache.rows() && left->end == feed.rows);
  return {.ticket = left->ticket,
          .out = left->out + cache.rows() - left->first,
          .first = cache.rows(),
          .end = feed.rows,
          .replace = feed.fed.replace,
          .foreign = feed.fed.foreign};
}

// A pass that runs the prompt leaves the rows that another cache is fed with.
Flight* MethodFace::submit(Pass&& pass) {
  if (!parts_->caches.is_fed())
    return parts_->passes.submit(std::move(pass), parts_->caches, host_);
  const Reservation::Feeding* const feeding = parts_->reservation.feeding(pass.stage.cache);
  const int begin = parts_->caches.find(pass.stage.cache)->rows();
  const bool leaves = feeding && begin <= feeding->first &&
                      begin + static_cast<int>(pass.add.size()) >= feeding->end &&
                      std::ranges::find(left_, feeding->source, &Left::source) == left_.end();
  if (!leaves) return parts_->passes.submit(std::move(pass), parts_->caches, host_);
  Left left{feeding->source, 0, 0, feeding->first, feeding->end};
  for (const Read& read : pass.read) left.out += static_cast<int>(read.rows.size());
  Read rows;
  rows.at = feeding->at;
  rows.hidden = true;
  for (int row = left.first; row < left.end; ++row) rows.rows.push_back(row - begin);
  pass.reading(std::move(rows));
  Flight* const flight = parts_->passes.submit(std::move(pass), parts_->caches, host_);
  left.ticket = flight->id;
  left_.push_back(left);
  return flight;
}

void MethodFace::submit_refill(Pass&& pass) {
  parts_->passes.submit(std::move(pass), parts_->caches, host_, SequencePasses::kRefill)->detach();
}

void MethodFace::copy(CacheId from, int begin, int end, CacheId to) {
  SequenceCache* source = parts_->caches.find_idle(from);
  SequenceCache* target = parts_->caches.find_idle(to);
  source->settle();
  auto transfer = std::make_shared<Transfer>(source->pools(), target->pools());
  target->copy_from(*source, begin, end, transfer);
  host_->begin(std::move(transfer));
}

bool MethodFace::emit(std::vector<Emitted> tokens) {
  int64_t taken = parts_->output.emit(&tokens, &stats());
  const bool over = parts_->output.ended();
  if (taken == 0) return over;
  if (planted(Bug::kUncountedToken) && over) --taken;
  const bool first_choice = run_->request() == run_->id();
  parts_->accounts.emitted(taken, first_choice, host_->now());
  host_->tokens_emitted(run_, taken);
  parts_->spec.listener->on_tokens(std::move(tokens));
  return over;
}

}  // namespace tandem
