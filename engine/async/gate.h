// Counts operations under way for an owner, so that the owner's storage outlives them.
//
// A request's pages are released only when its gate is closed and empty; passes on a device hold
// it. Not thread-safe: on the loop only.
#pragma once

#include <cassert>
#include <utility>

namespace tandem {

class Gate {
 public:
  // Holds the gate during its lifetime.
  class Pass {
   public:
    Pass() = default;
    explicit Pass(Gate* gate) : gate_(gate) { ++gate_->inside_; }
    Pass(Pass&& o) noexcept : gate_(std::exchange(o.gate_, nullptr)) {}
    Pass& operator=(Pass&& o) noexcept {
      if (this != &o) {
        leave();
        gate_ = std::exchange(o.gate_, nullptr);
      }
      return *this;
    }
    ~Pass() { leave(); }
    void leave() {
      if (gate_) --std::exchange(gate_, nullptr)->inside_;
    }

   private:
    Gate* gate_ = nullptr;
  };

  ~Gate() { assert(inside_ == 0); }
  Pass enter() {
    assert(!closed_);
    return Pass(this);
  }
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  bool empty() const { return inside_ == 0; }

 private:
  int inside_ = 0;
  bool closed_ = false;
};

}  // namespace tandem
