#include "engine/host/prefixes/prefix_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"
#include "engine/base/version.h"

namespace tandem {
namespace {

constexpr char kFileEnding[] = ".prefixes";

// Pages that are copied with one batch, so that other works of the batch hardly wait.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A temporary file of this age is one of a process that has ended.
constexpr std::chrono::hours kAbandoned{24};

int64_t chunk_pages(const PageKind& kind) {
  return std::max<int64_t>(1, kChunkBytes / kind.page_bytes);
}

std::string hash_text(absl::string_view text) {
  return absl::StrCat(
      absl::Hex(checksum(0, std::as_bytes(std::span(text.data(), text.size()))), absl::kZeroPad16));
}

// Of the file that describes the model: config.json, or the metadata at the beginning of a GGUF
// file.
absl::StatusOr<std::string> configuration_hash(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, read_file(path + "/config.json"));
    return hash_text(text);
  }
  constexpr size_t kMost = size_t{16} << 20;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  const absl::Cleanup closed = [fd] { close(fd); };
  std::string text(kMost, '\0');
  size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < kMost; size += static_cast<size_t>(std::max<ssize_t>(n, 0))) {
    n = read(fd, text.data() + size, kMost - size);
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
  }
  text.resize(size);
  return hash_text(text);
}

// None: pages of this model cannot be saved.
std::optional<PageKind> page_kind_of(const LoadedModel& model) {
  const ModelShape& s = model.shape;
  if (!model.config.prefix_cache || s.encodes || s.bidirectional || s.page_format.empty())
    return {};
  std::string weights = "none";
  if (!model.config.fake) {
    const auto configuration = configuration_hash(model.config.path);
    if (s.fingerprint.empty() || !configuration.ok()) return {};
    weights = absl::StrCat(s.fingerprint, ", configuration ", *configuration);
  }
  PageKind kind;
  kind.text = absl::StrCat("build ", kVersion, " ", kCommit, ", LibTorch ", kTorchVersion, "; ",
                           s.architecture, ", ", s.dtype, ", ", s.parameters, " parameters, ",
                           s.layers, " layers, weights ", weights, "; pages: ", s.page_format);
  kind.page_rows = model.pool.page_rows;
  kind.page_bytes = s.page_bytes;
  kind.vocab_size = s.vocab_size;
  if (kind.text.size() > kMostKindBytes || kind.page_bytes <= 0) return {};
  return kind;
}

// Other builds of the server replace the file; other kinds of CPUs have their own.
std::string file_name(const LoadedModel& model) {
  std::string name = model.config.name.substr(0, 64);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  const std::string all =
      absl::StrCat(model.config.name, "\n", model.config.device, "\n", model.shape.page_format);
  return absl::StrCat(name, "-", hash_text(all), kFileEnding);
}

// Calls `edit` on the loop thread, and waits until its moves are made.
absl::Status edit_pools(Loop* loop, ModelId model, std::function<void(ModelPools&)> edit) {
  const auto done = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> status = done->get_future();
  loop->edit(
      {model, std::move(edit), [done](absl::Status made) { done->set_value(std::move(made)); }});
  return status.get();
}

std::vector<PrefixIndex::SharedPage> list_shared(Loop* loop, ModelId model, size_t most) {
  using Pages = std::vector<PrefixIndex::SharedPage>;
  const auto done = std::make_shared<std::promise<Pages>>();
  std::future<Pages> pages = done->get_future();
  loop->list_prefixes(model, most, [done](Pages listed) { done->set_value(std::move(listed)); });
  return pages.get();
}

absl::StatusOr<std::vector<bool>> read_pages(Loop* loop, PageRead what) {
  using Found = absl::StatusOr<std::vector<bool>>;
  const auto done = std::make_shared<std::promise<Found>>();
  std::future<Found> found = done->get_future();
  what.done = [done](Found result) { done->set_value(std::move(result)); };
  loop->read(std::move(what));
  return found.get();
}

std::vector<uint64_t> page_numbers(const std::vector<PrefixIndex::SharedPage>& pages) {
  std::vector<uint64_t> numbers;
  for (const PrefixIndex::SharedPage& page : pages) numbers.push_back(page.name.number);
  std::ranges::sort(numbers);
  return numbers;
}

