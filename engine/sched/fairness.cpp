#include "engine/sched/fairness.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem {

void ServiceOrder::add(Account* account) {
  const auto [at, fresh] = order_.insert({account->served(), account->number(), account});
  TANDEM_CHECK(fresh);
  place_.emplace(account, at);
}

void ServiceOrder::remove(Account* account) {
  const auto place = place_.find(account);
  TANDEM_CHECK(place != place_.end());
  order_.erase(place->second);
  place_.erase(place);
}

Account* ServiceOrder::first() {
  while (order_.begin()->served != order_.begin()->account->served()) {
    Account* const account = order_.begin()->account;
    remove(account);
    add(account);
  }
  return order_.begin()->account;
}

Account* Ledger::open(const std::string& client) {
  std::unique_ptr<Account>& held = accounts_[client];
  if (!held) {
    held = std::make_unique<Account>();
    held->client_ = client;
    held->number_ = next_number_++;
    const auto weight = options_.client_weights.find(client);
    const double share = weight == options_.client_weights.end() ? 1 : weight->second;
    held->prompt_cost_ = options_.prompt_weight / share;
    held->token_cost_ = options_.token_weight / share;
  } else if (held->requests_ == 0) {
    idle_.erase(held->idle_);
  }
  Account* const account = held.get();
  ++account->requests_;
  if (account->waiting_++ == 0) {
    account->served_ = std::max(account->served_, floor());
    waiting_.add(account);
  }
  return account;
}

void Ledger::admit(Account* account) { left(account); }

void Ledger::close(Account* account, bool waiting) {
  if (waiting) left(account);
  if (--account->requests_ > 0) return;
  account->idle_ = idle_.insert(idle_.end(), account);
  if (idle_.size() == accounts_.size()) {  // no client has requests
    idle_.clear();
    accounts_.clear();
    last_ = 0;
  } else if (account->served_ <= floor()) {  // open() would raise it at least this far
    drop(account);
  } else if (idle_.size() > kRemembered) {
    drop(idle_.front());
  }
}

double Ledger::floor() { return waiting_.empty() ? last_ : waiting_.first()->served(); }

void Ledger::left(Account* account) {
  if (--account->waiting_ > 0) return;
  waiting_.remove(account);
  last_ = account->served_;
}

void Ledger::drop(Account* account) {
  idle_.erase(account->idle_);
  const std::string client = account->client_;  // a copy: erase() deletes the account
  accounts_.erase(client);
}

}  // namespace tandem
