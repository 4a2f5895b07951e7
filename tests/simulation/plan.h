// The plan of one seed: models, limits, requests, and timed faults.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/decode/beam.h"
#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/ngram.h"
#include "engine/decode/ppd.h"
#include "engine/decode/speculative.h"
#include "engine/sched/loop.h"
#include "tests/reference/llm_to_slm.h"
#include "tests/simulation/coverage.h"

namespace tandem::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  uint64_t next() { return rng_(); }
  int below(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  int between(int a, int b) { return a + below(b - a + 1); }
  bool one_in(int n) { return below(n) == 0; }
  float uniform(float a, float b) { return a + (b - a) * static_cast<float>(below(1000)) / 1000; }
  Duration micros(int most) { return std::chrono::microseconds(below(most + 1)); }

 private:
  std::mt19937_64 rng_;
};

struct Request {
  MethodKind kind = MethodKind::kAr;
  SpeculativeParams speculative;
  NgramParams ngram;
  BildParams bild;
  BitaParams bita;
  BeamParams beam;
  PpdParams ppd;
  reference::Fusion fusion;  // kConditioned
  std::vector<Token> prompt;
  std::vector<Token> source;  // encoder input; empty: no encoder
  LoraId lora;                // of the large model; invalid: none
  int max_new_tokens = 1;
  std::vector<Token> eos;
  Warp warp;
  int choices = 1;
  bool giant = false;  // too large for the pools
  int priority = 0;
  std::string client;
  std::string salt;  // of the prefix cache, unique
  TimePoint arrival{};
  TimePoint deadline = kNever;
  TimePoint time_limit = kNever;
  TimePoint cancel = kNever;
  bool cancel_ok = false;     // ends with kCancelled instead of an error
  TimePoint stall = kNever;   // its reader stops reading ...
  TimePoint resume = kNever;  // ... and resumes; kNever: never
};

// Large, small, then the encoder of each.
inline constexpr int kModels = 4;
inline constexpr int kEncoders = 2;
// Then a replica of each of these, on other devices.
inline constexpr int kReplicas = kModels;
inline constexpr int kDevices = 4;

struct Plan {
  FakeModelConfig model[kModels];
  PoolSize pool[kModels];
  int models() const { return replicated ? kModels + kReplicas : kModels; }
  const FakeModelConfig& config(int m) const { return model[m % kModels]; }
  int device(int m) const {
    return (m % 2 == 0 ? 0 : small_device) + (m < kModels ? 0 : kDevices / 2);
  }
  ModelId replica_of(int m) const { return m < kModels ? ModelId() : ModelId(m - kModels); }
  int small_device = 0;
  bool replicated = false;
  bool alike = false;    // all prompts and sources share a prefix
  int lost_device = -1;  // fails permanently
  TimePoint loss = kNever;
  LimitsConfig limits;
  uint64_t shuffle = 0;
  std::vector<Request> requests;
  TimePoint quiet{};    // no faults from here on; the last requests arrive
  int fault_every = 0;  // one batch in this many fails; 0: none
  TimePoint shutdown = kNever;
  // Many similar requests of few clients without faults: checks the order of service.
  bool crowd = false;
};

// From this seed on, half of the requests have encoder input if their method supports it.
inline constexpr uint64_t kFirstWithSources = 10'000;
// From this seed on, all models have replicas too, and half of the seeds lose a device.
inline constexpr uint64_t kFirstWithReplicas = 12'000;

Plan make_plan(uint64_t seed);

}  // namespace tandem::simulation
