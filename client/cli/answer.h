// Collects the messages of a stream, and prints them as JSON or as one line of statistics.
#pragma once

#include <string>
#include <vector>

#include "client/cli/json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

struct AnswerChoice {
  std::string text;
  std::string reasoning;
  std::vector<v1::ToolCall> calls;
  std::vector<v1::Token> tokens;  // if requested
  v1::Finished finished;
};

class Answer {
 public:
  explicit Answer(int n = 1) : choices_(static_cast<size_t>(n)) {}

  void add(const v1::GenerateResponse& event);

  const v1::Started& started() const { return started_; }
  const std::vector<AnswerChoice>& choices() const { return choices_; }
  const AnswerChoice& first() const { return choices_[0]; }
  bool has_text() const;

  // One choice: one flat object. Several: the common members, and `choices`.
  Json json() const;

  // "[EOS, bild, EXACT: 64 tokens in 17 large and 60 small passes, 3.76 a large pass; ...; first
  // after 0.201 s, then 23.1/s]"
  std::string footer() const;

 private:
  AnswerChoice& at(int index);

  v1::Started started_;
  std::vector<AnswerChoice> choices_;
};

// Prints reasoning and tool calls of a stream to standard error, so that standard output has the
// text alone.
class SidePrinter {
 public:
  void print(const v1::Chunk& chunk);
  void end();

 private:
  bool open_ = false;  // the line is not complete
};

// Tokens per second after the first one; 0 if all tokens came in one message.
double decode_rate(const v1::Finished& finished);

}  // namespace tandem::cli
