#include "engine/backend/torch/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

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
  if (in >> value) return value;  // "max" is no number: no limit
  return std::nullopt;
}

}  // namespace

int64_t free_host_bytes() {
  int64_t bytes = field("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  const auto limit = number("/sys/fs/cgroup/memory.max");
  // Cached files do not count: the kernel gives them up.
  const auto used = field("/sys/fs/cgroup/memory.stat", "anon");
  if (limit && used) bytes = std::min(bytes, std::max<int64_t>(0, *limit - *used));
  return bytes;
}

bool keeps_packed(const DeviceConfig& config, int64_t bytes, int64_t free) {
  if (bytes == 0) return false;
  if (config.packed_products.has_value()) return *config.packed_products;
  const int64_t pools = config.memory_bytes > 0 ? config.memory_bytes : free / 2;
  return config.kind == DeviceKind::kCuda && bytes <= (free - pools) / 2;
}

}  // namespace tandem
