// A device with scripted answers and real costs, for benchmarks.
//
// The speed of a pair of models depends on how often they agree; models with random weights never
// do. This backend runs every batch on a real device, then replaces its results by the script's:
// drawn tokens, argmax, confidences, likelihoods, accepted drafts, and picks of later passes
// (kChosen). Copies, caches, matrix products and readouts are real.
//
// A pass through all layers of a large model gets the script's large answers. Passes of other
// models or of fewer layers get its small ones. Candidates of mask rows, and ranked tokens of an
// early layer or of a model with lower layers only, are right at the script's rates. A row of a
// tree gets the large answer for its position, on any branch.
//
// Greedy only. UNIMPLEMENTED: reads with a temperature, with Read::keep, with ranked tokens of a
// large model's top layer, and judging in a pass that is not a chain.
//
// Threading: see Backend. set_script() and add_large() require that no batch is under way.
#pragma once

#include <set>

#include "absl/status/status.h"
#include "engine/backend/scripted/script.h"
#include "engine/pass/backend.h"
#include "engine/sampling/value_store.h"

namespace tandem {

class ScriptedBackend final : public Backend {
 public:
  // `real` and its `values` outlive this.
  ScriptedBackend(Backend* real, ValueStore* values) : real_(real), values_(values) {}

  void add_large(ModelId model) { large_.insert(model); }
  // REQUIRES: script.vocab_size is at most that of every model.
  void set_script(const Script& script) { script_ = script; }

  const ModelShape& shape(ModelId model) const override { return real_->shape(model); }
  const PoolSize& pool(ModelId model) const override { return real_->pool(model); }
  void launch(const Batch& batch, Done done) override;

 private:
  absl::Status rewrite(const Work& work, Readout& readout) const;
  absl::Status check(const Work& work) const;
  // True: the read gets the large model's answers.
  bool is_large(const Work& work, const Read& read) const;

  Backend* const real_;
  ValueStore* const values_;
  std::set<ModelId> large_;
  Script script_;
};

}  // namespace tandem
