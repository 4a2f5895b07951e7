#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#if __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#endif

// Switches to the stack `load` and stores the current one in *save. Callee-saved registers are on
// the stack. (ucontext makes a system call per switch, and sanitizers then clear whole stacks.)
extern "C" void tandem_switch_stack(void** save, void* load);
asm(R"(
.text
.type tandem_switch_stack, @function
tandem_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tandem_switch_stack, .-tandem_switch_stack
)");

namespace tandem::cuda::emulator {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = size_t{48} << 10;
constexpr int kMany = -1;

absl::string_view file_of(const std::source_location& where) {
  const absl::string_view path = where.file_name();
  return path.substr(path.rfind('/') + 1);
}

// Progress of a thread of a block.
enum class State : uint8_t { kReady, kAtBarrier, kInShuffle, kDone };

struct Fiber {
  explicit Fiber(void (*entry)());
  Fiber() = default;  // the host thread
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  std::unique_ptr<std::byte[]> stack;
  void* at = nullptr;  // stack pointer while switched out
  State state = State::kDone;
  const void* bottom = nullptr;  // for ASan, also the next
  size_t bytes = 0;
  void* fake_stack = nullptr;
};

Fiber::Fiber(void (*entry)())
    : stack(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)),
      bottom(stack.get()),
      bytes(kStackBytes) {
  std::byte* const end = stack.get() + kStackBytes;
  auto** top = reinterpret_cast<void**>(end - reinterpret_cast<uintptr_t>(end) % 16);
  *--top = nullptr;  // return address of the entry
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // registers
  at = static_cast<void*>(top);
}

struct Barrier {
  int waiting = 0;
  std::source_location where;
};

struct Warp : Barrier {
  uint32_t generation = 0;
  // By generation: the previous one may still be read.
  uint64_t value[2][kWarp] = {};
  Fragments fragments[2][kWarp] = {};
};

class Machine {
 public:
  void run(const Geometry& g, const std::function<void()>& kernel);
  void barrier(const std::source_location& where);
  uint64_t shuffle(unsigned mask, uint64_t value, int from, const std::source_location& where);
  const Fragments* meet(const Fragments& own, const std::source_location& where);

  // Ends the launch. Called in a fiber whose stack is abandoned, so arguments must not own memory.
  template <class... A>
  [[noreturn]] void fail(const A&... what);

  void claim_shared(size_t bytes);
  void wait_for_last() { waited_[static_cast<size_t>(now.thread)] = true; }
  bool has_waited() const { return waited_[static_cast<size_t>(now.thread)]; }
  bool in_kernel() const { return current_ != &host_; }

  Stamp now;  // of the running thread
  uint64_t random = 1;
  int64_t launches = 0;

 private:
  static void entry();
  [[noreturn]] void fiber_main();
  Warp& warp() { return warps_[static_cast<size_t>(now.thread / kWarp)]; }
  void come_to_warp(const std::source_location& where);
  void run_block();
  void come(Barrier& at, int all, const std::source_location& where, State state);
  void go_on();
  void switch_to(Fiber& to);
  Fiber& take_ready();
  void arrived();
  uint64_t draw();
  [[noreturn]] void diverged();

  Fiber host_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<int> ready_;
  Fiber* current_ = &host_;
  Fiber* previous_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  int threads_ = 0;
  int done_ = 0;
  Barrier block_;
  std::vector<Warp> warps_;
  std::vector<bool> waited_;  // per thread: has waited for the previous launch
  size_t shared_bytes_ = 0;
  std::string fault_;
};

Machine& machine() {
  static Machine one;
  return one;
}

