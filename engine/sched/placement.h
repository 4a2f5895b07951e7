// Which replicas of its models a request runs on.
//
// That is settled when the request is let in, for all its choices and for good: its caches, what
// they are filled again from after an eviction, and the rows that roles leave for each other stay
// where they are. So nothing that comes after admission knows of replicas.
//
// The best replica has the fewest rows to run before the request's first token: those of the prompt
// that its prefix cache does not know, those that wait for its device, and one of each sequence
// that decodes there. So what is known draws requests to where it is known, and no further than it
// saves. Where that is equal, a device that plays another role of the request goes first, on which
// passes follow each other without a turn of the loop, and then the one with more free pages.
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
  // `users`: by model, sequences that may take its pages. Both outlive it.
  Placement(const Dispatcher* dispatcher, const std::vector<int>* users)
      : dispatcher_(dispatcher), users_(users) {}

  // Models for the roles of a sequence that is not placed, one for each: of the replicas whose
  // devices are not lost the best that `has_room(role, model)`, and the best of all where none has.
  // An encoder is where the model is that reads it. REQUIRES: Device queues::can_serve().
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
  // Of one role, when those before it have their models.
  std::vector<ModelId> best_first(const SequenceRun& run, size_t role,
                                  std::span<const ModelId> models) const;
  int64_t rows_ahead(const SequenceRun& run, size_t role, ModelId model) const;
  void place_encoders(const Cast& cast, std::vector<ModelId>* models) const;

  const Dispatcher* const dispatcher_;
  const std::vector<int>* const users_;
};

}  // namespace tandem
