// A folder of saved prefixes: KV pages that several requests have used, such as those of system
// prompts. A new server starts with them, so its first answers need not compute these rows.
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

namespace tandem {

class PrefixStore {
 public:
  // config.prefix_store is set. `models` are loaded and outlive this.
  PrefixStore(const EngineConfig& config, const std::vector<LoadedModel*>& models);

  // Saves pages of a model that was loaded later, or no pages of a model any more. Thread-safe.
  // forget() waits for save().
  void add(const LoadedModel& model);
  void forget(const LoadedModel& model);

  // Fills the pools of `loop` with the files' pages, as many as there are free ones. They are
  // cached, so sequences evict them. A missing file is no error, and neither is one of another
  // build or model, which is ignored with a line of progress. Returns the first error; pages before
  // it stay. backends: by DeviceId. REQUIRES: the loop does not run, and has not run
  absl::Status restore(const std::vector<Backend*>& backends, const Progress& progress, Loop* loop);

  // Replaces the files of models with shared pages that are not in them, while the loop continues.
  // Returns the first error; a file that could not be written keeps its old content. Thread-safe.
  // REQUIRES: the loop runs, until this returns
  absl::StatusOr<SavedPrefixes> save(Loop* loop);

 private:
  struct File {
    const LoadedModel* model;
    std::string path;
    PageKind kind;
    std::vector<uint64_t> saved;  // PrefixIndex::Name::number of its pages, ascending
  };
  absl::StatusOr<int64_t> restore(File& file, Backend* backend, Loop* loop) const;
  absl::Status save(File& file, Loop* loop, SavedPrefixes* all) const;
  // The most pages of a file.
  size_t most_pages(const PageKind& kind) const;
  void remove_abandoned() const;

  const std::string folder_;
  const int64_t most_bytes_;
  Mutex mutex_;  // held by save()
  std::vector<File> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