std::string in_megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace

absl::Status PrefixStore::add(const LoadedModel& model, const Progress& progress, Loop* loop) {
  std::optional<PageKind> kind = page_kind_of(model);
  if (!kind) return absl::OkStatus();
  const MutexLock lock(&mutex_);
  File& file = files_.emplace_back(
      File{&model, absl::StrCat(folder_, "/", file_name(model)), *std::move(kind), {}});
  const auto pages = restore(file, loop);
  std::string line;
  absl::Status status;
  if (pages.ok()) {
    file.saved = page_numbers(list_shared(loop, model.id, most_pages(file.kind)));
    line = absl::StrCat("restored ", *pages, " KV pages of saved prefixes (",
                        in_megabytes(*pages * file.kind.page_bytes), ")");
  } else if (absl::IsFailedPrecondition(pages.status())) {
    line = absl::StrCat("saved prefixes are ignored: ", std::string(pages.status().message()));
  } else if (!absl::IsNotFound(pages.status())) {
    status = annotate(pages.status(), model.config.name);
  }
  if (progress && !line.empty()) progress(absl::StrCat(model.config.name, ": ", line));
  return status;
}

absl::Status PrefixStore::forget(const LoadedModel& model, Loop* loop) {
  const MutexLock lock(&mutex_);
  const auto file = std::ranges::find(files_, &model, &File::model);
  if (file == files_.end()) return absl::OkStatus();
  SavedPrefixes saved;
  const absl::Status status = save(*file, loop, &saved);
  files_.erase(file);
  return annotate(status, model.config.name);
}

size_t PrefixStore::most_pages(const PageKind& kind) const {
  return static_cast<size_t>(most_bytes_ / kind.record_bytes());
}

void PrefixStore::count_refused(int64_t pages, int64_t bytes) const {
  metrics_->prefixes_refused.pages.add(pages);
  metrics_->prefixes_refused.bytes.add(bytes);
}

absl::StatusOr<int64_t> PrefixStore::restore(const File& file, Loop* loop) const {
  const auto opened = PrefixFileReader::open(file.path, file.kind);
  if (!opened.ok()) {
    std::error_code none;
    const auto bytes = std::filesystem::file_size(file.path, none);
    if (!none)
      count_refused(PrefixFileReader::pages_named_in(file.path), static_cast<int64_t>(bytes));
    return opened.status();
  }
  PrefixFileReader& reader = **opened;
  const ModelId model = file.model->id;
  const auto page_bytes = static_cast<size_t>(file.kind.page_bytes);
  const int64_t chunk = std::min(reader.pages(), chunk_pages(file.kind));
  std::vector<std::byte> bytes(static_cast<size_t>(chunk) * page_bytes);
  absl::Status status;
  std::vector<PageId> places;    // by page of the file
  std::vector<PageId> restored;  // of these, with an owner
  int64_t loaded = 0;            // of these, those whose bytes are there
  bool room = true;
  while (status.ok() && room && std::ssize(places) < reader.pages()) {
    const int64_t n = std::min(chunk, reader.pages() - std::ssize(places));
    std::vector<PrefixFileReader::Page> pages;
    while (std::ssize(pages) < n) {
      auto page = reader.read(bytes.data() + pages.size() * page_bytes);
      status = page.status();
      if (!status.ok()) {
        const int64_t left = reader.pages() - std::ssize(places) - std::ssize(pages);
        count_refused(left, left * file.kind.record_bytes());
        break;
      }
      pages.push_back(*std::move(page));
    }
    const absl::Status made = edit_pools(loop, model, [&](ModelPools& pools) {
      for (size_t i = 0; i < pages.size(); ++i) {
        room = pools.kv.free() > 0;
        if (!room) return;
        const PageId page = pools.kv.take();
        const int before = pages[i].before;
        places.push_back(pools.prefixes.insert(
            PrefixRoot(), before < 0 ? PageId() : places[static_cast<size_t>(before)],
            pages[i].tokens, page));
        if (places.back() != page) {
          pools.release(Store::kKv, page);  // the same rows twice
          continue;
        }
        restored.push_back(page);
        Move load;
        load.kind = Move::kLoad;
        load.to = {model, page, 0};
        load.host = bytes.data() + i * page_bytes;
        pools.moves->push_back(load);
      }
    });
    if (made.ok()) loaded = std::ssize(restored);
    status.Update(made);
  }
  // Files begin with the last used pages: these are evicted last.
  const absl::Status kept = edit_pools(loop, model, [&](ModelPools& pools) {
    for (size_t i = restored.size(); i-- > 0;) {
      if (std::cmp_less(i, loaded)) {
        pools.prefixes.use({&restored[i], 1});
      } else {
        pools.forget_prefix(restored[i]);
      }
      pools.release(Store::kKv, restored[i]);
    }
  });
  status.Update(kept);
  metrics_->prefixes_restored.pages.add(loaded);
  metrics_->prefixes_restored.bytes.add(loaded * file.kind.record_bytes());
  if (!status.ok()) return status;
  return loaded;
}

