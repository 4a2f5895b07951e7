#include "engine/sched/method_context.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

bool MethodContext::reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) {
  left_.clear();
  parts_->reservation.want(needs, tokens());
  waiter_ = waiter;
  if (!host_->ask_pages(run_)) return false;
  waiter_ = nullptr;
  return true;
}

// Rows of a prompt, say: between two layers they would be a pass that nothing can divide.
void MethodContext::refill(Stage stage) {
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

FedRows MethodContext::feed(Stage stage) {
  if (!parts_->caches.is_fed()) return {};
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const CacheSet::Feed feed = parts_->caches.feed_of(cache);
  if (!feed.source.cache.valid() || cache.rows() >= feed.rows) return {};
  if (mutated(Mutation::kRefillWithTokens) && stats().preemptions > 0) return {};
  const CacheId source = feed.source.cache;
  const std::vector<Token>* const apart = parts_->caches.apart(source);
  const auto known = [&] { return std::ranges::find(left_, source, &Left::source); };
  if (known() == left_.end()) {
    Pass pass = apart ? pass_apart(source, *apart) : blank_pass();
    pass.stage = feed.source;
    for (int i = parts_->caches.find(source)->rows(); !apart && i < feed.rows; ++i) {
      pass.add.chain(token_in(tokens()[static_cast<size_t>(i)]));
    }
    submit(std::move(pass))->detach();
  }
  const auto left = known();
  TANDEM_CHECK(left != left_.end() && left->first <= cache.rows());
  TANDEM_CHECK(left->end == (apart ? static_cast<int>(apart->size()) : feed.rows));
  return {.ticket = left->ticket,
          .out = left->out,
          .first = left->first,
          .end = feed.rows,
          .beside = mutated(Mutation::kRowBeside) ? std::span<const int>() : feed.beside,
          .replace = feed.fed.replace,
          .foreign = feed.fed.foreign};
}

Pass MethodContext::pass_apart(CacheId cache, const std::vector<Token>& tokens) {
  const SequenceCache& held = *parts_->caches.find(cache);
  const bool unfed = mutated(Mutation::kRefillUnfed) && stats().preemptions > 0;
  const FedRows fed = unfed ? FedRows() : feed({cache, held.pools()->layers});
  Pass pass = blank_pass();
  pass.stage = {cache, held.pools()->layers};
  pass.see = parts_->caches.encodes(cache) ? See::kAll : See::kCausal;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = static_cast<int>(i);
    pass.add.chain(row < fed.end ? fed.input(tokens[i], row) : token_in(tokens[i]));
  }
  return pass;
}

void MethodContext::bring_memory(CacheId cache) {
  CacheSet& caches = parts_->caches;
  const CacheId memory = caches.feed_of(*caches.find(cache)).memory;
  if (!memory.valid() || caches.find(memory)->rows() > 0) return;  // else at first, or evicted
  submit_refill(pass_apart(memory, *caches.apart(memory)));
}

Flight* MethodContext::submit(Pass&& pass) {
  return submit_leaving(std::move(pass), SequencePasses::kAsked);
}

// A pass that runs the prompt leaves the rows that another cache is fed with.
Flight* MethodContext::submit_leaving(Pass&& pass, SequencePasses::Why why) {
  if (!parts_->caches.is_fed()) {
    return parts_->passes.submit(std::move(pass), parts_->caches, host_, why);
  }
  bring_memory(pass.stage.cache);
  const Reservation::Feeding* const feeding = parts_->reservation.feeding(pass.stage.cache);
  const int begin = parts_->caches.find(pass.stage.cache)->rows();
  const bool leaves = feeding && begin <= feeding->first &&
                      begin + static_cast<int>(pass.add.size()) >= feeding->end &&
                      std::ranges::find(left_, feeding->source, &Left::source) == left_.end();
  if (!leaves) return parts_->passes.submit(std::move(pass), parts_->caches, host_, why);
  Left left{feeding->source, 0, 0, feeding->first, feeding->end};
  for (const Read& read : pass.read) left.out += static_cast<int>(read.rows.size());
  Read rows;
  rows.at = feeding->at;
  rows.hidden = true;
  for (int row = left.first; row < left.end; ++row) rows.rows.push_back(row - begin);
  pass.reading(std::move(rows));
  Flight* const flight = parts_->passes.submit(std::move(pass), parts_->caches, host_, why);
  left.ticket = flight->id;
  left_.push_back(left);
  return flight;
}

void MethodContext::submit_refill(Pass&& pass) {
  submit_leaving(std::move(pass), SequencePasses::kRefill)->detach();
}

int64_t MethodContext::copy(CacheId from, int begin, int end, CacheId to) {
  SequenceCache* source = parts_->caches.find_idle(from);
  SequenceCache* target = parts_->caches.find_idle(to);
  source->settle();
  auto transfer = std::make_shared<Transfer>(source->pools(), target->pools());
  target->copy_from(*source, begin, end, transfer);
  return host_->begin(std::move(transfer));
}

bool MethodContext::emit(std::span<Emitted> tokens) {
  int64_t taken = parts_->output.emit(tokens, &stats());
  const bool over = parts_->output.ended();
  if (taken == 0) return over;
  tokens = tokens.first(static_cast<size_t>(taken));
  if (mutated(Mutation::kUncountedToken) && over) --taken;
  const bool first_choice = run_->request() == run_->id();
  parts_->accounts.emitted(taken, first_choice, host_->now());
  host_->tokens_emitted(run_, taken);
  SequenceListener& listener = *parts_->spec.listener;
  if (mutated(Mutation::kRepeatToken) && stats().preemptions > 0) {
    Emitted again = tokens.front();
    listener.on_tokens({&again, 1});
  }
  listener.on_tokens(tokens);
  return over;
}

}  // namespace tandem
