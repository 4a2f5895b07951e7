// The table of a deployment's LoRA adapters: names, limits, eviction.
#include "engine/host/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

class Adapters : public ::testing::Test {
 protected:
  // OK, or why it was refused.
  absl::Status add(const std::string& name, int64_t bytes) {
    absl::StatusOr<AdapterTable::Room> room = table_.make_room(name, bytes);
    if (!room.ok()) return room.status();
    DeploymentAdapter adapter{.name = name, .id = LoraId(next_++), .bytes = bytes, .pinned = false};
    table_.add(std::move(adapter), *std::move(room),
               [this](const DeploymentAdapter& a) { freed_.push_back(a.name); });
    return absl::OkStatus();
  }
  void pin(const std::string& name, int64_t bytes) {
    table_.pin({.name = name, .id = LoraId(next_++), .bytes = bytes});
  }

  Names freed_;
  AdapterTable table_{100, 4};
  int next_ = 0;
};

TEST_F(Adapters, AreFoundByNameAndId) {
  pin("law", 10);
  ASSERT_TRUE(add("sql", 20).ok());
  EXPECT_THAT(table_.names(), ElementsAre("law", "sql"));
  EXPECT_EQ(table_.find("sql")->id, LoraId(1));
  EXPECT_EQ(table_.find(LoraId(0))->name, "law");
  EXPECT_EQ(table_.find("x"), nullptr);
  EXPECT_EQ(table_.find(LoraId(7)), nullptr);
  EXPECT_EQ(table_.infos()[1].bytes, 20);
  EXPECT_EQ(table_.bytes(), 30);
}

TEST_F(Adapters, OneThatIsRemovedStaysUntilItsLastReference) {
  ASSERT_TRUE(add("sql", 20).ok());
  AdapterRef used = table_.find("sql");
  ASSERT_TRUE(table_.remove("sql").ok());
  EXPECT_EQ(table_.find("sql"), nullptr);
  EXPECT_EQ(table_.find(LoraId(0)), used) << "its requests look it up";
  EXPECT_EQ(table_.bytes(), 20);
  EXPECT_THAT(freed_, IsEmpty());
  used = nullptr;
  EXPECT_EQ(table_.bytes(), 0);
  EXPECT_THAT(freed_, ElementsAre("sql"));
  EXPECT_EQ(table_.find(LoraId(0)), nullptr);
}

TEST_F(Adapters, TheLeastRecentlyUsedMakesRoom) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(add(name, 30).ok());
  table_.find("a");
  ASSERT_TRUE(add("d", 30).ok());
  EXPECT_THAT(freed_, ElementsAre("b"));
  table_.find("c");
  ASSERT_TRUE(add("e", 50).ok());
  EXPECT_THAT(freed_, ElementsAre("b", "a", "d"));
  EXPECT_THAT(table_.names(), ElementsAre("c", "e"));
  EXPECT_EQ(table_.bytes(), 80);
}

TEST_F(Adapters, TheirNumberIsLimitedToo) {
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(add(name, 1).ok());
  ASSERT_TRUE(add("e", 1).ok());
  EXPECT_THAT(freed_, ElementsAre("a"));
  ASSERT_TRUE(add("e", 1).ok()) << "instead of itself";
  EXPECT_THAT(freed_, ElementsAre("a", "e"));
  EXPECT_THAT(table_.names(), ElementsAre("b", "c", "d", "e"));
}

TEST_F(Adapters, ThoseInUseAndThoseOfTheConfigurationStay) {
  pin("law", 40);
  ASSERT_TRUE(add("a", 30).ok());
  ASSERT_TRUE(add("b", 20).ok());
  const AdapterRef used = table_.find("a");
  const absl::Status refused = add("c", 40);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "adapter: \"c\", of 40 bytes; there are 3 adapters, and 90 bytes in use, of which 20 "
            "could be freed; allowed: 100 bytes (adapter_memory_bytes), 4 adapters (max_adapters)");
  EXPECT_EQ(table_.check_room("c", 40), refused);
  EXPECT_TRUE(table_.check_room("c", 30).ok());
  EXPECT_THAT(table_.names(), ElementsAre("law", "a", "b")) << "nothing was removed in vain";
  ASSERT_TRUE(add("c", 30).ok());
  EXPECT_THAT(table_.names(), ElementsAre("law", "a", "c"));
  // One that has left the table still counts.
  ASSERT_TRUE(table_.remove("a").ok());
  EXPECT_EQ(add("d", 60).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(Adapters, AReplacedOneGoesLastAndOnlyIfNeeded) {
  ASSERT_TRUE(add("a", 40).ok());
  ASSERT_TRUE(add("b", 40).ok());
  {
    absl::StatusOr<AdapterTable::Room> room = table_.make_room("a", 40);
    ASSERT_TRUE(room.ok());
    EXPECT_THAT(table_.names(), ElementsAre("a")) << "the other one";
    EXPECT_EQ(table_.bytes(), 80);
  }
  EXPECT_EQ(table_.bytes(), 40) << "the room is given up";
  ASSERT_TRUE(add("a", 70).ok());
  EXPECT_THAT(table_.names(), ElementsAre("a"));
  EXPECT_EQ(table_.bytes(), 70);
  const AdapterRef used = table_.find("a");
  EXPECT_EQ(add("a", 40).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(add("a", 30).ok());
  EXPECT_NE(table_.find("a"), used);
  EXPECT_EQ(table_.bytes(), 100);
}

TEST_F(Adapters, NamesAreChecked) {
  pin("law", 10);
  ASSERT_TRUE(add("sql", 20).ok());
  EXPECT_TRUE(table_.check_name("new", false).ok());
  EXPECT_TRUE(table_.check_name("sql", true).ok());
  EXPECT_EQ(table_.check_name("sql", false).code(), absl::StatusCode::kAlreadyExists);
  for (const absl::Status& pinned :
       {table_.check_name("law", false), table_.check_name("law", true), table_.remove("law")}) {
    EXPECT_EQ(pinned.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(pinned.message()),
                HasSubstr("adapter: \"law\", an adapter of the configuration"));
  }
  const absl::Status unknown = table_.remove("x");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.message(), "adapter: \"x\"; known: \"law\", \"sql\"");
}

TEST_F(Adapters, NobodyIsToldAfterTheEnd) {
  ASSERT_TRUE(add("sql", 20).ok());
  AdapterRef used = table_.find("sql");
  table_.close();
  used = nullptr;
  EXPECT_THAT(freed_, IsEmpty());
  EXPECT_EQ(table_.bytes(), 0);
}

TEST(UnlimitedAdapters, NothingIsRemoved) {
  AdapterTable table;
  for (int i = 0; i < 100; ++i) {
    absl::StatusOr<AdapterTable::Room> room = table.make_room("a", int64_t{1} << 40);
    ASSERT_TRUE(room.ok());
    table.add({.name = std::to_string(i), .bytes = int64_t{1} << 40}, *std::move(room), {});
  }
  EXPECT_EQ(table.names().size(), 100U);
}

}  // namespace
}  // namespace tandem
