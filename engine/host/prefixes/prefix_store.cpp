#include "engine/host/prefixes/prefix_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
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

absl::Status run_batch(Backend* backend, const Batch& batch) {
  const auto done = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> status = done->get_future();
  backend->launch(batch, [done](BatchResult result) { done->set_value(std::move(result.status)); });
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

PrefixStore::PrefixStore(const EngineConfig& config, const std::vector<LoadedModel*>& models)
    : folder_(config.prefix_store), most_bytes_(config.prefix_store_bytes) {
  for (const LoadedModel* m : models) add(*m);
}

void PrefixStore::add(const LoadedModel& model) {
  std::optional<PageKind> kind = page_kind_of(model);
  if (!kind) return;
  const MutexLock lock(&mutex_);
  files_.push_back({&model, absl::StrCat(folder_, "/", file_name(model)), *std::move(kind), {}});
}

void PrefixStore::forget(const LoadedModel& model) {
  const MutexLock lock(&mutex_);
  std::erase_if(files_, [&model](const File& file) { return file.model == &model; });
}

size_t PrefixStore::most_pages(const PageKind& kind) const {
  return static_cast<size_t>(most_bytes_ / kind.record_bytes());
}

absl::Status PrefixStore::restore(const std::vector<Backend*>& backends, const Progress& progress,
                                  Loop* loop) {
  const MutexLock lock(&mutex_);
  absl::Status first;
  for (File& file : files_) {
    const auto pages = restore(file, backends[file.model->device.index()], loop);
    std::string line;
    if (pages.ok()) {
      const ModelPools& pools = *loop->restored_pools(file.model->id);
      file.saved = page_numbers(pools.prefixes.shared(most_pages(file.kind)));
      line = absl::StrCat("restored ", *pages, " KV pages of saved prefixes (",
                          in_megabytes(*pages * file.kind.page_bytes), ")");
    } else if (absl::IsFailedPrecondition(pages.status())) {
      line = absl::StrCat("saved prefixes are ignored: ", std::string(pages.status().message()));
    } else if (!absl::IsNotFound(pages.status())) {
      first.Update(annotate(pages.status(), file.model->config.name));
    }
    if (progress && !line.empty()) progress(absl::StrCat(file.model->config.name, ": ", line));
  }
  return first;
}

absl::StatusOr<int64_t> PrefixStore::restore(File& file, Backend* backend, Loop* loop) const {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, PrefixFileReader::open(file.path, file.kind));
  ModelPools& pools = *loop->restored_pools(file.model->id);
  const int64_t most = std::min(reader->pages(), pools.kv.free());
  const auto page_bytes = static_cast<size_t>(file.kind.page_bytes);
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(most, chunk_pages(file.kind))) *
                               page_bytes);
  absl::Status status;
  std::vector<PageId> places;    // by page of the file
  std::vector<PageId> restored;  // of these, with an owner
  while (status.ok() && std::ssize(places) < most) {
    const int64_t n = std::min(chunk_pages(file.kind), most - std::ssize(places));
    Batch batch;
    std::vector<PrefixFileReader::Page> pages;
    while (std::ssize(pages) < n) {
      std::byte* const to = bytes.data() + pages.size() * page_bytes;
      auto page = reader->read(to);
      status = page.status();
      if (!status.ok()) break;
      pages.push_back(*std::move(page));
      Move load;
      load.kind = Move::kLoad;
      load.to = {file.model->id, pools.kv.take(), 0};
      load.host = to;
      batch.moves.push_back(load);
    }
    const absl::Status loaded = pages.empty() ? absl::OkStatus() : run_batch(backend, batch);
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageId page = batch.moves[i].to.page;
      if (!loaded.ok()) {
        pools.release(Store::kKv, page);
        continue;
      }
      const int before = pages[i].before;
      places.push_back(pools.prefixes.insert(
          PrefixRoot(), before < 0 ? PageId() : places[static_cast<size_t>(before)],
          pages[i].tokens, page));
      if (places.back() == page) {
        restored.push_back(page);
      } else {
        pools.release(Store::kKv, page);  // the same rows twice
      }
    }
    status.Update(loaded);
  }
  // Files begin with the last used pages: these are evicted last.
  for (size_t i = restored.size(); i-- > 0;) {
    pools.prefixes.use({&restored[i], 1});
    pools.release(Store::kKv, restored[i]);
  }
  if (!status.ok()) return status;
  return std::ssize(restored);
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
  ++all->files;
  all->pages += writer->pages();
  all->bytes += writer->pages() * file.kind.record_bytes();
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
