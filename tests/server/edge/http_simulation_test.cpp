#include <gtest/gtest.h>

#include "server/edge/http_mutation.h"
#include "tests/server/edge/http_world.h"

namespace tandem {
namespace {

TEST(HttpSimulation, InvariantsHold) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
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
    for (; seed < 400 && broken.empty(); ++seed) broken = test::HttpWorld(seed).run();
    active_http_mutation = HttpMutation::kNone;
    EXPECT_NE(broken, "") << each.name << " is not detected";
    std::cout << each.name << ": seed " << seed - 1 << ": " << broken << "\n";
  }
}
#endif

}  // namespace
}  // namespace tandem
