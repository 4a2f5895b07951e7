#include "client/cli/pass_trace.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

// A thread of the trace: passes of one role that do not overlap.
struct Lane {
  int tid = 0;
  int64_t end = 0;
};

Json named(const char* what, int pid, int tid, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

// The events of one method.
class Process {
 public:
  Process(int pid, const std::string& name, Json* events) : pid_(pid), events_(events) {
    events->push_back(named("process_name", pid, 0, name));
  }

  void add(const v1::PassRecord& pass) {
    Lane& lane = lane_for(pass);
    // Ends are those that the scheduler saw, so that passes in a row may overlap a little.
    const int64_t start = std::max(pass.start_us(), lane.end);
    lane.end = std::max(lane.end, pass.end_us());
    events_->push_back({{"name", enum_name(v1::PassKind_descriptor(), pass.kind())},
                        {"cat", role_of(pass)},
                        {"ph", "X"},
                        {"pid", pid_},
                        {"tid", lane.tid},
                        {"ts", start},
                        {"dur", std::max<int64_t>(0, pass.end_us() - start)},
                        {"args",
                         {{"pass", pass.pass_number()},
                          {"rows", pass.rows()},
                          {"batches", pass.batches()},
                          {"batch_rows", pass.batch_rows()},
                          {"batch_requests", pass.batch_requests()},
                          {"accepted", pass.accepted()},
                          {"rejected", pass.rejected()}}}});
  }

 private:
  static std::string role_of(const v1::PassRecord& pass) {
    return enum_name(v1::PassRole_descriptor(), pass.role());
  }

  Lane& lane_for(const v1::PassRecord& pass) {
    std::vector<Lane>& lanes = lanes_[pass.role()];
    const int64_t half = (pass.end_us() - pass.start_us()) / 2;
    for (Lane& lane : lanes) {
      if (lane.end <= pass.start_us() + half) return lane;
    }
    // Threads are sorted by their ids: the large model's first.
    const int tid = 100 * pass.role() + static_cast<int>(lanes.size());
    const std::string number = lanes.empty() ? "" : absl::StrCat(" ", lanes.size() + 1);
    events_->push_back(named("thread_name", pid_, tid, role_of(pass) + number));
    lanes.push_back({tid, 0});
    return lanes.back();
  }

  const int pid_;
  Json* const events_;
  std::map<int, std::vector<Lane>> lanes_;  // by role
};

}  // namespace

Json chrome_trace(const std::vector<Compared>& all) {
  Json events = Json::array();
  int pid = 0;
  for (const Compared& one : all) {
    if (!one.status.ok()) continue;
    const v1::Trace& trace = one.answer.first().finished.trace();
    Process process(++pid, one.method, &events);
    std::vector<const v1::PassRecord*> passes;
    for (const v1::PassRecord& pass : trace.passes()) passes.push_back(&pass);
    std::ranges::sort(passes, {}, [](const v1::PassRecord* p) {
      return std::pair(p->start_us(), p->pass_number());
    });
    for (const v1::PassRecord* const pass : passes) process.add(*pass);
  }
  Json out;
  out["displayTimeUnit"] = "ms";
  out["traceEvents"] = std::move(events);
  return out;
}

}  // namespace tandem::cli
