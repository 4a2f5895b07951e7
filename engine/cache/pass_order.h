// The order of passes on one cache.
//
// Passes on a cache run one after the other, on one device. Passes of other caches that read these
// rows as their memory (readers) wait for the passes submitted before them, and keep the cache from
// changing. Not thread-safe: on the loop only.
#pragma once

namespace tandem {

class PassOrder {
 public:
  // The number of a new pass: its turn comes when all passes with smaller numbers are done, or
  // launched to the same device.
  int begin_pass() { return begun_++; }
  // Likewise, of a reader's pass.
  int begin_reader() { return ++readers_, begun_; }
  bool all_done_before(int pass) const { return ended_ >= pass; }
  bool all_launched_before(int pass) const { return launched_ >= pass; }
  void launch_pass() { ++launched_; }     // the next one, to its last row
  void take_back_pass() { --launched_; }  // the last launched one, which did not run
  void end_pass() { ++ended_; }
  void end_reader() { --readers_; }
  bool idle() const { return ended_ == begun_ && readers_ == 0; }

 private:
  int begun_ = 0;  // passes
  int launched_ = 0;
  int ended_ = 0;
  int readers_ = 0;  // readers' passes under way
};

}  // namespace tandem
