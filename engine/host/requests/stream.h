// A request's way out: from tokens on the loop to text at the sink.
//
// The loop only hands events over; they are decoded, cut at stop strings and delivered on a text
// thread, in order. What has piled up since the last delivery becomes one chunk. The choices of one
// request have a decoder each, and one sink.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/async/worker.h"
#include "engine/host/requests/claims.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// Everything that delivery needs to know of a resolved request.
struct StreamPlan {
  Started started;
  uint64_t seed = 0;
  bool logprobs = false;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool skip_special_tokens = true;
  std::vector<Token> context;  // the prompt's last tokens
  std::shared_ptr<const StopStrings> stops = std::make_shared<const StopStrings>();
  bool include_stop_sequence = false;
  std::shared_ptr<Claims> claims;  // given back as it goes on; or null
};

// A listener for each of `choices` choices; they speak to `sink` one at a time. `gone` is called
// once, after the sink's last call.
std::vector<std::shared_ptr<SequenceListener>> request_streams(Worker* pool, StreamPlan plan,
                                                               int choices,
                                                               std::shared_ptr<Sink> sink,
                                                               std::function<void()> gone);

// Log-probabilities, as engine/decode/score.h gives them, for a caller's callback.
TokenInfo token_info(const Emitted& token, bool logprobs);

}  // namespace tandem
