// All kernels, for the assembler's report (check_assembler.py).
#include "engine/backend/torch/cuda/kernels/attention.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/fp8.h"
#include "engine/backend/torch/cuda/kernels/gather.h"
#include "engine/backend/torch/cuda/kernels/lora.h"
#include "engine/backend/torch/cuda/kernels/moves.h"
#include "engine/backend/torch/cuda/kernels/product.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"
#include "engine/backend/torch/cuda/kernels/readout.h"

namespace tandem::cuda {

template __global__ void attention_kernel<BFloat16, uint4, kFewQueries>(
    const __grid_constant__ AttentionArguments<BFloat16>);
template __global__ void attention_kernel<BFloat16, uint4, kMaxQueries<float>>(
    const __grid_constant__ AttentionArguments<BFloat16>);
template __global__ void merge_kernel<BFloat16, uint4>(
    const __grid_constant__ AttentionArguments<BFloat16>);
template __global__ void norm_kernel<false, BFloat16, float, float>(BFloat16*, const float*,
                                                                    NormArguments<float>, int64_t);
template __global__ void norm_kernel<true, float, BFloat16, float>(float*, const BFloat16*,
                                                                   NormArguments<float>, int64_t);
template __global__ void norm_heads_kernel<BFloat16, float>(BFloat16*, int64_t,
                                                            NormArguments<float>, int);
template __global__ void embed_kernel<BFloat16, float>(float*, const BFloat16*, const int32_t*,
                                                       int64_t);
template __global__ void scale_rows_kernel<float>(float*, const int32_t*, float, int64_t);
template __global__ void add_positions_kernel<BFloat16, float>(float*, const BFloat16*,
                                                               const int32_t*, const int32_t*,
                                                               int64_t);
template __global__ void activate_kernel<BFloat16, float>(BFloat16*, int64_t, Activation);
template __global__ void pack_kernel<BFloat16>(BFloat16*, const BFloat16*, PackedShape);
template __global__ void rope_and_store_kernel<BFloat16, float>(BFloat16*, RowView,
                                                                PagedHeads<BFloat16>,
                                                                Rotation<float>);
template __global__ void gate_kernel<BFloat16, float>(BFloat16*, const BFloat16*, int64_t, int64_t,
                                                      Activation);
template __global__ void round_rows_kernel<BFloat16>(uint8_t*, float*, const BFloat16*, int64_t);
template __global__ void copy_rows_kernel<int32_t>(int32_t*, const int64_t*, const int32_t*,
                                                   const int64_t*, int64_t);
template __global__ void gather_kernel<uint4>(GatheredRows<uint4>);
template __global__ void move_kernel<uint4>(MovedRows<uint4>, int64_t, const RowMove*, int);
template __global__ void product_kernel<BFloat16, 1, 1>(
    const __grid_constant__ ProductArguments<BFloat16>, int64_t);
template __global__ void product_kernel<BFloat16, 1, 2>(
    const __grid_constant__ ProductArguments<BFloat16>, int64_t);
template __global__ void product_kernel<BFloat16, 2, 1>(
    const __grid_constant__ ProductArguments<BFloat16>, int64_t);
template __global__ void product_kernel<Half, 2, 2>(const __grid_constant__ ProductArguments<Half>,
                                                    int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ80, 1, 1>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ40, 1, 1>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ4K, 1, 1>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ4K, 2, 2>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ51, 2, 2>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ5K, 2, 2>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ6K, 1, 1>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void block_product_kernel<BFloat16, QuantType::kQ6K, 2, 2>(
    const __grid_constant__ BlockArguments<BFloat16>, int64_t);
template __global__ void lora_ranks_kernel<BFloat16, 1>(
    const __grid_constant__ LoraArguments<BFloat16>);
template __global__ void lora_ranks_kernel<BFloat16, kRowsTogether>(
    const __grid_constant__ LoraArguments<BFloat16>);
template __global__ void lora_columns_kernel<BFloat16, float, 1>(
    const __grid_constant__ LoraArguments<BFloat16>, float*);
template __global__ void lora_columns_kernel<BFloat16, float, kRowsTogether>(
    const __grid_constant__ LoraArguments<BFloat16>, float*);
template __global__ void add_rows_kernel<BFloat16>(BFloat16*, const float*, const int32_t*,
                                                   int64_t);
template __global__ void quantize_rows_kernel<BFloat16>(BlockRows, Ptr<const BFloat16>, int,
                                                        int64_t, NormArguments<float>);
template __global__ void quantize_rows_kernel<float>(BlockRows, Ptr<const float>, int, int64_t,
                                                     NormArguments<float>);
template __global__ void unpack_blocks_kernel<BFloat16, QuantType::kQ6K>(BFloat16*, const uint4*,
                                                                         BlockShape, const int32_t*,
                                                                         int64_t);
template __global__ void choose_kernel<RowAnswer>(int32_t*, const int32_t*, const ChosenToken*,
                                                  int64_t, const RowAnswer*);
template __global__ void answer_rows_kernel<RowAnswer>(float*, int64_t, ReadChanges,
                                                       const RowQuestion*, RowAnswer*);
template __global__ void scan_parts_kernel<PartScan>(float*, int64_t, ReadChanges,
                                                     const RowQuestion*, ReadSplit, PartScan*);
template __global__ void cut_rows_kernel<RowCut>(const float*, int64_t, const RowQuestion*,
                                                 ReadSplit, const PartScan*, RowCut*);
template __global__ void weigh_parts_kernel<Ranking>(const float*, int64_t, const RowQuestion*,
                                                     ReadSplit, const RowCut*, Ranking*, double*);
template __global__ void merge_answers_kernel<RowAnswer>(const float*, int64_t, const RowQuestion*,
                                                         ReadSplit, const PartScan*, const RowCut*,
                                                         const Ranking*, const double*, RowAnswer*);

}  // namespace tandem::cuda
