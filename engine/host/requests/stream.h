// Output of a request: tokens of the loop become text at the sink.
//
// The loop queues events. A text thread decodes them, cuts them at stop strings and delivers them
// in order, with all that is queued in one chunk. Each choice has a decoder; all share the sink.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/async/worker.h"
#include "engine/host/requests/answer_format.h"
#include "engine/host/requests/claims.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// The part of a resolved request that delivery needs.
struct StreamPlan {
  Started started;
  uint64_t seed = 0;
  bool logprobs = false;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool skip_special_tokens = true;
  std::vector<Token> context;        // the prompt's last tokens
  std::optional<AnswerPlan> answer;  // splits the text; nullopt: the text is content
  std::shared_ptr<const StopStrings> stops = std::make_shared<const StopStrings>();
  bool include_stop_sequence = false;
  std::shared_ptr<Claims> claims;  // released as the request proceeds; may be null
  int64_t token_bytes = 0;         // of a running choice, by token of its prompt and answer
};

// One listener per choice. They call `sink` one at a time. `ended` is called once, after the sink's
// last call.
std::vector<std::shared_ptr<SequenceListener>> request_streams(Worker* pool, StreamPlan plan,
                                                               int choices,
                                                               std::shared_ptr<Sink> sink,
                                                               std::function<void()> ended);

// `logprobs`: with log-probabilities.
TokenInfo token_info(const Emitted& token, bool logprobs);

}  // namespace tandem
