#include "engine/host/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include "engine/base/status.h"
#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::request_for;
using testing::run;

std::vector<Token> bytes(const std::string& text) {
  std::vector<Token> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string text_of(const std::vector<Token>& ids) {
  std::string text;
  for (const Token t : ids) {
    if (t < 256) text += static_cast<char>(t);
  }
  return text;
}

TEST(Engine, StreamsTheModelsOwnGreedyText) {
  const auto engine = make_engine();
  const auto sink = run(*engine, request_for(std::string("def main(")));
  ASSERT_TRUE(sink->wait().ok()) << sink->wait();
  const auto expected = fake::greedy(testing::fake_model(), bytes("def main("), 24);
  EXPECT_EQ(sink->ids(), expected);
  EXPECT_EQ(sink->text(), text_of(expected));
  EXPECT_EQ(sink->start().prompt_tokens, 9);
  EXPECT_EQ(sink->start().method, "speculative") << "auto";
  EXPECT_EQ(sink->start().contract, Contract::kExact);
  EXPECT_EQ(sink->end().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(sink->end().usage.completion_tokens, 24);
  EXPECT_EQ(sink->end().stats.large_passes, 24);
}

TEST(Engine, SixteenConcurrentRequestsAnswerAsAlone) {
  const auto engine = make_engine();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 16; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    GenerateRequest request = request_for(std::string("prompt ") + std::to_string(i), 64);
    if (i % 2 == 1) {
      request.sampling.temperature = 0.9;
      request.sampling.seed = i;
    }
    engine->submit(std::move(request), sinks.back());
  }
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait().ok());
  for (int i = 0; i < 16; ++i) {
    GenerateRequest request = request_for(std::string("prompt ") + std::to_string(i), 64);
    if (i % 2 == 1) {
      request.sampling.temperature = 0.9;
      request.sampling.seed = i;
    }
    EXPECT_EQ(run(*engine, std::move(request))->ids(), sinks[static_cast<size_t>(i)]->ids()) << i;
  }
}

TEST(Engine, UnsetSeedIsDrawnAndGivesTheSameTokensAgain) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("x"));
  request.sampling.temperature = 1.5;
  const auto first = run(*engine, request);
  request.sampling.seed = first->end().seed;
  EXPECT_EQ(run(*engine, request)->ids(), first->ids());
  request.sampling.seed = first->end().seed + 1;
  EXPECT_NE(run(*engine, request)->ids(), first->ids());
}

TEST(Engine, StopStringsCutTextAcrossTokenBorders) {
  const auto engine = make_engine();
  const auto whole = run(*engine, request_for(std::string("stop"), 40));
  const std::string stop = whole->text().substr(10, 3);  // three tokens of one byte
  const size_t at = whole->text().find(stop);
  for (const bool include : {false, true}) {
    GenerateRequest request = request_for(std::string("stop"), 40);
    request.method = "autoregressive";
    request.stopping.stop_sequences = {"never there", stop};
    request.stopping.include_stop_sequence = include;
    const auto cut = run(*engine, request);
    EXPECT_EQ(cut->end().reason, FinishReason::kStopSequence);
    EXPECT_EQ(cut->end().stop_sequence, stop);
    EXPECT_EQ(cut->text(), whole->text().substr(0, include ? at + 3 : at));
    EXPECT_EQ(cut->ids().size(), at + 3);
    EXPECT_EQ(cut->end().stats.large_passes, static_cast<int64_t>(at) + 3);
  }
}

TEST(Engine, StopTokenEndsWithoutBeingPartOfTheOutput) {
  const auto engine = make_engine();
  const auto whole = run(*engine, request_for(std::string("stop"), 40));
  const Token stop = whole->ids()[7];
  GenerateRequest request = request_for(std::string("stop"), 40);
  request.stopping.stop_token_ids = {stop};
  const auto cut = run(*engine, request);
  EXPECT_EQ(cut->end().reason, FinishReason::kStopToken);
  std::vector<Token> expected = whole->ids();
  expected.erase(std::find(expected.begin(), expected.end(), stop), expected.end());
  EXPECT_EQ(cut->ids(), expected);
}

