// Moves that wait for others: rows on their way from a cache to one of another device.
//
// The target's device makes them, when the source's has made the moves that it was asked for before
// (a compaction of these very rows, say). Until then the pages that they name are pinned: whoever
// owned them may give them back, and nobody else gets them. Passes of the two caches look here
// whether they may run (sequence_cache.h); nobody else waits.
//
// Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "engine/cache/model_pools.h"

namespace tandem {

class Transfer {
 public:
  enum State {
    kWaiting,
    kLogged,  // in the log of the target's device, and made before what is launched there later
    kMade,    // or nobody wants it any more, with a lost device
  };

  Transfer(ModelPools* source, ModelPools* target) : source_(source), target_(target) {}
  ~Transfer() { unpin(); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  ModelPools* source() const { return source_; }
  ModelPools* target() const { return target_; }
  State state() const { return state_; }
  const std::vector<Move>& moves() const { return moves_; }
  // Transfers of the same caches that must be made before.
  void follow(std::shared_ptr<Transfer> earlier) { after_.push_back(std::move(earlier)); }
  bool has_turn();
  // REQUIRES: waiting.
  void add(const Move& move);

  void logged() { state_ = kLogged; }
  void made();

 private:
  ModelPools* pools(ModelId model) const { return model == source_->model ? source_ : target_; }
  void unpin();

  ModelPools* const source_;
  ModelPools* const target_;
  State state_ = kWaiting;
  std::vector<Move> moves_;
  std::vector<std::shared_ptr<Transfer>> after_;
};

}  // namespace tandem
