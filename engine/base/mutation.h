// Deliberate bugs (mutations) that show what the simulator detects.
//
//   if (mutated(Mutation::kSkipTruncate)) return;
//
// Only a build with TANDEM_MUTATIONS (preset `test`) compiles them in, inactive: the program that
// counts what the simulator catches wakes one at a time. Everywhere else mutated() is false at
// compile time and nothing is left of such a line.
#pragma once

#include <cstdint>

namespace tandem {

// name, the invariant of docs/reliability.md that it breaks, what it does
#define TANDEM_MUTATION_LIST(X)                                                            \
  X(DoubleFree, 1, "a page that a cache gives back is given back twice")                   \
  X(LeakOnTruncate, 1, "the last page behind a cut stays with nobody")                     \
  X(LeakValues, 2, "kept distributions and picks are never forgotten on the device")       \
  X(LeakRun, 2, "a request that was stopped stays for ever")                               \
  X(LeakCache, 2, "an ended request's caches are not given back")                          \
  X(EndTwice, 3, "a cancelled request is told twice that it ended")                        \
  X(LostEnd, 3, "a request cancelled while it waits is never told")                        \
  X(LaunchBeforeInput, 6, "a pass goes to its device before its input's is done")          \
  X(RepeatToken, 4, "the first token after a resumption is streamed twice")                \
  X(DropToken, 4, "of several tokens accepted at once the last is not streamed")           \
  X(OvershootStop, 4, "tokens behind an end in the same round are streamed too")           \
  X(LostCancel, 5, "a cancel is forgotten while a pass is under way")                      \
  X(LateRelease, 5, "an ended request's pages go back only when nothing else runs")        \
  X(WriteShared, 6, "a page that two caches own is written without a copy")                \
  X(ForgetPin, 6, "pages of a copy between devices are given away before it is made")      \
  X(RunBeforeTransfer, 6, "passes do not wait for rows that are on their way")             \
  X(KeepValueRows, 2, "hidden rows that passes left are never given back")                 \
  X(ForgetValueRow, 6, "a hidden row is given back when its pass is done")                 \
  X(RefillWithTokens, 6, "after an eviction tokens are fed in place of hidden rows")       \
  X(WrongValue, 7, "a row is fed with the value of the output before")                     \
  X(RowBeside, 7, "a row is fed with the row of its own number, whatever lies beside it")  \
  X(ForgetFeed, 13, "rows that read a fed memory are found by those that read a bare one") \
  X(RefillUnfed, 6, "after an eviction an encoder runs tokens in place of hidden rows")    \
  X(FreeUnderPass, 6, "an ended request's pages go back while a device still reads them")  \
  X(CommitRejected, 7, "speculative sampling emits the draft that was rejected")           \
  X(SkipTruncate, 7, "rejected rows stay in the cache")                                    \
  X(CountRejected, 7, "penalties count tokens that were drafted and rejected")             \
  X(WrongPath, 7, "of a tree the first rows stay instead of the accepted path")            \
  X(LeaveTopBehind, 8, "a row kept of a worker's tree leaves its hidden state behind")     \
  X(StaleFrontier, 8, "rows are continued from another layer than they came to")           \
  X(DrawByRound, 8, "a token's draw depends on where its method's round began")            \
  X(DraftsApart, 8, "drafts are drawn with another key than their target's own tokens")    \
  X(RedrawAfterEviction, 8, "draws depend on how often a request was evicted")             \
  X(IgnoreStepRows, 9, "a batch takes whatever is pending")                                \
  X(IgnoreMaxRunning, 9, "requests are admitted whatever runs")                            \
  X(OverGrant, 9, "a round of two caches is granted when the first one fits")              \
  X(LostWaiter, 10, "one in some resumptions is forgotten")                                \
  X(StarvePrefill, 10, "a prefill waits as long as anybody decodes")                       \
  X(Overtake, 10, "whoever fits takes pages past the first in the queue")                  \
  X(IgnoreClients, 11, "admission looks at age alone")                                     \
  X(LastInFirstOut, 11, "of one client's requests the newest is admitted first")           \
  X(UnboundedQueue, 12, "the waiting room has no bound")                                   \
  X(NoRetryHint, 12, "a full queue does not say when to come back")                        \
  X(UnboundedReader, 12, "a sequence goes on whether its reader reads or not")             \
  X(FaultSpreads, 13, "a NaN row fails the whole batch")                                   \
  X(NanAccepted, 13, "a failed pass's answer is used")                                     \
  X(KeepFailedRows, 13, "rows of a failed pass are found in the prefix cache")             \
  X(UncountedToken, 14, "the last token of a request is not counted")                      \
  X(GaugeStays, 14, "a cancelled request is counted as running for ever")                  \
  X(HiddenPreemption, 14, "evictions are not counted")                                     \
  X(UnseededOrder, 15, "ready coroutines run in an order that no seed fixes")              \
  X(RealTime, 15, "a device waits for a batch or not as the real clock says")              \
  X(IgnoreSalt, 13, "one client's prefix is reused for another in spite of the salt")      \
  X(UnmaskSibling, 7, "a row of a tree sees its sibling instead of its parent")            \
  X(AcceptSibling, 7, "a tree's row draws the first of its children, likely or not")       \
  X(KeepLastRow, 7, "a tree's last row stays in the place of the last accepted one")       \
  X(EmitPredicted, 7, "a row draws what a mask of its pass foresees for later")            \
  X(PlaceOnLost, 10, "requests are placed on replicas whose devices are lost")             \
  X(LossSpreads, 13, "a lost device takes requests of other replicas along")

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
