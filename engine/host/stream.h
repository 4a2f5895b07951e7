// A request's way out: from tokens on the loop to text at the sink.
//
// The loop only hands events over; they are decoded, cut at stop strings and delivered on a text
// thread, in order. What has piled up since the last delivery becomes one chunk.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/host/request.h"
#include "engine/host/text_pool.h"
#include "engine/sched/spec.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/stream_decoder.h"

namespace tandem {

// Everything that delivery needs to know of a resolved request.
struct StreamPlan {
  Started started;
  uint64_t seed = 0;
  bool logprobs = false;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool skip_special_tokens = true;
  std::vector<Token> context;  // the prompt's last tokens
  std::vector<std::string> stop_sequences;
  bool include_stop_sequence = false;
};

class RequestStream final : public SequenceListener {
 public:
  // `gone` is called once, after the sink's last call.
  RequestStream(TextPool* pool, StreamPlan plan, std::shared_ptr<Sink> sink,
                std::function<void()> gone);

  // On the loop:
  void on_admitted() override;
  void on_tokens(std::vector<Emitted> tokens) override;
  void on_end(const SequenceEnd& end) override;

 private:
  struct Delivery;  // lives on the strand

  const std::shared_ptr<Strand> strand_;
  const std::shared_ptr<Delivery> delivery_;
};

// Log-probabilities, as engine/decode/score.h gives them, for a caller's callback.
TokenInfo token_info(const Emitted& token, bool logprobs);

}  // namespace tandem
