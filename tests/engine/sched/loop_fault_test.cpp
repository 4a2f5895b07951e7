// Device faults end exactly the affected requests.
#include <set>

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

struct Fleet {
  explicit Fleet(Box& box, int n) {
    for (int i = 0; i < n; ++i) {
      prompts.push_back(std::vector<Token>(static_cast<size_t>(i) + 2, 3 + i));
      all.push_back(box.submit(box.spec(prompts.back(), 10)));
    }
  }
  // Requests `hit` failed with `code`; the others were not affected.
  void expect(Box& box, const std::set<int>& hit, absl::StatusCode code) {
    box.pump();
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const Recorder& r = *all[static_cast<size_t>(i)];
      ASSERT_EQ(r.ends, 1);
      if (hit.contains(i)) {
        EXPECT_EQ(r.end.status.code(), code) << i;
      } else {
        EXPECT_TRUE(r.end.status.ok()) << i << ": " << r.end.status;
        EXPECT_EQ(r.tokens, box.greedy(prompts[static_cast<size_t>(i)], 10));
      }
    }
    box.expect_idle();
  }
  std::vector<std::vector<Token>> prompts;
  std::vector<std::shared_ptr<Recorder>> all;
};

BoxOptions small_batches() {
  BoxOptions o;
  o.limits.step_rows = 3;
  return o;
}

TEST(LoopFault, ADeviceErrorEndsTheBatchsRequests) {
  for (int at = 1; at < 12; ++at) {
    Box box{small_batches()};
    int n = 0;
    std::set<int> hit;  // the i-th request has cache i
    box.backends[0].set_faults([&](const Batch& b) {
      Fault f;
      if (++n != at) return f;
      for (const Work& w : b.works) hit.insert(w.cache.value);
      f.status = absl::InternalError("xid 13");
      return f;
    });
    Fleet fleet(box, 6);
    fleet.expect(box, (box.pump(), hit), absl::StatusCode::kInternal);
    EXPECT_FALSE(hit.empty());
  }
}

TEST(LoopFault, NanRowsEndExactlyTheirRequest) {
  Box box{BoxOptions()};
  int n = 0;
  std::set<int> hit;
  box.backends[0].set_faults([&](const Batch& b) {
    Fault f;
    if (++n % 3 != 0 || hit.size() >= 3) return f;
    f.nan_works = {static_cast<int>(b.works.size()) / 2};
    hit.insert(b.works[b.works.size() / 2].cache.value);
    return f;
  });
  Fleet fleet(box, 8);
  fleet.expect(box, (box.pump(), hit), absl::StatusCode::kInternal);
  EXPECT_EQ(hit.size(), 3U);
}

TEST(LoopFault, OutOfMemoryRunsSmallerBatches) {
  Box box{BoxOptions()};
  int64_t refused = 0, largest = 0;
  box.backends[0].set_faults([&](const Batch& b) {
    Fault f;
    if (b.run_rows() > 3) {
      f.status = absl::ResourceExhaustedError("CUDA out of memory");
      ++refused;
    } else {
      largest = std::max<int64_t>(largest, b.run_rows());
    }
    return f;
  });
  Fleet fleet(box, 8);
  fleet.expect(box, {}, absl::StatusCode::kOk);
  EXPECT_GT(refused, 0);
  EXPECT_LE(largest, 3);
}

TEST(LoopFault, OutOfMemoryForOneRequestEndsItAlone) {
  Box box{BoxOptions()};
  box.backends[0].set_faults([&](const Batch& b) {
    Fault f;
    for (const Work& w : b.works) {
      if (w.cache.value == 4) f.status = absl::ResourceExhaustedError("CUDA out of memory");
    }
    return f;
  });
  Fleet fleet(box, 8);
  fleet.expect(box, {4}, absl::StatusCode::kResourceExhausted);
}

TEST(LoopFault, BatchesGrowAgainAfterOutOfMemory) {
  Box box{BoxOptions()};
  int n = 0, largest = 0;
  box.backends[0].set_faults([&](const Batch& b) {
    Fault f;
    if (++n == 1) f.status = absl::ResourceExhaustedError("CUDA out of memory");
    if (n > 70) largest = std::max<int>(largest, static_cast<int>(b.works.size()));
    return f;
  });
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 8; ++i) all.push_back(box.submit(box.spec({i, 2}, 100)));
  box.pump();
  for (const auto& r : all) EXPECT_TRUE(r->ok());
  EXPECT_EQ(largest, 8);
}

}  // namespace
}  // namespace tandem::test
