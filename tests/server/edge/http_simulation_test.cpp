// TANDEM_HTTP_SEEDS=n sets the number of seeds; TANDEM_HTTP_SEED=n replays one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "server/edge/http_mutation.h"
#include "tests/server/edge/http_world.h"

namespace tandem {
namespace {

TEST(HttpSimulation, InvariantsHold) {
  const char* const one = std::getenv("TANDEM_HTTP_SEED");
  const char* const many = std::getenv("TANDEM_HTTP_SEEDS");
  const uint64_t first = one == nullptr ? 0 : std::stoull(one);
  const uint64_t seeds = one != nullptr ? 1 : many == nullptr ? 40 : std::stoull(many);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ASSERT_EQ(test::HttpWorld(seed).run(), "") << "seed " << seed;
  }
}

#ifdef TANDEM_MUTATIONS
struct NamedHttpMutation {
  HttpMutation mutation;
  const char* name;
};

TEST(HttpSimulation, EveryMutationIsDetected) {
  const NamedHttpMutation all[] = {
#define TANDEM_HTTP_MUTATION(name, what) {HttpMutation::k##name, #name},
      TANDEM_HTTP_MUTATION_LIST(TANDEM_HTTP_MUTATION)
#undef TANDEM_HTTP_MUTATION
  };
  for (const NamedHttpMutation& each : all) {
    std::string broken;
    uint64_t seed = 0;
    active_http_mutation = each.mutation;
    for (; seed < 60 && broken.empty(); ++seed) broken = test::HttpWorld(seed).run();
    active_http_mutation = HttpMutation::kNone;
    EXPECT_NE(broken, "") << each.name << " is not detected";
  }
}
#endif

}  // namespace
}  // namespace tandem
