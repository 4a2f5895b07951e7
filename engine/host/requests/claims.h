// What a request holds of the bounded resources: memory of waiting requests until it is admitted,
// and an open request of its client until it ends.
#pragma once

#include "engine/host/requests/quotas.h"
#include "engine/host/requests/waiting_budget.h"

namespace tandem {

struct Claims {
  WaitingBudget::Share waiting;
  Quotas::OpenRequest open;

  void admitted() { waiting.release(); }
  // Called before the client learns of the end, so that its next request is not refused.
  void ended() {
    waiting.release();
    open.close();
  }
};

}  // namespace tandem
