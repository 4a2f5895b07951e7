#include "tests/simulation/simulation.h"

#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/backend/fake/fake_backend.h"
#include "engine/decode/autoregressive.h"
#include "tests/engine/decode/sketches.h"
#include "tests/reference/autoregressive.h"
#include "tests/simulation/plan.h"

namespace tandem::simulation {
namespace {

constexpr int kMostTicks = 200'000;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : plan_(make_plan(seed)), seed_(seed), faults_(~seed) {}
  Report run();

 private:
  // What one request heard, and whether it may have.
  struct Client final : SequenceListener {
    Client(Simulation* sim, size_t index) : sim(sim), index(index) {}
    void on_admitted() override;
    void on_tokens(std::vector<Emitted> more) override;
    void on_end(const SequenceEnd& end) override;

    Simulation* const sim;
    const size_t index;
    std::vector<Token> tokens;
    bool admitted = false;
    int ends = 0;
    bool cancelled = false;
    bool struck = false;  // a device failed one of its passes
    bool no_memory = false;
    SequenceEnd end;
  };

  void broken(const std::string& what) {
    if (report_.broken.size() < 10) {
      report_.broken.push_back(absl::StrCat("seed ", seed_, ": ", what));
    }
  }
  void note(uint64_t what) {
    const auto at = static_cast<uint64_t>(clock_.now().time_since_epoch().count());
    report_.trace = fake::mix(fake::mix(report_.trace, at), what);
  }

  void build();
  void submit(size_t index);
  std::function<Task<void>(Gen)> method(Kind kind);
  void arrivals();
  bool tick();
  Fault judge_batch(const Batch& batch);
  void check_batch(const Batch& batch);
  void check_pools();
  void check_end(const Client& c);

