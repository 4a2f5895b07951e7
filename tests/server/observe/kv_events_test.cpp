#include "server/observe/kv_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <nlohmann/json.hpp>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

using nlohmann::json;
using Event = KvEvents::Event;
using Kind = Event::Kind;

json decoded(const std::vector<Event>& events) {
  return json::from_msgpack(encode_kv_events(1.5, events));
}

TEST(KvEventsMessage, HasTheArraysOfVllm) {
  EXPECT_EQ(decoded({{Kind::kCleared, "m"},
                     {Kind::kStored, "m", 5, 0, {1, 2}},
                     {Kind::kRemoved, "m", 5, 0, {}}}),
            json::parse(R"([1.5, [["AllBlocksCleared"],
                                  ["BlockStored", [5], null, [1, 2], 2, null, "GPU"],
                                  ["BlockRemoved", [5], "GPU"]]])"));
}

TEST(KvEventsMessage, JoinsPagesThatFollowEachOther) {
  const json events = decoded({{Kind::kStored, "m", 5, 4, {1, 2}},
                               {Kind::kStored, "m", 6, 5, {3, 4}},
                               {Kind::kStored, "m", 7, 5, {5, 6}},
                               {Kind::kRemoved, "m", 6, 0, {}},
                               {Kind::kRemoved, "m", 7, 0, {}}})[1];
  EXPECT_EQ(events, json::parse(R"([["BlockStored", [5, 6], 4, [1, 2, 3, 4], 2, null, "GPU"],
                            ["BlockStored", [7], 5, [5, 6], 2, null, "GPU"],
                            ["BlockRemoved", [6, 7], "GPU"]])"));
}

TEST(KvEventsMessage, KeepsIdsOf64Bits) {
  const uint64_t id = (uint64_t{65535} << 48) | 1;
  EXPECT_EQ(decoded({{Kind::kRemoved, "m", id, 0, {}}})[1][0][1][0].get<uint64_t>(), id);
}

TEST(KvEvents, RefusesAnEndpointThatCannotBeBound) {
  const test::TempDir folder;
  const std::string endpoint = "ipc://" + folder.path() + "/none/events";
  const auto events = KvEvents::start({.endpoint = endpoint, .topic = "kv@a"});
  ASSERT_FALSE(events.ok());
  EXPECT_THAT(std::string(events.status().message()),
              testing::HasSubstr("server.kv_events.endpoint: " + endpoint));
}

// If too many events wait, they are dropped and replaced by AllBlocksCleared.
TEST(KvEvents, BoundsWhatWaits) {
  const test::TempDir folder;
  KvEvents::Options options{.endpoint = "ipc://" + folder.path() + "/events", .topic = "kv@a"};
  options.deployments["m"] = {"chat"};
  options.max_events = 4;
  const auto events = *KvEvents::start(options);
  const std::vector<Token> tokens = {1, 2};
  events->on_stored("other", {1, 0, tokens});  // no deployment's large model
  for (uint64_t id = 1; id <= 100'000; ++id) events->on_stored("m", {id, 0, tokens});
  EXPECT_GT(events->dropped(), 0);
}

}  // namespace
}  // namespace tandem
