// From the messages of our own API to OpenAI's JSON: whole answers, the events of streams, models.
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

// What all of a request's answers begin with.
struct Head {
  Kind kind = Kind::kCompletion;
  std::string request_id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool logprobs = false;
};

// A whole answer. Its JSON is made as its parts come, so that its size is known all the time.
class Answer {
 public:
  Answer(Head head, int choices);

  void started(const v1::Started& event) { started_ = event; }
  // `tokens`: of the text, with texts and bytes, where the request wants their logprobs.
  void chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens);
  void finished(const v1::Finished& event);

  // Of the texts and logprobs in it so far.
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

// The server-sent events of one stream, in their order.
class Events {
 public:
  Events(Head head, bool include_usage);

  // Chats: an event for each choice.
  std::string started(const v1::Started& event, int choices);
  // `tokens`: of the text, with texts and bytes, where the request wants their logprobs.
  std::string chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens);
  std::string finished(const v1::Finished& event);
  std::string end() const;  // usage where it is wanted, then [DONE]
  static std::string error(const std::string& json);

 private:
  std::string event(absl::string_view choice, absl::string_view more = "") const;

  const Head head_;
  const bool include_usage_;
  const std::string opening_;  // of each event's JSON, up to the choices
  const std::string ending_;   // of each event of a choice, behind "]"
  v1::Started started_;
  v1::Usage usage_;
  std::vector<Logprobs> logprobs_;  // by choice
};

// `created`: seconds since 1970, when the server had its models.
std::string model_json(const v1::Model& model, int64_t created);
std::string models_json(const std::vector<v1::Model>& models, int64_t created);

}  // namespace tandem::openai
