#include "server/observe/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace tandem {
namespace {

// A collector with configurable answers and delays.
struct SpanCollector {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<absl::Status> answers;  // then OK
  std::vector<SpanBatch> batches;
  bool open = true;
  bool hurried = false;

  void wait_for(size_t batches_seen) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return batches.size() >= batches_seen; });
  }
  void set_open(bool now) {
    {
      const std::lock_guard lock(mutex);
      open = now;
    }
    changed.notify_all();
  }
};

class Sender final : public SpanSender {
 public:
  explicit Sender(SpanCollector* c) : collector_(*c) {}
  absl::Status send(const SpanBatch& batch, Duration) override {
    std::unique_lock lock(collector_.mutex);
    collector_.batches.push_back(batch);
    collector_.changed.notify_all();
    collector_.changed.wait(lock, [&] { return collector_.open || collector_.hurried; });
    if (!collector_.open) return absl::CancelledError("hurried");
    if (collector_.answers.empty()) return absl::OkStatus();
    const absl::Status answer = collector_.answers.front();
    collector_.answers.erase(collector_.answers.begin());
    return answer;
  }
  void hurry() override {
    {
      const std::lock_guard lock(collector_.mutex);
      collector_.hurried = true;
    }
    collector_.changed.notify_all();
  }

 private:
  SpanCollector& collector_;
};

SpanExporter::Options quick() {
  SpanExporter::Options out;
  out.service_name = "mine";
  out.every = Duration(0);
  out.first_pause = Duration(0);
  return out;
}

std::unique_ptr<SpanExporter> exporter(SpanCollector* collector,
                                       const SpanExporter::Options& options = quick(),
                                       double ratio = 1) {
  return std::make_unique<SpanExporter>(
      options,
      CallSpans(
          ratio, [](const auto&) { return std::vector<ModelInDeployment>(); }, 1),
      std::make_unique<Sender>(collector));
}

EndedCall call(const std::string& id = "r") {
  EndedCall out;
  out.info.method = "Generate";
  out.info.request_id = id;
  return out;
}

int spans_in(const SpanBatch& batch) { return batch.resource_spans(0).scope_spans(0).spans_size(); }

TEST(SpanExporter, SendsWhatItIsGivenUnderTheServicesName) {
  SpanCollector collector;
  const auto sends = exporter(&collector);
  sends->add(call());
  collector.wait_for(1);
  sends->stop();
  ASSERT_EQ(collector.batches.size(), 1u);
  const auto& of = collector.batches[0].resource_spans(0);
  std::map<std::string, std::string> resource;
  for (const auto& attribute : of.resource().attributes()) {
    resource[attribute.key()] = attribute.value().string_value();
  }
  EXPECT_EQ(resource["service.name"], "mine");
  EXPECT_FALSE(resource["service.version"].empty());
  EXPECT_FALSE(resource["service.instance.id"].empty());
  EXPECT_EQ(of.scope_spans(0).scope().name(), "tandem.server");
  EXPECT_EQ(spans_in(collector.batches[0]), 1);
  EXPECT_EQ(sends->exported(), 1);
  EXPECT_EQ(sends->dropped(), 0);
}

TEST(SpanExporter, ACollectorThatHangsCostsCallsNothingAndMemoryABound) {
  SpanCollector collector;
  collector.open = false;
  SpanExporter::Options options = quick();
  options.max_calls = 8;
  options.batch_calls = 4;
  const auto sends = exporter(&collector, options);
  sends->add(call());
  collector.wait_for(1);  // it hangs with this one
  for (int i = 0; i < 20; ++i) sends->add(call());
  EXPECT_EQ(sends->dropped(), 12);
  collector.set_open(true);
  collector.wait_for(3);
  sends->stop();
  EXPECT_EQ(sends->exported(), 9);
  EXPECT_EQ(sends->dropped(), 12);
  for (const SpanBatch& batch : collector.batches) EXPECT_LE(spans_in(batch), 4);
}

TEST(SpanExporter, WhatMayBeTriedAgainIs) {
  SpanCollector collector;
  collector.answers = {absl::UnavailableError("away"), absl::ResourceExhaustedError("full")};
  const auto sends = exporter(&collector);
  sends->add(call());
  collector.wait_for(3);
  sends->stop();
  EXPECT_EQ(collector.batches.size(), 3u);
  EXPECT_EQ(sends->exported(), 1);
  EXPECT_EQ(sends->dropped(), 0);
}

TEST(SpanExporter, ButNotForEverAndNotWhatIsRefused) {
  SpanCollector collector;
  collector.answers = {absl::UnavailableError(""), absl::UnavailableError(""),
                       absl::InvalidArgumentError("")};
  SpanExporter::Options options = quick();
  options.tries = 2;
  options.batch_calls = 1;
  const auto sends = exporter(&collector, options);
  for (const char* id : {"a", "b", "c"}) sends->add(call(id));
  collector.wait_for(4);
  sends->stop();
  EXPECT_EQ(sends->dropped(), 2);
  EXPECT_EQ(sends->exported(), 1);
}

TEST(SpanExporter, TheEndSendsWhatIsThere) {
  SpanCollector collector;
  SpanExporter::Options options = quick();
  options.every = std::chrono::hours(1);
  options.batch_calls = 4;
  const auto sends = exporter(&collector, options);
  for (int i = 0; i < 3; ++i) sends->add(call());
  sends->stop();
  EXPECT_EQ(sends->exported(), 3);
  sends->add(call());
  EXPECT_EQ(sends->dropped(), 1) << "nothing is sent after the end";
}

TEST(SpanExporter, TheEndWaitsForNoCollectorThatIsAway) {
  SpanCollector collector;
  collector.open = false;
  SpanExporter::Options options = quick();
  options.batch_calls = 2;
  options.first_pause = std::chrono::hours(1);
  const auto sends = exporter(&collector, options);
  sends->add(call());
  collector.wait_for(1);
  for (int i = 0; i < 7; ++i) sends->add(call());
  sends->stop();
  EXPECT_EQ(sends->exported(), 0);
  EXPECT_EQ(sends->dropped(), 8);
  EXPECT_EQ(collector.batches.size(), 2u) << "the first one, and once more in a hurry";
}

TEST(SpanExporter, NothingIsSentOfTracesThatAreNotKept) {
  SpanCollector collector;
  const auto sends = exporter(&collector, quick(), /*ratio=*/0);
  for (int i = 0; i < 10; ++i) sends->add(call());
  sends->stop();
  EXPECT_TRUE(collector.batches.empty());
  EXPECT_EQ(sends->dropped(), 0);
}

}  // namespace
}  // namespace tandem
