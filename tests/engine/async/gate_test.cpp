#include "engine/async/gate.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Gate, CountsWhoIsInside) {
  Gate gate;
  EXPECT_TRUE(gate.empty());
  {
    Gate::Pass a = gate.enter();
    Gate::Pass b = std::move(a);
    EXPECT_FALSE(gate.empty());
    a.leave();  // moved from: nothing
    EXPECT_FALSE(gate.empty());
    a = gate.enter();
    a = std::move(b);  // leaves one, takes over the other
    EXPECT_FALSE(gate.empty());
    a.leave();
    a.leave();
    EXPECT_TRUE(gate.empty());
    b = gate.enter();
  }
  EXPECT_TRUE(gate.empty());
}

TEST(Gate, ClosedIsNotEmpty) {
  Gate gate;
  Gate::Pass pass = gate.enter();
  gate.close();
  EXPECT_TRUE(gate.closed());
  EXPECT_FALSE(gate.empty());
  pass.leave();
  EXPECT_TRUE(gate.empty());
}

}  // namespace
}  // namespace tandem
