// Two hundred mixed requests on a model with weights and too little memory: each ends once, with
// the same answer as alone, and releases its memory.
//
// To add a method or parameter, add a line to kOptions.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/engine/host/kit.h"
#include "tests/engine/host/tiny_directory.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;

constexpr int kRequests = 200;
constexpr int kLongestPrompt = 800;

// Requests use these in turn.
const std::function<void(GenerateRequest& r)> kOptions[] = {
    [](GenerateRequest&) {},  // greedy
    [](GenerateRequest& r) { r.sampling.temperature = 0.8; },
    [](GenerateRequest& r) { r.sampling.temperature = 1.1, r.sampling.top_k = 5; },
    [](GenerateRequest& r) { r.sampling.temperature = 0.9, r.sampling.top_p = 0.7; },
    [](GenerateRequest& r) { r.sampling.temperature = 1.3, r.sampling.min_p = 0.1; },
    [](GenerateRequest& r) { r.logprobs = true; },
    [](GenerateRequest& r) { r.sampling.temperature = 0.7, r.top_logprobs = 3; },
    [](GenerateRequest& r) { r.sampling.temperature = 1, r.n = 4; },
    [](GenerateRequest& r) { r.stopping.stop_token_ids = {3, 17, 40}; },
    [](GenerateRequest& r) { r.stopping.stop_sequences = {"a", "e0", "7"}; },
    [](GenerateRequest& r) { r.truncate_prompt_tokens = 20; },
    [](GenerateRequest& r) { r.sampling.temperature = 1, r.sampling.typical_p = 0.8; },
    [](GenerateRequest& r) { r.sampling.repetition_penalty = 1.4; },
    [](GenerateRequest& r) {
      r.sampling.temperature = 0.9;
      r.sampling.presence_penalty = 0.5, r.sampling.frequency_penalty = -0.25;
    },
    [](GenerateRequest& r) { r.sampling.logit_bias = {{5, 4.0}, {9, -100.0}}; },
    [](GenerateRequest& r) { r.sampling.bad_token_ids = {2, 3, 5, 7, 11, 13}; },
    [](GenerateRequest& r) {
      r.stopping.stop_token_ids = {3, 17, 40};
      r.stopping.min_new_tokens = 1;
      r.include_eos_token = true;
    },
    [](GenerateRequest& r) {
      r.sampling.temperature = 0.7, r.sampling.repetition_penalty = 1.2;
      r.top_logprobs = 2, r.raw_logprobs = true;
    },
    [](GenerateRequest& r) { r.method = "ngram"; },
    [](GenerateRequest& r) {
      r.method = "ngram";
      r.sampling.temperature = 0.6, r.sampling.frequency_penalty = 0.3;
    },
    [](GenerateRequest& r) {
      r.method = "bild";
      set_setting(&r.parameters, "early_exit", true),
          set_setting(&r.parameters, "rollback_threshold", 2);
      r.truncate_prompt_tokens = 20;  // the small model's rows need frontier pages, which are few
    },
    [](GenerateRequest& r) { set_setting(&r.beam, "width", 3), r.truncate_prompt_tokens = 50; },
};

// What happens to a request on its way.
enum class Fate { kNothing, kCancelled, kPaused };

struct Job {
  GenerateRequest request;
  Fate fate = Fate::kNothing;
};

