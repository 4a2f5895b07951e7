// Pages of the prefix index are read into the host's memory while the loop works.
#include "engine/sched/page_read.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <utility>

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using Pages = std::vector<PrefixIndex::SharedPage>;
using Found = absl::StatusOr<std::vector<bool>>;

class LoopPageRead : public testing::Test {
 protected:
  LoopPageRead() {
    std::mt19937_64 rng(1);
    prompt_ = random_prompt(rng, 14, 14);  // three full pages
  }
  // Two requests with one prompt.
  void share() {
    for (int i = 0; i < 2; ++i) {
      box_->submit(box_->spec(prompt_, 1));
      box_->pump();
    }
  }
  Pages list(size_t most = 100) {
    Pages pages;
    int calls = 0;
    box_->loop->list_prefixes(ModelId(0), most, [&](Pages listed) {
      pages = std::move(listed);
      ++calls;
    });
    box_->pump();
    EXPECT_EQ(calls, 1);
    return pages;
  }
  size_t page_bytes() const {
    return static_cast<size_t>(box_->backends[0].shape(ModelId(0)).page_bytes);
  }
  void start_read(const Pages& pages) {
    PageRead read;
    read.model = ModelId(0);
    for (const auto& page : pages) read.pages.push_back(page.name);
    bytes_.assign(pages.size() * page_bytes(), std::byte{0});
    read.to = bytes_.data();
    read.done = [this](Found found) {
      EXPECT_FALSE(found_.has_value());
      found_ = std::move(found);
    };
    box_->loop->read(std::move(read));
  }
  // The slots of the i-th page that was read.
  std::vector<FakeMemory::SavedSlot> slots(size_t i) const {
    std::vector<FakeMemory::SavedSlot> slots(page_bytes() / sizeof(FakeMemory::SavedSlot));
    std::memcpy(slots.data(), bytes_.data() + i * page_bytes(), page_bytes());
    return slots;
  }

  std::optional<Box> box_{BoxOptions()};
  std::vector<Token> prompt_;
  std::vector<std::byte> bytes_;
  std::optional<Found> found_;
};

TEST_F(LoopPageRead, GivesTheRowsOfSharedPages) {
  EXPECT_EQ(list().size(), 0U);
  share();
  const Pages pages = list();
  ASSERT_EQ(pages.size(), 3U);
  start_read(pages);
  box_->pump();
  ASSERT_TRUE(found_.has_value() && found_->ok());
  EXPECT_EQ(**found_, std::vector<bool>(3, true));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pages[i].before, static_cast<int>(i) - 1);
    const auto rows = slots(i);
    ASSERT_EQ(rows.size(), 4U);
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(pages[i].tokens[r], prompt_[4 * i + r]);
      EXPECT_EQ(rows[r].input, fake::token_input(prompt_[4 * i + r]));
      EXPECT_EQ(rows[r].position, static_cast<int>(4 * i + r));
    }
  }
  box_->expect_idle();
}

TEST_F(LoopPageRead, RequestsGoOnMeanwhile) {
  share();
  const Pages pages = list();
  const auto other = box_->submit(box_->spec({7, 8, 9}, 20));
  ASSERT_TRUE(box_->pump_until([&] { return other->tokens.size() >= 5; }));
  start_read(pages);
  ASSERT_TRUE(box_->pump_until([&] { return found_.has_value(); }));
  EXPECT_EQ(other->ends, 0) << "the pages went with a batch of the request";
  EXPECT_EQ(**found_, std::vector<bool>(3, true));
  box_->pump();
  EXPECT_EQ(other->tokens, box_->greedy({7, 8, 9}, 20));
  box_->expect_idle();
}

// A page that is evicted and filled by another sequence right after the read was posted.
TEST_F(LoopPageRead, APageIsReadBeforeItsReuse) {
  BoxOptions options;
  options.models[0].pool = {4, 8, 8};
  box_.emplace(options);
  share();
  const Pages pages = list();
  start_read(pages);
  std::mt19937_64 rng(2);
  const auto large = random_prompt(rng, 26, 26);
  const auto other = box_->submit(box_->spec(large, 4));
  box_->pump();
  EXPECT_EQ(other->tokens, box_->greedy(large, 4));
  ASSERT_TRUE(found_.has_value() && found_->ok());
  EXPECT_EQ(**found_, std::vector<bool>(3, true));
  EXPECT_EQ(slots(2)[3].input, fake::token_input(prompt_[11]));
  for (const auto& page : pages) EXPECT_FALSE(box_->pools().prefixes.knows(page.name));
  box_->expect_idle();
}

TEST_F(LoopPageRead, PagesThatAreGoneAreNotFound) {
  BoxOptions options;
  options.models[0].pool = {4, 8, 8};
  box_.emplace(options);
  share();
  const Pages pages = list();
  std::mt19937_64 rng(2);
  box_->submit(box_->spec(random_prompt(rng, 26, 26), 4));
  box_->pump();
  start_read(pages);
  box_->pump();
  ASSERT_TRUE(found_.has_value() && found_->ok());
  EXPECT_EQ(**found_, std::vector<bool>(3, false));
}

TEST_F(LoopPageRead, AFailedBatchFailsTheRead) {
  share();
  const Pages pages = list();
  for (const auto& status :
       {absl::InternalError("a fault"), absl::ResourceExhaustedError("no memory")}) {
    bool fails = true;
    box_->backends[0].set_faults([&](const Batch&) {
      return std::exchange(fails, false) ? Fault{status, {}, {}} : Fault();
    });
    found_.reset();
    start_read(pages);
    box_->pump();
    box_->backends[0].set_faults({});
    ASSERT_TRUE(found_.has_value());
    EXPECT_EQ(found_->status(), status);
  }
  found_.reset();
  start_read(pages);
  box_->pump();
  EXPECT_TRUE(found_->ok()) << "the next one is as before";
}

TEST_F(LoopPageRead, ALostDeviceEndsReads) {
  share();
  const Pages pages = list();
  box_->backends[0].set_faults(
      [](const Batch&) { return Fault{absl::UnavailableError("lost"), {}, {}}; });
  start_read(pages);
  box_->pump();
  ASSERT_TRUE(found_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(found_->status()));
  found_.reset();
  start_read(pages);
  box_->pump();
  ASSERT_TRUE(found_.has_value()) << "lost already";
  EXPECT_TRUE(absl::IsUnavailable(found_->status()));
}

// The read waits behind a batch under way when the device is lost: it is never launched.
TEST_F(LoopPageRead, ALostDeviceEndsReadsThatWait) {
  share();
  const Pages pages = list();
  box_->backends[0].set_faults([](const Batch& batch) {
    return Fault{batch.works.empty() ? absl::OkStatus() : absl::UnavailableError("lost"), {}, {}};
  });
  const auto other = box_->submit(box_->spec({7, 8, 9}, 4));
  ASSERT_TRUE(box_->pump_until([&] { return box_->loop->device_busy(); }));
  start_read(pages);
  box_->pump();
  EXPECT_EQ(other->ends, 1);
  ASSERT_TRUE(found_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(found_->status()));
}

}  // namespace
}  // namespace tandem::test
