// Fuzzes adapter_config.json and the header of adapter_model.safetensors, apart by a NUL byte;
// without a header, next to valid tensors. Behind "GGUF": edits of a valid file in that format. An
// adapter that opens is within the ranges of its base.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backend/torch/weights/lora_file.h"
#include "tests/engine/backend/torch/weights/files.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/fuzz/edits.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir folder;
  static const DecoderConfig base = [] {
    DecoderConfig config;
    config.model_type = "llama";
    config.vocab_size = 16;
    config.hidden_size = 8;
    config.intermediate_size = 12;
    config.layers = 2;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 4;
    return config;
  }();
  static const std::string valid = [] {
    const std::string stem = "base_model.model.model.layers.1.";
    return test::safetensors_of({{stem + "self_attn.k_proj.lora_A.weight", "F32", {2, 8}},
                                 {stem + "self_attn.k_proj.lora_B.weight", "F32", {4, 2}},
                                 {stem + "mlp.down_proj.lora_A.weight", "BF16", {2, 12}},
                                 {stem + "mlp.down_proj.lora_B.weight", "BF16", {8, 2}}});
  }();
  static const std::string valid_gguf = [] {
    test::GgufBuilder b;
    b.set("general.type", "adapter").set("adapter.type", "lora");
    b.set("general.architecture", "llama").set("adapter.lora.alpha", 4.0F);
    b.tensor("blk.1.attn_k.weight.lora_a", {2, 8}).tensor("blk.1.attn_k.weight.lora_b", {4, 2});
    b.tensor("blk.0.ffn_down.weight.lora_a", {3, 12})
        .tensor("blk.0.ffn_down.weight.lora_b", {8, 3});
    return b.file();
  }();
  std::string path = folder.path();
  if (fuzz::text_of(data, size).starts_with("GGUF")) {
    path = folder.write("adapter.gguf", fuzz::edited(valid_gguf, data + 4, size - 4));
  } else {
    const std::vector<std::string> parts = fuzz::parts_of(data, size, 2);
    folder.write("adapter_config.json", parts[0]);
    folder.write(
        "adapter_model.safetensors",
        parts[1].empty() ? valid : test::safetensors_file(parts[1], std::string(160, '\0')));
  }
  const auto adapter = LoraFile::open(path, base);
  if (!adapter.ok()) {
    fuzz::check_refusal(adapter.status());
    return 0;
  }
  fuzz::check(!adapter->modules.empty(), "no modules");
  for (const LoraModule& m : adapter->modules) {
    fuzz::check(m.layer >= 0 && m.layer < base.layers, "a layer");
    fuzz::check(m.rank >= 1 && m.rank <= adapter->rank && adapter->rank <= kMaxLoraRank, "a rank");
    fuzz::check(std::isfinite(m.scale) && m.scale >= 0, "a scale");
    const LinearSpec spec = lora_spec(base, m.layer, m.part);
    fuzz::check(m.matrix < spec.outs.size(), "a matrix");
    const TensorView* const a = adapter->tensors.find(m.name + ".lora_A.weight");
    fuzz::check(a != nullptr && a->elements() == m.rank * spec.in, "a tensor");
  }
  return 0;
}
