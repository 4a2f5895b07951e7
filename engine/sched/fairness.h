// Fair shares between clients: how much service each has had, and so whose turn it is.
//
// Service is counted in weighted tokens: a prompt when it is admitted, generated tokens as they
// come. Of the clients that wait, the one with the least goes next. A client that starts to wait is
// lifted to the least of those that wait already, so idleness banks no credit; what it has had too
// much of stays on its account. (The virtual token counter of Sheng et al., "Fairness in Serving
// Large Language Models", OSDI 2024, algorithm 2; there, theorem 4.4 bounds by how much the service
// of two clients that keep waiting can differ.)
//
// Bookkeeping only, and deterministic. Loop thread only.
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

// One client's account. Owned by the Ledger, which also changes it.
class Account {
 public:
  const std::string& client() const { return client_; }
  // Weighted tokens, divided by the client's weight. Only grows.
  double served() const { return served_; }
  double token_cost() const { return token_cost_; }  // by what a generated token adds to it
  uint64_t number() const { return number_; }        // for ties: smaller was opened earlier

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

// Clients in the order of their turns. The order is right although accounts are charged behind its
// back: they only grow, so an entry whose key is still its account's is the least of all.
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

  // A request of `client` comes in and waits. Each is followed by admit() or none, and by close().
  Account* open(const std::string& client);
  void admit(Account* account);
  // The request has ended; `waiting`: it was never admitted. The account may be gone after it.
  void close(Account* account, bool waiting);

  void charge_prompt(Account* account, int64_t tokens) {
    account->served_ += account->prompt_cost_ * static_cast<double>(tokens);
  }
  void charge_tokens(Account* account, int64_t tokens) {
    account->served_ += account->token_cost_ * static_cast<double>(tokens);
  }

  size_t size() const { return accounts_.size(); }

  // Clients without requests whose service is remembered, at most; the longest idle go first.
  static constexpr size_t kRemembered = 1024;

 private:
  double floor();
  void left(Account* account);
  void drop(Account* account);

  const FairnessOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Account>> accounts_;
  std::list<Account*> idle_;  // without requests, longest first
  ServiceOrder waiting_;
  double last_ = 0;  // service of the client that was the last to wait
  uint64_t next_number_ = 0;
};

}  // namespace tandem
