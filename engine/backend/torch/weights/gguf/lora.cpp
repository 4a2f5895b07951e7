#include "engine/backend/torch/weights/gguf/lora.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/gguf/names.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr double kMaxAlpha = 1e6;
constexpr char kInvocation[] = "adapter.alora.invocation_tokens";
constexpr std::array kAdapterTypes{BlockType::kF32, BlockType::kF16, BlockType::kBF16,
                                   BlockType::kQ80};

// Null: GGUF has no such architecture. Mistral models have Llama's.
const GgufArch* arch_of(const DecoderConfig& base) {
  std::string_view type = base.model_type;
  if (type == "mistral") type = "llama";
  const std::span<const GgufArch> all = gguf_archs();
  const auto it =
      std::ranges::find_if(all, [&](const GgufArch& a) { return type == a.model_type; });
  return it == all.end() ? nullptr : &*it;
}

void require_text(GgufFields& fields, const char* key, const char* wanted) {
  const std::string found = fields.text(key, std::nullopt);
  if (found != wanted) fields.refuse(key, quote_value(found), quote_value(wanted));
}

// The matrix of a tensor. A vector is a matrix with one row: ggml drops the dimension.
absl::StatusOr<TensorView> matrix_of(const GgufTensor& tensor, const std::string& field) {
  if (std::ranges::find(kAdapterTypes, tensor.format->type) == kAdapterTypes.end()) {
    return out_of_range(absl::StrCat(field, ": type"), tensor.format->name, "F32, F16, BF16, Q8_0");
  }
  TensorView view = view_of(tensor);
  if (view.shape.size() == 1) view.shape.insert(view.shape.begin(), 1);
  if (view.shape.size() == 2) return view;
  return out_of_range(field, absl::StrCat("shape ", shape_text(view.shape)), "matrices");
}

}  // namespace

absl::StatusOr<GgufLora> gguf_lora(const Gguf& gguf, absl::string_view name,
                                   const DecoderConfig& base) {
  const GgufArch* const arch = arch_of(base);
  if (arch == nullptr) {
    return out_of_range(absl::StrCat(name, ": base model"), base.architecture,
                        "models that GGUF files have; its adapter can be a PEFT folder");
  }
  GgufFields fields(gguf, name);
  require_text(fields, "general.type", "adapter");
  require_text(fields, "adapter.type", "lora");
  if (const std::string of = fields.text("general.architecture", std::nullopt); of != arch->gguf) {
    fields.refuse("general.architecture", quote_value(of),
                  absl::StrCat(arch->gguf, ", as of the base model"));
  }
  if (fields.present(kInvocation)) {
    fields.refuse(kInvocation, "set", "unset: adapters that a token switches on are not supported");
  }
  GgufLora lora;
  lora.alpha = fields.number("adapter.lora.alpha", 0.0, 0, kMaxAlpha);
  TANDEM_RETURN_IF_ERROR(fields.status());

  for (const auto& [tensor_name, tensor] : gguf.tensors) {
    const std::string field = absl::StrCat(name, ": tensor ", quote_value(tensor_name));
    absl::string_view part = tensor_name;
    const bool is_a = absl::ConsumeSuffix(&part, ".lora_a");
    const bool is_b = !is_a && absl::ConsumeSuffix(&part, ".lora_b");
    const std::string weight(part);
    const bool matrix = absl::ConsumeSuffix(&part, ".weight");
    std::string module = gguf_hf_name(*arch, std::string(part), {});
    if (absl::StartsWith(part, "token_embd") || part == "output" ||
        absl::StartsWith(part, "position_embd")) {
      return out_of_range(field, "an embedding or the head", "linear layers of decoder layers");
    }
    if ((!is_a && !is_b) || !matrix || module.empty()) {
      return out_of_range(field,
                          absl::StrCat("not part of an adapted linear layer of ", arch->gguf),
                          "NAME.weight.lora_a and NAME.weight.lora_b, such as "
                          "blk.0.attn_output.weight.lora_a");
    }
    const std::string other = weight + (is_a ? ".lora_b" : ".lora_a");
    if (!gguf.tensors.contains(other)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": tensor ", quote_value(other),
                                                     ": missing, but ", quote_value(tensor_name),
                                                     " is there"));
    }
    TANDEM_ASSIGN_OR_RETURN(TensorView view, matrix_of(tensor, field));
    const bool permuted =
        arch->permuted && (absl::EndsWith(part, ".attn_q") || absl::EndsWith(part, ".attn_k"));
    if (is_b && permuted) view.head_rows = base.head_dim;
    GgufLoraModule& found = lora.modules[std::string(absl::StripPrefix(module, "model."))];
    found.name = weight;
    (is_a ? found.a : found.b) = std::move(view);
  }
  if (lora.modules.empty()) {
    return out_of_range(absl::StrCat(name, ": tensors"), 0, "1 or more");
  }
  return lora;
}

}  // namespace tandem