  const Plan plan_;
  const uint64_t seed_;
  Random faults_;
  VirtualClock clock_;
  VirtualTimer timer_{&clock_};
  ValueStore values_;
  FakeMemory memory_;
  Metrics metrics_;
  FakeBackend devices_[2] = {{&memory_, &values_, &clock_, &timer_},
                             {&memory_, &values_, &clock_, &timer_}};
  std::unique_ptr<Loop> loop_;
  std::vector<std::shared_ptr<Client>> clients_;
  std::vector<std::vector<Token>> answers_;
  std::multimap<TimePoint, std::function<void()>> script_;
  std::vector<size_t> owner_;  // request of each cache, by id
  test::SketchStats sketch_;
  Report report_;
};

// --- What clients hear

void Simulation::Client::on_admitted() {
  if (admitted || ends) sim->broken(absl::StrCat("request ", index, " admitted twice, or late"));
  admitted = true;
  // Its caches are made now: one for each model.
  const Kind kind = sim->plan_.requests[index].kind;
  const bool two = kind == Kind::kBild || kind == Kind::kSpeculative;
  for (int i = 0; i < (two ? 2 : 1); ++i) sim->owner_.push_back(index);
  sim->note(1000 + index);
}

void Simulation::Client::on_tokens(std::vector<Emitted> more) {
  const std::vector<Token>& answer = sim->answers_[index];
  if (ends) sim->broken(absl::StrCat("request ", index, " hears tokens after its end"));
  for (const Emitted& e : more) {
    if (tokens.size() >= answer.size() || answer[tokens.size()] != e.token) {
      sim->broken(absl::StrCat("request ", index, " hears ", e.token, " as token ", tokens.size()));
    }
    tokens.push_back(e.token);
    sim->note(2000 + static_cast<uint64_t>(e.token));
  }
}

void Simulation::Client::on_end(const SequenceEnd& e) {
  if (++ends > 1) sim->broken(absl::StrCat("request ", index, " ends twice"));
  end = e;
  sim->note(3000 + static_cast<uint64_t>(e.status.code()));
}

// Is the end explained by what happened?
void Simulation::check_end(const Client& c) {
  const Request& q = plan_.requests[c.index];
  const auto unexplained = [&] {
    broken(absl::StrCat("request ", c.index, " has no reason to end with ", c.end.status.ToString(),
                        " ", finish_reason_name(c.end.reason)));
  };
  Coverage& sum = report_.coverage;
  ++sum.requests;
  if (c.ends != 1) return broken(absl::StrCat("request ", c.index, " ended ", c.ends, " times"));
  if (c.end.completion_tokens != static_cast<int64_t>(c.tokens.size())) unexplained();
  switch (c.end.status.code()) {
    case absl::StatusCode::kOk:
      if (c.end.reason == FinishReason::kTimeLimit) {
        if (q.time_limit == kNever) unexplained();
        ++sum.cut;
      } else if (c.end.reason == FinishReason::kCancelled) {
        if (!c.cancelled) unexplained();
        ++sum.cut;
      } else {
        if (c.tokens != answers_[c.index]) {
          broken(absl::StrCat("request ", c.index, " ends OK after ", c.tokens.size(), " of ",
                              answers_[c.index].size(), " tokens"));
        }
        ++sum.answered;
      }
      break;
    case absl::StatusCode::kCancelled:
      if (!c.cancelled) unexplained();
      ++sum.cancelled;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      if (q.deadline == kNever) unexplained();
      ++sum.deadlines;
      break;
    case absl::StatusCode::kInternal:
      if (!c.struck) unexplained();
      ++sum.device_failures;
      break;
    case absl::StatusCode::kResourceExhausted:
      if (!c.no_memory && c.admitted) unexplained();
      c.admitted ? ++sum.device_failures : ++sum.refused;
      break;
    default:
      unexplained();
  }
}

// --- What devices do

Fault Simulation::judge_batch(const Batch& batch) {
  check_batch(batch);
  ++report_.coverage.batches;
  Fault fault;
  if (plan_.fault_every == 0 || clock_.now() >= plan_.quiet || batch.works.empty()) return fault;
  if (!faults_.one_in(plan_.fault_every)) return fault;
  const auto client = [&](const Work& w) -> Client& { return *clients_[owner_[w.cache.index()]]; };
  switch (faults_.below(4)) {
    case 0:
      fault.status = absl::InternalError("device error");
      for (const Work& w : batch.works) client(w).struck = true;
      break;
    case 1: {
      const auto n = static_cast<size_t>(faults_.below(static_cast<int>(batch.works.size())));
      fault.nan_works = {static_cast<int>(n)};
      client(batch.works[n]).struck = true;
      break;
    }
    case 2:
      fault.status = absl::ResourceExhaustedError("out of memory");
      for (const Work& w : batch.works) client(w).no_memory = true;
      ++report_.coverage.out_of_memory;
      break;
    default:
      fault.delay = faults_.micros(5000);
  }
  return fault;
}

// Rows are within the budget, and no page is written by two.
void Simulation::check_batch(const Batch& batch) {
  if (batch.works.size() > 1 && batch.run_rows() > plan_.limits.step_rows) {
    broken(absl::StrCat("a batch of ", batch.run_rows(), " rows"));
  }
  std::set<PageId> written;
  for (const Work& w : batch.works) {
    const int page_rows = plan_.pool[w.model.index()].page_rows;
    for (int p = w.past / page_rows; p * page_rows < w.past + w.run_rows(); ++p) {
      if (!written.insert(w.pages[static_cast<size_t>(p)]).second) {
        broken("a page that two passes of a batch write");
      }
    }
  }
}

void Simulation::check_pools() {
  int64_t used = 0;
  for (int m = 0; m < 2; ++m) {
    const ModelPools& p = loop_->model_pools(ModelId(m));
    used += p.kv.used() + p.frontier.used();
  }
  if (loop_->live() == 0 && used > 0) broken(absl::StrCat("idle, and ", used, " pages are used"));
  const std::string wrong = loop_->check_pages();
  if (!wrong.empty()) broken(wrong);
}

// --- The course of events

void Simulation::build() {
  for (int m = 0; m < 2; ++m) {
    devices_[m == 0 ? 0 : plan_.small_device].add_model(ModelId(m), "fake", plan_.model[m],
                                                        plan_.pool[m]);
  }
  for (FakeBackend& d : devices_) {
    d.set_faults([this](const Batch& b) { return judge_batch(b); });
  }
  LoopOptions options;
  options.limits = plan_.limits;
  options.shuffle = plan_.shuffle;
  options.log_frees = true;
  const std::vector<LoopModel> models = {{ModelId(0), DeviceId(0)},
                                         {ModelId(1), DeviceId(plan_.small_device)}};
  loop_ = std::make_unique<Loop>(
      options, &clock_, std::vector<Backend*>{&devices_[0], &devices_[1]}, models, &metrics_);
}

std::function<Task<void>(Gen)> Simulation::method(Kind kind) {
  switch (kind) {
    case Kind::kAr:
      return autoregressive;
    case Kind::kBild:
    case Kind::kEarlyExit:
      return [this](Gen g) { return test::bild(g, {4, 0.4F, 0.69F}, &sketch_); };
    case Kind::kSpeculative:
      return [this](Gen g) { return test::speculative(g, 3, &sketch_); };
    case Kind::kTree:
      return [this](Gen g) { return test::tree_walk(g, 2, 2, &sketch_); };
  }
  return nullptr;
}

void Simulation::submit(size_t index) {
  const Request& q = plan_.requests[index];
  SequenceSpec s;
  s.id = index + 1;
  s.prompt = q.prompt;
  s.method = method(q.kind);
  s.roles = {{Role::kLarge, ModelId(0), 0}};
  if (q.kind == Kind::kBild || q.kind == Kind::kSpeculative) {
    s.roles.push_back({Role::kSmall, ModelId(1), 0});
  } else if (q.kind == Kind::kEarlyExit) {
    s.roles.push_back({Role::kSmall, ModelId(0), 1});
  }
  s.warp = q.warp;
  s.stops.eos = q.eos;
  s.stops.max_new_tokens = q.max_new_tokens;
  s.priority = q.priority;
  s.submitted = clock_.now();
  s.deadline = q.deadline;
  s.time_limit = q.time_limit;
  s.listener = clients_[index];
  loop_->submit(std::move(s));
}

void Simulation::arrivals() {
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    const Request& q = plan_.requests[i];
    clients_.push_back(std::make_shared<Client>(this, i));
    answers_.push_back(
        reference::autoregressive(plan_.model[0], q.prompt, q.warp, q.eos, q.max_new_tokens));
    script_.emplace(q.arrival, [this, i] { submit(i); });
    if (q.cancel == kNever) continue;
    script_.emplace(q.cancel, [this, i, ok = q.cancel_ok] {
      clients_[i]->cancelled = true;
      loop_->stop(i + 1, ok ? absl::OkStatus() : absl::CancelledError("by the client"));
    });
  }
}

