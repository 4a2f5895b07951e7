// Predictive pipelined decoding (paper 2307.05908): while the main process finishes a token,
// sub-processes on other devices run the lower layers of the next one, for candidates that an early
// layer proposes. Tokens are those of autoregressive decoding; what falls is the time to each.
#pragma once

#include <optional>
#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct PpdParams {
  int candidates = 1;  // k of Algorithm 1: an early layer's best tokens; [1, 64]
  int workers = 1;     // caches in Role::kWorker, which share the candidates
  // What reads the early layer: of main, and of worker i where workers read it (e = d / 2). None
  // for a worker: its own.
  HeadId head = kOwnHead;
  std::vector<HeadId> worker_heads = {};
  // Candidates are ids below this alone, which spares the rest of the output matrix, see
  // SpeculativeParams. 0: all of them. Unset: what suits the models, here all.
  std::optional<int> draft_vocabulary = {};
};

// MethodStats::own, in this order.
struct PpdFigures {
  enum : size_t {
    kRounds,        // tokens for whose successor workers were started
    kMatches,       // of these, those whose successor was a candidate
    kFirstMatches,  // of these, those whose successor was the first candidate
    kAdopted,       // matches whose rows main took over: the others' worker was late
    kMainLayers,    // layers that main ran for decoded tokens, compute units of section 4
    kWorkerLayers,  // layers that workers ran for candidates
    kCopiedRows,    // between devices, of s layers each
    // Layers that main would have run had every match been in time: the latency of Theorem 4.1,
    // d l - (d - e)(l - 1) p. With kWorkerLayers, the compute of section 4.
    kPredictedMainLayers,
    kCopiedBytes,  // of kCopiedRows
    // Where time went after the first token, nanoseconds. The first three and waits for memory are
    // MethodStats::decode_seconds.
    kLowerTime,    // main up to the early layer, and reading it: A, B
    kUpperTime,    // main's other layers, until the token is there: C
    kBarrierTime,  // waits for workers behind the token: D
    kWorkerTime,   // workers' passes over candidates, beside the others
  };
};

// Roles: kLarge, all d layers of main; kSmall, its layers [0, e), e the early layer, with d / 2 <=
// e < d; kWorker i, a model of main's layers [0, d - e) whose pool keeps the hidden rows of its top
// (PoolSize::retains_top_hidden).
//
// A round waits for main, for the worker whose candidate was right while that takes less than
// running its layers again, and for the others while they are as fast as main. So a slow worker
// costs a request no more than its first rounds, and what time decides is never a token.
Task<void> ppd(Gen g, PpdParams a);

}  // namespace tandem
