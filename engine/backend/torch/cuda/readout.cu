// Answers about rows of logits, on CUDA.
#include <ATen/ops/empty.h>

#include <cstddef>
#include <utility>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/readout.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

static_assert(kMostReadVocab >= kMostAnsweredVocab);

void answer_rows(at::Tensor& logits, const RowChanges& changes, const RowQuestion* questions,
                 RowAnswer* answers) {
  const int64_t n = logits.size(0);
  const ReadSplit split = read_split(n, logits.size(1));
  ReadScratch scratch;
  at::Tensor memory;  // of the caching allocator, whose memory is ordered by the stream
  if (split.tokens > 0) {
    const int64_t parts = n * split.parts;
    const int64_t sums = n * 2 * ReadScratch::blocks(split);
    constexpr int64_t kAlign = 16;
    int64_t bytes = 0;
    const auto place = [&](int64_t size) {
      return std::exchange(bytes, bytes + (size + kAlign - 1) / kAlign * kAlign);
    };
    const int64_t at_sums = place(sums * static_cast<int64_t>(sizeof(double)));
    const int64_t at_scans = place(parts * static_cast<int64_t>(sizeof(PartScan)));
    const int64_t at_cuts = place(n * static_cast<int64_t>(sizeof(RowCut)));
    const int64_t at_draws = place(parts * static_cast<int64_t>(sizeof(Ranking)));
    memory = at::empty({bytes}, logits.options().dtype(at::kByte));
    auto* const base = static_cast<std::byte*>(memory.mutable_data_ptr());
    scratch = {
        reinterpret_cast<PartScan*>(base + at_scans), reinterpret_cast<RowCut*>(base + at_cuts),
        reinterpret_cast<Ranking*>(base + at_draws), reinterpret_cast<double*>(base + at_sums)};
  }
  cuda::answer_rows(stream(), data<float>(logits), logits.size(1),
                    {changes.changes, changes.drafts, changes.kept}, questions, answers, n, split,
                    scratch);
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
