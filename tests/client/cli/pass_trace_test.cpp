#include "client/cli/pass_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::cli {
namespace {

Compared by(const std::string& method) { return {method, Answer(), absl::OkStatus()}; }

void add_pass(Compared* to, v1::PassRole role, v1::PassKind kind, int64_t start, int64_t end) {
  v1::GenerateResponse event;
  *event.mutable_finished() = to->answer.first().finished;
  v1::PassRecord* const p = event.mutable_finished()->mutable_trace()->add_passes();
  p->set_pass_number(event.finished().trace().passes_size());
  p->set_role(role);
  p->set_kind(kind);
  p->set_start_us(start);
  p->set_end_us(end);
  p->set_rows(3);
  to->answer.add(event);
}

TEST(ChromeTrace, HasATrackForEachMethodAndRole) {
  Compared bild = by("bild");
  add_pass(&bild, v1::PASS_ROLE_LARGE, v1::PASS_KIND_PREFILL, 0, 100);
  add_pass(&bild, v1::PASS_ROLE_SMALL, v1::PASS_KIND_DRAFT, 100, 120);
  const Compared failed{"bita", Answer(), absl::InvalidArgumentError("method: not offered")};
  Compared plain = by("autoregressive");
  add_pass(&plain, v1::PASS_ROLE_LARGE, v1::PASS_KIND_DECODE, 5, 25);
  const Json trace = chrome_trace({bild, failed, plain});
  const Json expected = Json::parse(R"({"displayTimeUnit":"ms","traceEvents":[
      {"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"bild"}},
      {"name":"thread_name","ph":"M","pid":1,"tid":100,"args":{"name":"large"}},
      {"name":"prefill","cat":"large","ph":"X","pid":1,"tid":100,"ts":0,"dur":100,"args":
       {"pass":1,"rows":3,"batches":0,"batch_rows":0,"batch_requests":0,"accepted":0,"rejected":0}},
      {"name":"thread_name","ph":"M","pid":1,"tid":200,"args":{"name":"small"}},
      {"name":"draft","cat":"small","ph":"X","pid":1,"tid":200,"ts":100,"dur":20,"args":
       {"pass":2,"rows":3,"batches":0,"batch_rows":0,"batch_requests":0,"accepted":0,"rejected":0}},
      {"name":"process_name","ph":"M","pid":2,"tid":0,"args":{"name":"autoregressive"}},
      {"name":"thread_name","ph":"M","pid":2,"tid":100,"args":{"name":"large"}},
      {"name":"decode","cat":"large","ph":"X","pid":2,"tid":100,"ts":5,"dur":20,"args":
       {"pass":1,"rows":3,"batches":0,"batch_rows":0,"batch_requests":0,"accepted":0,"rejected":0}}
      ]})");
  EXPECT_EQ(trace, expected) << trace.dump(1);
}

// Workers run at the same time. Ends that the scheduler saw late are no overlap.
TEST(ChromeTrace, OnlyPassesAtTheSameTimeHaveFurtherTracks) {
  Compared ppd = by("ppd");
  add_pass(&ppd, v1::PASS_ROLE_WORKER, v1::PASS_KIND_DRAFT, 0, 100);
  add_pass(&ppd, v1::PASS_ROLE_WORKER, v1::PASS_KIND_DRAFT, 10, 110);
  add_pass(&ppd, v1::PASS_ROLE_WORKER, v1::PASS_KIND_DRAFT, 97, 200);
  std::vector<std::vector<int>> passes;
  std::vector<std::string> tracks;
  const Json trace = chrome_trace({ppd});
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") tracks.push_back(event["args"]["name"]);
    if (event["ph"] == "X") passes.push_back({event["tid"], event["ts"], event["dur"]});
  }
  EXPECT_EQ(tracks, (std::vector<std::string>{"worker", "worker 2"}));
  EXPECT_EQ(passes,
            (std::vector<std::vector<int>>{{400, 0, 100}, {401, 10, 100}, {400, 100, 100}}));
}

}  // namespace
}  // namespace tandem::cli
