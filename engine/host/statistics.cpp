#include "engine/host/statistics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {
namespace {

constexpr char kFirstLine[] = "tandem-statistics 1";
constexpr char kChecksum[] = "checksum ";

// FNV-1a. Unlike absl::Hash, it is the same in every process.
std::string hash_of(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

absl::Status broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why));
}

absl::Status failed(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot ", what));
}

// The processors of this machine.
std::string cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model;
  while (model.empty() && std::getline(file, line)) {
    for (const char* field : {"model name", "CPU part"}) {
      if (absl::StartsWith(line, field)) model = line;
    }
  }
  return absl::StrCat(model, ", ", std::thread::hardware_concurrency(), " processors");
}

std::string text_of(const LoadedModel& model, const EngineConfig& config) {
  const ModelShape& s = model.shape;
  std::string text = absl::StrCat(s.fingerprint, " ", s.architecture, " ", s.dtype, " ",
                                  s.vocab_size, " ", s.layers, " ", s.hidden_size, " ",
                                  s.parameters, " ", s.weight_bytes, " ", s.page_bytes);
  for (const DeviceConfig& d : config.devices) {
    if (d.name() != model.config.device) continue;
    absl::StrAppend(&text, " ", d.name(), " ", d.threads, " ", d.pin_threads, " ",
                    static_cast<int>(d.cpu_kernels), " ", d.cpu_target, " ", d.graphs);
  }
  for (const ShardConfig& shard : model.config.shards) {
    absl::StrAppend(&text, " ", shard.device, " ", shard.layers);
  }
  return absl::StrCat(text, " ", cpu());
}

std::string text_of(const Deployment& d, const EngineConfig& config) {
  std::string text = text_of(*d.large, config);
  if (d.small != nullptr) absl::StrAppend(&text, " ", text_of(*d.small, config));
  return text;
}

// Calls each(key, statistics) for all that is kept.
template <class F>
void for_each_statistic(const EngineConfig& config, const std::vector<LoadedModel*>& models,
                        const DeploymentTable& deployments, Loop* loop, const F& each) {
  for (const LoadedModel* m : models) {
    each(absl::StrCat("batches ", m->config.name, " ", m->config.device, " ",
                      hash_of(text_of(*m, config))),
         &loop->batch_time(m->id));
  }
  for (const DeploymentRef& ref : deployments) {
    const Deployment& d = *ref;
    if (d.unloaded) continue;
    const std::string end = absl::StrCat(" ", d.name, " ", hash_of(text_of(d, config)));
    each("drafts" + end, &d.acceptance_stats->drafts);
    each("trees" + end, &d.acceptance_stats->trees);
    each("conditioned" + end, &d.conditioned_stats->drafts);
    for (const AdapterRef& a : d.adapters->all()) {
      if (!a->pinned) continue;
      // Two files may have one name, one after the other.
      const std::string of = absl::StrCat(" ", d.name, ":", a->name, " ",
                                          hash_of(absl::StrCat(text_of(d, config), " ", a->path)));
      each("drafts" + of, &a->acceptance_stats->drafts);
      each("trees" + of, &a->acceptance_stats->trees);
      each("conditioned" + of, &a->conditioned_stats->drafts);
    }
  }
}

// Also from a file of an older version.
bool restored_any(const std::vector<double>& numbers, DraftStats* of) {
  return restore(DraftStats::upgraded(numbers), of);
}
template <class T>
bool restored_any(const std::vector<double>& numbers, T* of) {
  return restore(numbers, of);
}

absl::StatusOr<std::vector<double>> numbers_in(absl::string_view text) {
  std::vector<double> numbers;
  for (const absl::string_view number : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtod(number, &numbers.emplace_back())) {
      return absl::DataLossError("not a number");
    }
  }
  return numbers;
}

absl::Status write_all(int fd, absl::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, "write");
    text.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : failed(path, "write");
}

}  // namespace

absl::StatusOr<SavedStatistics> read_statistics(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failed(path, "open");
  const absl::Cleanup closed = [fd] { close(fd); };
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return broken(path, "not a regular file");
  if (static_cast<uint64_t>(info.st_size) > kMostStatisticsBytes) {
    return broken(path, absl::StrCat(info.st_size, " bytes; allowed: ", kMostStatisticsBytes));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, "read");
    if (n == 0) return broken(path, "truncated");
    done += static_cast<size_t>(n);
  }

  const size_t end = text.rfind(kChecksum);
  if (!absl::StartsWith(text, absl::StrCat(kFirstLine, "\n"))) {
    return broken(path, absl::StrCat("first line; allowed: \"", kFirstLine, "\""));
  }
  const std::string sum = hash_of(absl::string_view(text).substr(0, end));
  if (end == std::string::npos || text.substr(end) != absl::StrCat(kChecksum, sum, "\n")) {
    return broken(path, "the checksum does not match");
  }
  SavedStatistics statistics;
  std::vector<absl::string_view> lines =
      absl::StrSplit(absl::string_view(text).substr(0, end), '\n', absl::SkipEmpty());
  lines.erase(lines.begin());
  for (const absl::string_view line : lines) {
    const size_t colon = line.rfind(':');  // a key may have others
    if (colon == absl::string_view::npos) return broken(path, "a line without a colon");
    auto numbers = numbers_in(line.substr(colon + 1));
    if (!numbers.ok()) return broken(path, numbers.status().message());
    statistics[std::string(line.substr(0, colon))] = *std::move(numbers);
  }
  return statistics;
}

absl::Status write_statistics(const std::string& path, const SavedStatistics& statistics) {
  std::string text = absl::StrCat(kFirstLine, "\n");
  char digits[32];
  for (const auto& [key, numbers] : statistics) {
    absl::StrAppend(&text, key, ":");
    for (const double number : numbers) {
      const auto end = std::to_chars(std::begin(digits), std::end(digits), number);  // exact
      absl::StrAppend(&text, " ", absl::string_view(digits, static_cast<size_t>(end.ptr - digits)));
    }
    text += '\n';
  }
  absl::StrAppend(&text, kChecksum, hash_of(text), "\n");
  if (text.size() > kMostStatisticsBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": ", text.size(), " bytes; allowed: ", kMostStatisticsBytes));
  }

  const std::string temporary = absl::StrCat(path, ".tmp");
  unlink(temporary.c_str());
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return failed(temporary, "create");
  absl::Status written = write_all(fd, text, temporary);
  if (close(fd) != 0) written.Update(failed(temporary, "write"));
  if (written.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    written = failed(path, "replace");
  }
  if (!written.ok()) unlink(temporary.c_str());
  return written;
}

SavedStatistics collect_statistics(const EngineConfig& config,
                                   const std::vector<LoadedModel*>& models,
                                   const DeploymentTable& deployments, Loop* loop) {
  SavedStatistics saved;
  for_each_statistic(config, models, deployments, loop,
                     [&](const std::string& key, auto* of) { saved[key] = numbers_of(*of); });
  return saved;
}

size_t restore_statistics(const SavedStatistics& saved, const EngineConfig& config,
                          const std::vector<LoadedModel*>& models,
                          const DeploymentTable& deployments, Loop* loop) {
  size_t restored = 0;
  for_each_statistic(config, models, deployments, loop, [&](const std::string& key, auto* of) {
    const auto found = saved.find(key);
    if (found != saved.end() && restored_any(found->second, of)) ++restored;
  });
  return restored;
}

}  // namespace tandem
