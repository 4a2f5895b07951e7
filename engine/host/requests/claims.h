// What a request holds of the bounded resources: a share of the queue until it is admitted, memory
// and an open request of its client until it ends, and its deployment.
#pragma once

#include <memory>

#include "engine/base/memory_account.h"
#include "engine/host/requests/quotas.h"
#include "engine/host/requests/waiting_budget.h"

namespace tandem {

struct Claims {
  WaitingBudget::Share waiting;
  MemoryAccount::Charge memory;
  Quotas::OpenRequest open;
  std::shared_ptr<const void> deployment = nullptr;  // until nothing of the request is left

  void admitted() { waiting.release(); }
  // Called before the client learns of the end, so that its next request is not refused.
  void ended() {
    waiting.release();
    memory.release();
    open.close();
  }
};

}  // namespace tandem
