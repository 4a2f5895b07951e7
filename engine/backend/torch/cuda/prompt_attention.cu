// Attention of long chunks of prompts by LibTorch's flash attention or cuDNN.
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <limits>
#include <optional>
#include <tuple>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/gather.h"
#include "engine/backend/torch/cuda/launch.cuh"
#include "engine/backend/torch/prompt_attention.h"

namespace tandem::cuda {
namespace {

constexpr int kWordBytes = 16;
constexpr int kMostLibraryHeadDim = 256;  // of flash attention

PromptLibrary prompt_library = PromptLibrary::kFlash;
decltype(Ops::attention) own_attention = nullptr;

void gather(at::Tensor& to, const RowView& rows, int row, const LayerKv& kv, int first_head) {
  GatheredRows<uint4> g;
  g.keys = static_cast<const uint4*>(kv.keys.const_data_ptr());
  g.values = static_cast<const uint4*>(kv.values.const_data_ptr());
  g.to = static_cast<uint4*>(to.mutable_data_ptr());
  g.table = rows.table + row;
  g.pages = rows.pages;
  g.page_rows = rows.page_rows;
  g.all_heads = kv.kv_heads;
  g.first_head = first_head;
  g.heads = static_cast<int>(to.size(1));
  g.rows = static_cast<int>(to.size(2));
  g.words = static_cast<int>(kv.head_dim * to.element_size() / kWordBytes);
  TORCH_CHECK(to.size(2) * g.words <= std::numeric_limits<int>::max(), "too many rows to gather");
  gather_rows<uint4>(stream(), g);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// The last query sees the last key: masks of flash attention are aligned at the bottom right.
void attend_by_flash(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys,
                     const at::Tensor& values, double scale, int window) {
  std::optional<int64_t> before;
  if (window > 0) before = window - 1;
  const auto results = at::_flash_attention_forward(
      q.unsqueeze(0), keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0),
      /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, q.size(0), keys.size(1),
      /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, before);
  out.copy_(std::get<0>(results).squeeze(0));
}

// cuDNN's masks are aligned at the top left: only a prompt's first chunk fits.
void attend_by_cudnn(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys,
                     const at::Tensor& values, double scale, int window) {
  if (window > 0 || q.size(0) != keys.size(1)) {
    return attend_by_flash(out, q, keys, values, scale, window);
  }
  const auto results = at::_cudnn_attention_forward(
      q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0),
      /*attn_bias=*/std::nullopt, /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, q.size(0),
      keys.size(1), /*compute_log_sumexp=*/false, /*dropout_p=*/0, /*is_causal=*/true,
      /*return_debug_mask=*/false, scale);
  out.copy_(std::get<0>(results).squeeze(0).transpose(0, 1));
}

void attention_by_pieces(at::Tensor& out, const at::Tensor& qkv, const RowView& rows,
                         const LayerKv& kv, double scale, const DistanceBias& bias) {
  if (rows.piece_count == 0 || bias.table.defined() ||
      !prompts_by_library(kv.keys.scalar_type(), kv.head_dim)) {
    return own_attention(out, qkv, rows, kv, scale, bias);
  }
  const bool flash = prompt_library == PromptLibrary::kFlash;
  attend_pieces({gather, flash ? attend_by_flash : attend_by_cudnn, own_attention}, out, qkv, rows,
                kv, scale);
}

}  // namespace

void use_for_prompts(PromptLibrary library) { prompt_library = library; }

bool prompts_by_library(at::ScalarType kv_type, int head_dim) {
  return prompt_library != PromptLibrary::kNone &&
         (kv_type == at::kBFloat16 || kv_type == at::kHalf) && head_dim % 8 == 0 &&
         head_dim <= kMostLibraryHeadDim;
}

void add_prompt_attention(Ops& ops) {
  own_attention = ops.attention;
  ops.attention = attention_by_pieces;
}

}  // namespace tandem::cuda
