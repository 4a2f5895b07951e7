// A folder of saved prefixes: KV pages that several requests have used, such as those of system
// prompts. A model is loaded with them, so its first answers need not compute these rows.
//
// There is a file for each model on each device (prefix_file.h). Its PageKind names the build, the
// weights, the model's configuration and the format of the pages. On CPUs a restored page therefore
// has the bits that this server would compute (ModelShape::batch_invariant). Not saved are pages of
// one client, and pages that depend on adapters or on other models (PrefixRoot).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/config.h"
#include "engine/base/mutex.h"
#include "engine/host/models/loaded_model.h"
#include "engine/host/models/loader.h"
#include "engine/host/prefixes/prefix_file.h"
#include "engine/host/prefixes/saved_prefixes.h"
#include "engine/sched/loop.h"
#include "engine/sched/metrics.h"

namespace tandem {

class PrefixStore {
 public:
  // config.prefix_store is set. `metrics` outlives this.
  PrefixStore(const EngineConfig& config, Metrics* metrics)
      : folder_(config.prefix_store), most_bytes_(config.prefix_store_bytes), metrics_(metrics) {}

  // The following are thread-safe and wait for each other. REQUIRES: the loop runs, until they
  // return

  // Fills the model's pools with its file's pages, as many as there are free ones, while the loop
  // continues. They are cached, so sequences evict them. Its pages are saved from now on. A missing
  // file is no error, and neither is one of another build or model, which is ignored with a line of
  // progress. After an error, pages before it stay. REQUIRES: the model is loaded, until forget(),
  // and no sequence names it yet
  absl::Status add(const LoadedModel& model, const Progress& progress, Loop* loop);
  // Saves the model's pages as save() does, the last time.
  absl::Status forget(const LoadedModel& model, Loop* loop);

  // Replaces the files of models with shared pages that are not in them. Returns the first error; a
  // file that could not be written keeps its old content.
  absl::StatusOr<SavedPrefixes> save(Loop* loop);

 private:
  struct File {
    const LoadedModel* model;
    std::string path;
    PageKind kind;
    std::vector<uint64_t> saved;  // PrefixIndex::Name::number of its pages, ascending
  };
  absl::StatusOr<int64_t> restore(const File& file, Loop* loop) const;
  void count_refused(int64_t pages, int64_t bytes) const;
  absl::Status save(File& file, Loop* loop, SavedPrefixes* all) const;
  // The most pages of a file.
  size_t most_pages(const PageKind& kind) const;
  void remove_abandoned() const;

  const std::string folder_;
  const int64_t most_bytes_;
  Metrics* const metrics_;
  Mutex mutex_;
  std::vector<File> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
