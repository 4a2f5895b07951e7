#include "tests/engine/backend/torch/queue/lazy_queue.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "engine/base/check.h"

namespace tandem {
namespace {

constexpr size_t kPage = 4096;
constexpr auto kUntouched = std::byte{0xa5};  // as numbers: nothing that anybody would expect

// What SIGSEGV says: of the devices that were made last.
const std::byte* watched_begin = nullptr;
const std::byte* watched_end = nullptr;
struct sigaction before{};

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  if (at >= watched_begin && at < watched_end) {
    constexpr char kWhat[] = "the host touches memory of a device\n";
    static_cast<void>(!write(STDERR_FILENO, kWhat, sizeof(kWhat) - 1));
    _exit(70);
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    std::signal(SIGSEGV, SIG_DFL);
  }
}

}  // namespace

const char* name_of(QueueCall call) {
  constexpr const char* kNames[] = {"copy",   "zero",   "launch", "capture",
                                    "replay", "record", "wait",   "synchronize"};
  return kNames[static_cast<int>(call)];
}

class LazyEvent final : public Event {
 public:
  explicit LazyEvent(LazyDevices* devices) : devices_(devices) {}

  void synchronize() override {
    const std::lock_guard lock(devices_->mutex_);
    if (queue < 0 || !devices_->enter(queue, QueueCall::kSynchronize)) return;
    devices_->wait_for(queue, place);
  }

  int queue = -1;
  int64_t place = 0;

 private:
  LazyDevices* devices_;
};

class LazyGraph final : public Graph {
 public:
  explicit LazyGraph(std::function<void()> w) : work(std::move(w)) {}
  ~LazyGraph() override { *there = false; }

  const std::function<void()> work;
  const std::shared_ptr<bool> there = std::make_shared<bool>(true);
};

class LazyQueue final : public Queue {
 public:
  LazyQueue(LazyDevices* devices, int index) : devices_(devices), index_(index) {}
  // What was never waited for does not happen: it may name what is gone.
  ~LazyQueue() override {
    const std::lock_guard lock(devices_->mutex_);
    devices_->queues_[static_cast<size_t>(index_)].operations.clear();
    devices_->queues_[static_cast<size_t>(index_)].gone = true;
  }

  std::shared_ptr<std::byte> device_memory(size_t bytes) override {
    const std::lock_guard lock(devices_->mutex_);
    ++devices_->traffic_.allocations;
    return {devices_->take(bytes), [](std::byte*) {}};
  }

  std::shared_ptr<std::byte> host_memory(size_t bytes) override {
    const std::lock_guard lock(devices_->mutex_);
    ++devices_->traffic_.allocations;
    auto* const memory = new std::byte[bytes];
    std::memset(memory, static_cast<int>(kUntouched), bytes);
    return {memory, [](const std::byte* own) { delete[] own; }};
  }

  void copy(void* to, const void* from, size_t bytes) override {
    const std::lock_guard lock(devices_->mutex_);
    LazyDevices::Traffic& traffic = devices_->traffic_;
    const bool out = devices_->is_device(to);
    ++(out ? traffic.to_device : traffic.to_host);
    (out ? traffic.bytes_to_device : traffic.bytes_to_host) += static_cast<int64_t>(bytes);
    if (devices_->enter(index_, QueueCall::kCopy)) {
      devices_->put(index_, {QueueCall::kCopy, devices_->watched_copy(to, from, bytes)});
    } else if (devices_->is_device(to)) {
      devices_->put(index_, {QueueCall::kCopy, [to, bytes] { std::memset(to, 0, bytes); }});
    }
  }

