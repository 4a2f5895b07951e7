// A copy of rows between caches of two devices: moves that must wait for earlier moves.
//
// The target's device makes the moves after the source's device has made its earlier ones (it may
// compact the same rows). Until then the pages are pinned: owners may release them, but the pools
// do not reuse them. Passes on the two caches may have to wait (CacheTransfers); others do not.
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
    kLogged,  // in the log of the target's device; later launches there see it made
    kMade,    // or abandoned with a lost device
  };

  Transfer(ModelPools* source, ModelPools* target) : source_(source), target_(target) {}
  ~Transfer() { unpin(); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  ModelPools* source() const { return source_; }
  ModelPools* target() const { return target_; }
  State state() const { return state_; }
  const std::vector<Move>& moves() const { return moves_; }
  // Adds an earlier transfer of the same caches, which must be made first.
  void follow(std::shared_ptr<Transfer> earlier) { after_.push_back(std::move(earlier)); }
  bool has_turn();  // all earlier transfers are made
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
