// An engine on a model with weights: concurrent requests share batches and get the same answers as
// alone.
//
// Answers are equal in every number format: CPU kernels are batch-invariant.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <random>
#include <thread>
#include <utility>

#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;

constexpr int kStreams = 16;
constexpr int kTokens = 48;

// A tiny Llama with grouped heads and scaled RoPE, and some tokenizer: prompts are ids.
class RealModel : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    const fs::path data = fs::path(TANDEM_SOURCE_DIR) / "tests";
    fs::copy(data / "data/golden_models/llama3", directory_.path());
    fs::copy(data / "engine/text/data/tokenizers/llama2/tokenizer.json", directory_.path());
    config_ = testing::real_engine_config("tiny", directory_.path(), GetParam());
    config_.devices[0].memory_bytes = 64 << 20;
    engine_ = make_engine(config_);
    ASSERT_NE(engine_, nullptr);
  }

  GenerateRequest request(int i) const {
    std::mt19937 random(static_cast<unsigned>(i));
    std::vector<Token> prompt(5 + random() % 60);
    for (Token& t : prompt) t = static_cast<Token>(random() % 100);
    GenerateRequest r = testing::request_for(prompt, kTokens);
    r.model = "tiny";
    if (i % 4 == 3) {
      r.sampling.temperature = 0.8;
      r.sampling.top_p = 0.9;
      r.sampling.seed = static_cast<uint64_t>(i);
    }
    return r;
  }

  double pages_used() const { return engine_->metrics().models[0].kv_pages_used.value(); }

  const test::TempDir directory_;
  EngineConfig config_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(RealModel, SixteenStreamsShareBatchesAndAnswerAsAlone) {
  std::vector<std::vector<Token>> alone;
  for (int i = 0; i < kStreams; ++i) {
    const auto sink = run(*engine_, request(i));
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    ASSERT_EQ(sink->ids().size(), static_cast<size_t>(kTokens));
    alone.push_back(sink->ids());
  }
  // On a busy machine, the first streams may end before the last ones are submitted.
  double rows = 0;
  for (int attempt = 0; attempt < 10 && rows <= 8; ++attempt) {
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int i = 0; i < kStreams; ++i) {
      sinks.push_back(std::make_shared<Recorder>());
      engine_->submit(request(i), sinks.back());
    }
    rows = 0;
    for (int i = 0; i < kStreams; ++i) {
      const auto& sink = sinks[static_cast<size_t>(i)];
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->ids(), alone[static_cast<size_t>(i)]) << "stream " << i;
      rows += sink->end().stats.mean_batch_rows / kStreams;
    }
  }
  EXPECT_GT(rows, 8);
}

TEST_P(RealModel, CancellingHalfFreesTheirPagesAndChangesNoOther) {
  const auto long_or_short = [this](int i) {
    GenerateRequest r = request(i);
    if (i % 2 == 0) r.stopping.max_new_tokens = 180;  // of a context of 256
    return r;
  };
  std::vector<std::vector<Token>> alone;
  for (int i = 0; i < kStreams; ++i) alone.push_back(run(*engine_, long_or_short(i))->ids());
  std::vector<std::shared_ptr<Recorder>> sinks;
  std::vector<RequestId> ids;
  std::latch three_made(1), cancelled_all(1);
  bool held = false;
  for (int i = 0; i < kStreams; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    // The loop waits here, so no request ends before it is cancelled, even on a busy machine.
    if (i == 0) {
      sinks[0]->on_made = [&](int64_t tokens) {
        if (tokens < 3 || std::exchange(held, true)) return;
        three_made.count_down();
        cancelled_all.wait();
      };
    }
    ids.push_back(engine_->submit(long_or_short(i), sinks.back()));
  }
  three_made.wait();
  for (size_t i = 0; i < ids.size(); i += 2) engine_->cancel(ids[i]);
  cancelled_all.count_down();
  int cancelled = 0;
  for (int i = 0; i < kStreams; ++i) {
    const auto& sink = sinks[static_cast<size_t>(i)];
    const auto& whole = alone[static_cast<size_t>(i)];
    const absl::Status status = sink->wait();
    if (i % 2 == 1) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(sink->ids(), whole) << "stream " << i;
      continue;
    }
    cancelled += status.code() == absl::StatusCode::kCancelled ? 1 : 0;
    const std::vector<Token> got = sink->ids();
    ASSERT_LE(got.size(), whole.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.begin())) << "stream " << i;
  }
  EXPECT_EQ(cancelled, kStreams / 2);
  while (pages_used() > 0) std::this_thread::yield();  // the loop's next step; hangs if they leak
}

TEST_P(RealModel, ScoreEqualsTheLogprobsOfGeneration) {
  GenerateRequest generate = request(0);
  generate.logprobs = true;
  const auto sink = run(*engine_, generate);
  ScoreRequest score;
  score.model = "tiny";
  score.prompt = generate.prompt;
  score.continuation = sink->ids();
  std::promise<absl::StatusOr<ScoreResult>> promise;
  engine_->score(score, [&](auto result) { promise.set_value(std::move(result)); });
  const absl::StatusOr<ScoreResult> result = promise.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->continuation.size(), sink->tokens().size());
  for (size_t i = 0; i < sink->tokens().size(); ++i) {
    EXPECT_NEAR(*result->continuation[i].logprob, *sink->tokens()[i].logprob, 1e-5);
  }
}

// Requests without processors get those of generation_config.json.
TEST_P(RealModel, DefaultsOfTheModelAreProcessorsToo) {
  GenerateRequest plain = request(0);
  const auto before = run(*engine_, plain);
  const Token usual = before->ids().front();
  GenerateRequest asked = plain;
  asked.sampling.repetition_penalty = 1.5;
  asked.sampling.bad_token_ids = {usual};
  const auto expected = run(*engine_, asked);
  ASSERT_NE(expected->ids(), before->ids());

  // The end token, 2, is not banned, although the file lists it.
  const auto restart = [&](const std::string& bans) {
    std::ofstream(directory_.path() + "/generation_config.json", std::ios::trunc)
        << R"({"eos_token_id": 2, "repetition_penalty": 1.5, "bad_words_ids": )" << bans << "}";
    return Engine::create(config_);
  };
  const auto words = "[[" + std::to_string(usual) + "], [2]]";
  auto engine = restart(words);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(run(**engine, plain)->ids(), expected->ids());
  asked = plain;
  asked.sampling.repetition_penalty = 1;
  asked.sampling.bad_token_ids = {199};
  const auto overruled = run(**engine, asked);
  EXPECT_EQ(overruled->ids().front(), usual);
  engine = restart("[[200]]");
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("bad_words_ids: 200; allowed: 0 to 199"),
            absl::string_view::npos)
      << engine.status();
}

INSTANTIATE_TEST_SUITE_P(Types, RealModel,
                         ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat16, DType::kInt8),
                         [](const auto& type) { return dtype_name(type.param); });

}  // namespace
}  // namespace tandem
#endif