  void zero(void* to, size_t bytes) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kZero)) return;
    devices_->put(index_, {QueueCall::kZero, [to, bytes] { std::memset(to, 0, bytes); }});
  }

  void launch(std::function<void()> work) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kLaunch)) return;
    devices_->put(index_, {QueueCall::kLaunch, std::move(work)});
  }

  std::unique_ptr<Graph> capture(std::function<void()> work) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kCapture)) work = [] {};
    return std::make_unique<LazyGraph>(std::move(work));
  }

  void replay(Graph& graph) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kReplay)) return;
    const auto& lazy = static_cast<LazyGraph&>(graph);
    devices_->put(index_, {QueueCall::kReplay, [work = lazy.work, there = lazy.there] {
                             if (!*there) throw "a graph is gone before its replay";
                             work();
                           }});
  }

  bool reads(const Queue& other) const override {
    return devices_->options_.peers || &other == this;
  }

  std::unique_ptr<Event> event() override { return std::make_unique<LazyEvent>(devices_); }

  void record(Event& event) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kRecord)) return;
    auto& e = static_cast<LazyEvent&>(event);
    e.queue = index_;
    e.place = devices_->queues_[static_cast<size_t>(index_)].put;
  }

  void wait(const Event& event) override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kWait)) return;
    const auto& e = static_cast<const LazyEvent&>(event);
    if (e.queue >= 0) devices_->put(index_, {QueueCall::kWait, [] {}, e.queue, e.place});
  }

  void synchronize() override {
    const std::lock_guard lock(devices_->mutex_);
    if (!devices_->enter(index_, QueueCall::kSynchronize)) return;
    devices_->wait_for(index_, devices_->queues_[static_cast<size_t>(index_)].put);
  }

 private:
  LazyDevices* devices_;
  int index_;
};

