#include "engine/decode/text_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/ngram.h"
#include "tests/engine/decode/methods_kit.h"

namespace tandem::test {
namespace {

using Tokens = std::vector<Token>;
using Texts = std::map<std::string, std::vector<Tokens>>;

Tokens random_text(Rng& rng, size_t size, int vocab) {
  Tokens text;
  while (text.size() < size) text.push_back(between(rng, 0, vocab - 1));
  return text;
}

void add(TextHistory& history, const std::string& tenant, const Tokens& text) {
  history.add(tenant, text);
  for (size_t n = 0; n < 2 * text.size(); n += TextHistory::kSlice) history.advance(tenant);
}

Tokens continued(const TextHistory& history, TextHistory::Match m) {
  Tokens tokens;
  for (; m.matched > 0; m = history.behind(m)) tokens.push_back(m.token);
  return tokens;
}

// Does `piece` occur in one of the texts?
bool occurs(const std::vector<Tokens>& texts, const Tokens& piece) {
  return std::ranges::any_of(texts, [&](const Tokens& text) {
    return std::search(text.begin(), text.end(), piece.begin(), piece.end()) != text.end();
  });
}

TEST(TextHistory, FindsWhatFollowed) {
  TextHistory history(1024);
  add(history, "a", {1, 2, 3, 4, 5, 6, 7});
  add(history, "a", {9, 9, 3, 4, 5, 6, 8});
  const Tokens text = {0, 2, 3, 4, 5, 6};
  const TextHistory::Match longest = history.find("a", text, {}, 64);
  EXPECT_EQ(longest.matched, 5) << "longer than the most recent one";
  EXPECT_EQ(continued(history, longest), Tokens{7}) << "texts do not follow one another";
  EXPECT_EQ(history.find("a", text, {}, 4).token, 8) << "of equal ones the most recent one";
  EXPECT_EQ(history.find("a", text, Tokens{8}, 64).matched, 0) << "nothing follows";
  const Tokens tail = {5, 6};
  EXPECT_EQ(history.find("a", Tokens{2, 3, 4}, tail, 64).matched, 5);
  EXPECT_EQ(history.find("a", text, {}, 3).matched, 0) << "too short";
  EXPECT_EQ(history.find("b", text, {}, 64).matched, 0) << "of another tenant";
}

TEST(TextHistory, APassageThatIsKnownIsNotStoredAgain) {
  Rng rng(1);
  TextHistory history(1 << 16);
  const Tokens prompt = random_text(rng, 5000, 1000);
  add(history, "a", prompt);
  const size_t once = history.held("a");
  for (int i = 0; i < 20; ++i) add(history, "a", prompt);
  EXPECT_EQ(history.held("a"), once);
  for (int i = 0; i < 20; ++i) {
    Tokens longer = prompt;
    for (const Token t : random_text(rng, 100, 1000)) longer.push_back(t);
    add(history, "a", longer);
    const auto end = std::span(longer).first(longer.size() - 1);
    EXPECT_EQ(history.find("a", end, {}, 64).token, longer.back());
  }
  EXPECT_LE(history.held("a"), once + 20 * 256);
}

// Whatever was left out, each token is found by as long a context as a match has.
TEST(TextHistory, EveryTokenIsFoundByItsContext) {
  int64_t all = 0, missed = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    TextHistory history(1 << 17);
    std::vector<Tokens> texts;
    for (int i = 0; i < 12; ++i) {
      Tokens text;
      for (int pieces = between(rng, 1, 6); pieces > 0; --pieces) {
        Tokens piece = random_text(rng, rng() % 300, 5000);
        if (!texts.empty() && chance(rng, 70)) {
          const Tokens& from = texts[rng() % texts.size()];
          const size_t begin = rng() % (from.size() + 1);
          const size_t size = rng() % (from.size() - begin + 1);
          piece.assign(from.begin() + static_cast<ptrdiff_t>(begin),
                       from.begin() + static_cast<ptrdiff_t>(begin + size));
        }
        text.insert(text.end(), piece.begin(), piece.end());
      }
      add(history, "a", text);
      texts.push_back(text);
    }
    for (const Tokens& text : texts) {
      for (size_t i = 8; i < text.size(); ++i) {
        const TextHistory::Match m = history.find("a", std::span(text).first(i), {}, 64);
        ++all;
        missed += m.matched < static_cast<int>(std::min<size_t>(i, 64));
      }
    }
    EXPECT_EQ(history.check(), "");
  }
  EXPECT_LT(missed, all / 200) << "a gram has more places than are compared";
}

TEST(TextHistory, TheOldestTextGoesFirst) {
  Rng rng(2);
  TextHistory history(2048);
  std::vector<Tokens> texts;
  for (int i = 0; i < 30; ++i) {
    texts.push_back(random_text(rng, 300, 1 << 20));
    add(history, "a", texts.back());
    ASSERT_EQ(history.check(), "");
  }
  const auto known = [&](size_t i) {
    return history.find("a", std::span(texts[i]).first(290), {}, 64).matched > 0;
  };
  size_t oldest = 30;
  while (oldest > 0 && known(oldest - 1)) --oldest;
  EXPECT_GE(30 - oldest, 5U) << "of 2048 tokens";
  EXPECT_LE(30 - oldest, 7U);
  for (size_t i = 0; i < oldest; ++i) EXPECT_FALSE(known(i));
  EXPECT_EQ(history.held("a"), 2048U);
}

TEST(TextHistory, ATenantKeepsItsShare) {
  Rng rng(3);
  TextHistory history(4096);
  const Tokens small = random_text(rng, 500, 1 << 20);
  add(history, "small", small);
  for (int i = 0; i < 100; ++i) add(history, "large", random_text(rng, 800, 1 << 20));
  EXPECT_EQ(history.find("small", std::span(small).first(400), {}, 64).matched, 64);
  for (int i = 0; i < 100; ++i) add(history, "third", random_text(rng, 800, 1 << 20));
  EXPECT_EQ(history.find("small", std::span(small).first(400), {}, 64).matched, 64);
  EXPECT_EQ(history.held("small") + history.held("large") + history.held("third"), 4096U);
  EXPECT_LE(history.held("third"), history.held("large") + 2 * 256);
}

TEST(TextHistory, WorkAndMemoryAreBounded) {
  Rng rng(4);
  TextHistory history(1 << 16);
  history.add("a", random_text(rng, 10 * TextHistory::kSlice, 1000));
  int calls = 0;
  for (; history.queued() > 0; ++calls) history.advance("a");
  EXPECT_GE(calls, 8) << "a slice of the text in each";

  const size_t most = history.capacity() / 4;
  history.add("a", random_text(rng, 5 * most, 1000));
  EXPECT_EQ(history.queued(), most) << "the end of a long text";
  for (int i = 0; i < 10; ++i) history.add("b", random_text(rng, most / 8, 1000));
  EXPECT_LE(history.queued(), most);
  EXPECT_EQ(history.check(), "");
  EXPECT_LE(TextHistory::bytes_of(1 << 18), 18 << 18);
  for (int i = 0; i < 1000; ++i) add(history, std::to_string(i), random_text(rng, 20, 1000));
  EXPECT_EQ(history.tenants(), TextHistory::kTenants);
  EXPECT_EQ(history.check(), "");
}

TEST(TextHistory, AMatchThatWasEvictedEnds) {
  Rng rng(5);
  TextHistory history(512);
  const Tokens text = random_text(rng, 100, 1 << 20);
  add(history, "a", text);
  const TextHistory::Match m = history.find("a", std::span(text).first(50), {}, 64);
  ASSERT_EQ(m.matched, 50);
  EXPECT_EQ(history.behind(m).token, text[51]);
  for (int i = 0; i < 20; ++i) add(history, "b", random_text(rng, 100, 1 << 20));
  for (int i = 0; i < 20; ++i) add(history, "a", random_text(rng, 100, 1 << 20));
  EXPECT_EQ(history.behind(m).matched, 0);
}

// Random calls of several tenants, with evictions. A tenant finds only its own texts.
TEST(TextHistory, NeverProposesAnotherTenantsText) {
  int64_t found = 0, longer = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    TextHistory history(between(rng, 1, 4000));
    const int tenants = chance(rng, 20) ? 300 : between(rng, 1, 6), vocab = between(rng, 2, 30);
    Texts texts;
    std::map<std::string, TextHistory::Match> going_on;
    for (int step = 0; step < 400; ++step) {
      const std::string tenant = std::to_string(between(rng, 0, tenants - 1));
      Tokens text = random_text(rng, rng() % 150, vocab);
      std::vector<Tokens>& own = texts[tenant];
      if (!own.empty() && chance(rng, 50)) {
        const Tokens& other = own[rng() % own.size()];
        text.insert(text.begin() + static_cast<ptrdiff_t>(rng() % (text.size() + 1)), other.begin(),
                    other.end());
      }
      if (chance(rng, 60)) {
        history.add(tenant, text);
        own.push_back(text);
      }
      if (chance(rng, 80)) history.advance(tenant);
      if (chance(rng, 20)) EXPECT_EQ(history.check(), "") << seed;
      const size_t tail = rng() % (text.size() + 1);
      const auto all = std::span(std::as_const(text));
      TextHistory::Match m =
          history.find(tenant, all.first(all.size() - tail), all.last(tail), between(rng, 1, 64));
      if (m.matched == 0) continue;
      ++found;
      Tokens piece(text.end() - m.matched, text.end());
      for (; m.matched > 0; m = history.behind(m)) piece.push_back(m.token);
      longer += piece.size() > 80;
      ASSERT_TRUE(occurs(own, piece)) << seed << ", " << step;
    }
  }
  EXPECT_GT(found, 2000);
  EXPECT_GT(longer, 100);
}

