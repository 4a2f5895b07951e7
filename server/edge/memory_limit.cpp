#include "server/edge/memory_limit.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/read_file.h"

namespace tandem {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::string contents(const std::string& path) { return read_file(path).value_or(""); }

// Bytes of a limit file. "max", huge values and files that cannot be read are no limit.
int64_t limit_in(const std::string& file) {
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(contents(file)), &bytes) || bytes == 0) {
    return kUnlimited;
  }
  return static_cast<int64_t>(std::min<uint64_t>(bytes, kUnlimited));
}

// The least limit of a group and the groups around it. `mount` is the folder of the root group.
int64_t limit_of_group(const std::string& mount, absl::string_view group, const char* file) {
  std::string path(group);
  while (absl::EndsWith(path, "/")) path.pop_back();
  int64_t least = kUnlimited;
  for (;;) {
    least = std::min(least, limit_in(mount + path + "/" + file));
    if (path.empty()) return least;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

int64_t machine_memory(const std::string& root) {
  const std::string info = contents(root + "/proc/meminfo");
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemTotal:")) continue;
    absl::ConsumeSuffix(&line, "kB");
    int64_t kib = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib) && kib > 0) return kib << 10;
  }
  return kUnlimited;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  int64_t least = machine_memory(root);
  // Lines of /proc/self/cgroup: "0::/group" (version 2), "7:memory:/group" (version 1).
  const std::string groups = contents(root + "/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      least = std::min(least, limit_of_group(root + "/sys/fs/cgroup", fields[2], "memory.max"));
    }
    for (absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller != "memory") continue;
      least = std::min(least, limit_of_group(root + "/sys/fs/cgroup/memory", fields[2],
                                             "memory.limit_in_bytes"));
    }
  }
  return least == kUnlimited ? 0 : least;
}

}  // namespace tandem
