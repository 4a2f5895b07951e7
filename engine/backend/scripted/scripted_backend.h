// A device whose models agree as often as a script says, each pass at its real cost.
//
// How fast a pair decodes depends on how often its models agree, and models of random weights never
// do. This backend runs every batch on a real device, waits for what comes out, and then puts the
// script's answers in place of the picks: drawn tokens, argmax, confidences, likelihoods, what is
// accepted of a draft, and the picks that later passes are fed with (kChosen). Copies, caches,
// products and readouts happen as ever.
//
// A pass that runs all layers of a large model answers as large; a pass of another model, or of
// fewer layers, as small.
//
// Mask rows answer with candidates that are right as often as the script says, and a row of a tree
// as large does there, whatever branch it lies on. Ranked tokens of an early layer, or of a model
// that has but the lower layers, are right as often as the script says, too.
//
// Greedy only. A read that draws with a temperature, keeps its distribution, wants ranked tokens of
// a large model's top, or judges drafts in a pass that is no chain ends its request with
// UNIMPLEMENTED.
//
// Threading: as Backend says; set_script() and add_large() while no batch is under way.
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
  // Does the read tell what the large model says?
  bool is_large(const Work& work, const Read& read) const;

  Backend* const real_;
  ValueStore* const values_;
  std::set<ModelId> large_;
  Script script_;
};

}  // namespace tandem
