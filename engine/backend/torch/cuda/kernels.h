// The operations of ops.h on CUDA, on the current stream. See there for shapes and types.
//
// Kernels are simple before they are fast: a block per row, or per row and head. A row's results
// depend on that row alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/row_view.h"
#include "engine/pass/backend.h"

namespace tandem::cuda {

void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token);
void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n);
void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps);
void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope);
void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale);
void silu_mul(at::Tensor& out, const at::Tensor& gate_up);

// Copies between two pools of one device (or within one), in order; all of the same store.
void move_rows(std::span<const Move> moves, const KvPool& from, const KvPool& to);

}  // namespace tandem::cuda
