#include "engine/backend/torch/memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "engine/base/status.h"

namespace tandem {
namespace {

// The number after `key` in a file of "key number" lines.
std::optional<int64_t> field(const char* file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    int64_t value = 0;
    if (word == key && in >> value) return value;
    in.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

std::optional<int64_t> number(const char* file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;  // "max": no limit
  return std::nullopt;
}

}  // namespace

int64_t free_host_bytes() {
  int64_t bytes = field("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  const auto limit = number("/sys/fs/cgroup/memory.max");
  // Without cached files, which the kernel can drop.
  const auto used = field("/sys/fs/cgroup/memory.stat", "anon");
  if (limit && used) bytes = std::min(bytes, std::max<int64_t>(0, *limit - *used));
  return bytes;
}

void return_freed_memory() { malloc_trim(0); }

absl::Status pack_in_turn(const std::vector<PackableDevice>& device_queues) {
  std::map<int, int64_t> left;  // by GPU
  for (const PackableDevice& device_queue : device_queues) {
    const auto [budget, is_first] = left.try_emplace(device_queue.gpu, 0);
    if (is_first) budget->second = device_queue.free_bytes() / 2;
    TANDEM_ASSIGN_OR_RETURN(const int64_t taken, device_queue.pack(budget->second));
    budget->second -= taken;
  }
  return absl::OkStatus();
}

}  // namespace tandem
