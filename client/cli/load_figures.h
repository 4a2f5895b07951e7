// The results of a load test: percentiles, throughput, goodput. Pure functions of the samples.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/json.h"
#include "engine/base/clock.h"

namespace tandem::cli {

// One request, in times since the start of the load.
struct Sample {
  // A message with tokens.
  struct Message {
    Duration at{0};
    int tokens = 0;
  };
  Duration due{0};  // planned send time; latencies count from here, so that a late client does not
                    // hide waiting times
  Duration end{0};
  std::vector<Message> messages;
  int prompt_tokens = 0;
  std::string error;  // the name of the status; empty if it succeeded

  int tokens() const;
  std::optional<Duration> first() const;  // from `due` to the first token
  // For each token after the first message: the time since the previous message, divided by the
  // tokens of its message, so that methods with several tokens per message are comparable.
  std::vector<double> between() const;  // seconds
};

// The p-th percentile, [0, 100], of ascending values, interpolated linearly.
// REQUIRES: not empty.
double percentile(const std::vector<double>& sorted, double p);

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, most = 0;
  std::vector<double> curve;  // percentiles 0, 1, ..., 100; empty where count is 0
};
Spread spread_of(std::vector<double> values);

// The limits that a request must meet to count for the goodput.
struct Limits {
  std::optional<double> first_seconds, between_seconds, whole_seconds;
  bool any() const { return first_seconds || between_seconds || whole_seconds; }
};

// One level of load.
struct Level {
  std::string load;  // "rate" (requests a second, open loop) or "concurrency" (closed loop)
  double offered = 0;
  double seconds = 0;  // from the first due time to the last end
  size_t sent = 0, done = 0;
  std::map<std::string, size_t> errors;  // by status
  double requests_per_second = 0, tokens_per_second = 0, prompt_tokens_per_second = 0;
  // Successful requests per second within all limits (between: by the request's mean), and their
  // share of all requests.
  double goodput = 0, within = 0;
  Spread first, between, whole;  // seconds
};
Level level_of(std::string load, double offered, const std::vector<Sample>& samples,
               const Limits& limits);

Json to_json(const Level& level);

// A text table with one line per level.
std::string load_table(const std::vector<Level>& levels, const Limits& limits);

}  // namespace tandem::cli
