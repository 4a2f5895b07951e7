// Resource use of the process, under Prometheus' standard names (process_*).
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

struct ProcessStats {
  double cpu_seconds = 0;         // user and system
  double start_time_seconds = 0;  // since the epoch
  int64_t virtual_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// `proc`: a proc file system. nullopt if it is none.
std::optional<ProcessStats> read_process(const std::string& proc = "/proc");

std::vector<prometheus::MetricFamily> process_families(const ProcessStats& now);

}  // namespace tandem
