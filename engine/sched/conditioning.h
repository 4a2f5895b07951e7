// Rows that one role of a request passes to another: memories of encoder-decoders, and hidden rows
// that condition a small model (LLM-to-SLM). See pass/cast.h.
//
// Extends what a round reserves, makes passes leave hidden rows, builds conditioned inputs, and
// recomputes memories and hidden rows after preemption. A request whose cast has no edges has no
// Conditioning. Loop thread only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/gen.h"
#include "engine/pass/cast.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/requirements.h"
#include "engine/sched/sequence_passes.h"
#include "engine/sched/spec.h"

namespace tandem {

struct SequenceParts;

// What the rows of a role depend on besides the sequence's tokens, as a key of the prefix cache:
// the encoder and its tokens, and what conditions them. Empty: nothing.
std::string prefix_dependencies(const SequenceSpec& spec, size_t role);

class Conditioning {
 public:
  // Null if the cast has no edges. All outlive it.
  static std::unique_ptr<Conditioning> create(SequenceParts* parts, LoopServices* loop);

  // A new round: adds the memories of the needed caches and the sources of conditioned ones to its
  // requirements. Hidden rows of earlier rounds are gone.
  void require(std::span<const Need> needs, Requirements* required);
  // Likewise, when preemption has emptied the caches: hidden rows must be left again.
  void require_sources(Requirements* required);

  // See Sequence::begin_pass().
  Pass begin_pass(Stage stage, int end);
  // Submits a pass. Recomputes its memory first, if that is empty. The pass leaves hidden rows if
  // it runs those that condition another cache in this round.
  Flight* submit(Pass&& pass, SequencePasses::Purpose purpose);

 private:
  Conditioning(SequenceParts* parts, LoopServices* loop) : parts_(parts), loop_(loop) {}

  // Rows [first, end) of a cache whose hidden rows condition another cache in this round.
  struct HiddenRows {
    CacheId cache;
    int first = 0, end = 0;
    int layer = 0;        // after which they are taken
    TicketId ticket = 0;  // of the pass that leaves them; 0: not submitted yet
    int out = 0;          // the output of that pass that is row `first`
  };
  // The rows before `end` that a cache lacks take `rows` as inputs; null: it lacks none of these.
  struct Inputs {
    const ConditioningEdge* edge = nullptr;
    const HiddenRows* rows = nullptr;
    int end = 0;
  };

  const Cast& cast() const;
  // The edge that conditions a cache or the cache that it was forked from; null: none.
  const ConditioningEdge* edge_to(const SequenceCache& cache) const;
  // The encoder role that a cache reads; -1: none.
  int memory_role(const SequenceCache& cache) const;
  CacheId memory_of(const SequenceCache& cache) const;
  HiddenRows* hidden_rows(CacheId cache);
  Inputs inputs_of(const SequenceCache& cache);
  In input(const Inputs& inputs, Token token, int row) const;
  // Runs all tokens of a role that runs only those (SequenceSpec::runs_fixed_tokens).
  Pass fixed_pass(size_t role);
  void recompute_memory(const SequenceCache& reader);

  SequenceParts* const parts_;
  LoopServices* const loop_;
  std::vector<HiddenRows> hidden_;
};

}  // namespace tandem