TEST(Engine, LogprobsAreTheModelsOwn) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("ab"), 1);
  request.top_logprobs = 3;
  const auto sink = run(*engine, request);
  const std::vector<float> logits =
      fake::logits_after(testing::fake_model(), bytes("ab"), testing::fake_model().layers);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  ASSERT_EQ(sink->tokens().size(), 1U);
  const TokenInfo& token = sink->tokens()[0];
  const double expected = logits[static_cast<size_t>(token.id)] - std::log(sum);
  ASSERT_TRUE(token.logprob.has_value());
  EXPECT_NEAR(*token.logprob, expected, 1e-4);
  ASSERT_EQ(token.top.size(), 3U);
  EXPECT_EQ(token.top[0].first, token.id);
  EXPECT_GE(token.top[0].second, token.top[1].second);
}

TEST(Engine, RawLogprobsAreWithoutProcessorsAndWarpers) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("ab"), 6);
  request.logprobs = true;
  const auto plain = run(*engine, request);
  // Sampled, with all tokens banned except one that is not the best.
  const auto banned = static_cast<int64_t>(plain->ids()[0]);
  request.sampling.temperature = 0.7;
  request.sampling.top_k = 1;
  request.sampling.bad_token_ids = {banned};
  request.stopping.max_new_tokens = 1;
  const auto warped = run(*engine, request);
  EXPECT_EQ(warped->tokens()[0].logprob, 0.0F);
  request.raw_logprobs = true;
  request.top_logprobs = 2;
  const auto raw = run(*engine, request);
  EXPECT_EQ(raw->ids(), warped->ids());
  EXPECT_NE(raw->ids()[0], banned);
  const std::vector<float> logits =
      fake::logits_after(testing::fake_model(), bytes("ab"), testing::fake_model().layers);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  const TokenInfo& token = raw->tokens()[0];
  for (const auto& [id, logprob] : token.top) {
    EXPECT_NEAR(logprob, logits[static_cast<size_t>(id)] - std::log(sum), 1e-4);
  }
  EXPECT_EQ(token.top[0].first, token.id);
  EXPECT_EQ(token.top[0].second, *token.logprob);
}

TEST(Engine, ProcessorsChangeTheChosenToken) {
  const auto engine = make_engine();
  const std::vector<Token> plain = run(*engine, request_for(std::string("loop"), 40))->ids();
  GenerateRequest request = request_for(std::string("loop"), 40);
  request.sampling.bad_token_ids.assign(plain.begin(), plain.end());
  for (const Token t : run(*engine, request)->ids()) {
    EXPECT_EQ(std::count(plain.begin(), plain.end(), t), 0);
  }
  // A large presence penalty: no token repeats while another one is left.
  request = request_for(std::string("loop"), 40);
  request.sampling.presence_penalty = 2;
  request.sampling.frequency_penalty = 2;
  request.sampling.logit_bias = {{65, 100}};
  const auto biased = run(*engine, request);
  EXPECT_EQ(biased->ids()[0], 65);
  EXPECT_EQ(biased->ids()[1], 65);  // 100 is more than 2 + 2
  request.sampling.logit_bias = {};
  request.sampling.repetition_penalty = 100;
  std::vector<Token> ids = run(*engine, request)->ids();
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST(Engine, MinNewTokensDelaysEndTokens) {
  const auto engine = make_engine();
  const auto whole = run(*engine, request_for(std::string("stop"), 40));
  const Token stop = whole->ids()[3];
  GenerateRequest request = request_for(std::string("stop"), 40);
  request.stopping.stop_token_ids = {stop};
  const auto early = run(*engine, request);
  const size_t length = early->ids().size();
  ASSERT_LE(length, 3U);
  for (const int64_t least :
       {static_cast<int64_t>(length), static_cast<int64_t>(length) + 1, int64_t{40}}) {
    request.stopping.min_new_tokens = least;
    const auto sink = run(*engine, request);
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    const std::vector<Token> ids = sink->ids();
    EXPECT_GE(static_cast<int64_t>(ids.size()), least);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), stop), 0);
    if (least == static_cast<int64_t>(length)) EXPECT_EQ(ids, early->ids());
  }
}

