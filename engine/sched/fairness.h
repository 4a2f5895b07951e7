// Fair shares between clients, after the virtual token counter of Sheng et al., "Fairness in
// Serving Large Language Models", OSDI 2024, algorithm 2.
//
// Service is counted in weighted tokens: a prompt at admission, generated tokens as they come. The
// waiting client with the least service is next. A client that starts to wait is raised to the
// least service of the waiting ones, so idle time earns no credit; service above that remains
// counted. Theorem 4.4 of the paper bounds the difference between two clients that keep waiting.
//
// Bookkeeping only, deterministic. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace tandem {

// One client's account. The Ledger owns and updates it.
class Account {
 public:
  const std::string& client() const { return client_; }
  // Weighted tokens, divided by the client's weight. Only grows.
  double served() const { return served_; }
  double token_cost() const { return token_cost_; }  // added to served() by a generated token
  uint64_t number() const { return number_; }        // breaks ties: smaller is older

 private:
  friend class Ledger;
  std::string client_;
  uint64_t number_ = 0;
  double prompt_cost_ = 1;
  double token_cost_ = 1;
  double served_ = 0;
  int64_t requests_ = 0;  // open
  int64_t waiting_ = 0;   // of these, not admitted
  std::list<Account*>::iterator idle_;
};

// Clients ordered by service. Accounts are charged without updating this order. As service only
// grows, the first entry with an up-to-date key is still the least.
class ServiceOrder {
 public:
  void add(Account* account);
  void remove(Account* account);
  Account* first();  // REQUIRES: not empty
  bool empty() const { return order_.empty(); }

 private:
  struct Entry {
    double served;
    uint64_t number;
    Account* account;
    bool operator<(const Entry& o) const {
      return served != o.served ? served < o.served : number < o.number;
    }
  };
  std::set<Entry> order_;
  std::unordered_map<const Account*, std::set<Entry>::iterator> place_;
};

struct FairnessOptions {
  double prompt_weight = 1;                      // of a prompt token
  double token_weight = 2;                       // of a generated token
  std::map<std::string, double> client_weights;  // shares by client; 1 where there is none
};

class Ledger {
 public:
  explicit Ledger(FairnessOptions options) : options_(std::move(options)) {}

  // A request of `client` arrives and waits. Then comes admit(), unless it fails, and close().
  Account* open(const std::string& client);
  void admit(Account* account);
  // The request has ended; `waiting`: it was never admitted. May delete the account.
  void close(Account* account, bool waiting);

  void charge_prompt(Account* account, int64_t tokens) {
    account->served_ += account->prompt_cost_ * static_cast<double>(tokens);
  }
  void charge_tokens(Account* account, int64_t tokens) {
    account->served_ += account->token_cost_ * static_cast<double>(tokens);
  }

  size_t size() const { return accounts_.size(); }

  // The most idle clients whose service is remembered; the longest idle is dropped first.
  static constexpr size_t kRemembered = 1024;

 private:
  double floor();
  void left(Account* account);
  void drop(Account* account);

  const FairnessOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Account>> accounts_;
  std::list<Account*> idle_;  // without requests, longest idle first
  ServiceOrder waiting_;
  double last_ = 0;  // service of the client that stopped waiting last
  uint64_t next_number_ = 0;
};

}  // namespace tandem
