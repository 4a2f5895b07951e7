// Builds GGUF files byte by byte for tests: valid ones, and ones with a single error.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/weights/gguf/gguf.h"

namespace tandem::test {

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline std::string gguf_string(const std::string& text) {
  return bytes_of<uint64_t>(text.size()) + text;
}

// Type and value, as stored after the key.
inline std::string gguf_type(GgufType type) { return bytes_of(static_cast<uint32_t>(type)); }
inline std::string gguf_value(const std::string& text) {
  return gguf_type(GgufType::kString) + gguf_string(text);
}
inline std::string gguf_value(const char* text) { return gguf_value(std::string(text)); }
inline std::string gguf_value(uint32_t v) { return gguf_type(GgufType::kU32) + bytes_of(v); }
inline std::string gguf_value(int32_t v) { return gguf_type(GgufType::kI32) + bytes_of(v); }
inline std::string gguf_value(float v) { return gguf_type(GgufType::kF32) + bytes_of(v); }
inline std::string gguf_value(bool v) {
  return gguf_type(GgufType::kBool) + std::string(1, v ? '\1' : '\0');
}
inline std::string gguf_array(GgufType element, uint64_t count, const std::string& data) {
  return gguf_type(GgufType::kArray) + gguf_type(element) + bytes_of(count) + data;
}
inline std::string gguf_value(const std::vector<std::string>& texts) {
  std::string data;
  for (const std::string& t : texts) data += gguf_string(t);
  return gguf_array(GgufType::kString, texts.size(), data);
}
inline std::string gguf_value(const std::vector<int32_t>& values) {
  std::string data;
  for (const int32_t v : values) data += bytes_of(v);
  return gguf_array(GgufType::kI32, values.size(), data);
}
inline std::string gguf_value(const std::vector<float>& values) {
  std::string data;
  for (const float v : values) data += bytes_of(v);
  return gguf_array(GgufType::kF32, values.size(), data);
}

struct GgufBuilder {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // outermost first
    uint32_t type = 0;
    std::string data;
  };
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string, std::string>> metadata;  // key; type and value
  std::vector<Tensor> tensors;
  uint64_t more_entries = 0, more_tensors = 0;  // added to the counts
  uint64_t more_offset = 0;                     // added to the last tensor's offset
  std::string end;                              // bytes after the last tensor

  template <class T>
  GgufBuilder& set(const std::string& key, T value) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
    metadata.emplace_back(key, gguf_value(value));
    return *this;
  }
  GgufBuilder& erase(const std::string& key) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
    return *this;
  }
  // F32, all zero except `data`.
  GgufBuilder& tensor(const std::string& name, std::vector<int64_t> shape,
                      const std::vector<float>& values = {}) {
    int64_t elements = 1;
    for (const int64_t d : shape) elements *= d;
    std::string data(static_cast<size_t>(elements) * sizeof(float), '\0');
    if (!values.empty()) {
      std::memcpy(data.data(), values.data(), values.size() * sizeof(float));
    }
    tensors.push_back({name, std::move(shape), 0, std::move(data)});
    return *this;
  }

  std::string pad(std::string bytes) const {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes;
  }

  std::string file() const {
    std::string out = "GGUF" + bytes_of(version) + bytes_of(tensors.size() + more_tensors) +
                      bytes_of(metadata.size() + more_entries);
    for (const auto& [key, value] : metadata) out += gguf_string(key) + value;
    std::string data;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& t = tensors[i];
      out += gguf_string(t.name) + bytes_of(static_cast<uint32_t>(t.shape.size()));
      for (auto d = t.shape.rbegin(); d != t.shape.rend(); ++d) out += bytes_of(*d);
      const uint64_t more = i + 1 == tensors.size() ? more_offset : 0;
      out += bytes_of(t.type) + bytes_of(data.size() + more);
      data = pad(data + t.data);
    }
    return pad(out) + data + end;
  }
};

// A complete model: one layer, 8 tokens, hidden size 4, two heads of 2, one kv head.
inline GgufBuilder tiny_gguf(const std::string& arch = "llama") {
  GgufBuilder b;
  b.set("general.architecture", arch);
  b.set(arch + ".block_count", 1u).set(arch + ".context_length", 64u);
  b.set(arch + ".embedding_length", 4u).set(arch + ".feed_forward_length", 8u);
  b.set(arch + ".attention.head_count", 2u).set(arch + ".attention.head_count_kv", 1u);
  b.set(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  const int64_t d = arch == "llama" ? 2 : 4;  // other architectures have longer heads
  if (d != 2) b.set(arch + ".attention.key_length", 4u).set(arch + ".attention.value_length", 4u);
  b.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
  b.set("tokenizer.ggml.tokens", std::vector<std::string>{"<|endoftext|>", "a", "b", "ab", "\u0120",
                                                          "<|im_end|>", "<x>", "u"});
  b.set("tokenizer.ggml.token_type", std::vector<int32_t>{3, 1, 1, 1, 1, 3, 4, 5});
  b.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  b.set("tokenizer.ggml.eos_token_id", 0u);
  b.tensor("token_embd.weight", {8, 4}).tensor("output_norm.weight", {4});
  const std::string layer = "blk.0.";
  b.tensor(layer + "attn_norm.weight", {4}).tensor(layer + "ffn_norm.weight", {4});
  b.tensor(layer + "attn_q.weight", {2 * d, 4}).tensor(layer + "attn_k.weight", {d, 4});
  b.tensor(layer + "attn_v.weight", {d, 4}).tensor(layer + "attn_output.weight", {4, 2 * d});
  b.tensor(layer + "ffn_gate.weight", {8, 4}).tensor(layer + "ffn_up.weight", {8, 4});
  b.tensor(layer + "ffn_down.weight", {4, 8});
  if (arch == "qwen2") {
    b.tensor(layer + "attn_q.bias", {2 * d}).tensor(layer + "attn_k.bias", {d});
    b.tensor(layer + "attn_v.bias", {d});
  }
  const bool gemma = arch.starts_with("gemma");
  if (arch == "qwen3" || gemma) {
    b.tensor(layer + "attn_q_norm.weight", {d}).tensor(layer + "attn_k_norm.weight", {d});
  }
  if (gemma) {
    b.tensor(layer + "post_attention_norm.weight", {4});
    b.tensor(layer + "post_ffw_norm.weight", {4});
  }
  if (arch == "gemma-embedding") {
    b.set(arch + ".pooling_type", 1u);
    b.tensor("dense_2.weight", {6, 4}).tensor("dense_3.weight", {4, 6});
  }
  return b;
}

}  // namespace tandem::test
