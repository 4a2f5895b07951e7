// Answers about rows of logits, on CUDA.
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/readout.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

static_assert(kMostReadVocab >= kMostAnsweredVocab);

void answer_rows(const at::Tensor& logits, const RowQuestion* questions, RowAnswer* answers) {
  cuda::answer_rows(stream(), data<float>(logits), logits.size(1), questions, answers,
                    logits.size(0));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void choose(int32_t* to, const int32_t* token, const ChosenToken* chosen, int64_t rows,
            const RowAnswer* cached) {
  cuda::choose(stream(), to, token, chosen, rows, cached);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void add_readout(Ops& ops) {
  ops.answer_rows = answer_rows;
  ops.choose = choose;
}

}  // namespace tandem::cuda
