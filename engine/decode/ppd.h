// Predictive pipelined decoding (paper 2307.05908): while the main process finishes a token,
// sub-processes (workers) on other devices run the lower layers of the next one, for candidates
// that an early layer proposes. The tokens are those of autoregressive decoding, with a lower
// latency.
#pragma once

#include <optional>
#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct PpdParams {
  int candidates = 1;  // k of Algorithm 1: an early layer's best tokens; [1, 64]
  int workers = 1;     // caches in Role::kWorker that share the candidates
  // The head that reads the early layer: of main, and of worker i if workers read it (e = d / 2).
  // Without an entry a worker uses its model's own head.
  HeadId head = kOwnHead;
  std::vector<HeadId> worker_heads = {};
  // Candidates are ids below this, as in SpeculativeParams. 0: all. Unset: chosen by the models;
  // here all.
  std::optional<int> draft_vocabulary = {};
};

// MethodStats::own, in this order.
struct PpdFigures {
  enum : size_t {
    kRounds,        // tokens with workers started for their successor
    kMatches,       // of these, tokens whose successor was a candidate
    kFirstMatches,  // of these, tokens whose successor was the first candidate
    kAdopted,       // matches whose rows main adopted: not if the worker was late
    kMainLayers,    // layers that main ran for decoded tokens, compute units of section 4
    kWorkerLayers,  // layers that workers ran for candidates
    kCopiedRows,    // between devices, of s layers each
    // Layers that main would have run if every match had been in time: the latency of Theorem 4.1,
    // d l - (d - e)(l - 1) p. With kWorkerLayers, the compute of section 4.
    kPredictedMainLayers,
    kCopiedBytes,  // of kCopiedRows
    // Time after the first token, nanoseconds. The first three and waits for memory add up to
    // MethodStats::decode_seconds.
    kLowerTime,    // A, B: main up to the early layer, and reading it
    kUpperTime,    // C: main's other layers
    kBarrierTime,  // D: waits for workers
    kWorkerTime,   // workers' passes over candidates, concurrent with the others
  };
};

// Roles: kLarge, all d layers of main; kSmall, its layers [0, e), e the early layer, with d / 2 <=
// e < d; kWorker i, a model of main's layers [0, d - e) whose pool keeps the hidden rows of its top
// (PoolSize::retains_top_hidden).
//
// A round waits for main, for the worker with the right candidate if that is faster than running
// its layers again, and for other workers while they are as fast as main. So a slow worker delays
// only the first rounds of a request. Time never decides about a token.
Task<void> ppd(Gen g, PpdParams a);

}  // namespace tandem