TEST(Engine, TheTokenThatEndsATextIsGivenOnRequest) {
  const auto engine = make_engine();
  const auto whole = run(*engine, request_for(std::string("stop"), 40));
  const Token stop = whole->ids()[7];
  GenerateRequest request = request_for(std::string("stop"), 40);
  request.stopping.stop_token_ids = {stop};
  const auto without = run(*engine, request);
  request.include_eos_token = true;
  request.logprobs = true;
  const auto with = run(*engine, request);
  std::vector<Token> expected = without->ids();
  expected.push_back(stop);
  EXPECT_EQ(with->ids(), expected);
  EXPECT_EQ(with->text(), without->text());
  EXPECT_EQ(with->end().reason, FinishReason::kStopToken);
  EXPECT_EQ(with->end().usage.completion_tokens, static_cast<int64_t>(expected.size()));
  EXPECT_TRUE(with->tokens().back().logprob.has_value());
  // The same for the model's end token; nothing is added if something else ended the text.
  request = request_for(std::string("stop"), 3);
  request.include_eos_token = true;
  request.stopping.ignore_eos = false;
  request.sampling.logit_bias = {{256, 100}};
  const auto eos = run(*engine, request);
  EXPECT_EQ(eos->ids(), (std::vector<Token>{256}));
  EXPECT_EQ(eos->text(), "");
  EXPECT_EQ(eos->end().reason, FinishReason::kEos);
  request.stopping.min_new_tokens = 3;
  EXPECT_EQ(run(*engine, request)->end().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(run(*engine, request)->ids().size(), 3U);
}

TEST(Engine, ScoreIsTheLogOfTheModelsProbabilities) {
  const auto engine = make_engine();
  ScoreRequest request;
  request.model = "pair";
  request.prompt = std::string("ab");
  request.continuation = std::string("cd");
  request.score_prompt = true;
  std::promise<absl::StatusOr<ScoreResult>> promise;
  engine->score(request, [&](auto result) { promise.set_value(std::move(result)); });
  const absl::StatusOr<ScoreResult> result = promise.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->prompt.size(), 2U);
  ASSERT_EQ(result->continuation.size(), 2U);
  EXPECT_FALSE(result->prompt[0].logprob.has_value());
  double total = 0;
  for (const size_t i : {2U, 3U}) {
    const std::string seen = std::string("abcd").substr(0, i);
    const auto logits =
        fake::logits_after(testing::fake_model(), bytes(seen), testing::fake_model().layers);
    double sum = 0;
    for (const float l : logits) sum += std::exp(static_cast<double>(l));
    const double expected = logits[static_cast<size_t>("abcd"[i])] - std::log(sum);
    EXPECT_NEAR(*result->continuation[i - 2].logprob, expected, 1e-4);
    total += expected;
  }
  EXPECT_NEAR(result->total_logprob, total, 1e-3);
}

TEST(Engine, CancelEndsARequestWhereverItIs) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.001;  // so that it does not end before
  const auto engine = make_engine(config);
  const auto early = std::make_shared<Recorder>();
  engine->cancel(engine->submit(request_for(std::string("early"), 400), early));
  const auto late = std::make_shared<Recorder>();
  const RequestId id = engine->submit(request_for(std::string("late"), 400), late);
  late->wait_for_tokens(3);
  engine->cancel(id);
  EXPECT_EQ(early->wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(late->wait().code(), absl::StatusCode::kCancelled);
  engine->cancel(id);      // again, and
  engine->cancel(999999);  // unknown: nothing happens
  const auto expected = fake::greedy(testing::fake_model(), bytes("late"), 400);
  const std::vector<Token> got = late->ids();
  EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin()));
}

