// Converts tandem.v1 messages to OpenAI's JSON: complete responses, stream events, models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/openai/logprobs.h"
#include "server/openai/request.h"
#include "server/openai/tool_calls.h"
#include "server/openai/usage.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/models.pb.h"

namespace tandem::openai {

// The common head of a request's responses.
struct Head {
  Kind kind = Kind::kCompletion;
  std::string request_id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool logprobs = false;
  int per_prompt = 1;   // choices
  int best = 0;         // complete responses: the number of choices to return; 0: all
  bool tokens = false;  // choices have `tandem.tokens`
  bool trace = false;   // choices have `tandem.trace`
};

// The members of `tandem` in a choice: tokens, then statistics and trace.
class ChoiceDetails {
 public:
  explicit ChoiceDetails(const Head& head) : tokens_(head.tokens), trace_(head.trace) {}

  // Tokens of an echoed prompt are left out.
  void add(const v1::Token& token);
  // The statistics and the trace, if the request asks for either.
  void add(const v1::Finished& event);
  // ,"tandem":{...} or nothing.
  void append_to(std::string* out) const;
  size_t bytes() const { return list_.size() + end_.size(); }

 private:
  bool tokens_;
  bool trace_;
  std::string list_;  // of tokens
  std::string end_;   // further members
};

// A complete response. The JSON is built as the parts arrive, so its size is always known.
class Answer {
 public:
  Answer(Head head, int choices);

  void started(const v1::Started& event) { started_ = event; }
  // The prompt, which begins the text of a choice. `tokens` as in chunk().
  void echo(int index, absl::string_view text, const std::vector<v1::Token>& tokens);
  // `tokens`: the tokens of the text with texts and bytes, if logprobs are requested.
  void chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens,
             const AnswerDelta& more = {});
  void finished(const v1::Finished& event);

  // The size of its texts and logprobs so far.
  size_t bytes() const { return bytes_; }
  // REQUIRES: every choice has finished.
  std::string json() const;

 private:
  struct Choice {
    std::string text;  // escaped
    Logprobs logprobs;
    ChoiceDetails details;
    AnswerDelta more = {};
    v1::Finished finished = {};  // without its trace
    double total_logprob = 0;    // of `tokens`
    int64_t tokens = 0;

    double mean_logprob() const {
      return tokens == 0 ? 0 : total_logprob / static_cast<double>(tokens);
    }
  };
  // The choices to return, by index.
  std::vector<const Choice*> returned() const;

  Head head_;
  v1::Started started_;
  std::vector<Choice> choices_;
  size_t bytes_ = 0;
};

// The server-sent events of one stream, in order. chunk() may run on another thread than the other
// functions, after started() of its prompt.
class Events {
 public:
  // `usage_so_far`: every event has the usage of its choice so far.
  Events(Head head, int choices, bool include_usage, bool usage_so_far = false);

  // Chats only: one event for each choice. `prompt`: index of the prompt.
  std::string started(const v1::Started& event, int prompt = 0);
  // `tokens`: the tokens of the text with texts and bytes, if logprobs are requested. `count`: the
  // number of new tokens.
  // `more`: chats only.
  std::string chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens,
                    int64_t count = 0, const AnswerDelta& more = {});
  std::string finished(const v1::Finished& event);
  std::string end() const;  // usage if requested, then [DONE]
  static std::string error(const std::string& json);

 private:
  struct Choice {
    explicit Choice(Kind kind) : logprobs(kind) {}
    Logprobs logprobs;
    int64_t tokens = 0;  // in chunks so far
  };

  std::string ending(int index, int64_t tokens) const;
  size_t prompt_of(int index) const { return static_cast<size_t>(index / head_.per_prompt); }

  const Head head_;
  const bool include_usage_;
  const bool usage_so_far_;
  const std::string opening_;         // start of each event's JSON, up to the choices
  std::vector<v1::Started> started_;  // by prompt
  UsageTotal usage_;
  std::vector<Choice> choices_;
};

// Entries of GET /v1/models. `created`: the server's start, in seconds since 1970.
std::string model_json(const v1::Model& model, int64_t created);
// An adapter of `parent`, with the methods that it allows; `id` is a name of it in requests.
std::string adapter_json(const std::string& id, const v1::Model& parent, const v1::Adapter& adapter,
                         int64_t created);
// The deployments, each followed by its adapters. The id of an adapter is its name, or
// "DEPLOYMENT:ADAPTER" if several deployments have the name.
std::string models_json(const std::vector<v1::Model>& models, int64_t created);

}  // namespace tandem::openai
