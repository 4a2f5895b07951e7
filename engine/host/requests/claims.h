// What a request holds of what is bounded: its part of the memory for what waits, until it is
// admitted, and its client's open request, until it ends.
#pragma once

#include "engine/host/requests/quotas.h"
#include "engine/host/requests/waiting_budget.h"

namespace tandem {

struct Claims {
  WaitingBudget::Part waiting;
  Quotas::Open open;

  void admitted() { waiting.release(); }
  // Before its client hears of the end, so that he may come again.
  void ended() {
    waiting.release();
    open.close();
  }
};

}  // namespace tandem
