// Positions and visibility of the rows of a Work, for all backends.
#pragma once

#include <vector>

#include "engine/pass/backend.h"

namespace tandem {

// The parent of run row j as a run row; -1: cache row past - 1, or none if past is 0.
inline int parent_run_row(const Work& w, int j) {
  const int f = w.frontier_rows();
  if (j < f) return j - 1;
  const int i = w.first + (j - f);  // added row of the pass
  const Row p = w.pass->add.parent[static_cast<size_t>(i)];
  // Added rows of earlier chunks are a chain at the end of the past or the frontier.
  if (p < 0 || p < w.first) return f - 1;
  return f + (p - w.first);
}

inline bool is_mask(const Work& w, int j) {
  const int i = w.first + (j - w.frontier_rows());
  return j >= w.frontier_rows() && w.pass->add.in[static_cast<size_t>(i)].kind == In::kMask;
}

// Positions of the run rows. [run_rows]
inline std::vector<int> run_positions(const Work& w) {
  std::vector<int> position(static_cast<size_t>(w.run_rows()));
  for (int j = 0; j < w.run_rows(); ++j) {
    const int p = parent_run_row(w, j);
    position[static_cast<size_t>(j)] = p < 0 ? w.past : position[static_cast<size_t>(p)] + 1;
  }
  return position;
}

}  // namespace tandem
