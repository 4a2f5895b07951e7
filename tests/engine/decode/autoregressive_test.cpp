// Autoregressive decoding with passes submitted ahead: the same tokens as one pass after another.
#include "engine/decode/autoregressive.h"

#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"

namespace tandem::test {
namespace {

void ask_ahead(SequenceSpec& s, Rng& rng) {
  const int most = between(rng, 2, 9);
  s.cast = make_cast({{Role::kLarge, ModelId(0)}});
  s.method = [most](Gen g) { return autoregressive_ahead(g, most); };
}

reference::Tokens expected_of(const Box& box, const SequenceSpec& s) {
  return reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                   s.stops.max_new_tokens);
}

// A second request arrives while passes of the first are under way.
TEST(Autoregressive, PassesAheadDrawTheSameTokens) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng, /*tight=*/seed % 3 == 0)};
    std::vector<std::pair<std::shared_ptr<Recorder>, reference::Tokens>> all;
    for (int i = 0; i < 2; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      if (chance(rng, 60)) {
        s.warp.processors =
            random_processors(rng, box.config().vocab_size, static_cast<int>(s.prompt.size()));
      }
      ask_ahead(s, rng);
      reference::Tokens expected = expected_of(box, s);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
      for (int step = between(rng, 0, 12); step > 0; --step) box.tick();
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      ASSERT_TRUE(recorder->ok()) << "seed " << seed << ": " << recorder->end.status;
      ASSERT_EQ(recorder->tokens, expected) << "seed " << seed;
    }
    box.expect_idle();
    preemptions += box.metrics.preemptions.value();
  }
  EXPECT_GT(preemptions, 0);
}

TEST(Autoregressive, PassesAheadLeaveFinalRowsOnly) {
  EXPECT_GT(expect_final_rows_only(100, ask_ahead), 1000);
}

// At each place of a text, by length, end token, stop token and stop string.
TEST(Autoregressive, PassesAheadEndWhereOthersDo) {
  Box box{BoxOptions()};
  const reference::Tokens prompt = {3, 1, 2};
  const reference::Tokens text = box.greedy(prompt, 16);
  for (size_t place = 0; place < text.size(); ++place) {
    for (int kind = 0; kind < 4; ++kind) {
      const auto end_of = [&](const std::function<Task<void>(Gen)>& method) {
        SequenceSpec s = box.spec(prompt, kind == 0 ? static_cast<int>(place) + 1 : 16);
        if (kind == 1) s.stops.eos = {text[place]};
        if (kind == 2) s.stops.stop_tokens = {text[place]};
        if (kind == 3) s.stops.text = std::make_unique<TokenStop>(reference::Tokens{text[place]});
        s.method = method;
        const auto r = box.submit(std::move(s));
        box.pump();
        EXPECT_TRUE(r->ok()) << r->end.status;
        return r;
      };
      const auto plain = end_of(autoregressive);
      const auto ahead = end_of([](Gen g) { return autoregressive_ahead(g, 5); });
      EXPECT_EQ(ahead->tokens, plain->tokens) << "place " << place << ", kind " << kind;
      EXPECT_EQ(ahead->end.reason, plain->end.reason);
      EXPECT_EQ(ahead->end.stop_index, plain->end.stop_index);
    }
  }
}

TEST(Autoregressive, CancelledWithPassesAhead) {
  for (int steps = 0; steps < 40; ++steps) {
    Box box{BoxOptions()};
    SequenceSpec s = box.spec({1, 2, 3}, 30);
    s.method = [](Gen g) { return autoregressive_ahead(g, 8); };
    const auto r = box.submit(std::move(s));
    for (int i = 0; i < steps; ++i) box.tick();
    box.loop->stop(box.last_id, absl::CancelledError("by the client"));
    box.pump();
    EXPECT_EQ(r->ends, 1);
    box.expect_idle();
  }
}

// An answer of full length needs no pass more.
TEST(Autoregressive, PassesAheadAreNotMore) {
  for (const int most : {1, 4, 64}) {
    Box box{BoxOptions()};
    SequenceSpec s = box.spec({1, 2, 3}, 21);
    s.method = [most](Gen g) { return autoregressive_ahead(g, most); };
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->tokens, box.greedy({1, 2, 3}, 21));
    EXPECT_EQ(r->end.stats.large_passes, 21);
  }
}

}  // namespace
}  // namespace tandem::test
