// Resource use of the process, under Prometheus' standard names (process_*).
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// A value is missing if it cannot be read.
struct ProcessStats {
  std::optional<double> cpu_seconds;         // user and system
  std::optional<double> start_time_seconds;  // since the epoch
  std::optional<int64_t> virtual_bytes;
  std::optional<int64_t> resident_bytes;
  std::optional<int64_t> threads;
  std::optional<int64_t> open_fds;
  std::optional<int64_t> max_fds;
  absl::Status error;  // why values are missing; the first reason
};

// `proc`: a proc file system.
ProcessStats read_process(const std::string& proc = "/proc");

// Without the missing values.
std::vector<prometheus::MetricFamily> process_families(const ProcessStats& now);

}  // namespace tandem
