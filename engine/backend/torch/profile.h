// The time of a step by kind of work, for measurements.
//
//   StepProfile::start();
//   ... batches ...
//   const StepProfile::Times times = StepProfile::stop();
//
// Always compiled in; while off, a section costs one load. Times are those of the device queue's
// thread: a section lasts until its parallel loops are done. Of nested sections only the outermost
// counts.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace tandem {

class StepProfile {
 public:
  enum Part : uint8_t {
    kPlan,        // works to arrays
    kEmbed,       // embedding, and copies of rows
    kNorm,        // between products
    kProduct,     // of the layers
    kRope,        // rotary embedding, and storing keys and values
    kAttention,   //
    kActivation,  // SwiGLU
    kHead,        // final norm and product with the vocabulary
    kReadout,     // from logits to answers
    kParts,
  };
  static constexpr std::array<std::string_view, kParts> kNames{
      "plan",      "embed",      "norm", "product", "rope, K and V",
      "attention", "activation", "head", "readout"};

  using Times = std::array<std::chrono::nanoseconds, kParts>;

  // Resets the times and starts counting sections of all threads.
  static void start() {
    for (auto& t : total_) t = 0;
    on_.store(true);
  }
  static Times stop() {
    on_.store(false);
    Times times;
    for (size_t i = 0; i < kParts; ++i) times[i] = std::chrono::nanoseconds(total_[i].load());
    return times;
  }

  class Section {
   public:
    explicit Section(Part part) : part_(part) {
      if (!on_.load(std::memory_order_relaxed) || inside_) return;
      counts_ = inside_ = true;
      start_ = std::chrono::steady_clock::now();
    }
    ~Section() {
      if (!counts_) return;
      const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start_;
      total_[part_].fetch_add(time.count(), std::memory_order_relaxed);
      inside_ = false;
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Part part_;
    bool counts_ = false;
    std::chrono::steady_clock::time_point start_;
  };

 private:
  static inline std::atomic<bool> on_{false};
  static inline std::array<std::atomic<int64_t>, kParts> total_{};
  static inline thread_local bool inside_ = false;
};

}  // namespace tandem