uint64_t Machine::draw() {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

Fiber& Machine::take_ready() {
  const size_t i = draw() % ready_.size();
  const int thread = ready_[i];
  ready_[i] = ready_.back();
  ready_.pop_back();
  now.thread = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  return *fibers_[static_cast<size_t>(thread)];
}

void Machine::switch_to(Fiber& to) {
  Fiber& from = *current_;
  if (&to == &from) return;
  previous_ = &from;
  current_ = &to;
#if __has_feature(address_sanitizer)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
#endif
  tandem_switch_stack(&from.at, to.at);
  arrived();
}

// Runs on a stack that was just switched to.
void Machine::arrived() {
#if __has_feature(address_sanitizer)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(current_->fake_stack, &bottom, &bytes);
  if (previous_ == &host_) {
    host_.bottom = bottom;
    host_.bytes = bytes;
  }
#endif
}

void Machine::entry() { machine().fiber_main(); }

void Machine::fiber_main() {
  arrived();
  for (;;) {
    (*kernel_)();
    current_->state = State::kDone;
    ++done_;
    go_on();
  }
}

// Lets other threads run; returns when the current one is scheduled again, if ever.
void Machine::go_on() { switch_to(ready_.empty() ? host_ : take_ready()); }

template <class... A>
void Machine::fail(const A&... what) {
  fault_.clear();
  absl::StrAppend(&fault_, what...);
  if (in_kernel()) {
    absl::StrAppend(&fault_, " (block ", blockIdx.x, ", ", blockIdx.y, ", ", blockIdx.z,
                    ", thread ", threadIdx.x, ")");
    switch_to(host_);
  }
  throw Fault(fault_);
}

void Machine::come(Barrier& at, int all, const std::source_location& where, State state) {
  if (at.waiting == 0) {
    at.where = where;
  } else if (at.where.line() != where.line() || file_of(at.where) != file_of(where)) {
    fail("threads wait for each other at ", file_of(at.where), ":", at.where.line(), " and ",
         file_of(where), ":", where.line());
  }
  current_->state = state;
  if (++at.waiting < all) return;
  at.waiting = 0;
  const int first = all == threads_ ? 0 : now.thread / kWarp * kWarp;
  for (int t = first; t < first + all; ++t) {
    fibers_[static_cast<size_t>(t)]->state = State::kReady;
    ready_.push_back(t);
  }
}

void Machine::barrier(const std::source_location& where) {
  come(block_, threads_, where, State::kAtBarrier);
  if (block_.waiting == 0) ++now.epoch;
  go_on();
}

uint64_t Machine::shuffle(unsigned mask, uint64_t value, int from,
                          const std::source_location& where) {
  if (mask != 0xffffffffu) fail("a shuffle with mask ", mask, "; allowed: all lanes");
  if (from < 0 || from >= kWarp) fail("a shuffle from lane ", from);
  Warp& own = warp();
  const uint32_t parity = own.generation % 2;
  own.value[parity][now.thread % kWarp] = value;
  come_to_warp(where);
  return own.value[parity][from];
}

const Fragments* Machine::meet(const Fragments& fragments, const std::source_location& where) {
  Warp& own = warp();
  const uint32_t parity = own.generation % 2;
  own.fragments[parity][now.thread % kWarp] = fragments;
  come_to_warp(where);
  return own.fragments[parity];
}

void Machine::come_to_warp(const std::source_location& where) {
  Warp& own = warp();
  come(own, kWarp, where, State::kInShuffle);
  if (own.waiting == 0) ++own.generation;
  go_on();
}

void Machine::diverged() {
  int ended = 0;
  const Fiber* waiting = nullptr;
  int thread = 0;
  for (int t = 0; t < threads_; ++t) {
    const Fiber& f = *fibers_[static_cast<size_t>(t)];
    if (f.state == State::kDone) ++ended;
    if (f.state == State::kInShuffle || (f.state == State::kAtBarrier && waiting == nullptr)) {
      waiting = &f;
      thread = t;
    }
  }
  const bool shuffle = waiting->state == State::kInShuffle;
  const Barrier& at = shuffle ? warps_[static_cast<size_t>(thread / kWarp)] : block_;
  fail("divergence: thread ", thread, " waits at ", file_of(at.where), ":", at.where.line(),
       " with ", at.waiting - 1, " others, and ", ended, " of ", threads_, " threads have ended");
}

void Machine::run_block() {
  block_ = {};
  waited_.assign(static_cast<size_t>(threads_), false);
  warps_.assign(static_cast<size_t>(threads_ / kWarp), {});
  now.epoch = 0;
  done_ = 0;
  ready_.clear();
  for (int t = 0; t < threads_; ++t) {
    fibers_[static_cast<size_t>(t)]->state = State::kReady;
    ready_.push_back(t);
  }
  fault_.clear();
  go_on();  // returns when no thread can run
  if (fault_.empty() && done_ == threads_) return;
  if (fault_.empty()) {
    try {
      diverged();
    } catch (const Fault&) {
      fibers_.clear();
      throw;
    }
  }
  fibers_.clear();  // and their stacks
  throw Fault(fault_);
}

void Machine::run(const Geometry& g, const std::function<void()>& kernel) {
  if (in_kernel()) fail("a launch within a kernel");
  if (g.threads < kWarp || g.threads > kMaxThreads || g.threads % kWarp != 0) {
    fail("a block of ", g.threads, " threads; allowed: whole warps, up to ", kMaxThreads);
  }
  if (g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) {
    fail("a grid of ", g.x, " x ", g.y, " x ", g.z);
  }
  kernel_ = &kernel;
  threads_ = g.threads;
  while (static_cast<int>(fibers_.size()) < threads_) {
    fibers_.push_back(std::make_unique<Fiber>(&entry));
  }
  gridDim = {static_cast<unsigned>(g.x), static_cast<unsigned>(g.y), static_cast<unsigned>(g.z)};
  blockDim = {static_cast<unsigned>(g.threads), 1, 1};
  ++launches;
  ++now.launch;
  shared_bytes_ = 0;
  std::vector<int32_t> order(static_cast<size_t>(g.blocks()));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  for (const int32_t b : order) {
    now.block = b;
    blockIdx = {static_cast<unsigned>(b % g.x), static_cast<unsigned>(b / g.x % g.y),
                static_cast<unsigned>(b / g.x / g.y)};
    run_block();
  }
}

void Machine::claim_shared(size_t bytes) {
  shared_bytes_ += bytes;
  if (shared_bytes_ > kMaxSharedBytes) {
    fail(shared_bytes_, " bytes of shared memory; allowed: ", kMaxSharedBytes);
  }
}

// Whether `then` happens before the current action of the running thread.
bool is_ordered(const Stamp& then, const Stamp& now) {
  if (then.launch != now.launch) return true;
  if (then.block != now.block) return false;
  return then.epoch < now.epoch || then.thread == now.thread;
}

}  // namespace

