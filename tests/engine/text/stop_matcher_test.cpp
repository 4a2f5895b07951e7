// StopMatcher against a plain search, for all ways to cut the text.
#include "engine/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/text/utf8.h"
#include "tests/engine/text/stop_reference.h"

namespace tandem {
namespace {

using test::find_stop;
using Result = test::StopResult;

Result run(const std::vector<std::string>& stops, bool include,
           const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops, include);
  Result result;
  for (const std::string& piece : pieces) result.stop = matcher.push(piece, result.text);
  matcher.finish(result.text);
  EXPECT_EQ(result.stop, matcher.matched());
  return result;
}

TEST(StopMatcher, FindsAcrossBorders) {
  EXPECT_EQ(run({"</s>"}, false, {"abc<", "/", "s", ">def"}), (Result{"abc", 0}));
  EXPECT_EQ(run({"</s>"}, true, {"abc<", "/", "s", ">def"}), (Result{"abc</s>", 0}));
  EXPECT_EQ(run({"</s>"}, false, {"abc<", "/", "x"}), (Result{"abc</x", std::nullopt}));
  EXPECT_EQ(run({}, false, {"any", "thing"}), (Result{"anything", std::nullopt}));
  EXPECT_EQ(run({""}, false, {"any"}), (Result{"any", std::nullopt}));
}

TEST(StopMatcher, HoldsExactlyWhatMayBecomeAStop) {
  StopMatcher matcher({"\n\nUser:", "aab"}, false);
  std::string out;
  matcher.push("hello\n", out);
  EXPECT_EQ(out, "hello");
  matcher.push("\nUs", out);
  EXPECT_EQ(out, "hello");
  matcher.push("ing aaa", out);
  EXPECT_EQ(out, "hello\n\nUsing a");  // "aa" may begin "aab"
  matcher.push("c", out);
  EXPECT_EQ(out, "hello\n\nUsing aaac");
  matcher.push("\n", out);
  matcher.finish(out);
  EXPECT_EQ(out, "hello\n\nUsing aaac\n");
}

TEST(StopMatcher, EarliestEndThenLongest) {
  EXPECT_EQ(run({"abcd", "bc"}, false, {"xabcd"}), (Result{"xa", 1}));  // ends first
  EXPECT_EQ(run({"cd", "abcd"}, false, {"xabcd"}), (Result{"x", 1}));   // longest at one end
  EXPECT_EQ(run({"q", "ab", "ab"}, false, {"xab"}), (Result{"x", 1}));  // first of equal ones
  EXPECT_EQ(run({"aab", "ab"}, true, {"aaab"}), (Result{"aaab", 0}));
}

TEST(StopMatcher, NothingComesAfterAMatch) {
  StopMatcher matcher({"stop"}, false);
  std::string out;
  EXPECT_EQ(matcher.push("a stop b", out), 0u);
  EXPECT_EQ(matcher.push("more", out), 0u);
  matcher.finish(out);
  EXPECT_EQ(out, "a ");
}

TEST(StopMatcher, RandomTextsAndCuts) {
  std::mt19937 random(17);
  const std::string letters[] = {"a", "b", "é", "日"};
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t i = random() % (most + 1); i > 0; --i) text += letters[random() % 4];
    return text;
  };
  int matches = 0;
  for (int n = 0; n < 20000; ++n) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) stop = word(5);
    std::vector<std::string> pieces(random() % 8);
    std::string text;
    for (std::string& piece : pieces) text += piece = word(4);
    const bool include = random() % 2 == 0;
    const Result result = run(stops, include, pieces);
    ASSERT_EQ(result, find_stop(stops, include, text)) << text;
    ASSERT_EQ(valid_utf8_prefix(result.text), result.text.size());
    matches += result.stop.has_value() ? 1 : 0;
  }
  EXPECT_GT(matches, 5000);
  EXPECT_LT(matches, 19000);
}

TEST(StopMatcher, PiecesAreValidUtf8) {
  StopMatcher matcher({"日本", "\xE6\x97\xA5x"}, false);
  std::string all;
  for (const std::string piece : {"日", "日", "é日", "月"}) {
    std::string out;
    matcher.push(piece, out);
    EXPECT_EQ(valid_utf8_prefix(out), out.size());
    all += out;
  }
  matcher.finish(all);
  EXPECT_EQ(all, "日日é日月");
}

TEST(StopMatcher, ManyLongStops) {
  std::mt19937 random(23);
  std::vector<std::string> stops(10000);
  for (std::string& stop : stops) {
    for (int i = 0; i < 60; ++i) stop.push_back(static_cast<char>('a' + random() % 3));
  }
  stops[777] = "needle";
  StopMatcher matcher(stops, false);
  std::string out;
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text.push_back(static_cast<char>('a' + random() % 3));
  for (size_t i = 0; i < text.size(); i += 4) {
    ASSERT_EQ(matcher.push(text.substr(i, 4), out), std::nullopt);
  }
  EXPECT_EQ(matcher.push("needle", out), 777u);
  EXPECT_EQ(out, text);
}

TEST(StopMatcher, DeepFailureChains) {
  // Each prefix of a^n fails to the next shorter one: a naive automaton is quadratic here.
  std::vector<std::string> stops;
  for (int n = 1; n <= 300; ++n) stops.push_back(std::string(static_cast<size_t>(n), 'a') + "b");
  StopMatcher matcher(stops, false);
  std::string out;
  for (int i = 0; i < 200'000; ++i) matcher.push(i % 301 == 300 ? "c" : "a", out);
  EXPECT_FALSE(matcher.matched().has_value());
  EXPECT_EQ(matcher.push(std::string(500, 'a') + "b", out), 299u);
}

}  // namespace
}  // namespace tandem
