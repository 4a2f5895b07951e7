// Converts tandem.v1 messages to OpenAI's JSON: complete responses, stream events, models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/openai/logprobs.h"
#include "server/openai/request.h"
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
};

// A complete response. The JSON is built as the parts arrive, so its size is always known.
class Answer {
 public:
  Answer(Head head, int choices);

  void started(const v1::Started& event) { started_ = event; }
  // `tokens`: the tokens of the text with texts and bytes, if logprobs are requested.
  void chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens);
  void finished(const v1::Finished& event);

  // The size of its texts and logprobs so far.
  size_t bytes() const { return bytes_; }
  // REQUIRES: every choice has finished.
  std::string json() const;

 private:
  struct Choice {
    std::string text;  // escaped
    Logprobs logprobs;
    v1::Finished finished;
  };

  Head head_;
  v1::Started started_;
  std::vector<Choice> choices_;
  size_t bytes_ = 0;
};

// The server-sent events of one stream, in order.
class Events {
 public:
  Events(Head head, bool include_usage);

  // Chats only: one event for each choice.
  std::string started(const v1::Started& event, int choices);
  // `tokens`: the tokens of the text with texts and bytes, if logprobs are requested.
  std::string chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens);
  std::string finished(const v1::Finished& event);
  std::string end() const;  // usage if requested, then [DONE]
  static std::string error(const std::string& json);

 private:
  std::string event(absl::string_view choice, absl::string_view more = "") const;

  const Head head_;
  const bool include_usage_;
  const std::string opening_;  // start of each event's JSON, up to the choices
  const std::string ending_;   // end of each event of a choice, after "]"
  v1::Started started_;
  v1::Usage usage_;
  std::vector<Logprobs> logprobs_;  // by choice
};

// `created`: the server's start, in seconds since 1970.
std::string model_json(const v1::Model& model, int64_t created);
std::string models_json(const std::vector<v1::Model>& models, int64_t created);

}  // namespace tandem::openai
