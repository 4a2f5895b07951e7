// A device that checks the memory it reads, and computes nothing else.
//
// Every physical slot remembers what was written to it: which input at which position, the chain of
// inputs before it, and how many layers it has done. A pass walks its page table as attention
// would; an unwritten or freed slot, one that belongs to another sequence's text, one that has not
// done enough layers, a stale frontier row, a wrong position, or a hidden row that was not left
// under the name that it is fed by stops the process with a message.
// What the rows then see decides the answer (model.h).
//
// A batch that changes while the device has it stops the process too.
//
// Batches run one after the other, each `pass_seconds + rows * row_seconds + layers *
// layer_seconds` after the one before it, or after its launch: then, by the timer, all its bytes
// change and its answer comes. So what a batch reads too early is not there yet. Threading as
// Backend says.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/backend/fake/timer.h"
#include "engine/backend/fake/trace.h"
#include "engine/pass/backend.h"
#include "engine/sampling/readout.h"
#include "engine/sampling/value_store.h"

namespace tandem {

// What goes wrong with a batch, for tests.
struct Fault {
  absl::Status status;         // of the whole batch; with an error nothing runs but moves
  std::vector<int> nan_works;  // works whose logits are NaN
  Duration delay{};            // on top of the time it takes
};

// All models of a process by id, for moves between devices; shared by its fake devices.
class FakeMemory;

class FakeBackend final : public Backend {
 public:
  FakeBackend(FakeMemory* memory, ValueStore* values, const Clock* clock, Timer* timer);
  ~FakeBackend() override;

  void add_model(ModelId id, const std::string& name, const FakeModelConfig& config,
                 const PoolSize& pool, int window = 0);
  // The model's answers are the numbers of its batches from here on (trace.h).
  void set_trace(ModelId id, std::unique_ptr<BatchTrace> trace) { traces_[id] = std::move(trace); }
  // Asked when a batch is launched.
  void set_faults(std::function<Fault(const Batch&)> faults) { faults_ = std::move(faults); }
  // Called when a batch begins to change memory.
  void set_on_run(std::function<void(const Batch&)> on_run) { on_run_ = std::move(on_run); }
  // Called when a batch is done, before its `done`.
  void set_on_done(std::function<void()> on_done) { on_done_ = std::move(on_done); }

  static int64_t page_bytes(int page_rows);

  const ModelShape& shape(ModelId model) const override;
  const PoolSize& pool(ModelId model) const override;
  void launch(const Batch& batch, Done done) override;

 private:
  // `traced`: the number of the batch where that is the answer, or -1.
  BatchResult run(const Batch& batch, Fault fault, int64_t traced);
  WorkResult run(const Work& work, bool nan, int64_t traced);
  // Of added row `i`.
  absl::StatusOr<uint64_t> input_of(const Work& work, int i) const;

  FakeMemory* const memory_;
  ValueStore* const values_;
  const Clock* const clock_;
  Timer* const timer_;
  RowReader reader_;
  TimePoint free_at_{};                // the last batch is done
  bool refused_ = false;               // it has no memory
  std::set<CacheId> incomplete_;       // caches with a pass that failed, whose rows may be missing
  std::set<TicketId> failed_tickets_;  // these passes
  std::function<Fault(const Batch&)> faults_;
  std::function<void(const Batch&)> on_run_;
  std::function<void()> on_done_;
  std::map<ModelId, std::unique_ptr<BatchTrace>> traces_;
};

class FakeMemory {
 public:
  struct Slot {
    uint64_t input = 0;  // 0: nothing written, or freed
    int position = 0;
    int layers = 0;
    uint64_t chain = 0;  // hash of this input and all before it
  };
  struct HiddenRow {
    uint64_t chain = 0;  // 0: nothing
    int layers = 0;
  };
  struct Value {          // a hidden row that a pass left
    TicketId ticket = 0;  // 0: nothing, or forgotten
    int out = 0;
    uint64_t chain = 0;
    int layers = 0;
  };
  struct Model {
    ModelShape shape;
    PoolSize pool;
    FakeModelConfig config;
    std::vector<Slot> kv;             // [pages * page_rows]
    std::vector<uint64_t> memory;     // [pages] what their rows have read of an encoder; 0: nothing
    std::vector<HiddenRow> frontier;  // [frontier pages * page_rows]
    std::vector<Value> values;        // [values]
  };

  Model& model(ModelId id) { return models_.at(id); }
  const Model& model(ModelId id) const { return models_.at(id); }
  void add(ModelId id, Model model) { models_.emplace(id, std::move(model)); }
  void move(const Move& m);

 private:
  std::map<ModelId, Model> models_;
};

}  // namespace tandem
