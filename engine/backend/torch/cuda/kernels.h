// The operations of ops.h on CUDA, on the current stream. See there for shapes and types; the
// kernels and their grids are in kernels/, which tests run on an emulated device.
#pragma once

#include <string>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/row_move.h"
#include "engine/pass/backend.h"

namespace tandem::cuda {

const Ops& ops();

// What each file of kernels puts into the table.
void add_elementwise(Ops& ops);
void add_attention(Ops& ops);
void add_readout(Ops& ops);
void add_product(Ops& ops);
void add_quantized(Ops& ops);
void add_library_products(Ops& ops);

// Has this build machine code for the current device? Throws where the device has no context.
bool has_machine_code();
std::string built_for();  // compute capabilities, as "8.0, 9.0"
int max_head_dim();       // of attention

// Whether launches begin while those before them end (programmatic dependent launch), on devices of
// compute capability 9.0 and above. On at first. Not while anything is launched.
void overlap_launches(bool overlap);

// Moves of one store into a pool of the current device, in order. moves: [n], of the device. `from`
// may be the same pool, or lie on another device whose memory this one reads.
void move_rows(const RowMove* moves, int n, Store store, const KvPool& from, const KvPool& to);

}  // namespace tandem::cuda
