// A part of a model's layers, and the threads that run it.
#pragma once

namespace tandem {

struct LayerShard {
  int end = 0;  // its layers end before this one, and begin where those of the last shard end
  // The team that the device queue hands them to, as cpu::set_team_size(); of the first shard not
  // used: it runs on the device queue itself.
  int threads = 1;
  int first_cpu = -1;
};

}  // namespace tandem