absl::StatusOr<SavedPrefixes> PrefixStore::save(Loop* loop) {
  const MutexLock lock(&mutex_);
  SavedPrefixes all;
  absl::Status first;
  for (File& file : files_) {
    if (const absl::Status status = save(file, loop, &all); !status.ok()) {
      first.Update(annotate(status, file.model->config.name));
    }
  }
  if (!first.ok()) return first;
  return all;
}

absl::Status PrefixStore::save(File& file, Loop* loop, SavedPrefixes* all) const {
  const ModelId model = file.model->id;
  const auto pages = list_shared(loop, model, most_pages(file.kind));
  std::vector<uint64_t> numbers = page_numbers(pages);
  if (std::ranges::includes(file.saved, numbers)) return absl::OkStatus();
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat(folder_, ": cannot create"));
  }
  remove_abandoned();
  TANDEM_ASSIGN_OR_RETURN(const auto writer, PrefixFileWriter::create(file.path, file.kind));
  const auto page_bytes = static_cast<size_t>(file.kind.page_bytes);
  const auto chunk = static_cast<size_t>(chunk_pages(file.kind));
  std::vector<std::byte> bytes(std::min(chunk, pages.size()) * page_bytes);
  std::vector<int> places;  // in the file, by page of the list; -1: evicted meanwhile
  while (places.size() < pages.size()) {
    const size_t begin = places.size();
    const size_t end = std::min(pages.size(), begin + chunk);
    PageRead wanted;
    wanted.model = model;
    wanted.to = bytes.data();
    for (size_t i = begin; i < end; ++i) wanted.pages.push_back(pages[i].name);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<bool> found, read_pages(loop, std::move(wanted)));
    for (size_t i = begin; i < end; ++i) {
      // A predecessor that is gone took its successors with it, so `place` of one that is here is
      // in the file.
      const int before = pages[i].before;
      const int place = before < 0 ? -1 : places[static_cast<size_t>(before)];
      if (!found[i - begin] || (before >= 0 && place < 0)) {
        places.push_back(-1);
        continue;
      }
      places.push_back(static_cast<int>(writer->pages()));
      TANDEM_RETURN_IF_ERROR(writer->add(
          place, pages[i].tokens, std::span(bytes).subspan((i - begin) * page_bytes, page_bytes)));
    }
  }
  if (writer->pages() == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(writer->finish());
  file.saved = std::move(numbers);
  const int64_t written = writer->pages() * file.kind.record_bytes();
  ++all->files;
  all->pages += writer->pages();
  all->bytes += written;
  metrics_->prefixes_saved.pages.add(writer->pages());
  metrics_->prefixes_saved.bytes.add(written);
  return absl::OkStatus();
}

// Removes the temporary files of processes that ended while they wrote.
void PrefixStore::remove_abandoned() const {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!absl::StrContains(name, absl::StrCat(kFileEnding, ".")) || !absl::EndsWith(name, ".tmp")) {
      continue;
    }
    std::error_code ignored;
    const auto written = fs::last_write_time(at->path(), ignored);
    if (!ignored && now - written > kAbandoned) fs::remove(at->path(), ignored);
  }
}

}  // namespace tandem