TEST(Engine, ChoicesAnswerAsAloneAndEndOnce) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("several"), 30);
  request.sampling.temperature = 1.1;
  request.sampling.seed = 5;
  const auto one = run(*engine, request);
  request.n = 4;
  const auto all = run(*engine, request);
  ASSERT_TRUE(all->wait().ok()) << all->wait();
  EXPECT_EQ(all->ids(0), one->ids()) << "the first is what a request without n gets";
  std::set<std::vector<Token>> different;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all->ids(i).size(), 30U);
    EXPECT_EQ(all->text(i), text_of(all->ids(i)));
    EXPECT_EQ(all->end(i).index, static_cast<int>(i));
    EXPECT_EQ(all->end(i).seed, 5U);
    EXPECT_EQ(all->end(i).usage.completion_tokens, 30);
    EXPECT_EQ(all->end(i).usage.prompt_tokens, 7);
    different.insert(all->ids(i));
  }
  EXPECT_EQ(different.size(), 4U);
  request.n = 2;  // fewer of them: the same ones
  const auto two = run(*engine, request);
  EXPECT_EQ(two->ids(1), all->ids(1));
  while (engine->live_requests() > 0) std::this_thread::yield();  // hangs if one stays
}

TEST(Engine, ChoicesEndWithTheirOwnReasonAndStop) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("several"), 60);
  request.sampling.temperature = 1.1;
  request.sampling.seed = 6;
  request.n = 3;
  const auto whole = run(*engine, request);
  // A string that only one of them generates.
  const std::string stop = whole->text(1).substr(5, 3);
  ASSERT_EQ(whole->text(0).find(stop), std::string::npos);
  request.stopping.stop_sequences = {stop};
  const auto cut = run(*engine, request);
  EXPECT_EQ(cut->end(0).reason, FinishReason::kMaxTokens);
  EXPECT_EQ(cut->ids(0), whole->ids(0));
  EXPECT_EQ(cut->end(1).reason, FinishReason::kStopSequence);
  EXPECT_EQ(cut->text(1), whole->text(1).substr(0, 5));
}

TEST(Engine, CancelEndsAllChoicesWithOneStatus) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.001;
  const auto engine = make_engine(config);
  GenerateRequest request = request_for(std::string("several"), 400);
  request.n = 3;
  const auto sink = std::make_shared<Recorder>(3);
  const RequestId id = engine->submit(request, sink);
  sink->wait_for_tokens(10);
  engine->cancel(id);
  EXPECT_EQ(sink->wait().code(), absl::StatusCode::kCancelled);
  engine->shutdown(kNever);
  EXPECT_EQ(engine->live_requests(), 0);
}

TEST(Engine, APausedRequestMakesNoTokensAndOthersContinue) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.0005;
  const auto engine = make_engine(config);
  const auto slow = std::make_shared<Recorder>();
  const RequestId id = engine->submit(request_for(std::string("slow"), 300), slow);
  slow->wait_for_tokens(5);
  engine->pause(id);
  const size_t before = slow->count();
  EXPECT_TRUE(run(*engine, request_for(std::string("other"), 100))->wait().ok());
  // Only the passes under way, and not the hundred rounds of the other request.
  EXPECT_LE(slow->count(), before + 60);
  EXPECT_FALSE(slow->ended());
  EXPECT_EQ(engine->metrics().requests_paused.value(), 1);
  engine->resume(id);
  EXPECT_TRUE(slow->wait().ok());
  EXPECT_EQ(slow->ids(), fake::greedy(testing::fake_model(), bytes("slow"), 300));
}

TEST(Engine, DrainRefusesNewAndFinishesRunning) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.001;
  const auto engine = make_engine(config);
  const auto running = std::make_shared<Recorder>();
  engine->submit(request_for(std::string("running"), 50), running);
  running->wait_for_tokens(1);
  engine->start_drain();
  const auto refused = run(*engine, request_for(std::string("late")));
  EXPECT_EQ(refused->wait().code(), absl::StatusCode::kUnavailable);
  engine->shutdown(kNever);
  EXPECT_EQ(engine->live_requests(), 0);
  EXPECT_TRUE(running->wait().ok());
  EXPECT_EQ(running->ids().size(), 50U);
}

TEST(Engine, ImmediateShutdownEndsRequestsWithUnavailable) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.001;
  const auto engine = make_engine(config);
  const auto running = std::make_shared<Recorder>();
  engine->submit(request_for(std::string("running"), 500), running);
  running->wait_for_tokens(1);
  engine->shutdown(TimePoint{});
  EXPECT_EQ(running->wait().code(), absl::StatusCode::kUnavailable);
}

