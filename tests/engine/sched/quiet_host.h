// A minimal loop for tests of a sequence's parts: grants pages if they fit; passes complete at
// once.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "engine/sched/sequence_run.h"

namespace tandem::test {

class QuietHost final : public LoopServices {
 public:
  // Each model: four layers, pages of four rows.
  struct Model {
    int64_t pages = 8;
    int64_t frontier_pages = 8;
    int64_t values = 8;
  };
  using Models = std::vector<Model>;
  explicit QuietHost(const Models& models) {
    ModelShape shape;
    shape.layers = 4;
    for (const Model& m : models) {
      const ModelId id(static_cast<int64_t>(pools_.size()));
      pools_.emplace_back(id, shape, PoolSize{4, m.pages, m.frontier_pages, m.values}, &moves);
    }
  }

  TimePoint now() const override { return {}; }
  ModelPools* pools(ModelId model) override { return &pools_[model.index()]; }
  DeviceId device_of(ModelId) const override { return DeviceId(0); }
  ModelLoad load(ModelId) const override { return {}; }
  CacheId new_cache_id() override { return CacheId(next_++); }
  TicketId new_ticket_id() override { return static_cast<TicketId>(++next_); }
  bool request_pages(SequenceRun* run) override {
    run->adopt();
    if (!run->can_grant()) return false;
    run->grant();
    return true;
  }
  void enqueue(PassFlight* flight) override { flight->sequence->flight_done(*flight); }
  void prefix_looked_up(int64_t rows, int64_t found) override {
    looked_up.emplace_back(rows, found);
  }
  void tokens_emitted(SequenceRun*, int64_t) override {}
  int64_t begin(std::shared_ptr<Transfer>) override { return 0; }

  std::vector<Move> moves;
  std::vector<std::pair<int64_t, int64_t>> looked_up;

 private:
  std::deque<ModelPools> pools_;
  int64_t next_ = 0;
};

}  // namespace tandem::test
