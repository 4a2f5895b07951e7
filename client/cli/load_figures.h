// What a load made of a server: percentiles, throughput, goodput. Pure functions of what was seen
// when.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/json.h"
#include "engine/base/clock.h"

namespace tandem::cli {

// One request, in times since the load's beginning.
struct Sample {
  // A message with tokens.
  struct Message {
    Duration at{0};
    int tokens = 0;
  };
  Duration due{0};  // when it was to be sent; latencies count from here, so that a client that is
                    // late itself hides nothing
  Duration end{0};
  std::vector<Message> messages;
  int prompt_tokens = 0;
  std::string error;  // the status' name; empty: it ended well

  int tokens() const;
  std::optional<Duration> first() const;  // from `due` to the first token
  // Each token after the first message: the time since the message before it, divided among the
  // message's tokens, so that methods that yield several at once are not flattered.
  std::vector<double> between() const;  // seconds
};

// The p-th percentile, [0, 100], of ascending values, linear between neighbours. REQUIRES: any.
double percentile(const std::vector<double>& sorted, double p);

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, most = 0;
  std::vector<double> curve;  // percentiles 0, 1, ..., 100; empty where count is 0
};
Spread spread_of(std::vector<double> values);

// What is asked of a request that counts for the goodput.
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
  // Requests a second that ended well within all limits (between: by the request's mean), and their
  // part of all that were sent.
  double goodput = 0, within = 0;
  Spread first, between, whole;  // seconds
};
Level level_of(std::string load, double offered, const std::vector<Sample>& samples,
               const Limits& limits);

Json to_json(const Level& level);

// A table for a person, a line for each level.
std::string load_table(const std::vector<Level>& levels, const Limits& limits);

}  // namespace tandem::cli
