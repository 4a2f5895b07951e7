// What one seed stands for: models, limits, requests, and how often what goes wrong.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "engine/sched/loop.h"

namespace tandem::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  uint64_t next() { return rng_(); }
  int below(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  int between(int a, int b) { return a + below(b - a + 1); }
  bool one_in(int n) { return below(n) == 0; }
  Duration micros(int most) { return std::chrono::microseconds(below(most + 1)); }

 private:
  std::mt19937_64 rng_;
};

enum class Kind { kAr, kBild, kEarlyExit, kSpeculative, kTree };  // methods

struct Request {
  Kind kind = Kind::kAr;
  std::vector<Token> prompt;
  int max_new_tokens = 1;
  std::vector<Token> eos;
  Warp warp;
  int priority = 0;
  TimePoint arrival{};
  TimePoint deadline = kNever;
  TimePoint time_limit = kNever;
  TimePoint cancel = kNever;
  bool cancel_ok = false;  // ends it with kCancelled instead of a status
};

struct Plan {
  FakeModelConfig model[2];  // large, small
  PoolSize pool[2];
  int small_device = 0;
  LimitsConfig limits;
  uint64_t shuffle = 0;
  std::vector<Request> requests;
  TimePoint quiet{};    // from here on nothing goes wrong, and the last requests come
  int fault_every = 0;  // one batch in so many; 0: none
};

Plan make_plan(uint64_t seed);

}  // namespace tandem::simulation
