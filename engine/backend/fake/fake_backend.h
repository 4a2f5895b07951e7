// A fake device that checks all memory accesses of passes.
//
// Every physical slot records what was written to it: the input, its position, the chain of inputs
// before it, the layers done, and the LoRA adapter. A pass reads its page table as attention would.
// The process aborts with a message on an unwritten or freed slot, a slot of another sequence or
// adapter, too few layers, a stale frontier row, a wrong position, or a hidden row under another
// name. It also aborts if a batch changes while the device has it. The rows that are seen and the
// adapter determine the answer (model.h).
//
// Batches run one after the other. A batch ends `pass_seconds + rows * row_seconds + layers *
// layer_seconds` after the previous one or its launch. Only then does it change memory and answer,
// so premature reads are detected. Threading: see Backend.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/backend/fake/model.h"
#include "engine/backend/fake/timer.h"
#include "engine/backend/fake/trace.h"
#include "engine/base/mutex.h"
#include "engine/pass/backend.h"
#include "engine/sampling/readout.h"
#include "engine/sampling/value_store.h"

namespace tandem {

// Injected faults of a batch, for tests.
struct Fault {
  absl::Status status;         // of the whole batch; with an error only moves run
  std::vector<int> nan_works;  // works whose logits are NaN
  Duration delay{};            // added to its time
};

// The memory of all models of a process, by id. Fake devices share it for moves between them.
class FakeMemory;

class FakeBackend final : public Backend {
 public:
  FakeBackend(FakeMemory* memory, ValueStore* values, const Clock* clock, Timer* timer);
  ~FakeBackend() override;

  // loras: LoRA adapters. They need no files: only their names are used, and their order.
  void add_model(ModelId id, const std::string& name, const FakeModelConfig& config,
                 const PoolSize& pool, int window = 0, const std::vector<ExtraConfig>& loras = {});
  // From now on the model answers with the numbers of its batches (trace.h).
  void set_trace(ModelId id, std::unique_ptr<BatchTrace> trace) {
    const MutexLock lock(&mutex_);
    traces_[id] = std::move(trace);
  }
  // Models may be added, and removed, while batches of others run.
  // REQUIRES: no batch names it, and none will until add_model()
  void remove_model(ModelId id);
  // Called when a batch is launched.
  void set_faults(std::function<Fault(const Batch&)> faults) { faults_ = std::move(faults); }
  // Called when a batch starts to change memory.
  void set_on_run(std::function<void(const Batch&)> on_run) { on_run_ = std::move(on_run); }
  // Called when a batch is done, before its `done` callback.
  void set_on_done(std::function<void()> on_done) { on_done_ = std::move(on_done); }

  static int64_t page_bytes(int page_rows);

  const ModelShape& shape(ModelId model) const override;
  const PoolSize& pool(ModelId model) const override;
  void launch(const Batch& batch, Done done) override;

 private:
  // `traced`: the batch number to answer with; -1: none.
  BatchResult run(const Batch& batch, Fault fault, int64_t traced);
  WorkResult run(const Work& work, bool nan, int64_t traced);
  // The input of added row `i`.
  absl::StatusOr<uint64_t> input_of(const Work& work, int i) const;

  FakeMemory* const memory_;
  ValueStore* const values_;
  const Clock* const clock_;
  Timer* const timer_;
  RowReader reader_;
  TimePoint free_at_{};                // the end of the last batch
  bool refused_ = false;               // the last batch ran out of memory
  std::set<CacheId> incomplete_;       // caches with a failed pass; their rows may be missing
  std::set<TicketId> failed_tickets_;  // the failed passes
  std::function<Fault(const Batch&)> faults_;
  std::function<void(const Batch&)> on_run_;
  std::function<void()> on_done_;
  Mutex mutex_;
  std::map<ModelId, std::unique_ptr<BatchTrace>> traces_ ABSL_GUARDED_BY(mutex_);
};

class FakeMemory {
 public:
  struct Slot {
    uint64_t input = 0;  // 0: unwritten or freed
    int position = 0;
    int layers = 0;
    uint64_t chain = 0;  // hash of this input and all earlier ones
    LoraId lora;         // of the pass that wrote it
  };
  // A slot in the bytes of a page. Saved pages are of rows without a LoRA adapter.
  struct SavedSlot {
    uint64_t input;
    int32_t position;
    int32_t layers;
    uint64_t chain;
  };
  struct HiddenRow {
    uint64_t chain = 0;  // 0: unwritten
    int layers = 0;
  };
  struct Value {          // a hidden row left by a pass
    TicketId ticket = 0;  // 0: unwritten or released
    int out = 0;
    uint64_t chain = 0;
    int layers = 0;
  };
  struct Model {
    ModelShape shape;
    PoolSize pool;
    FakeModelConfig config;
    std::map<LoraId, FakeModelConfig> adapted;  // fake::with_lora(), of adapters in use
    std::map<uint64_t, Token> tokens;           // by token_input(); of models with a script
    std::vector<Slot> kv;                       // [pages * page_rows]
    std::vector<uint64_t>
        memory;  // [pages] hash of the encoder rows that their rows have read; 0: none
    std::vector<HiddenRow> frontier;  // [frontier pages * page_rows]
    std::vector<Value> values;        // [values]

    const FakeModelConfig& config_with(LoraId lora);
  };

  // These are thread-safe. A reference stays valid until remove().
  Model& model(ModelId id) {
    const MutexLock lock(&mutex_);
    return models_.at(id);
  }
  const Model& model(ModelId id) const {
    const MutexLock lock(&mutex_);
    return models_.at(id);
  }
  void add(ModelId id, Model model) {
    const MutexLock lock(&mutex_);
    models_.emplace(id, std::move(model));
  }
  void remove(ModelId id) {
    const MutexLock lock(&mutex_);
    models_.erase(id);
    std::erase_if(unloaded_, [id](const auto& lora) { return lora.first == id; });
  }
  size_t models() const {
    const MutexLock lock(&mutex_);
    return models_.size();
  }
  // A LoRA adapter is loaded, or not any more. Thread-safe.
  void set_lora(ModelId model, LoraId lora, bool loaded);
  bool was_unloaded(ModelId model, LoraId lora) const;
  void move(const Move& m);

 private:
  void copy_page(const Move& m);

  mutable Mutex mutex_;
  std::map<ModelId, Model> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<ModelId, LoraId>> unloaded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
