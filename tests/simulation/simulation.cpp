#include "tests/simulation/simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "engine/backend/fake/fake_backend.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/text_history.h"
#include "tests/reference/autoregressive.h"
#include "tests/simulation/heard.h"
#include "tests/simulation/requests.h"
#include "tests/simulation/watch.h"
#include "tests/simulation/world.h"

namespace tandem::simulation {
namespace {

constexpr int kMostTicks = 200'000;

struct Probe final : SequenceListener {
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    for (const Emitted& e : more) tokens.push_back(e.token);
  }
  void on_end(const SequenceEnd&) override {}
  std::vector<Token> tokens;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : world_(seed), faults_(~seed) {}
  Report run();

 private:
  void build();
  void arrivals();
  void submit(size_t index);
  void script(size_t index);
  void strike(size_t index, Event event);  // counts it by the request's state
  Fault judge_batch(int device, const Batch& batch);
  void count_fault(const Batch& batch, Event event);
  void on_batch_done(int device);
  void see_states();
  bool tick();
  void probe();

  World world_;
  Random faults_;
  VirtualTimer timer_{&world_.clock};
  ValueStore values_;
  FakeMemory memory_;
  std::deque<FakeBackend> devices_;
  std::map<RequestId, std::shared_ptr<Heard>> heard_;  // by sequence
  Watch watch_{&world_, &heard_};
  std::multimap<TimePoint, std::function<void()>> script_;
  std::map<RequestId, int64_t> preemptions_;
  const std::shared_ptr<TextHistory> history_ = std::make_shared<TextHistory>(1000);
  std::set<RequestId> on_replicas_;  // sequences placed on replicas
  int64_t submitted_ = 0;
  bool lost_ = false;     // the planned device loss has happened,
  bool failing_ = false;  // while a batch was under way
  bool probing_ = false;
};

// --- Devices

void Simulation::count_fault(const Batch& batch, Event event) {
  for (const Work& w : batch.works) strike(request_of(w.request), event);
}

Fault Simulation::judge_batch(int device, const Batch& batch) {
  watch_.on_batch(device, batch);
  const Plan& plan = world_.plan;
  Fault fault;
  if (device == plan.lost_device && world_.clock.now() >= plan.loss && (lost_ || !probing_)) {
    fault.status = absl::UnavailableError("the device is lost");
    failing_ |= !std::exchange(lost_, true);
    return fault;
  }
  if (plan.fault_every == 0 || world_.clock.now() >= plan.quiet || batch.works.empty()) {
    return fault;
  }
  if (!faults_.one_in(plan.fault_every)) return fault;
  // A failure of one choice ends the request.
  const auto mark = [&](const Work& w, bool Heard::* what) {
    const size_t index = request_of(w.request);
    for (int c = 0; c < kStride; ++c) {
      const auto it = heard_.find(id_of(index, c));
      if (it != heard_.end()) (*it->second).*what = true;
    }
  };
  switch (faults_.below(4)) {
    case 0:
      fault.status = absl::InternalError("device error");
      count_fault(batch, Event::kDeviceError);
      for (const Work& w : batch.works) mark(w, &Heard::struck);
      break;
    case 1: {
      const auto n = static_cast<size_t>(faults_.below(static_cast<int>(batch.works.size())));
      fault.nan_works = {static_cast<int>(n)};
      const Work& w = batch.works[n];
      strike(request_of(w.request), Event::kNan);
      mark(w, &Heard::struck);
      break;
    }
    case 2:
      fault.status = absl::ResourceExhaustedError("out of memory");
      count_fault(batch, Event::kNoMemory);
      for (const Work& w : batch.works) mark(w, &Heard::no_memory);
      break;
    default:
      fault.delay = faults_.micros(5000);
      count_fault(batch, Event::kSlowPass);
  }
  return fault;
}

// The first failed batch shows which requests end with the device.
void Simulation::on_batch_done(int device) {
  watch_.on_batch_done(device);
  if (device != world_.plan.lost_device || !std::exchange(failing_, false)) return;
  world_.loop->visit([&](const SequenceRun& run) {
    if (choice_of(run.id()) == 0 && world_.runs_on(run, device)) {
      strike(request_of(run.id()), Event::kDeviceLost);
    }
  });
}

// --- Events

void Simulation::build() {
  const Plan& plan = world_.plan;
  std::vector<Backend*> devices;
  for (int d = 0; d < kDevices; ++d) {
    FakeBackend& device = devices_.emplace_back(&memory_, &values_, &world_.clock, &timer_);
    device.set_faults([this, d](const Batch& b) { return judge_batch(d, b); });
    device.set_on_done([this, d] { on_batch_done(d); });
    devices.push_back(&device);
  }
  LoopOptions options;
  options.limits = plan.limits;
  options.shuffle = plan.shuffle;
  options.log_frees = true;
  world_.metrics.series.emplace_back();
  std::vector<LoopModel> models;
  for (int m = 0; m < plan.models(); ++m) {
    devices_[static_cast<size_t>(plan.device(m))].add_model(ModelId(m), "fake", plan.config(m),
                                                            plan.pool[m % kModels]);
    models.push_back({.id = ModelId(m),
                      .device = DeviceId(plan.device(m)),
                      .series = &world_.metrics.models.emplace_back(),
                      .replica_of = plan.replica_of(m)});
  }
  world_.loop = std::make_unique<Loop>(options, &world_.clock, devices, models, &world_.metrics);
}

void Simulation::submit(size_t index) {
  std::vector<SequenceSpec> choices = specs_of(world_.plan, index);
  for (SequenceSpec& s : choices) {
    const std::shared_ptr<Heard>& client = heard_.at(s.id);
    client->submitted = true;
    client->order = submitted_++;
    s.listener = client;
    s.series = &world_.metrics.series.front();
    s.submitted = world_.clock.now();
    // A conditioned small model may have other tokens.
    if (client->request().kind != MethodKind::kConditioned) s.history = history_;
  }
  world_.loop->submit(std::move(choices));
}

void Simulation::strike(size_t index, Event event) {
  const auto it = heard_.find(id_of(index));
  if (it == heard_.end() || !it->second->active()) return;
  world_.report.coverage.count(it->second->request().kind, it->second->phase(), event);
}

void Simulation::script(size_t index) {
  const Request& q = world_.plan.requests[index];
  const auto every_choice = [this, index](const std::function<void(Heard&)>& f) {
    for (int c = 0; c < world_.plan.requests[index].choices; ++c) f(*heard_.at(id_of(index, c)));
  };
  script_.emplace(q.arrival, [this, index] { submit(index); });
  // Scripted events come before the loop's timers at the same time.
  if (q.deadline != kNever) {
    script_.emplace(q.deadline, [this, index] { strike(index, Event::kDeadline); });
  }
  if (q.time_limit != kNever) {
    script_.emplace(q.time_limit, [this, index] { strike(index, Event::kTimeLimit); });
  }
  if (q.cancel != kNever) {
    script_.emplace(q.cancel, [this, index, every_choice, ok = q.cancel_ok] {
      strike(index, Event::kCancel);
      every_choice([](Heard& c) { c.cancelled = true; });
      world_.loop->stop(id_of(index),
                        ok ? absl::OkStatus() : absl::CancelledError("by the client"));
    });
  }
  if (q.stall != kNever) {
    script_.emplace(q.stall, [this, index, every_choice] {
      strike(index, Event::kStall);
      every_choice([](Heard& c) { c.stalled = c.active(); });
      world_.loop->pause(id_of(index));
    });
  }
  if (q.resume != kNever) {
    script_.emplace(q.resume, [this, index, every_choice] {
      every_choice([](Heard& c) { c.stalled = c.loop_knows_stall = false, c.after_stall = 0; });
      world_.loop->resume(id_of(index));
    });
  }
}

void Simulation::arrivals() {
  const Plan& plan = world_.plan;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    for (int c = 0; c < plan.requests[i].choices; ++c) {
      heard_[id_of(i, c)] = std::make_shared<Heard>(&world_, i, c, answer_to(plan, i, c));
    }
    script(i);
  }
  if (plan.shutdown == kNever) return;
  script_.emplace(plan.shutdown, [this] {
    for (const auto& [id, client] : heard_) {
      if (!client->active()) continue;
      if (choice_of(id) == 0) strike(request_of(id), Event::kShutdown);
      client->shut_down = true;
    }
    world_.loop->stop_all(absl::UnavailableError("the server is shutting down"));
  });
}

