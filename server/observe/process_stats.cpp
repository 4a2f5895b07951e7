#include "server/observe/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

std::string contents(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

int64_t number(absl::string_view text) {
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : 0;
}

// The fields of /proc/PID/stat after the program's name, which may contain anything. Field (N) of
// proc(5) is [N - 3] here.
std::vector<std::string> stat_fields(const std::string& stat) {
  const size_t end_of_name = stat.rfind(") ");
  if (end_of_name == std::string::npos) return {};
  return absl::StrSplit(stat.substr(end_of_name + 2), ' ');
}

// Seconds since the epoch; 0: unknown.
int64_t boot_time(const std::string& stat) {
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    if (absl::ConsumePrefix(&line, "btime ")) return number(line);
  }
  return 0;
}

int64_t entries(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  int64_t n = 0;
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) ++n;
  return n;
}

}  // namespace

std::optional<ProcessStats> read_process(const std::string& proc) {
  const std::vector<std::string> field = stat_fields(contents(proc + "/self/stat"));
  if (field.size() < 22) return std::nullopt;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto in_ticks = [&](size_t i) { return static_cast<double>(number(field[i])) / ticks; };
  ProcessStats out;
  out.cpu_seconds = in_ticks(11) + in_ticks(12);
  out.threads = number(field[17]);
  out.start_time_seconds = static_cast<double>(boot_time(contents(proc + "/stat"))) + in_ticks(19);
  out.virtual_bytes = number(field[20]);
  out.resident_bytes = number(field[21]) * sysconf(_SC_PAGESIZE);
  out.open_fds = entries(proc + "/self/fd");
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
    out.max_fds = static_cast<int64_t>(std::min(files.rlim_cur, kMost));
  }
  return out;
}

std::vector<MetricFamily> process_families(const ProcessStats& now) {
  std::vector<MetricFamily> out;
  const auto add = [&out](const char* name, const char* help, MetricType type, double value) {
    prometheus::ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    out.push_back({name, help, type, {std::move(metric)}});
  };
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    add(name, help, MetricType::Gauge, static_cast<double>(value));
  };
  add("process_cpu_seconds_total", "User and system processor time.", MetricType::Counter,
      now.cpu_seconds);
  add("process_start_time_seconds", "When the process started, since the epoch.", MetricType::Gauge,
      now.start_time_seconds);
  gauge("process_virtual_memory_bytes", "Virtual memory.", now.virtual_bytes);
  gauge("process_resident_memory_bytes", "Resident memory.", now.resident_bytes);
  gauge("process_threads", "Threads of the operating system.", now.threads);
  gauge("process_open_fds", "Open files and sockets.", now.open_fds);
  gauge("process_max_fds", "Files and sockets that may be open.", now.max_fds);
  return out;
}

}  // namespace tandem
