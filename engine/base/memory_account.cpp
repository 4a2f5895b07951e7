#include "engine/base/memory_account.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Memory is freed within the time of one request.
constexpr char kRetryMilliseconds[] = "1000";

absl::Status full(int64_t held, absl::string_view by, int64_t more, int64_t allowed,
                  absl::string_view limit) {
  absl::Status status =
      with_reason(absl::ResourceExhaustedError(absl::StrCat(
                      "memory: ", held, " bytes are in use", by, ", and ", more,
                      " more are needed; allowed: ", allowed, " (", limit, "); try again later")),
                  "MEMORY_FULL");
  status.SetPayload(kRetryPayload, absl::Cord(kRetryMilliseconds));
  return status;
}

}  // namespace

MemoryAccount::Charge& MemoryAccount::Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  release();
  of_ = std::exchange(other.of_, nullptr);
  client_ = other.client_;
  host_ = other.host_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::Status MemoryAccount::Charge::try_resize(int64_t bytes) {
  if (of_ == nullptr) return absl::OkStatus();
  const MutexLock lock(&of_->mutex_);
  const int64_t more = bytes - bytes_;
  if (more > 0) TANDEM_RETURN_IF_ERROR(of_->check_locked(client_, host_, more));
  of_->add_locked(client_, host_, more);
  bytes_ = bytes;
  return absl::OkStatus();
}

void MemoryAccount::Charge::resize(int64_t bytes) {
  if (of_ == nullptr) return;
  const MutexLock lock(&of_->mutex_);
  of_->add_locked(client_, host_, bytes - bytes_);
  bytes_ = bytes;
}

void MemoryAccount::Charge::release() {
  MemoryAccount* const of = std::exchange(of_, nullptr);
  const int64_t bytes = std::exchange(bytes_, 0);
  if (of == nullptr) return;
  const MutexLock lock(&of->mutex_);
  of->add_locked(client_, host_, -bytes);
  leave(&of->clients_, client_);
  leave(&of->hosts_, host_);
  --of->charges_;
}

MemoryAccount::MemoryAccount(int64_t total) : total_(total) { TANDEM_CHECK(total > 0); }

MemoryAccount::~MemoryAccount() { TANDEM_CHECK(charges() == 0 && used() == 0); }

absl::StatusOr<MemoryAccount::Charge> MemoryAccount::charge(const std::string& client,
                                                            const std::string& host,
                                                            int64_t bytes) {
  const MutexLock lock(&mutex_);
  const Holders::pointer by_client = enter(&clients_, client);
  const Holders::pointer by_host = enter(&hosts_, host);
  if (absl::Status allowed = check_locked(by_client, by_host, bytes); !allowed.ok()) {
    leave(&clients_, by_client);
    leave(&hosts_, by_host);
    return allowed;
  }
  add_locked(by_client, by_host, bytes);
  ++charges_;
  Charge out;
  out.of_ = this;
  out.client_ = by_client;
  out.host_ = by_host;
  out.bytes_ = bytes;
  return out;
}

absl::Status MemoryAccount::check_locked(Holders::pointer client, Holders::pointer host,
                                         int64_t more) {
  // Written without sums, which could overflow.
  const auto exceeds = [more](int64_t held, int64_t allowed) { return more > allowed - held; };
  absl::Status status;
  if (client != nullptr && exceeds(client->second.bytes, client_limit())) {
    status = full(client->second.bytes, absl::StrCat(" by client ", quote_value(client->first)),
                  more, client_limit(), "half of server.memory_bytes for calls");
  } else if (host != nullptr && exceeds(host->second.bytes, host_limit())) {
    status = full(host->second.bytes, absl::StrCat(" by host ", quote_value(host->first)), more,
                  host_limit(), "three quarters of server.memory_bytes for calls");
  } else if (exceeds(used_, total_)) {
    status = full(used_, "", more, total_, "server.memory_bytes for calls");
  }
  if (!status.ok()) ++refused_;
  return status;
}

void MemoryAccount::add_locked(Holders::pointer client, Holders::pointer host, int64_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (client != nullptr) client->second.bytes += bytes;
  if (host != nullptr) host->second.bytes += bytes;
}

MemoryAccount::Holders::pointer MemoryAccount::enter(Holders* holders, const std::string& name) {
  if (name.empty()) return nullptr;
  const Holders::pointer holder = &*holders->try_emplace(name).first;
  ++holder->second.charges;
  return holder;
}

void MemoryAccount::leave(Holders* holders, Holders::pointer holder) {
  if (holder == nullptr || --holder->second.charges > 0) return;
  TANDEM_CHECK(holder->second.bytes == 0);
  holders->erase(holders->find(holder->first));
}

int64_t MemoryAccount::used() const {
  const MutexLock lock(&mutex_);
  return used_;
}

int64_t MemoryAccount::peak() const {
  const MutexLock lock(&mutex_);
  return peak_;
}

int64_t MemoryAccount::refused() const {
  const MutexLock lock(&mutex_);
  return refused_;
}

int64_t MemoryAccount::charges() const {
  const MutexLock lock(&mutex_);
  return charges_;
}

}  // namespace tandem