TEST(Engine, TextCallsReportErrors) {
  const auto engine = make_engine();
  const auto tokenize = [&](const std::string& model, const std::string& text) {
    std::promise<absl::StatusOr<std::vector<Token>>> tokens;
    TokenizeRequest request;
    request.model = model;
    request.prompt = text;
    engine->tokenize(request, [&](auto result) { tokens.set_value(std::move(result)); });
    return tokens.get_future().get();
  };
  const auto detokenize = [&](std::vector<int64_t> ids) {
    std::promise<absl::StatusOr<std::string>> text;
    DetokenizeRequest request;
    request.model = "pair";
    request.token_ids = std::move(ids);
    engine->detokenize(request, [&](auto result) { text.set_value(std::move(result)); });
    return text.get_future().get();
  };
  EXPECT_EQ(*tokenize("pair", "hé"), bytes("hé"));
  EXPECT_EQ(*detokenize({104, 105}), "hi");
  EXPECT_THAT(detokenize({104, 257}).status().message(),
              HasSubstr("token_ids[1]: 257; allowed: 0 to 256"));
  EXPECT_THAT(detokenize(std::vector<int64_t>(513, 104)).status().message(),
              HasSubstr("token_ids: 513 of them; allowed: at most 512"));
  EXPECT_EQ(tokenize("unknown", "x").status().code(), absl::StatusCode::kNotFound);
  const auto info = engine->deployment("pair");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->context_length, 512);
  EXPECT_EQ(info->models.size(), 2U);
}

TEST(Engine, RefusesLongPromptsBeforeTheyAreTokenized) {
  const auto engine = make_engine();
  const auto refused = [&](GenerateRequest request) {
    const auto sink = std::make_shared<Recorder>();
    engine->submit(std::move(request), sink);
    EXPECT_TRUE(sink->ended());  // at once
    return std::string(sink->wait().message());
  };
  EXPECT_THAT(refused(request_for(std::string(8193, 'x'))),
              HasSubstr("text: 8193 bytes; allowed: at most 8192 bytes (a context of 512 tokens"));
  GenerateRequest truncated = request_for(std::string(4 << 20, 'x'));
  truncated.truncate_prompt_tokens = 10;
  EXPECT_THAT(refused(truncated), HasSubstr("text: 4194304 bytes; allowed"));
  ChatPrompt chat;
  chat.tools_json = std::string((256 << 10) + 1, ' ');
  EXPECT_THAT(refused(request_for(chat)), HasSubstr("chat: 262145 bytes; allowed: at most 262144"));
  const auto invalid = static_cast<size_t>(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->metrics().refused[invalid].value(), 3);
  EXPECT_EQ(engine->live_requests(), 0);
  EXPECT_EQ(engine->metrics().waiting_bytes.value(), 0);

  truncated.prompt = std::string(8192, 'x');  // text that fits the longest context may be truncated
  EXPECT_TRUE(run(*engine, truncated)->wait().ok());
}

TEST(Engine, MemoryOfWaitingRequestsIsBounded) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->pass_seconds = 0.001;
  config.limits.max_running = 1;
  config.limits.max_waiting_bytes = 64 << 10;
  const auto engine = make_engine(config);
  const auto running = std::make_shared<Recorder>();
  engine->submit(request_for(std::string("running"), 500), running);
  running->wait_for_tokens(1);
  EXPECT_EQ(engine->metrics().waiting_bytes.value(), 0);

  std::vector<std::shared_ptr<Recorder>> waiting;
  std::shared_ptr<Recorder> refused;
  while (!refused) {
    const auto sink = std::make_shared<Recorder>();
    // Accepted requests may still grow: tokenizing threads replace their texts at any time.
    const double before = engine->metrics().waiting_bytes.value();
    engine->submit(request_for(std::string(480, 'x')), sink);
    if (before + 480 > 32 << 10) EXPECT_TRUE(sink->ended());  // one client: half of it
    if (sink->ended()) {
      refused = sink;
    } else {
      waiting.push_back(sink);
    }
  }
  const absl::Status status = refused->wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(status.GetPayload(kRetryPayload).has_value());
  EXPECT_GT(waiting.size(), 3U);
  GenerateRequest another = request_for(std::string(480, 'x'));
  another.client = "another";
  const auto welcome = std::make_shared<Recorder>();
  engine->submit(another, welcome);
  EXPECT_FALSE(welcome->ended());
  engine->shutdown(TimePoint{});
  for (const auto& sink : waiting) EXPECT_FALSE(sink->wait().ok());
  EXPECT_EQ(engine->metrics().waiting_bytes.value(), 0);
}