// Records preemptions and held readers, which are visible only in the loop.
void Simulation::see_states() {
  world_.loop->visit([this](const SequenceRun& run) {
    int64_t& seen = preemptions_[run.id()];
    if (run.accounts().stats().preemptions > seen) strike(request_of(run.id()), Event::kPreemption);
    seen = run.accounts().stats().preemptions;
    const bool elsewhere = run.spec().placed && run.spec().roles()[0].model.index() >= kModels;
    if (elsewhere) on_replicas_.insert(run.id());
  });
  for (const auto& [id, client] : heard_) {
    if (client->stalled && client->active()) client->loop_knows_stall = true;
  }
}

// Runs a step of the loop, or else the next timed event. False: none is left.
bool Simulation::tick() {
  const bool stepped = world_.loop->step();
  see_states();
  watch_.after_step();
  if (stepped) return true;
  const TimePoint device = timer_.next(), due = world_.loop->next_timer();
  const TimePoint scripted = script_.empty() ? kNever : script_.begin()->first;
  const TimePoint next = std::min({device, due, scripted});
  if (next == kNever) return false;
  if (next == scripted) {
    world_.clock.advance_to(next);
    const auto act = std::move(script_.begin()->second);
    script_.erase(script_.begin());
    act();
  } else if (next == device) {
    timer_.fire_next();
  } else {
    world_.clock.advance_to(next);
  }
  return true;
}

