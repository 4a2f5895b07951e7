// Deliberate bugs of the HTTP server, which its simulation must detect
// (tests/server/edge/http_simulation_test.cpp). As engine/base/mutation.h: only builds with
// TANDEM_MUTATIONS contain them, inactive.
#pragma once

namespace tandem {

// Name and effect.
#define TANDEM_HTTP_MUTATION_LIST(X)                                                        \
  X(FreeOutput, "unsent responses are not charged")                                         \
  X(FreeBody, "bodies are not charged while they arrive")                                   \
  X(IgnoreLimit, "input above the limits of the account is accepted")                       \
  X(AcceptAll, "a refused request is served")                                               \
  X(ContinueEarly, "\"100 Continue\" is sent to a client whose request is refused")         \
  X(LostDisconnect, "a call does not learn that its client has left")                       \
  X(WrittenTwice, "a write is reported twice")                                              \
  X(PatientWriter, "a response that is not read has no deadline")                           \
  X(LosePipelined, "input behind a refused request is dropped, and the connection is kept") \
  X(FirstInFirstOut, "tasks run in the order in which they came")                           \
  X(LostCancel, "a waiting task is not cancelled")                                          \
  X(LateDrop, "a drain runs the tasks that wait")

enum class HttpMutation {
  kNone,
#define TANDEM_HTTP_MUTATION(name, what) k##name,
  TANDEM_HTTP_MUTATION_LIST(TANDEM_HTTP_MUTATION)
#undef TANDEM_HTTP_MUTATION
};

#ifdef TANDEM_MUTATIONS
inline HttpMutation active_http_mutation = HttpMutation::kNone;
inline bool mutated(HttpMutation mutation) { return active_http_mutation == mutation; }
#else
constexpr bool mutated(HttpMutation) { return false; }
#endif

}  // namespace tandem