std::vector<Job> make_jobs(int vocab) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Job> jobs;
  for (int i = 0; i < kRequests; ++i) {
    const int length = 1 + (below(4) ? below(100) : below(kLongestPrompt));
    std::vector<Token> prompt(static_cast<size_t>(length));
    for (Token& t : prompt) t = below(vocab);
    Job job;
    job.request = testing::request_for(std::move(prompt), 1 + below(48));
    job.request.model = "model";
    job.request.client = "client " + std::to_string(below(5));
    job.request.priority = below(3);
    job.request.sampling.seed = static_cast<uint64_t>(i);
    kOptions[static_cast<size_t>(i) % std::size(kOptions)](job.request);
    if (i % 13 == 5) job.fate = Fate::kCancelled;
    if (i % 13 == 9) job.fate = Fate::kPaused;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::unique_ptr<Engine> engine_of(const std::string& path, DType dtype, int64_t pages) {
  EngineConfig config = testing::real_engine_config("model", path, dtype);
  config.limits.default_client.max_priority = 2;
  config.models[0].kv_pages = pages;
  config.deployments[0].methods["bild"] = {{"early_exit_layer", 1}};
  config.limits.max_running = 64;
  config.limits.step_rows = 128;
  config.limits.prefill_chunk_rows = 64;
  config.limits.slow_reader_hold_seconds = 0.01;
  config.limits.queue_seconds = 3600;  // sanitizers and busy machines
  return make_engine(config);
}

// Bit for bit.
void expect_same(const Recorder& got, const Recorder& alone, size_t choice) {
  EXPECT_EQ(got.text(choice), alone.text(choice));
  EXPECT_EQ(got.ids(choice), alone.ids(choice));
  EXPECT_EQ(got.end(choice).reason, alone.end(choice).reason);
  EXPECT_EQ(got.end(choice).stop_sequence, alone.end(choice).stop_sequence);
  ASSERT_EQ(got.tokens(choice).size(), alone.tokens(choice).size());
  for (size_t t = 0; t < got.tokens(choice).size(); ++t) {
    EXPECT_EQ(got.tokens(choice)[t].logprob, alone.tokens(choice)[t].logprob);
    EXPECT_EQ(got.tokens(choice)[t].top, alone.tokens(choice)[t].top);
  }
}

void run_load(const std::string& path, DType dtype, int vocab) {
  const std::vector<Job> jobs = make_jobs(vocab);
  // A context of 1024 takes 64 pages, so this is little more than one request may need.
  const auto engine = engine_of(path, dtype, 72);
  std::vector<std::shared_ptr<Recorder>> sinks;
  std::vector<RequestId> ids;
  for (const Job& job : jobs) {
    sinks.push_back(std::make_shared<Recorder>(job.request.n));
    ids.push_back(engine->submit(job.request, sinks.back()));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].fate == Fate::kPaused) engine->pause(ids[i]);
    if (jobs[i].fate != Fate::kCancelled) continue;
    if (i % 2) sinks[i]->wait_for_tokens(1);  // others are cancelled while they wait
    engine->cancel(ids[i]);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].fate == Fate::kPaused) engine->resume(ids[i]);
  }
  int64_t cancelled = 0, preempted = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const absl::Status status = sinks[i]->wait();
    cancelled += absl::IsCancelled(status);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsCancelled(status) && jobs[i].fate == Fate::kCancelled) << i << status;
    }
    for (size_t c = 0; status.ok() && c < static_cast<size_t>(jobs[i].request.n); ++c) {
      preempted += sinks[i]->end(c).stats.preemptions;
    }
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(preempted, 0);
  EXPECT_GE(engine->metrics().preemptions.value(), preempted);
  EXPECT_EQ(engine->metrics().requests_waiting.value(), 0);
  EXPECT_EQ(engine->metrics().requests_paused.value(), 0);
  EXPECT_EQ(engine->metrics().series[0].requests_running.value(), 0);
  // The sinks' last calls may still run, and the loop's next step frees the last pages. A leak
  // makes this hang.
  while (engine->live_requests() > 0) std::this_thread::yield();
  while (engine->metrics().models[0].kv_pages_used.value() > 0) std::this_thread::yield();

  const auto quiet = engine_of(path, dtype, 400);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto alone = run(*quiet, jobs[i].request);
    ASSERT_TRUE(alone->wait().ok()) << i << alone->wait();
    for (size_t c = 0; c < static_cast<size_t>(jobs[i].request.n); ++c) {
      SCOPED_TRACE(::testing::Message() << "request " << i << ", choice " << c);
      if (sinks[i]->wait().ok()) {
        expect_same(*sinks[i], *alone, c);
      } else {
        const std::vector<Token> got = sinks[i]->ids(c), whole = alone->ids(c);
        ASSERT_LE(got.size(), whole.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.begin()));
      }
    }
  }
  EXPECT_EQ(quiet->metrics().preemptions.value(), 0);
}

TEST(Load, TwoHundredMixedRequestsOnARandomModelInDoublePrecision) {
  const test::TempDir directory;
  test::write_tiny_model(directory.path(), 9);
  run_load(directory.path(), DType::kFloat64, 64);
}

TEST(Load, TwoHundredMixedRequestsOnTheSmallCodeModel) {
  run_load(std::string(TANDEM_SOURCE_DIR) + "/models/code-small", DType::kFloat32, 4096);
}

}  // namespace
}  // namespace tandem
#endif
