// Selects the replicas of its models on which a request runs.
//
// Placement is final and common to all choices of a request: its caches, and the rows that roles
// pass to each other, stay on their devices. Code after admission does not know of replicas.
//
// The best replica has the fewest rows to run before the request's first token: prompt rows that
// its prefix cache lacks, pending rows of its device, and one row for each sequence decoding there.
// So requests go to cached prefixes only if that saves time. Ties go to a device that already plays
// another role of the request, where passes follow each other without the loop, then to more free
// pages.
//
// Loop thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/sched/dispatcher.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class Placement {
 public:
  // `users`: by model, sequences with a slot that may use its pages. Both outlive it.
  Placement(const Dispatcher* dispatcher, const std::vector<int>* users)
      : dispatcher_(dispatcher), users_(users) {}

  // A model for each role of a sequence that is not placed: the best replica on a working device
  // with `has_room(role, model)`, or, if none has room, the best one. An encoder is placed on the
  // device of its reader. REQUIRES: Dispatcher::can_serve().
  template <class HasRoom>
  std::vector<ModelId> place(const SequenceRun& run, HasRoom has_room) const {
    const auto& roles = run.spec().roles();
    std::vector<ModelId> models(roles.size());
    for (size_t i = 0; i < roles.size(); ++i) {
      if (roles[i].role == Role::kEncoder) continue;
      const std::vector<ModelId> all = best_first(run, i, models);
      models[i] = all.front();
      for (const ModelId m : all) {
        if (!has_room(i, m)) continue;
        models[i] = m;
        break;
      }
    }
    place_encoders(*run.spec().cast, &models);
    return models;
  }

 private:
  // Replicas for one role, after earlier roles have their models.
  std::vector<ModelId> best_first(const SequenceRun& run, size_t role,
                                  std::span<const ModelId> models) const;
  int64_t rows_ahead(const SequenceRun& run, size_t role, ModelId model) const;
  void place_encoders(const Cast& cast, std::vector<ModelId>* models) const;

  const Dispatcher* const dispatcher_;
  const std::vector<int>* const users_;
};

}  // namespace tandem