// The engine still serves both models on each device that has them. These batches also carry the
// values that devices must forget.
void Simulation::probe() {
  probing_ = true;
  const Plan& plan = world_.plan;
  size_t index = plan.requests.size();
  for (const bool placed : {false, true}) {
    for (int m = 0; m < plan.models(); ++m) {
      if (m % kModels >= kEncoders || (!placed && m >= kModels)) continue;
      if (placed && lost_ && plan.device(m) == plan.lost_device) continue;
      SequenceSpec s;
      s.id = id_of(index++);
      s.prompt = {1, 2, 3};
      s.method = autoregressive;
      s.cast = make_cast({{Role::kLarge, ModelId(m), 0}});
      s.placed = placed;
      s.stops.max_new_tokens = 2;
      s.submitted = world_.clock.now();
      const std::vector<Token> answer =
          reference::autoregressive(plan.config(m), s.prompt, s.warp, {}, 2);
      const auto listener = std::make_shared<Probe>();
      s.listener = listener;
      world_.loop->submit(std::move(s));
      while (world_.loop->step() || timer_.fire_next()) {
      }
      if (listener->tokens != answer) world_.broken("the engine no longer serves a plain request");
    }
  }
}

Report Simulation::run() {
  build();
  arrivals();
  int ticks = 0;
  Report& report = world_.report;
  while (tick() && report.broken.empty()) {
    if (++ticks > kMostTicks) world_.broken("no end in sight");
  }
  if (report.broken.empty()) {
    for (const auto& [id, client] : heard_) {
      if (client->submitted) client->check_end();
    }
    watch_.at_end();
    probe();
    if (const std::string wrong = history_->check(); !wrong.empty()) world_.broken(wrong);
    if (values_.size() > 0 && !lost_) {  // a lost device gets no batches
      world_.broken(absl::StrCat("idle, and a device keeps values of ", values_.size(), " passes"));
    }
  }
  report.coverage.on_replicas = static_cast<int64_t>(on_replicas_.size());
  report.coverage.preemptions = world_.metrics.preemptions.value();
  // After a failure, devices may be busy and coroutines alive.
  world_.loop->stop_all(absl::CancelledError("the simulation is over"));
  while (world_.loop->step() || timer_.fire_next()) {
  }
  return std::move(report);
}

}  // namespace

Report simulate(uint64_t seed) { return Simulation(seed).run(); }

}  // namespace tandem::simulation