LazyDevices::LazyDevices(const Options& options) : options_(options), random_(options.seed) {
  void* const all =
      mmap(nullptr, options_.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TANDEM_CHECK(all != MAP_FAILED);
  memory_ = static_cast<std::byte*>(all);
  watched_begin = memory_;
  watched_end = memory_ + options_.bytes;
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  struct sigaction old{};
  TANDEM_CHECK(sigaction(SIGSEGV, &action, &old) == 0);
  if ((old.sa_flags & SA_SIGINFO) == 0 || old.sa_sigaction != on_fault) before = old;
}

LazyDevices::~LazyDevices() { munmap(memory_, options_.bytes); }

std::unique_ptr<Queue> LazyDevices::queue() {
  const std::lock_guard lock(mutex_);
  queues_.emplace_back();
  return std::make_unique<LazyQueue>(this, static_cast<int>(queues_.size()) - 1);
}

std::array<int, kQueueCalls> LazyDevices::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

LazyDevices::Traffic LazyDevices::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void LazyDevices::skip(QueueCall call, int n) {
  const std::lock_guard lock(mutex_);
  planned_.push_back({call, n, nullptr, false});
}

bool LazyDevices::skipped_something() const {
  const std::lock_guard lock(mutex_);
  return skipped_;
}

void LazyDevices::skip_all(QueueCall call, int queue) {
  const std::lock_guard lock(mutex_);
  queues_[static_cast<size_t>(queue)].skipped.push_back(call);
}

void LazyDevices::fail(QueueCall call, int n, std::function<void()> error, bool for_ever) {
  const std::lock_guard lock(mutex_);
  planned_.push_back({call, n, std::move(error), for_ever});
}

std::string LazyDevices::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

std::vector<std::byte> LazyDevices::look(const std::byte* at, size_t bytes) {
  const std::lock_guard lock(mutex_);
  open();
  std::vector<std::byte> seen(at, at + bytes);
  close();
  return seen;
}

bool LazyDevices::enter(int queue, QueueCall call) {
  ++calls_[static_cast<size_t>(call)];
  State& state = queues_[static_cast<size_t>(queue)];
  bool made = std::ranges::find(state.skipped, call) == state.skipped.end();
  std::function<void()> error;
  for (Planned& p : planned_) {
    if (p.call != call || p.n-- != 0) continue;
    if (p.error == nullptr) made = false;
    if (p.error != nullptr && p.for_ever) state.lost = p.error;
    error = p.error;
  }
  if (error) error();
  if (state.lost) state.lost();
  if (!made) skipped_ |= call != QueueCall::kSynchronize || state.done < state.put;
  return made;
}

void LazyDevices::put(int queue, Operation operation) {
  State& state = queues_[static_cast<size_t>(queue)];
  state.operations.push_back(std::move(operation));
  ++state.put;
}

bool LazyDevices::can_go_on(int queue) const {
  const State& state = queues_[static_cast<size_t>(queue)];
  if (state.operations.empty()) return false;
  const Operation& next = state.operations.front();
  if (next.call != QueueCall::kWait) return true;
  const State& other = queues_[static_cast<size_t>(next.of)];
  return other.gone || other.done >= next.place;
}

void LazyDevices::go_on(int queue) {
  if (!fault_.empty()) throw std::runtime_error(fault_);
  State& state = queues_[static_cast<size_t>(queue)];
  const Operation next = std::move(state.operations.front());
  state.operations.pop_front();
  ++state.done;
  open();
  try {
    next.work();
  } catch (const char* wrong) {
    fault_ = wrong;
  } catch (...) {
    close();
    throw;
  }
  close();
  if (!fault_.empty()) throw std::runtime_error(fault_);
}

void LazyDevices::others_go_on(int queue) {
  while (options_.eager && random_() % 2 == 0) {
    const auto other = static_cast<int>(random_() % queues_.size());
    if (other != queue && can_go_on(other)) go_on(other);
  }
}

void LazyDevices::come_to(int queue, int64_t place) {
  while (queues_[static_cast<size_t>(queue)].done < place &&
         !queues_[static_cast<size_t>(queue)].gone) {
    others_go_on(queue);
    if (can_go_on(queue)) {
      go_on(queue);
    } else {
      const Operation& next = queues_[static_cast<size_t>(queue)].operations.front();
      come_to(next.of, next.place);
    }
  }
}

void LazyDevices::wait_for(int queue, int64_t place) {
  const State& state = queues_[static_cast<size_t>(queue)];
  const bool waits = state.done < place;
  come_to(queue, place);
  traffic_.waits += waits ? 1 : 0;
  traffic_.idle_after += waits && state.operations.empty() ? 1 : 0;
}

std::byte* LazyDevices::take(size_t bytes) {
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  if (used_ + size > options_.bytes) throw std::bad_alloc();
  std::byte* const block = memory_ + used_;
  if (size > 0) {
    TANDEM_CHECK(mprotect(block, size, PROT_READ | PROT_WRITE) == 0);
    std::memset(block, static_cast<int>(kUntouched), size);
  }
  used_ += size;
  if (opened_ == 0) TANDEM_CHECK(mprotect(memory_, used_, PROT_NONE) == 0);
  return block;
}

bool LazyDevices::is_device(const void* at) const {
  const auto* const place = static_cast<const std::byte*>(at);
  return place >= memory_ && place < memory_ + options_.bytes;
}

std::function<void()> LazyDevices::watched_copy(void* to, const void* from, size_t bytes) {
  const auto* const f = static_cast<const std::byte*>(from);
  auto* const t = static_cast<std::byte*>(to);
  if (!is_device(from)) {
    return [f, t, seen = std::vector<std::byte>(f, f + bytes)] {
      if (!std::equal(seen.begin(), seen.end(), f)) {
        throw "the host wrote what a copy to the device had yet to read";
      }
      std::ranges::copy(seen, t);
    };
  }
  if (is_device(to)) return [f, t, bytes] { std::memcpy(t, f, bytes); };
  std::memset(t, static_cast<int>(kUntouched), bytes);
  return [f, t, bytes] {
    if (!std::all_of(t, t + bytes, [](std::byte b) { return b == kUntouched; })) {
      throw "the host wrote where a copy from the device had yet to write";
    }
    std::memcpy(t, f, bytes);
  };
}

void LazyDevices::open() {
  if (opened_++ > 0 || used_ == 0) return;
  TANDEM_CHECK(mprotect(memory_, used_, PROT_READ | PROT_WRITE) == 0);
}

void LazyDevices::close() {
  if (--opened_ > 0 || used_ == 0) return;
  TANDEM_CHECK(mprotect(memory_, used_, PROT_NONE) == 0);
}

}  // namespace tandem