// A step of the loop, or the next thing in time. False: nothing is left to happen.
bool Simulation::tick() {
  if (loop_->step()) return true;
  const TimePoint device = timer_.next(), due = loop_->next_timer();
  const TimePoint scripted = script_.empty() ? kNever : script_.begin()->first;
  const TimePoint next = std::min({device, due, scripted});
  if (next == kNever) return false;
  if (next == scripted) {
    clock_.advance_to(next);
    const auto act = std::move(script_.begin()->second);
    script_.erase(script_.begin());
    act();
  } else if (next == device) {
    timer_.fire_next();
  } else {
    clock_.advance_to(next);
  }
  return true;
}

Report Simulation::run() {
  build();
  arrivals();
  int ticks = 0;
  while (tick() && report_.broken.empty()) {
    check_pools();
    if (++ticks > kMostTicks) broken("no end in sight");
  }
  if (report_.broken.empty()) {
    for (const auto& c : clients_) check_end(*c);
    if (loop_->live() != 0) broken(absl::StrCat(loop_->live(), " requests never go away"));
  }
  report_.coverage.preemptions = metrics_.preemptions.value();
  while (timer_.fire_next()) loop_->step();  // where it broke, devices may still be busy
  loop_->step();
  return std::move(report_);
}

}  // namespace

Coverage& Coverage::operator+=(const Coverage& o) {
  requests += o.requests;
  answered += o.answered;
  cut += o.cut;
  cancelled += o.cancelled;
  deadlines += o.deadlines;
  device_failures += o.device_failures;
  refused += o.refused;
  preemptions += o.preemptions;
  batches += o.batches;
  out_of_memory += o.out_of_memory;
  return *this;
}

std::string Coverage::to_string() const {
  return absl::StrCat(requests, " requests: ", answered, " answered, ", cut, " cut, ", cancelled,
                      " cancelled, ", deadlines, " past their deadline, ", device_failures,
                      " failed by a device, ", refused, " refused; ", preemptions, " preemptions, ",
                      batches, " batches, ", out_of_memory, " without memory");
}

Report simulate(uint64_t seed) { return Simulation(seed).run(); }

}  // namespace tandem::simulation