TEST(Engine, FreshSeedsAreUnpredictable) {
  const auto engine = make_engine();
  std::set<uint64_t> seeds;
  for (int i = 0; i < 8; ++i) {
    seeds.insert(run(*engine, request_for(std::string("x"), 1))->end().seed);
  }
  EXPECT_EQ(seeds.size(), 8U);
  for (const uint64_t seed : seeds) EXPECT_EQ(seed >> 63, 0U);
}

struct Refusal {
  const char* name;
  std::function<void(GenerateRequest&)> change;
  absl::StatusCode code;
  const char* message;
};

TEST(Engine, RefusesNamingFieldValueAndRange) {
  const auto engine = make_engine();
  const Refusal table[] = {
      {"model", [](auto& r) { r.model = "unknown"; }, absl::StatusCode::kNotFound,
       "model: \"unknown\"; known: \"pair\""},
      {"empty text", [](auto& r) { r.prompt = std::string(); }, absl::StatusCode::kInvalidArgument,
       "prompt: empty"},
      {"no tokens", [](auto& r) { r.prompt = std::vector<Token>{}; },
       absl::StatusCode::kInvalidArgument, "prompt: empty"},
      {"token id = vocabulary size", [](auto& r) { r.prompt = std::vector<Token>{1, 257}; },
       absl::StatusCode::kInvalidArgument, "token_ids[1]: 257; allowed: 0 to 256"},
      {"negative token id", [](auto& r) { r.prompt = std::vector<Token>{-1}; },
       absl::StatusCode::kInvalidArgument, "token_ids[0]: -1; allowed: 0 to 256"},
      {"too long", [](auto& r) { r.prompt = std::string(512, 'x'); },
       absl::StatusCode::kInvalidArgument, "prompt: 512 tokens; allowed: at most 511"},
      {"too long together", [](auto& r) { r.prompt = std::string(500, 'x'); },
       absl::StatusCode::kInvalidArgument, "max_new_tokens: 24; allowed: at most 12"},
      {"max_new_tokens", [](auto& r) { r.stopping.max_new_tokens = 0; },
       absl::StatusCode::kInvalidArgument, "max_new_tokens: 0; allowed: 1 to 511"},
      {"NaN", [](auto& r) { r.sampling.temperature = std::nan(""); },
       absl::StatusCode::kInvalidArgument, "temperature: nan"},
      {"top_p", [](auto& r) { r.sampling.top_p = 2; }, absl::StatusCode::kInvalidArgument,
       "top_p: 2"},
      {"typical_p", [](auto& r) { r.sampling.typical_p = 0; }, absl::StatusCode::kInvalidArgument,
       "typical_p: 0; allowed: (0, 1]"},
      {"repetition", [](auto& r) { r.sampling.repetition_penalty = std::nan(""); },
       absl::StatusCode::kInvalidArgument, "repetition_penalty: nan; allowed: [0.01, 100]"},
      {"bias", [](auto& r) { r.sampling.logit_bias = {{257, 1}}; },
       absl::StatusCode::kInvalidArgument, "logit_bias: 257; allowed: 0 to 256"},
      {"bias twice", [](auto& r) { r.sampling.logit_bias = {{7, 1}, {7, 2}}; },
       absl::StatusCode::kInvalidArgument, "logit_bias: token 7 twice"},
      {"ban", [](auto& r) { r.sampling.bad_token_ids = {int64_t{1} << 33}; },
       absl::StatusCode::kInvalidArgument, "bad_token_ids: 8589934592; allowed: 0 to 256"},
      {"min_new_tokens", [](auto& r) { r.stopping.min_new_tokens = 25; },
       absl::StatusCode::kInvalidArgument, "min_new_tokens: 25; allowed: 0 to 24"},
      {"min_new_tokens < 0", [](auto& r) { r.stopping.min_new_tokens = -1; },
       absl::StatusCode::kInvalidArgument, "min_new_tokens: -1; allowed: 0 to 24"},
      {"stop id", [](auto& r) { r.stopping.stop_token_ids = {int64_t{1} << 40}; },
       absl::StatusCode::kInvalidArgument, "stop_token_ids: 1099511627776; allowed: 0 to 256"},
      {"logprobs", [](auto& r) { r.top_logprobs = 21; }, absl::StatusCode::kInvalidArgument,
       "top_logprobs: 21; allowed: 0 to 20"},
      {"n", [](auto& r) { r.n = 0; }, absl::StatusCode::kInvalidArgument, "n: 0; allowed: 1 to 16"},
      {"too many", [](auto& r) { r.n = 17; }, absl::StatusCode::kInvalidArgument,
       "n: 17; allowed: 1 to 16"},
      {"truncate", [](auto& r) { r.truncate_prompt_tokens = 0; },
       absl::StatusCode::kInvalidArgument, "truncate_prompt_tokens: 0"},
      {"method", [](auto& r) { r.method = "bita"; }, absl::StatusCode::kFailedPrecondition,
       "method: bita; offered by model \"pair\": speculative, autoregressive, ngram, bild"},
      {"chat", [](auto& r) { r.prompt = ChatPrompt{R"([{"role":"user","content":"x"}])", "", ""}; },
       absl::StatusCode::kFailedPrecondition, "has no chat template"},
  };
  for (const Refusal& refusal : table) {
    SCOPED_TRACE(refusal.name);
    GenerateRequest request = request_for(std::string("fine"));
    refusal.change(request);
    const auto sink = run(*engine, request);
    EXPECT_EQ(sink->wait().code(), refusal.code) << sink->wait();
    EXPECT_THAT(sink->wait().message(), HasSubstr(refusal.message));
    EXPECT_TRUE(sink->ids().empty());
  }
  EXPECT_TRUE(run(*engine, request_for(std::string("fine")))->wait().ok());  // and serves on
}

