// Mutations: deliberate bugs that the simulator must detect.
//
//   if (mutated(Mutation::kSkipTruncate)) return;
//
// Only builds with TANDEM_MUTATIONS (preset `test`) contain them, inactive. The mutation tests
// activate one at a time. In other builds mutated() is false at compile time.
#pragma once

#include <cstdint>

namespace tandem {

// Name, the invariant of docs/reliability.md that it breaks, and its effect.
#define TANDEM_MUTATION_LIST(X)                                                                  \
  X(DoubleFree, 1, "a page that a cache releases is released twice")                             \
  X(LeakOnTruncate, 1, "truncation does not release the last page after the cut")                \
  X(LeakValues, 2, "distributions and picks are never forgotten on the device")                  \
  X(LeakRun, 2, "a stopped request is never removed")                                            \
  X(LeakCache, 2, "an ended request's caches are not released")                                  \
  X(EndTwice, 3, "a cancelled request ends twice")                                               \
  X(LostEnd, 3, "a request cancelled while it waits never ends")                                 \
  X(LaunchBeforeInput, 6, "a pass is launched before its input's pass is done")                  \
  X(RepeatToken, 4, "the first token after a preemption is streamed twice")                      \
  X(DropToken, 4, "the last of several tokens accepted at once is not streamed")                 \
  X(OvershootStop, 4, "tokens after an end in the same round are streamed")                      \
  X(LostCancel, 5, "a cancellation is ignored while a pass is under way")                        \
  X(LateRelease, 5, "an ended request's pages are released only when nothing else runs")         \
  X(WriteShared, 6, "a page with two owners is written without a copy")                          \
  X(ForgetPin, 6, "pages of a pending transfer are reused before it is done")                    \
  X(RunBeforeTransfer, 6, "passes do not wait for rows that are arriving")                       \
  X(KeepValueRows, 2, "hidden rows that passes left are never released")                         \
  X(ForgetValueRow, 6, "a hidden row is released when its pass is done")                         \
  X(RefillWithTokens, 6, "after a preemption tokens replace conditioned inputs")                 \
  X(WrongValue, 7, "an input is the hidden row of the previous output")                          \
  X(IgnoreAlignment, 7, "the alignment of conditioned rows is ignored")                          \
  X(ForgetConditioning, 13, "rows on a conditioned memory serve readers of a plain one")         \
  X(RefillUnconditioned, 6, "after a preemption an encoder runs tokens, not conditioned inputs") \
  X(FreeUnderPass, 6, "an ended request's pages are released while a device reads them")         \
  X(CommitRejected, 7, "speculative sampling emits the rejected draft")                          \
  X(SkipTruncate, 7, "rejected rows stay in the cache")                                          \
  X(CountRejected, 7, "penalties count drafted tokens that were rejected")                       \
  X(WrongPath, 7, "the first rows of a tree stay in place of the accepted path")                 \
  X(LeaveTopBehind, 8, "a retained row of a worker's tree loses its hidden state")               \
  X(StaleFrontier, 8, "rows are continued from another layer than they have done")               \
  X(DrawByRound, 8, "a token's draw depends on where its method's round began")                  \
  X(IndependentDrafts, 8, "drafts are drawn with another key than the target's tokens")          \
  X(RedrawAfterEviction, 8, "draws depend on the number of preemptions")                         \
  X(IgnoreStepRows, 9, "batches ignore the row limit")                                           \
  X(IgnoreMaxRunning, 9, "admission ignores the limit of running requests")                      \
  X(OverGrant, 9, "a round of two caches is granted when only the first one fits")               \
  X(LostWaiter, 10, "one in some resumptions is lost")                                           \
  X(StarvePrefill, 10, "a prefill waits while any sequence decodes")                             \
  X(Overtake, 10, "sequences overtake the head of the page queue")                               \
  X(IgnoreClients, 11, "admission orders by age alone")                                          \
  X(LastInFirstOut, 11, "a client's newest request is admitted first")                           \
  X(UnboundedQueue, 12, "the admission queue has no bound")                                      \
  X(NoRetryHint, 12, "a full queue gives no retry delay")                                        \
  X(UnboundedReader, 12, "sequences ignore slow readers")                                        \
  X(FaultSpreads, 13, "a NaN row fails the whole batch")                                         \
  X(NanAccepted, 13, "a failed pass's answer is used")                                           \
  X(KeepFailedRows, 13, "rows of a failed pass are published in the prefix cache")               \
  X(UncountedToken, 14, "the last token of a request is not counted")                            \
  X(GaugeStays, 14, "a cancelled request is counted as running forever")                         \
  X(HiddenPreemption, 14, "preemptions are not counted")                                         \
  X(UnseededOrder, 15, "ready coroutines run in an order that no seed determines")               \
  X(RealTime, 15, "launches depend on the real clock")                                           \
  X(IgnoreSalt, 13, "a client's prefix is shared with another client despite the salt")          \
  X(IgnoreLora, 13, "prefixes are shared by requests with different LoRA adapters")              \
  X(RecomputeWithoutLora, 6, "rows that preemption took are recomputed without the adapter")     \
  X(UnmaskSibling, 7, "a row of a tree sees its sibling instead of its parent")                  \
  X(AcceptSibling, 7, "a tree's row always draws its first child")                               \
  X(KeepLastRow, 7, "a tree's last row replaces the last accepted one")                          \
  X(EmitPredicted, 7, "a row draws the prediction of a mask in its pass")                        \
  X(PlaceOnLost, 10, "requests are placed on replicas with lost devices")                        \
  X(LossSpreads, 13, "a lost device ends requests on other replicas")

enum class Mutation : int {
  kNone = 0,
#define TANDEM_MUTATION(name, invariant, what) k##name,
  TANDEM_MUTATION_LIST(TANDEM_MUTATION)
#undef TANDEM_MUTATION
};

#ifdef TANDEM_MUTATIONS
inline Mutation active_mutation = Mutation::kNone;
inline bool mutated(Mutation mutation) { return active_mutation == mutation; }
#else
constexpr bool mutated(Mutation) { return false; }
#endif

}  // namespace tandem
