#include <gtest/gtest.h>

#include <algorithm>
#include <coroutine>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/beam.h"

namespace tandem {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// A sequence without a scheduler. Backends refuse rows in which all tokens are banned; here they
// are answered: pass i of the request has the i-th of `logprobs`, and later ones the last.
class ScriptedSequence final : public Sequence {
 public:
  explicit ScriptedSequence(std::vector<std::vector<float>> logprobs)
      : logprobs_(std::move(logprobs)) {}

  std::vector<Token> emitted;

  const std::vector<Token>& tokens() const override { return prompt_; }
  Stage stage(Role /*role*/, int /*i*/) const override { return Stage(); }
  int rows(Stage /*stage*/) const override { return 0; }
  const Warp& warp() const override { return warp_; }
  int top_logprobs() const override { return 0; }
  bool wants_logprobs() const override { return false; }
  bool raw_logprobs() const override { return false; }
  MethodStats& stats() override { return stats_; }
  TimePoint now() const override { return TimePoint(); }
  ModelLoad load(Stage) const override { return {}; }
  bool reserve(std::span<const Need> /*needs*/, std::coroutine_handle<> /*waiter*/) override {
    return true;
  }
  Pass begin_pass(Stage /*stage*/, int /*end*/) override { return Pass(); }
  Flight* submit(Pass&& /*pass*/) override {
    const auto& row = logprobs_[std::min(flights_.size(), logprobs_.size() - 1)];
    auto& flight = flights_.emplace_back(std::make_unique<Answered>());
    flight->done = true;
    for (size_t t = 0; t < row.size(); ++t) {
      flight->readout.ranked.push_back({static_cast<Token>(t), row[t]});
    }
    flight->readout.row.emplace_back().top = flight->readout.ranked;
    return flight.get();
  }
  void retain(CacheId /*cache*/, std::span<const Row> /*path*/) override {}
  void truncate(CacheId /*cache*/, int /*at_most*/) override {}
  CacheId fork(CacheId /*cache*/) override { return CacheId(); }
  void drop(CacheId /*cache*/) override {}
  int64_t copy(CacheId /*from*/, int /*begin*/, int /*end*/, CacheId /*to*/) override { return 0; }
  bool ends(std::span<const Token> /*tentative*/) const override { return false; }
  bool is_end(Token /*token*/) const override { return false; }
  int end_tokens() const override { return 0; }
  int remaining() const override { return 8 - static_cast<int>(emitted.size()); }
  bool emit(std::span<Emitted> tokens) override {
    for (const Emitted& e : tokens) emitted.push_back(e.token);
    return false;
  }

 private:
  struct Answered final : Flight {
    void detach() override {}
  };

  const std::vector<std::vector<float>> logprobs_;
  const std::vector<Token> prompt_ = {1, 2};
  const Warp warp_;
  MethodStats stats_;
  std::vector<std::unique_ptr<Answered>> flights_;
};

std::vector<Token> beam_search(std::vector<std::vector<float>> logprobs) {
  ScriptedSequence sequence(std::move(logprobs));
  Task<void> task = beam(Gen(&sequence), {.width = 2});
  task.handle().resume();
  EXPECT_TRUE(task.done());
  return sequence.emitted;
}

TEST(BeamBanned, WithoutContinuationsItEmitsTheBestOpenHypothesis) {
  // Best first: tokens 0 and 1 open two hypotheses, and nothing may follow them.
  EXPECT_EQ(beam_search({{-0.5F, -1.5F}, {kBanned, kBanned}}), std::vector<Token>{0});
}

TEST(BeamBanned, WithoutAnyTokenItEndsWithAnEmptyText) {
  EXPECT_EQ(beam_search({{kBanned, kBanned}}), std::vector<Token>());
}

}  // namespace
}  // namespace tandem
