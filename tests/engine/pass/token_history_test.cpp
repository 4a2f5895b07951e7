#include "engine/pass/token_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace tandem {
namespace {

using Counts = std::map<Token, std::pair<int, int>>;

Counts counted(const TokenCounts& counts) {
  Counts out;
  for (const TokenCounts::Count& c : counts.counts()) out[c.token] = {c.all, c.output};
  EXPECT_EQ(out.size(), counts.counts().size());
  return out;
}

Counts recount(const std::vector<Token>& path, int prompt) {
  Counts out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] < 0) continue;
    ++out[path[i]].first;
    out[path[i]].second += static_cast<int>(i) >= prompt ? 1 : 0;
  }
  return out;
}

// Any walk over a tree has the counts of a recount of the path, and leaves nothing behind.
TEST(TokenCounts, FollowAnyPath) {
  std::mt19937 rng(2);
  TokenCounts counts;
  for (int round = 0; round < 50; ++round) {
    const int prompt = static_cast<int>(rng() % 6);
    counts.clear(prompt);
    std::vector<Token> path;
    for (int step = 0; step < 300; ++step) {
      if (path.empty() || rng() % 5 < 3) {
        path.push_back(rng() % 6 ? static_cast<Token>(rng() % 9) : -1);
        counts.push(path.back());
      } else {
        path.pop_back();
        counts.pop();
      }
      ASSERT_EQ(counts.rows(), static_cast<int>(path.size()));
      ASSERT_EQ(counted(counts), recount(path, prompt));
    }
  }
}

// As passes use it: rows come and go, some passes count fewer rows than are known, and push drafts.
TEST(TokenHistory, CountsAsARecountDoes) {
  std::mt19937 rng(3);
  for (int round = 0; round < 50; ++round) {
    TokenHistory history;
    std::vector<Token> tokens;
    int prompt = 0;
    for (int step = 0; step < 300; ++step) {
      for (size_t n = rng() % 5; n > 0; --n) {
        tokens.push_back(rng() % 6 ? static_cast<Token>(rng() % 9) : -1);
        history.append(tokens.back());
      }
      if (rng() % 4 == 0) {
        tokens.resize(rng() % (tokens.size() + 1));
        history.truncate(static_cast<int>(tokens.size()));
      }
      if (rng() % 50 == 0) prompt = static_cast<int>(rng() % 6);
      ASSERT_EQ(history.known(), static_cast<int>(tokens.size()));
      const size_t past = tokens.size() - rng() % (std::min<size_t>(tokens.size(), 3) + 1);
      TokenCounts& counts = history.count(static_cast<int>(past), prompt);
      std::vector<Token> path(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(past));
      ASSERT_EQ(counted(counts), recount(path, prompt));
      for (size_t n = rng() % 4; n > 0; --n) {
        path.push_back(static_cast<Token>(rng() % 9));
        counts.push(path.back());
      }
      ASSERT_EQ(counted(counts), recount(path, prompt));
      if (rng() % 10 == 0) {
        TokenHistory copy(history);
        ASSERT_EQ(counted(copy.count(copy.known(), prompt)), recount(tokens, prompt));
      }
    }
  }
}

// The cost of a pass is that of its rows, whatever lies before them.
TEST(TokenHistory, APassDoesNotTouchTheRowsBefore) {
  for (const int rows : {10, 10'000}) {
    TokenHistory history;
    for (int row = 0; row < rows; ++row) history.append(row % 50);
    history.count(rows, rows);
    for (int step = 0; step < 100; ++step) {
      const int64_t before = history.counts().updates();
      history.append(step % 7);  // one accepted token, three rejected drafts
      TokenCounts& counts = history.count(history.known(), rows);
      for (const Token draft : {1, 2, 3}) counts.push(draft);
      EXPECT_LE(history.counts().updates() - before, 1 + 3 + 3) << rows;
    }
    const int64_t before = history.counts().updates();
    history.truncate(rows + 90);
    EXPECT_LE(history.counts().updates() - before, 10 + 3);
  }
}

}  // namespace
}  // namespace tandem
