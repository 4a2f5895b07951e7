#include "engine/sched/sequence_passes.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/sequence_run.h"

namespace tandem {
namespace {

// Passes of more rows, as of a prompt, free their buffers when they are done.
constexpr size_t kReusedRows = 64;

// Mutation: each row of a tree sees the row before it.
void unmask_siblings(Tree* tree) {
  for (size_t i = 0; i < tree->size(); ++i) {
    if (tree->parent[i] >= 0) tree->parent[i] = static_cast<Row>(i) - 1;
  }
}

// Mutation: the first of several children of `row`; `drawn` where it has none.
Token first_child(const Tree& tree, Row row, Token drawn) {
  std::vector<Token> children;
  for (size_t i = 0; i < tree.size(); ++i) {
    const bool is_child = tree.parent[i] == row && tree.in[i].kind == In::kToken;
    if (is_child) children.push_back(tree.in[i].id);
  }
  return row >= 0 && children.size() > 1 ? children.front() : drawn;
}

// Mutation: rows draw other tokens.
void spoil_draws(PassFlight* flight) {
  const Tree& tree = flight->pass.add;
  Token predicted = -1;
  size_t out = 0;
  for (const Read& read : flight->pass.read) {
    for (const Row row : read.rows) {
      Out& answer = flight->readout.row[out++];
      const bool by_mask = row >= 0 && tree.in[static_cast<size_t>(row)].kind == In::kMask;
      if (by_mask && predicted < 0 && !answer.top.empty()) predicted = answer.top[0].token;
      if (read.draw && mutated(Mutation::kAcceptSibling)) {
        answer.token = first_child(tree, row, answer.token);
      }
    }
  }
  if (mutated(Mutation::kEmitPredicted) && predicted >= 0) flight->readout.row[0].token = predicted;
}

}  // namespace

Pass SequencePasses::blank() {
  if (spare_.empty()) return {};
  return std::move(spare_.back()->pass);
}

PassFlight* SequencePasses::take_spare() {
  if (spare_.empty()) {
    PassFlight* const fresh = all_.emplace_back(std::make_unique<PassFlight>()).get();
    fresh->owner = this;
    fresh->sequence = sequence_;
    fresh->request = id_;
    fresh->priority = priority_;
    fresh->late = sequence_->late();
    return fresh;
  }
  PassFlight* const flight = spare_.back();
  spare_.pop_back();
  return flight;
}

Flight* SequencePasses::submit(Pass&& pass, CacheSet& caches, LoopServices* loop, Purpose purpose,
                               CacheId memory) {
  SequenceCache* const c = caches.find(pass.stage.cache);
  PassFlight* const flight = take_spare();
  if (c->idle()) c->commit_tree();
  flight->id = flight->order = loop->new_ticket_id();
  flight->number = ++submitted_;
  flight->traced = {};
  flight->pass = std::move(pass);
  if (mutated(Mutation::kUnmaskSibling)) unmask_siblings(&flight->pass.add);
  flight->done = false;
  flight->held = true;
  flight->seconds = 0;
  flight->waiter = nullptr;
  flight->recompute = purpose == kRecompute;
  flight->cache = c;
  flight->role = caches.role_of(*c, flight->pass.stage.to);
  flight->lora = caches.lora_of(*c);
  if (flight->recompute && mutated(Mutation::kRecomputeWithoutLora)) flight->lora = LoraId();
  flight->device = loop->device_of(c->model());
  prepare(*flight);
  if (flight->linked) find_awaited(flight);
  const bool causal = flight->pass.see == See::kCausal;
  if (causal && !flight->pass.memory.valid()) flight->pass.memory = memory;
  if (!flight->pass.adapter.valid()) {
    flight->pass.adapter = caches.adapter_of(*c, flight->pass.add);
  }
  if (flight->linked) place_values(*flight);
  flight->memory = flight->pass.memory.valid() ? caches.find(flight->pass.memory) : nullptr;
  if (flight->memory) {
    flight->memory_turn = flight->memory->begin_reader();
    flight->memory_device = loop->device_of(flight->memory->model());
  }
  flight->turn = c->begin_pass();
  if (!causal || flight->pass.memory != memory) {
    c->append_private(flight->pass.stage.to, flight->pass.add);
  } else {
    c->append(flight->pass.stage.to, flight->pass.add);
  }
  ++under_way_;
  flight->shared = flight->leaves_values;
  if (flight->shared) shared_.push_back(flight);
  loop->enqueue(flight);
  return flight;
}

void SequencePasses::find_awaited(PassFlight* flight) const {
  for (const TicketId ticket : flight->awaits) {
    const auto before = std::find_if(shared_.begin(), shared_.end(),
                                     [ticket](const PassFlight* f) { return f->id == ticket; });
    TANDEM_CHECK(before != shared_.end());  // else the pass would never run
    flight->before.push_back(*before);
  }
}

// Assigns places to the hidden rows that it leaves, and finds those that are its inputs.
void SequencePasses::place_values(PassFlight& flight) {
  size_t out = 0;
  for (const Read& read : flight.pass.read) {
    if (read.hidden) flight.values.resize(static_cast<size_t>(flight.outputs));
    for (size_t i = 0; i < read.rows.size(); ++i, ++out) {
      if (read.hidden) flight.values[out] = flight.cache->take_value();
    }
  }
  for (int row = 0; row < flight.rows(); ++row) {
    const In& in = flight.pass.add.in[static_cast<size_t>(row)];
    if (in.kind != In::kEmbed) continue;
    const auto from = std::ranges::find(flight.before, in.ref.ticket, &PassFlight::id);
    const auto left = static_cast<size_t>(in.ref.out);
    TANDEM_CHECK(left < (*from)->values.size() && (*from)->values[left].valid());
    const size_t read = mutated(Mutation::kWrongValue) && left > 0 ? left - 1 : left;
    flight.embeds.push_back({row, (*from)->cache->model(), (*from)->values[read]});
  }
}

void SequencePasses::done(PassFlight& flight) {
  --under_way_;
  if (flight.role == Role::kLarge) last_done_[0] = flight.number;
  if (flight.role == Role::kSmall) last_done_[1] = flight.number;
  flight.cache->end_pass();
  if (mutated(Mutation::kForgetValueRow)) flight.cache->release_values();
  if (mutated(Mutation::kAcceptSibling) || mutated(Mutation::kEmitPredicted)) spoil_draws(&flight);
  if (flight.memory) flight.memory->end_reader();
  flight.done = true;
  reuse(&flight);
}

void SequencePasses::reuse(PassFlight* flight) {
  if (!flight->done || flight->held || flight->shared) return;
  if (flight->pass.add.size() > kReusedRows) {
    flight->pass = Pass();
    flight->readout = Readout();
  }
  flight->pass.clear();
  flight->readout.row.clear();
  flight->readout.accepted = 0;
  flight->readout.ranked.clear();
  flight->readout.pooled.clear();
  spare_.push_back(flight);
}

void PassFlight::detach() {
  held = false;
  owner->reuse(this);
}

}  // namespace tandem
