// The operations of ops.h on CUDA, on the current stream. See there for shapes and types.
//
// Kernels are simple before they are fast: a block per row, or per row and head. A row's results
// depend on that row alone.
#pragma once

#include <span>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/ops.h"
#include "engine/pass/backend.h"

namespace tandem::cuda {

const Ops& ops();

// What each file of kernels puts into the table.
void add_elementwise(Ops& ops);
void add_attention(Ops& ops);

// Copies between two pools of one device (or within one), in order; all of the same store.
void move_rows(std::span<const Move> moves, const KvPool& from, const KvPool& to);

}  // namespace tandem::cuda
