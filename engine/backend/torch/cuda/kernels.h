// The operations of ops.h on CUDA, on the current stream. The kernels and their grids are in
// kernels/, which tests run on an emulated device.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/row_move.h"
#include "engine/pass/backend.h"

namespace tandem::cuda {

const Ops& ops();

// Each sets the operations of one file.
void add_elementwise(Ops& ops);
void add_attention(Ops& ops);
void add_prompt_attention(Ops& ops);  // after add_attention()
void add_readout(Ops& ops);
void add_product(Ops& ops);
void add_quantized(Ops& ops);
void add_fp8(Ops& ops);
void add_loras(Ops& ops);
void add_library_products(Ops& ops);

// Whether this build has machine code for the current device. Throws if the device has no context.
bool has_machine_code();
std::string built_for();  // the compute capabilities of this build: "8.0, 9.0"
int max_head_dim();       // of attention

// Turns programmatic dependent launch on (the default) or off: launches begin while the previous
// ones end, on devices of compute capability 9.0 and above. REQUIRES: nothing is being launched
void overlap_launches(bool overlap);

// What computes the attention of long chunks of prompts (prompt_attention.h).
enum class PromptLibrary : uint8_t {
  kNone,   // the own kernel
  kFlash,  // LibTorch's flash attention (the default)
  kCudnn,  // cuDNN for a prompt's first chunk, flash attention for others
};
// REQUIRES: nothing is being launched
void use_for_prompts(PromptLibrary library);
// Whether it computes that of models with keys and values of this type.
bool prompts_by_library(at::ScalarType kv_type, int head_dim);

// As Platform::move_rows(), to a pool of the current device.
void move_rows(const RowMove* moves, int n, Store store, const KvPool& from, const KvPool& to);

}  // namespace tandem::cuda
