#include "engine/sched/placement.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/mutation.h"

namespace tandem {

int64_t Placement::rows_ahead(const SequenceRun& run, size_t role, ModelId model) const {
  const DeviceId device = dispatcher_->device_of(model);
  int64_t rows =
      dispatcher_->pending_rows(device) - run.known_rows(role, dispatcher_->pools(model));
  for (size_t m = 0; m < users_->size(); ++m) {
    if (dispatcher_->device_of(ModelId(static_cast<int64_t>(m))) == device) rows += (*users_)[m];
  }
  return rows;
}

std::vector<ModelId> Placement::best_first(const SequenceRun& run, size_t role,
                                           std::span<const ModelId> models) const {
  const ModelId named = run.spec().roles()[role].model;
  for (size_t i = 0; i < role; ++i) {  // early exit: two roles, one cache
    if (run.spec().roles()[i].model == named) return {models[i]};
  }
  struct Rated {
    std::tuple<int64_t, bool, int64_t, ModelId> cost;  // the model id breaks ties
  };
  std::vector<Rated> rated;
  for (const ModelId m : dispatcher_->replicas(named)) {
    const DeviceId device = dispatcher_->device_of(m);
    if (dispatcher_->lost(device) && !mutated(Mutation::kPlaceOnLost)) continue;
    const bool new_device = std::none_of(models.begin(), models.end(), [&](ModelId other) {
      return other.valid() && dispatcher_->device_of(other) == device;
    });
    rated.push_back(
        {{rows_ahead(run, role, m), new_device, -dispatcher_->pools(m).kv.available(), m}});
  }
  TANDEM_CHECK(!rated.empty());
  std::ranges::sort(rated, {}, &Rated::cost);
  std::vector<ModelId> best;
  for (const Rated& r : rated) best.push_back(std::get<ModelId>(r.cost));
  return best;
}

void Placement::place_encoders(const Cast& cast, std::vector<ModelId>* models) const {
  for (const MemoryEdge& edge : cast.memories) {
    const auto reader = static_cast<size_t>(edge.reader);
    const auto encoder = static_cast<size_t>(edge.encoder);
    const auto replicas = dispatcher_->replicas(cast.roles[encoder].model);
    const auto local = std::ranges::find_if(replicas, [&](ModelId m) {
      return dispatcher_->device_of(m) == dispatcher_->device_of((*models)[reader]);
    });
    TANDEM_CHECK(local != replicas.end());
    (*models)[encoder] = *local;
  }
}

}  // namespace tandem
