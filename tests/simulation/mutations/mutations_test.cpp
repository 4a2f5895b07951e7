// The simulation must detect at least 95 % of the mutations, and two per invariant. TANDEM_BUG=name
// runs one; TANDEM_BUG_TABLE=file writes the table of docs/reliability.md.
#include "tests/simulation/mutations/mutations.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "tests/simulation/plan.h"
#include "tests/simulation/simulation.h"

namespace tandem::simulation {
namespace {

constexpr uint64_t kSeeds = 3000;

// One line without paths and table delimiters.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '|') c = ' ';
  }
  if (const size_t path = text.find("engine/"); path != std::string::npos && path < 200) {
    const size_t begin = text.rfind(' ', path);
    text.erase(begin == std::string::npos ? 0 : begin + 1,
               path - (begin == std::string::npos ? 0 : begin + 1));
  }
  if (text.size() > 110) text = text.substr(0, 107) + "...";
  return text;
}

TEST(Mutations, NothingBreaksWithoutOne) {
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t seed = i % 2 == 0 ? i : kFirstWithReplicas + i;
    for (const std::string& what : simulate(seed).broken) ADD_FAILURE() << what;
  }
}

TEST(Mutations, AreCaught) {
  const char* only = std::getenv("TANDEM_BUG");
  size_t hunted = 0, caught = 0;
  std::map<int, int> per_invariant;
  std::string table =
      "| mutation | breaks | what it does | caught by seed | what was seen "
      "|\n|---|--:|---|--:|---|\n";
  for (const NamedMutation& mutation : mutations()) {
    if (only && std::string(only) != mutation.name) continue;
    ++hunted;
    const Hunt result = hunt(mutation, kSeeds);
    caught += result.caught;
    per_invariant[mutation.invariant] += result.caught;
    std::printf(
        "%-20s %2d %s\n", mutation.name, mutation.invariant,
        result.caught
            ? ("seed " + std::to_string(result.seed) + ": " + one_line(result.message)).c_str()
            : "NOT CAUGHT");
    table += std::string("| ") + mutation.name + " | " + std::to_string(mutation.invariant) +
             " | " + mutation.what + " | " +
             (result.caught ? std::to_string(result.seed) : "not caught") + " | " +
             one_line(result.message) + " |\n";
  }
  std::printf("%zu of %zu mutations detected\n", caught, hunted);
  if (const char* file = std::getenv("TANDEM_BUG_TABLE")) std::ofstream(file) << table;
  EXPECT_GE(static_cast<double>(caught), 0.95 * static_cast<double>(hunted));
  if (only) return;
  EXPECT_GE(hunted, 30U);
  for (int invariant = 1; invariant <= 15; ++invariant) {
    EXPECT_GE(per_invariant[invariant], 2) << "invariant " << invariant;
  }
}

}  // namespace
}  // namespace tandem::simulation
