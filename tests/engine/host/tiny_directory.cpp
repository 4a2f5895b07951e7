#include "tests/engine/host/tiny_directory.h"

#ifdef TANDEM_WITH_TORCH
#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "tests/engine/backend/torch/tiny_model.h"

namespace tandem::test {
namespace {

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Characters '0' to 'o', with the backslash escaped for JSON.
std::string tokenizer_json(int vocab) {
  std::string entries;
  for (int id = 0; id < vocab; ++id) {
    const char c = static_cast<char>('0' + id);
    absl::StrAppend(&entries, id > 0 ? "," : "", "\"", c == '\\' ? "\\\\" : std::string(1, c),
                    "\":", id);
  }
  return absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)",
      R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"."},"behavior":"Isolated",)",
      R"("invert":false},"post_processor":null,"decoder":{"type":"Fuse"},)",
      R"("model":{"type":"WordLevel","vocab":{)", entries, R"(},"unk_token":"0"}})");
}

}  // namespace

void write_tiny_model(const std::string& directory, uint64_t seed, int vocab) {
  DecoderConfig c = tiny_config();
  c.vocab_size = vocab;
  c.max_positions = 1024;
  const TinyModel model = tiny_model(c, seed);
  write(
      directory + "/config.json",
      absl::StrCat(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":)",
                   c.vocab_size, R"(,"hidden_size":)", c.hidden_size, R"(,"intermediate_size":)",
                   c.intermediate_size, R"(,"num_hidden_layers":)", c.layers,
                   R"(,"num_attention_heads":)", c.heads, R"(,"num_key_value_heads":)", c.kv_heads,
                   R"(,"head_dim":)", c.head_dim, R"(,"max_position_embeddings":)", c.max_positions,
                   R"(,"rms_norm_eps":1e-5,"rope_theta":10000.0,)",
                   R"("hidden_act":"silu","tie_word_embeddings":false,"torch_dtype":"float64"})"));
  std::string header = "{", data;
  for (const auto& [name, view] : model.tensors) {
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", name,
                    R"(":{"dtype":"F64","shape":)", shape_text(view.shape), R"(,"data_offsets":[)",
                    data.size(), ",", data.size() + view.bytes, "]}");
    data.append(reinterpret_cast<const char*>(view.data), view.bytes);
  }
  header += "}";
  uint64_t size = header.size();
  write(directory + "/model.safetensors",
        std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data);
  write(directory + "/tokenizer.json", tokenizer_json(std::min(vocab, 64)));
}

}  // namespace tandem::test
#endif
