// Accounts and metrics of requests, for all kinds of ends.
#include "engine/sched/request_book.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace std::chrono_literals;

class RequestBookTest : public testing::Test {
 protected:
  RequestBookTest() {
    metrics_.series.emplace_back();
    spec_.prompt = {1, 2, 3};
    spec_.series = &series();
    spec_.submitted = TimePoint(1s);
  }
  Series& series() { return metrics_.series.front(); }
  int64_t finished(FinishReason reason) {
    return series().finished[static_cast<size_t>(reason)].value();
  }
  int64_t failed(absl::StatusCode code) {
    return series().failed[static_cast<size_t>(code)].value();
  }

  Metrics metrics_;
  RequestBook book_{{}, &metrics_};
  SequenceSpec spec_;
};

TEST_F(RequestBookTest, OneThatIsServed) {
  OpenRequest& request = book_.open(7, "client");
  EXPECT_EQ(book_.find(7), &request);
  EXPECT_EQ(book_.find(8), nullptr);
  book_.admit(request, spec_, TimePoint(3s));
  EXPECT_TRUE(request.admitted);
  EXPECT_EQ(series().requests_running.value(), 1);
  EXPECT_EQ(series().prompt_tokens.value(), 3);
  EXPECT_DOUBLE_EQ(series().prompt_length.sum(), 3);
  EXPECT_DOUBLE_EQ(series().queue_time.sum(), 2);
  const double prompt = request.account->served();
  EXPECT_GT(prompt, 0);
  book_.charge_tokens(request.account, 5);
  EXPECT_DOUBLE_EQ(request.account->served(), prompt + 5 * request.account->token_cost());
  request.end.reason = FinishReason::kEos;
  request.end.completion_tokens = 6;
  request.end.stats.large_passes = 3;
  book_.close(7, spec_, TimePoint(5s));
  EXPECT_EQ(book_.find(7), nullptr);
  EXPECT_EQ(series().requests_running.value(), 0);
  EXPECT_EQ(finished(FinishReason::kEos), 1);
  EXPECT_DOUBLE_EQ(series().e2e_latency.sum(), 4);
  EXPECT_EQ(series().decode_time.total(), 1);
  EXPECT_DOUBLE_EQ(series().tokens_per_pass.sum(), 2);
  EXPECT_EQ(series().answer_length.total(), 1);
  EXPECT_DOUBLE_EQ(series().answer_length.sum(), 6);
}

TEST_F(RequestBookTest, OneThatWaitsInVain) {
  OpenRequest& request = book_.open(7, "client");
  request.end.status = absl::ResourceExhaustedError("waited too long");
  book_.close(7, spec_, TimePoint(5s));
  EXPECT_EQ(series().requests_running.value(), 0) << "it never ran";
  EXPECT_EQ(failed(absl::StatusCode::kResourceExhausted), 1);
  EXPECT_EQ(series().prefill_time.total(), 0);
  EXPECT_EQ(series().e2e_latency.total(), 1);
}

TEST_F(RequestBookTest, OneWhoseReaderIsBehindToTheEnd) {
  OpenRequest& request = book_.open(7, "client");
  book_.admit(request, spec_, TimePoint(1s));
  book_.pause(request, true);
  EXPECT_EQ(metrics_.requests_paused.value(), 1);
  book_.pause(request, false);
  EXPECT_EQ(metrics_.requests_paused.value(), 0);
  book_.pause(request, true);
  book_.close(7, spec_, TimePoint(2s));
  EXPECT_EQ(metrics_.requests_paused.value(), 0);
}

TEST_F(RequestBookTest, OneThatIsRefused) {
  book_.refuse(spec_, absl::UnavailableError("lost"), RejectReason::kDeviceLost);
  EXPECT_EQ(metrics_.rejected[static_cast<size_t>(RejectReason::kDeviceLost)].value(), 1);
  EXPECT_EQ(failed(absl::StatusCode::kUnavailable), 1);
  EXPECT_EQ(series().e2e_latency.total(), 0);
  spec_.series = nullptr;
  book_.refuse(spec_, absl::UnavailableError("lost"), RejectReason::kDeviceLost);
}

}  // namespace
}  // namespace tandem
