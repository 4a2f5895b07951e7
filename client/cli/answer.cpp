#include "client/cli/answer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/provenance.h"

namespace tandem::cli {
namespace {

void put(const AnswerChoice& choice, Json* out) {
  (*out)["text"] = choice.text;
  if (!choice.reasoning.empty()) (*out)["reasoning"] = choice.reasoning;
  for (const v1::ToolCall& call : choice.calls) {
    (*out)["tool_calls"].push_back(
        {{"id", call.id()}, {"name", call.name()}, {"arguments", call.arguments()}});
  }
  (*out)["token_ids"] = Json::array();
  for (const v1::Token& token : choice.tokens) (*out)["token_ids"].push_back(token.id());
  (*out)["finish_reason"] = finish_reason_text(choice.finished.finish_reason());
  if (!choice.finished.stop_sequence().empty()) {
    (*out)["stop_sequence"] = choice.finished.stop_sequence();
  }
  (*out)["usage"] = to_json(choice.finished.usage());
  (*out)["stats"] = to_json(choice.finished.stats());
  if (choice.finished.has_trace()) (*out)["trace"] = to_json(choice.finished.trace());
  (*out)["tokens"] = Json::array();
  for (const v1::Token& token : choice.tokens) (*out)["tokens"].push_back(token_to_json(token));
}

// Adds a part of a call. Broken calls are removed: their text is content.
void add_call(const v1::ToolCall& part, std::vector<v1::ToolCall>* calls) {
  if (!part.name().empty()) {
    calls->push_back(part);
  } else if (!calls->empty()) {
    calls->back().mutable_arguments()->append(part.arguments());
  }
  if (part.broken() && !calls->empty()) calls->pop_back();
}

}  // namespace

void SidePrinter::print(const v1::Chunk& chunk) {
  if (!chunk.reasoning().empty()) {
    std::fputs(chunk.reasoning().c_str(), stderr);
    open_ = true;
  }
  if (!chunk.text().empty()) end();
  for (const v1::ToolCall& part : chunk.tool_calls()) {
    if (!part.name().empty()) {
      end();
      std::fprintf(stderr, "call %s: ", part.name().c_str());
    }
    std::fputs(part.arguments().c_str(), stderr);
    open_ = true;
  }
}

void SidePrinter::end() {
  if (std::exchange(open_, false)) std::fputs("\n", stderr);
}

double decode_rate(const v1::Finished& finished) {
  const int n = finished.usage().completion_tokens();
  const double seconds = finished.stats().decode_seconds();
  return n > 1 && seconds > 1e-3 ? (n - 1) / seconds : 0;
}

AnswerChoice& Answer::at(int index) {
  const auto i = static_cast<size_t>(index);
  if (i >= choices_.size()) choices_.resize(i + 1);
  return choices_[i];
}

void Answer::add(const v1::GenerateResponse& event) {
  if (event.has_started()) started_ = event.started();
  if (event.has_finished()) at(event.finished().index()).finished = event.finished();
  if (event.has_chunk()) {
    AnswerChoice& choice = at(event.chunk().index());
    choice.text += event.chunk().text();
    choice.reasoning += event.chunk().reasoning();
    for (const v1::ToolCall& part : event.chunk().tool_calls()) add_call(part, &choice.calls);
    choice.tokens.insert(choice.tokens.end(), event.chunk().tokens().begin(),
                         event.chunk().tokens().end());
  }
}

bool Answer::has_text() const {
  return std::any_of(choices_.begin(), choices_.end(),
                     [](const AnswerChoice& c) { return !c.text.empty(); });
}

Json Answer::json() const {
  Json out;
  if (choices_.size() == 1) put(choices_[0], &out);
  out["method"] = method_text(started_.method());
  out["contract"] = contract_text(started_.contract());
  out["request_id"] = started_.request_id();
  out["seed"] = choices_[0].finished.seed();
  for (size_t i = 0; choices_.size() > 1 && i < choices_.size(); ++i) {
    Json choice;
    choice["index"] = i;
    put(choices_[i], &choice);
    out["choices"].push_back(std::move(choice));
  }
  return out;
}

std::string Answer::footer() const {
  const v1::Finished& first = choices_[0].finished;
  const v1::MethodStats& stats = first.stats();
  int tokens = 0;
  double rate = 0;
  for (const AnswerChoice& choice : choices_) {
    tokens += choice.finished.usage().completion_tokens();
    rate += decode_rate(choice.finished);
  }
  std::string out =
      absl::StrFormat("[%s, %s, %s: %d tokens in ", finish_reason_text(first.finish_reason()),
                      method_text(started_.method()), contract_text(started_.contract()), tokens);
  const std::string figures = method_figures(started_.method(), stats);
  if (figures.empty() || choices_.size() > 1) {
    int passes = 0;
    for (const AnswerChoice& choice : choices_) {
      passes += choice.finished.stats().large_passes() + choice.finished.stats().small_passes();
    }
    absl::StrAppendFormat(&out, "%d passes", passes);
  } else {
    absl::StrAppendFormat(&out, "%d large and %d small passes, %.2f a large pass; %s",
                          stats.large_passes(), stats.small_passes(), stats.tokens_per_pass(),
                          figures);
  }
  absl::StrAppendFormat(&out, "; first after %.3f s", stats.time_to_first_token_seconds());
  if (rate > 0) absl::StrAppendFormat(&out, ", then %.1f/s", rate);
  return out + "]";
}

}  // namespace tandem::cli
