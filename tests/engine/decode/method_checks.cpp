#include "tests/engine/decode/method_checks.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/rows.h"

namespace tandem::test {

int64_t expect_final_rows_only(int boxes, const std::function<void(SequenceSpec&, Rng&)>& use) {
  int64_t rows = 0;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(boxes); ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng)};
    CacheWatch watch(&box);
    for (int i = 0; i < 4; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      use(s, rng);
      const reference::Tokens prompt = s.prompt;
      const auto r = box.submit(std::move(s));
      watch.follow(prompt, r);
      box.pump();
      EXPECT_TRUE(r->ok()) << r->end.status;
    }
    rows += watch.looked_at;
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      break;
    }
  }
  return rows;
}

void expect_the_tokens_of_ar(int requests, const std::function<void(SequenceSpec&, Rng&)>& use,
                             const std::function<void(const MethodStats&)>& seen) {
  for (uint64_t seed = 0; requests > 0; ++seed) {
    Rng rng(seed);
    Box box{random_pair(rng, /*tight=*/seed % 5 == 0)};
    std::vector<std::pair<std::shared_ptr<Recorder>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 8; ++i, --requests) {
      SequenceSpec s = random_spec(box, rng, /*greedy=*/false);
      if (chance(rng, 50)) s.warp.top_p = 0.5F + 0.5F * fraction(rng);
      if (chance(rng, 60)) {
        s.warp.processors =
            random_processors(rng, box.config().vocab_size, static_cast<int>(s.prompt.size()));
      }
      SequenceSpec ar = box.spec(s.prompt, s.stops.max_new_tokens);
      ar.warp = s.warp;
      ar.stops.eos = s.stops.eos;
      use(s, rng);
      auto first = box.submit(std::move(s));
      all.emplace_back(std::move(first), box.submit(std::move(ar)));
    }
    box.pump();
    for (const auto& [by_method, by_ar] : all) {
      ASSERT_TRUE(by_method->ok() && by_ar->ok()) << seed;
      ASSERT_EQ(by_method->tokens, by_ar->tokens) << seed;
      EXPECT_EQ(by_method->end.reason, by_ar->end.reason) << seed;
      seen(by_method->end.stats);
    }
  }
}

void expect_stops_where_ar_does(const BoxOptions& options,
                                const std::function<void(SequenceSpec&)>& use) {
  Box box{options};
  const reference::Tokens prompt = {3, 1, 2};
  const reference::Tokens text = box.greedy(prompt, 16);
  for (size_t place = 0; place < text.size(); ++place) {
    for (int kind = 0; kind < 4; ++kind) {
      std::shared_ptr<Recorder> r[2];
      for (const bool by_ar : {false, true}) {
        SequenceSpec s = box.spec(prompt, kind == 0 ? static_cast<int>(place) + 1 : 16);
        if (kind == 1) s.stops.eos = {text[place]};
        if (kind == 2) s.stops.stop_tokens = {text[place]};
        if (kind == 3) {
          reference::Tokens stop = {text[place]};
          if (place > 0) stop.insert(stop.begin(), text[place - 1]);
          s.stops.text = std::make_unique<TokenStop>(stop);
        }
        if (!by_ar) use(s);
        r[by_ar] = box.submit(std::move(s));
      }
      box.pump();
      ASSERT_TRUE(r[0]->ok() && r[1]->ok());
      EXPECT_EQ(r[0]->tokens, r[1]->tokens) << "place " << place << ", kind " << kind;
      EXPECT_EQ(r[0]->end.reason, r[1]->end.reason);
      EXPECT_EQ(r[0]->end.stop_index, r[1]->end.stop_index);
    }
  }
}

std::shared_ptr<Recorder> expect_logprobs_of_large(Box& box, SequenceSpec s) {
  s.logprobs = true;
  s.top_logprobs = 2;
  const Warp warp = s.warp;
  reference::Tokens seq = s.prompt;
  auto r = box.submit(std::move(s));
  box.pump();
  EXPECT_TRUE(r->ok()) << r->end.status;
  for (const Emitted& e : r->emitted) {
    const reference::Row row(reference::Model(box.config()), seq);
    const double p = warp.greedy() ? std::exp(row.log_softmax(e.token))
                                   : double{row.warped(warp)[static_cast<size_t>(e.token)]};
    EXPECT_NEAR(std::exp(e.logprob), p, 1e-5);
    EXPECT_EQ(e.top.size(), 2U);
    if (!e.top.empty()) EXPECT_EQ(e.top[0].token, row.argmax);
    EXPECT_EQ(e.provenance.confirmed, Source::kLarge);
    seq.push_back(e.token);
  }
  return r;
}

void sample(Box& box, uint64_t n, const std::function<SequenceSpec(uint64_t seed)>& make,
            const std::function<void(const Recorder&)>& see) {
  for (uint64_t begin = 0; begin < n; begin += 200) {
    std::vector<std::shared_ptr<Recorder>> all;
    for (uint64_t seed = begin; seed < std::min(n, begin + 200); ++seed) {
      all.push_back(box.submit(make(seed)));
    }
    box.pump();
    for (const auto& r : all) {
      ASSERT_TRUE(r->ok()) << r->end.status;
      see(*r);
    }
  }
}

}  // namespace tandem::test
