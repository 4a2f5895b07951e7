// Listeners of sequences, with a text thread that the test controls.
#include "engine/host/requests/stream.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

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
  }
  void finished(const Finished& event) override {
    log.push_back("finished " + std::to_string(event.index));
  }
  void failed(const absl::Status& status) override {
    log.push_back("failed " + std::string(status.message()));
  }

  std::atomic<int64_t> made_tokens{0};
  std::vector<std::string> log;  // text thread, until the pool is gone
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

}  // namespace
}  // namespace tandem