void seed(uint64_t seed) { machine().random = seed * 0x9e3779b97f4a7c15u + 1; }

int64_t launches() { return machine().launches; }

void run(const Geometry& geometry, const std::function<void()>& kernel) {
  machine().run(geometry, kernel);
}

void barrier(const std::source_location& where) { machine().barrier(where); }

uint64_t shuffle(unsigned mask, uint64_t value, int from, const std::source_location& where) {
  return machine().shuffle(mask, value, from, where);
}

const Fragments* meet(const Fragments& own, const std::source_location& where) {
  return machine().meet(own, where);
}

void wait_for_last() { machine().wait_for_last(); }

void null_pointer() { machine().fail("a null pointer is read or written through"); }

Memory::Memory(std::string name, void* base, size_t bytes, size_t cell, Kind kind)
    : name_(std::move(name)),
      base_(static_cast<std::byte*>(base)),
      bytes_(bytes),
      cell_(cell),
      kind_(kind),
      cells_((bytes + cell - 1) / cell) {}

void Memory::check_place(int64_t offset, size_t bytes, size_t alignment) {
  Machine& m = machine();
  if (offset < 0 || static_cast<size_t>(offset) + bytes > bytes_) {
    m.fail(name_, ": ", bytes, " bytes at ", offset, " of ", bytes_);
  }
  if (static_cast<size_t>(offset) % alignment != 0) {
    m.fail(name_, ": ", bytes, " bytes at ", offset, ", which is not aligned");
  }
}

std::byte* Memory::touch(int64_t offset, size_t bytes, size_t alignment) {
  check_place(offset, bytes, alignment);
  Machine& m = machine();
  if (kind_ == Kind::kGlobal && m.in_kernel() && !m.has_waited()) {
    m.fail(name_, ": touched at ", offset, " by a thread that has not waited for the last launch");
  }
  if (kind_ == Kind::kShared && claimed_by_ != m.now.launch) {
    claimed_by_ = m.now.launch;
    m.claim_shared(bytes_);
  }
  return base_ + offset;
}

std::byte* Memory::to_read(int64_t offset, size_t bytes, size_t alignment) {
  std::byte* const place = touch(offset, bytes, alignment);
  Machine& m = machine();
  const Stamp& now = m.now;
  const size_t end = (static_cast<size_t>(offset) + bytes - 1) / cell_;
  for (size_t i = static_cast<size_t>(offset) / cell_; i <= end; ++i) {
    Cell& cell = cells_[i];
    const bool gone = kind_ == Kind::kShared &&
                      (cell.write.launch != now.launch || cell.write.block != now.block);
    if (!cell.written || gone) {
      m.fail(name_, ": read at ", offset, ", where nothing was written");
    }
    if (!is_ordered(cell.write, now)) {
      m.fail(name_, ": race: read at ", offset, ", written by block ", cell.write.block,
             ", thread ", cell.write.thread);
    }
    Stamp& read = cell.read;
    // Reads of shared memory in other blocks were reads of other memory.
    if (is_ordered(read, now) || (kind_ == Kind::kShared && read.block != now.block)) {
      read = now;
    } else if (read.block != now.block) {
      read.block = kMany;
    } else {
      read.thread = kMany;
    }
  }
  return place;
}

std::byte* Memory::to_write(int64_t offset, size_t bytes, size_t alignment) {
  std::byte* const place = touch(offset, bytes, alignment);
  Machine& m = machine();
  const Stamp& now = m.now;
  const size_t end = (static_cast<size_t>(offset) + bytes - 1) / cell_;
  for (size_t i = static_cast<size_t>(offset) / cell_; i <= end; ++i) {
    Cell& cell = cells_[i];
    // Shared memory is uninitialized at the start of each block.
    const bool shared = kind_ == Kind::kShared;
    for (const Stamp* then : {&cell.write, &cell.read}) {
      if (shared && then->block != now.block) continue;
      if (is_ordered(*then, now)) continue;
      m.fail(name_, ": race: written at ", offset, ", ", then == &cell.write ? "written" : "read",
             " by block ", then->block, ", thread ", then->thread, " (-1: several)");
    }
    cell.written = true;
    cell.write = now;
  }
  return place;
}

void Memory::written_by_host(int64_t offset, size_t bytes) {
  const size_t end = (static_cast<size_t>(offset) + bytes - 1) / cell_;
  for (size_t i = static_cast<size_t>(offset) / cell_; i <= end; ++i) cells_[i].written = true;
}

bool Memory::is_written(int64_t offset) const {
  return cells_[static_cast<size_t>(offset) / cell_].written;
}

}  // namespace tandem::cuda::emulator
