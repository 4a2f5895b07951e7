// The engine's requests of one HTTP completion, presented as one request: several prompts, prompts
// that are echoed (with log-probabilities by Score), and fill-in-the-middle.
//
// With n choices per prompt, choice j of prompt i has index i * n + j. One failure ends all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/host/engine.h"
#include "engine/host/requests/request.h"

namespace tandem {

// Receives the events of a batch under the rules of Sink.
class BatchSink {
 public:
  virtual ~BatchSink() = default;
  virtual void made(int64_t tokens) = 0;
  virtual void started(int prompt, const Started& event) = 0;
  // The prompt, before the first chunk of the choice. `tokens` are empty without log-probabilities.
  virtual void echo(int choice, std::string text, std::vector<TokenInfo> tokens) = 0;
  virtual void chunk(Chunk event) = 0;
  virtual void finished(Finished event) = 0;
  virtual void failed(const absl::Status& status) = 0;
};

// Names the prompt in errors about its text: "text" becomes "prompt[I]".
absl::Status of_prompt(const absl::Status& status, int prompt);

class CompletionBatch : public std::enable_shared_from_this<CompletionBatch> {
 public:
  struct Plan {
    GenerateRequest request;           // with the first prompt
    std::vector<Prompt> more_prompts;  // with the same parameters
    bool echo = false;                 // texts and token ids only
    bool score = false;                // with `echo`: log-probabilities of the prompt's tokens
    bool generate = true;
    std::string suffix;  // the text after the completion; one text prompt only
  };

  // REQUIRES: `plan.request.prompt` is a text or token ids if `echo` or `suffix` is set. `engine`
  // outlives the batch.
  CompletionBatch(Engine* engine, Plan plan, std::shared_ptr<BatchSink> sink);
  // Call once. Events may arrive before it returns.
  void start();

  int choices() const { return prompts_ * per_prompt_; }

  // As of Engine. They do not call the sink.
  void pause();
  void resume();
  void cancel();

 private:
  class PartSink;
  struct Echo {
    std::string text;
    std::vector<TokenInfo> tokens;
  };
  // The latest engine request of a prompt.
  struct Part {
    int step = 0;      // engine requests so far
    RequestId id = 0;  // 0: none
  };

  static std::vector<Prompt> take_prompts(Plan* plan);

  // The steps of a prompt.
  void begin(int prompt);
  void fill_in_the_middle(size_t family);
  void detokenize(int prompt, std::vector<TokenInfo> tokens, const Usage& usage);
  void score(int prompt);
  void echo_then_generate(int prompt, Echo echo, const Usage& usage);
  void generate(int prompt, Prompt text, Echo echo);
  // Makes an engine request by `submit`, unless the batch has been cancelled.
  template <class Submit>
  void make_request(int prompt, const Submit& submit);

  // Forwards an event, unless the batch has ended.
  template <class Event>
  void forward(const Event& event);
  void forward_made(int64_t tokens);
  void forward_start(int prompt, const Started& event, Echo echo);
  void forward_end(int prompt, Finished event);
  void fail(int prompt, const absl::Status& status);

  Engine* const engine_;
  // Each until the answer is generated from it; used by one step at a time.
  std::vector<Prompt> texts_;
  const Plan plan_;  // without prompts
  const int per_prompt_;
  const int prompts_;

  const std::weak_ptr<BatchSink> made_;  // made() comes during other events, and takes no lock

  Mutex events_mutex_;  // held while an event is forwarded
  std::shared_ptr<BatchSink> sink_ ABSL_GUARDED_BY(events_mutex_);  // null after the end
  int unfinished_ ABSL_GUARDED_BY(events_mutex_);                   // choices

  Mutex requests_mutex_;  // not held while the sink is called
  std::vector<Part> parts_ ABSL_GUARDED_BY(requests_mutex_);
  bool paused_ ABSL_GUARDED_BY(requests_mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(requests_mutex_) = false;
};

}  // namespace tandem
