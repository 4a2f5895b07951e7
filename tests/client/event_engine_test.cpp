#include "rpc/event_engine.h"

#include <grpc/event_engine/event_engine.h>
#include <gtest/gtest.h>

#include <memory>

// gRPC 1.51 exports this function without a public header. Null in a gRPC whose signature differs.
namespace grpc_event_engine::experimental {
__attribute__((weak)) std::shared_ptr<EventEngine> GetDefaultEventEngine();
}  // namespace grpc_event_engine::experimental

namespace tandem {
namespace {

using grpc_event_engine::experimental::EventEngine;
using grpc_event_engine::experimental::GetDefaultEventEngine;

TEST(EventEngine, OutlivesChannels) {
  if (&GetDefaultEventEngine == nullptr) GTEST_SKIP() << "not gRPC 1.51";
  retain_event_engine();
  retain_event_engine();
  const std::weak_ptr<EventEngine> engine = GetDefaultEventEngine();
  EXPECT_FALSE(engine.expired()) << "the engine has no owner besides this test";
}

}  // namespace
}  // namespace tandem
