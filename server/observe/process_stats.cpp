#include "server/observe/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

int64_t number(absl::string_view text) {
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : 0;
}

absl::Status unexpected(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": unexpected content"));
}

// The fields of /proc/PID/stat after the program's name, which may contain anything. Field (N) of
// proc(5) is [N - 3] here.
absl::StatusOr<std::vector<std::string>> stat_fields(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string stat, read_file(path));
  const size_t end_of_name = stat.rfind(") ");
  if (end_of_name == std::string::npos) return unexpected(path);
  std::vector<std::string> fields = absl::StrSplit(stat.substr(end_of_name + 2), ' ');
  if (fields.size() < 22) return unexpected(path);
  return fields;
}

// Seconds since the epoch.
absl::StatusOr<int64_t> boot_time(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string stat, read_file(path));
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    if (absl::ConsumePrefix(&line, "btime ")) return number(line);
  }
  return unexpected(path);
}

absl::StatusOr<int64_t> entries(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  int64_t n = 0;
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) ++n;
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder, ": cannot read: ", error.message()));
  }
  return n;
}

}  // namespace

ProcessStats read_process(const std::string& proc) {
  ProcessStats out;
  if (const auto field = stat_fields(proc + "/self/stat"); field.ok()) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    const auto in_ticks = [&](size_t i) {
      return static_cast<double>(number((*field)[i])) / ticks;
    };
    out.cpu_seconds = in_ticks(11) + in_ticks(12);
    out.threads = number((*field)[17]);
    out.virtual_bytes = number((*field)[20]);
    out.resident_bytes = number((*field)[21]) * sysconf(_SC_PAGESIZE);
    const auto boot = boot_time(proc + "/stat");
    if (boot.ok()) out.start_time_seconds = static_cast<double>(*boot) + in_ticks(19);
    out.error.Update(boot.status());
  } else {
    out.error = field.status();
  }
  const auto fds = entries(proc + "/self/fd");
  if (fds.ok()) out.open_fds = *fds;
  out.error.Update(fds.status());
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
    out.max_fds = static_cast<int64_t>(std::min(files.rlim_cur, kMost));
  }
  return out;
}

std::vector<MetricFamily> process_families(const ProcessStats& now) {
  std::vector<MetricFamily> out;
  const auto add = [&out](const char* name, const char* help, MetricType type, auto value) {
    if (!value.has_value()) return;
    prometheus::ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        static_cast<double>(*value);
    out.push_back({name, help, type, {std::move(metric)}});
  };
  const auto gauge = [&](const char* name, const char* help, std::optional<int64_t> value) {
    add(name, help, MetricType::Gauge, value);
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
