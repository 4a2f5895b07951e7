// Counters, gauges and histograms that a scraper may read at any time, without locks.
//
// Every cell is a relaxed atomic with any number of writers. A scrape does not see all cells at the
// same moment, which Prometheus allows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

class Counter {
 public:
  void add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  void add(double d) { value_.fetch_add(d, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// `bounds`: ascending upper bounds; one more bucket counts larger values.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

  void observe(double v, int64_t times = 1) {
    const auto i = std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin();
    counts_[static_cast<size_t>(i)].fetch_add(times, std::memory_order_relaxed);
    sum_.fetch_add(v * static_cast<double>(times), std::memory_order_relaxed);
  }

  const std::vector<double>& bounds() const { return bounds_; }
  int64_t count(size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  int64_t total() const {
    int64_t n = 0;
    for (const auto& c : counts_) n += c.load(std::memory_order_relaxed);
    return n;
  }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_{0};
};

}  // namespace tandem
