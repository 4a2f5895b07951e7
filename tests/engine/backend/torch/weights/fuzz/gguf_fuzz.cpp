// A GGUF file that parses describes bytes that exist, and its metadata converts to JSON or an
// error.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/gguf.h"
#include "engine/backend/torch/weights/gguf/model.h"
#include "engine/backend/torch/weights/gguf/tokenizer.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/fuzz/edits.h"
#include "tests/fuzz/fuzz.h"

namespace {

using tandem::fuzz::check;

void check_json(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return tandem::fuzz::check_refusal(text.status());
  check(nlohmann::json::accept(*text), "no JSON", *text);
}

void read_all(const tandem::TensorView& view) {
  if (view.elements() > 1 << 16) return;
  std::vector<float> values(static_cast<size_t>(view.elements()));
  const absl::Status status = to_float(view, 0, values);
  if (!status.ok()) tandem::fuzz::check_refusal(status);
}

void parse(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto gguf = tandem::parse_gguf(bytes, "f");
  if (!gguf.ok()) return tandem::fuzz::check_refusal(gguf.status());
  for (const auto& [name, tensor] : gguf->tensors) {
    check(tensor.data.data() >= bytes.data() &&
          tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    uint64_t blocks = 1;
    for (const int64_t d : tensor.shape) blocks *= static_cast<uint64_t>(d);
    blocks /= static_cast<uint64_t>(tensor.format->values);
    check(blocks * static_cast<uint64_t>(tensor.format->bytes) == tensor.data.size());
  }
  check_json(gguf_config_json(*gguf, "f"));
  check_json(gguf_generation_json(*gguf, "f"));
  if (const auto tokenizer = gguf_tokenizer(*gguf, "f"); tokenizer.ok()) {
    check_json(tokenizer->tokenizer_json);
    check_json(tokenizer->tokenizer_config_json);
  } else {
    tandem::fuzz::check_refusal(tokenizer.status());
  }
  if (const auto dense = tandem::gguf_dense(*gguf, "f"); !dense.ok()) {
    tandem::fuzz::check_refusal(dense.status());
  }
  const auto views = gguf_tensors(*gguf, "f");
  if (!views.ok()) return tandem::fuzz::check_refusal(views.status());
  for (const auto& [name, view] : *views) read_all(view);
}

const std::vector<std::string>& good_files() {
  static const std::vector<std::string> files = [] {
    std::vector<std::string> all;
    for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3", "gemma-embedding"}) {
      all.push_back(tandem::test::tiny_gguf(arch).file());
    }
    auto blocks = tandem::test::tiny_gguf();
    for (const uint32_t type : {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23}) {
      const auto* format = tandem::find_block_format(type);
      blocks.tensors.push_back({"blk." + std::to_string(type) + ".attn_q.weight",
                                {2, format->values},
                                type,
                                std::string(static_cast<size_t>(2 * format->bytes), '\x11')});
    }
    all.push_back(blocks.set("llama.attention.head_count", 1u).file());
    return all;
  }();
  return files;
}

}  // namespace

// Uses the input as a file and, behind a byte that selects a valid file, as edits of that one. With
// edits, most inputs get past the counts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parse(tandem::fuzz::text_of(data, size));
  if (size == 0) return 0;
  parse(tandem::fuzz::edited(good_files()[data[0] % good_files().size()], data + 1, size - 1));
  return 0;
}
