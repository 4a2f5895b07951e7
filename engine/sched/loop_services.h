// Services that the loop provides to its sequences.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/cache/model_pools.h"
#include "engine/cache/transfer.h"
#include "engine/decode/pacing/batch_time.h"
#include "engine/sched/flight.h"

namespace tandem {

class SequenceRun;

class LoopServices {
 public:
  virtual ~LoopServices() = default;
  virtual TimePoint now() const = 0;  // constant during a step
  virtual ModelPools* pools(ModelId model) = 0;
  virtual DeviceId device_of(ModelId model) const = 0;
  virtual ModelLoad load(ModelId model) const = 0;
  virtual CacheId new_cache_id() = 0;
  virtual TicketId new_ticket_id() = 0;
  // True: the pages that the run's reservation requires were granted at once.
  virtual bool request_pages(SequenceRun* run) = 0;
  virtual void enqueue(PassFlight* flight) = 0;
  // Counts a prefix look-up for `rows` rows that found `found` of them.
  virtual void prefix_looked_up(int64_t rows, int64_t found) = 0;
  virtual void tokens_emitted(SequenceRun* run, int64_t count) = 0;
  // Makes its moves when the rows that they read are there. Returns the bytes from other devices.
  virtual int64_t begin(std::shared_ptr<Transfer> transfer) = 0;
};

}  // namespace tandem
