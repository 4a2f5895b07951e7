// Listeners of sequences, with a text thread that the test controls.
#include "engine/host/requests/stream.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "engine/base/memory_account.h"

namespace tandem {
namespace {

class LoggingSink final : public Sink {
 public:
  void made(int64_t tokens) override { made_tokens.fetch_add(tokens); }
  void started(const Started& event) override { log.push_back("started " + event.request_id); }
  void chunk(Chunk event) override {
    std::string line = "chunk " + std::to_string(event.index) + " '" + event.text + "'";
    for (const TokenInfo& token : event.tokens) line += " " + std::to_string(token.id);
    log.push_back(line);
    reasoning += event.reasoning;
    for (const CallPart& part : event.tool_calls) calls.push_back(part);
  }
  void finished(const Finished& event) override {
    log.push_back("finished " + std::to_string(event.index));
    ended = event;
  }
  void failed(const absl::Status& status) override {
    log.push_back("failed " + std::string(status.message()));
  }

  std::atomic<int64_t> made_tokens{0};
  std::vector<std::string> log;  // text thread, until the pool is gone
  std::string reasoning;
  std::vector<CallPart> calls;
  Finished ended;
};

// A token for each letter.
void hear(SequenceListener& listener, const std::string& text) {
  std::vector<Emitted> tokens(text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[i].token = static_cast<unsigned char>(text[i]);
  listener.on_tokens(tokens);
}

SequenceEnd end_with(absl::Status status) {
  SequenceEnd end;
  end.status = std::move(status);
  return end;
}

struct Streams {
  explicit Streams(int choices) {
    StreamPlan plan;
    plan.started.request_id = "r";
    plan.tokenizer = Tokenizer::bytes();
    pool = std::make_unique<Worker>(1);
    pool->post([go = hold_.get_future().share()] { go.wait(); });
    listeners = request_streams(pool.get(), std::move(plan), choices, sink, [this] { ++gone; });
  }
  // Delivers the events so far and waits for them.
  const std::vector<std::string>& log() {
    hold_.set_value();
    pool.reset();
    return sink->log;
  }

  std::shared_ptr<LoggingSink> sink = std::make_shared<LoggingSink>();
  std::vector<std::shared_ptr<SequenceListener>> listeners;
  std::unique_ptr<Worker> pool;
  int gone = 0;

 private:
  std::promise<void> hold_;
};

using Log = std::vector<std::string>;

TEST(RequestStreams, QueuedTokensBecomeOneChunk) {
  Streams s(1);
  s.listeners[0]->on_admitted();
  hear(*s.listeners[0], "ab");
  hear(*s.listeners[0], "c");
  s.listeners[0]->on_end(end_with(absl::OkStatus()));
  EXPECT_EQ(s.log(), (Log{"started r", "chunk 0 'abc' 97 98 99", "finished 0"}));
  EXPECT_EQ(s.gone, 1);
}

TEST(RequestStreams, TokensAreSaidToBeMadeBeforeTheyAreText) {
  Streams s(2);
  for (const auto& listener : s.listeners) listener->on_admitted();
  hear(*s.listeners[0], "ab");
  hear(*s.listeners[1], "x");
  EXPECT_EQ(s.sink->made_tokens.load(), 3);
  for (const auto& listener : s.listeners) listener->on_end(end_with(absl::OkStatus()));
  EXPECT_EQ(s.log(), (Log{"started r", "chunk 0 'ab' 97 98", "finished 0", "chunk 1 'x' 120",
                          "finished 1"}));
  EXPECT_EQ(s.gone, 1);
}

TEST(RequestStreams, AFailureIsTheLastThatTheSinkHears) {
  Streams s(2);
  for (const auto& listener : s.listeners) listener->on_admitted();
  hear(*s.listeners[0], "a");
  s.listeners[0]->on_end(end_with(absl::InternalError("broken")));
  hear(*s.listeners[1], "x");
  s.listeners[1]->on_end(end_with(absl::InternalError("broken")));
  EXPECT_EQ(s.log(), (Log{"started r", "chunk 0 'a' 97", "failed broken"}));
  EXPECT_EQ(s.gone, 1);
}

TEST(RequestStreams, ARefusedRequestDoesNotStart) {
  Streams s(1);
  s.listeners[0]->on_end(end_with(absl::ResourceExhaustedError("full")));
  EXPECT_EQ(s.log(), (Log{"failed full"}));
  EXPECT_EQ(s.gone, 1);
}

// Prompts are charged with the first token of each choice, as they wait without an index.
TEST(RequestStreams, RunningChoicesAreChargedByTheToken) {
  MemoryAccount account(1 << 20);
  StreamPlan plan;
  plan.tokenizer = Tokenizer::bytes();
  plan.started.prompt_tokens = 30;
  plan.token_bytes = 100;
  plan.claims = std::make_shared<Claims>();
  absl::StatusOr<MemoryAccount::Charge> memory = account.charge("client", "host", 7);
  ASSERT_TRUE(memory.ok());
  plan.claims->memory = *std::move(memory);
  Worker pool(1);
  const auto listeners =
      request_streams(&pool, std::move(plan), 2, std::make_shared<LoggingSink>(), [] {});
  const auto held = [&] {
    std::promise<void> done;
    pool.post([&] { done.set_value(); });
    done.get_future().wait();
    return account.used();
  };
  for (const auto& listener : listeners) listener->on_admitted();
  EXPECT_EQ(held(), 7);
  hear(*listeners[0], "ab");
  EXPECT_EQ(held(), 7 + 3200);
  hear(*listeners[0], "c");
  EXPECT_EQ(held(), 7 + 3300);
  hear(*listeners[1], "x");
  EXPECT_EQ(held(), 7 + 3300 + 3100);
  listeners[0]->on_end(end_with(absl::OkStatus()));
  EXPECT_EQ(held(), 7 + 3300 + 3100);
  listeners[1]->on_end(end_with(absl::OkStatus()));
  EXPECT_EQ(held(), 0);
}

TEST(RequestStreams, TextThatAStopStringMayBeginWithIsHeldBack) {
  StreamPlan plan;
  plan.tokenizer = Tokenizer::bytes();
  plan.stops = std::make_shared<const StopStrings>(std::vector<std::string>{"END"});
  const auto sink = std::make_shared<LoggingSink>();
  {
    Worker pool(1);
    const auto listeners = request_streams(&pool, std::move(plan), 1, sink, [] {});
    hear(*listeners[0], "aEN");
    listeners[0]->on_end(end_with(absl::OkStatus()));
  }
  std::string text;
  for (const std::string& line : sink->log) {
    if (line.rfind("chunk", 0) == 0) text += line.substr(9, line.rfind('\'') - 9);
  }
  EXPECT_EQ(text, "aEN");
}

// What a request with the tool "now" delivers for this text, in one step or a byte at a time.
std::shared_ptr<LoggingSink> answered(const std::string& text, FinishReason reason,
                                      bool in_reasoning = false, bool steps = false) {
  StreamPlan plan;
  plan.tokenizer = Tokenizer::bytes();
  plan.answer.emplace();
  plan.answer->syntax = {ToolFormat::kHermes, {"now"}, true, {"<think>", "</think>"}};
  plan.answer->in_reasoning = in_reasoning;
  plan.answer->id_seed = 7;
  const auto sink = std::make_shared<LoggingSink>();
  Worker pool(1);
  const auto listeners = request_streams(&pool, std::move(plan), 1, sink, [] {});
  if (steps) {
    for (const char c : text) hear(*listeners[0], std::string(1, c));
  } else {
    hear(*listeners[0], text);
  }
  SequenceEnd end;
  end.reason = reason;
  listeners[0]->on_end(end);
  return sink;  // the pool ends first
}

TEST(RequestStreams, ReasoningAndCallsAreSplitFromTheText) {
  const std::string text =
      "<think>Hm.</think>Look:<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
  for (const bool steps : {false, true}) {
    const auto sink = answered(text, FinishReason::kEos, false, steps);
    EXPECT_EQ(sink->reasoning, "Hm.");
    std::string name, id, arguments;
    for (const CallPart& part : sink->calls) {
      EXPECT_EQ(part.index, 0);
      name += part.name;
      id += part.id;
      arguments += part.arguments;
    }
    EXPECT_EQ(name, "now");
    EXPECT_EQ(id, call_id(7, 0, 0));
    EXPECT_EQ(arguments, "{}");
    EXPECT_EQ(sink->ended.tool_calls, 1);
    EXPECT_EQ(sink->ended.usage.reasoning_tokens, 18) << "with the tags";
  }
  EXPECT_EQ(answered("So</think>", FinishReason::kEos, true)->ended.usage.reasoning_tokens, 10);
  EXPECT_EQ(answered("So", FinishReason::kEos)->ended.usage.reasoning_tokens, 0);
}

TEST(RequestStreams, ALimitLeavesACallIncomplete) {
  const std::string text = "<tool_call>{\"name\": \"now\", \"arguments\": {\"a";
  const auto cut = answered(text, FinishReason::kMaxTokens);
  ASSERT_EQ(cut->calls.size(), 1U);
  EXPECT_FALSE(cut->calls[0].broken);
  EXPECT_EQ(cut->ended.tool_calls, 0);
  const auto ended = answered(text, FinishReason::kEos);
  ASSERT_FALSE(ended->calls.empty());
  EXPECT_TRUE(ended->calls.back().broken) << "the model ended the text";
}

}  // namespace
}  // namespace tandem
