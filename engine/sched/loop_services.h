// What a sequence asks of the loop.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/cache/model_pools.h"
#include "engine/cache/transfer.h"
#include "engine/sched/flight.h"

namespace tandem {

class SequenceRun;

class LoopServices {
 public:
  virtual ~LoopServices() = default;
  virtual TimePoint now() const = 0;  // one moment for all that happens in a step
  virtual ModelPools* pools(ModelId model) = 0;
  virtual DeviceId device_of(ModelId model) const = 0;
  virtual CacheId new_cache_id() = 0;
  virtual TicketId new_ticket_id() = 0;
  // True: what the run's reservation wants was granted at once.
  virtual bool request_pages(SequenceRun* run) = 0;
  virtual void enqueue(PassFlight* flight) = 0;
  // A cache of `rows` rows to be was looked up in its prefix index, and `found` of them were there.
  virtual void prefix_looked_up(int64_t rows, int64_t found) = 0;
  virtual void tokens_emitted(SequenceRun* run, int64_t count) = 0;
  // Has its moves made as soon as the rows that they read are there. Returns the bytes that come
  // from another device.
  virtual int64_t begin(std::shared_ptr<Transfer> transfer) = 0;
};

}  // namespace tandem
