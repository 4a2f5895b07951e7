// A range of a model's layers, and the threads that run it.
#pragma once

namespace tandem {

struct LayerShard {
  int end = 0;  // the first layer after this shard; it begins at the end of the previous one
  // The shard's team, as cpu::set_team_size(). Not used by the first shard, which runs on the
  // device queue's thread.
  int threads = 1;
  int first_cpu = -1;
};

}  // namespace tandem