TEST(Engine, TruncateKeepsTheEndOfThePrompt) {
  const auto engine = make_engine();
  GenerateRequest request = request_for(std::string("0123456789"));
  request.truncate_prompt_tokens = 4;
  const auto sink = run(*engine, request);
  EXPECT_EQ(sink->start().prompt_tokens, 4);
  EXPECT_EQ(sink->ids(), fake::greedy(testing::fake_model(), bytes("6789"), 24));
}

// A pair whose large model has 43 ids of padding: they are not accepted, scored or drawn, and the
// pair decodes like the large model.
TEST(Engine, PaddingIsNeverDrawn) {
  EngineConfig config = testing::fake_engine_config();
  config.models[0].fake->vocab_size = 300;
  const auto engine = Engine::create(config);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->deployments().front().vocab_size, 257);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerateRequest request = request_for(std::string("abc"));
    request.sampling.temperature = 100;  // next to uniform
    request.sampling.seed = seed;
    request.stopping.ignore_eos = true;
    const auto alone = run(**engine, request);
    for (const Token t : alone->ids()) EXPECT_LT(t, 257);
    request.method = "speculative";
    EXPECT_EQ(run(**engine, request)->ids(), alone->ids());
  }
  GenerateRequest fed = request_for(std::string());
  fed.prompt = std::vector<Token>{97, 257};
  EXPECT_THAT(run(**engine, fed)->wait().message(),
              HasSubstr("token_ids[1]: 257; allowed: 0 to 256"));
}

TEST(Engine, RefusesToStartWithAPairThatSharesNoVocabulary) {
  EngineConfig config = testing::fake_engine_config();
  config.models[1].fake->vocab_size = 200;
  const auto engine = Engine::create(config);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(engine.status().message(), HasSubstr("different vocabulary sizes (200, 257)"));
}

}  // namespace
}  // namespace tandem