// --- With the loop

SequenceSpec asking(Box& box, const std::shared_ptr<TextHistory>& history, const Tokens& prompt,
                    const std::string& tenant) {
  NgramParams a;
  a.draft_tokens = 8;
  SequenceSpec s = box.spec(prompt, 40);
  s.method = [a](Gen g) { return ngram(g, a); };
  s.history = history;
  s.salt = tenant;
  return s;
}

int64_t passes_of(Box& box, const std::shared_ptr<TextHistory>& history, const Tokens& prompt,
                  const std::string& tenant) {
  const auto r = box.submit(asking(box, history, prompt, tenant));
  box.pump();
  EXPECT_TRUE(r->ok());
  EXPECT_EQ(r->tokens, box.greedy(prompt, 40));
  return r->end.stats.large_passes;
}

BoxOptions large_vocabulary() {
  BoxOptions o;
  o.models[0].config = tiny_model(3, 4, 4000);
  return o;
}

TEST(TextHistory, ARepeatedRequestIsDraftedFromTheFirst) {
  Box box{large_vocabulary()};
  const auto history = std::make_shared<TextHistory>(4096);
  const Tokens prompt = {5, 6, 7, 8};
  const int64_t first = passes_of(box, history, prompt, "a");
  EXPECT_GT(first, 20) << "its own text says little";
  const int64_t again = passes_of(box, history, prompt, "a");
  EXPECT_LE(again, 40 / 9 + 3);
  EXPECT_EQ(passes_of(box, history, prompt, "b"), first) << "another tenant";
  EXPECT_EQ(passes_of(box, nullptr, prompt, "a"), first) << "no history";
}

TEST(TextHistory, RequestsThatFailAddNothing) {
  const Tokens prompt = {5, 6, 7, 8};
  for (const bool error : {true, false}) {
    Box box{large_vocabulary()};
    const auto history = std::make_shared<TextHistory>(4096);
    const auto r = box.submit(asking(box, history, prompt, "a"));
    box.pump_until([&] { return r->tokens.size() >= 10; });
    box.loop->stop(box.last_id, error ? absl::CancelledError("test") : absl::OkStatus());
    box.pump();
    ASSERT_EQ(r->ends, 1);
    EXPECT_EQ(history->queued() > 0, !error);
    EXPECT_EQ(history->check(), "");
    const int64_t passes = passes_of(box, history, prompt, "a");
    if (error) {
      EXPECT_GT(passes, 20);
    } else {
      EXPECT_LT(passes, 35) << "the part that it has written";
    }
  }
}

}  // namespace
}  // namespace tandem::test
