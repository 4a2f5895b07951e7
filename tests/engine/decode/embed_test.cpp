#include "engine/decode/embed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/backend/fake/model.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

// The mean state of rows [begin, end) of the fake model.
std::vector<double> mean_state(const FakeModelConfig& model, const std::vector<Token>& tokens,
                               size_t begin, size_t end) {
  std::vector<uint64_t> inputs;
  std::vector<double> sum(fake::kStateWidth);
  for (size_t i = 0; i < end; ++i) {
    inputs.push_back(fake::token_input(tokens[i]));
    if (i < begin) continue;
    const std::vector<double> state = fake::state(model, fake::chain(inputs));
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += state[k];
  }
  for (double& x : sum) x /= static_cast<double>(end - begin);
  return sum;
}

TEST(Embed, IsTheMeanOfTheStatesOfItsRows) {
  const std::vector<Token> tokens = {5, 6, 7, 8, 9, 10, 11};
  for (const int chunk : {1, 3, 100}) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = chunk;
    Box box{o};
    const struct {
      Pooling pooling;
      size_t begin, end;
    } cases[] = {{Pooling::kLast, 6, 7}, {Pooling::kMean, 0, 7}, {Pooling::kFirst, 0, 1}};
    for (const auto& [pooling, begin, end] : cases) {
      std::vector<double> got;
      SequenceSpec spec = box.spec(tokens, 0);
      spec.prefix_cache = false;
      spec.method = [pooling = pooling, &got](Gen g) {
        return embed(g, pooling, See::kCausal, &got);
      };
      const auto r = box.submit(std::move(spec));
      box.pump();
      ASSERT_TRUE(r->ok());
      EXPECT_TRUE(r->tokens.empty());
      EXPECT_THAT(got, Pointwise(DoubleNear(1e-12), mean_state(box.config(), tokens, begin, end)))
          << chunk;
    }
  }
}

}  // namespace
}  // namespace tandem::test
