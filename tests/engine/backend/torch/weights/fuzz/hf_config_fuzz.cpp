// libFuzzer target: config.json and generation_config.json, well-formed or not.
//
//   clang++-19 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. \
//     tests/engine/backend/torch/weights/fuzz/hf_config_fuzz.cpp engine/base/quote.cpp \
//     engine/backend/torch/weights/{hf_config,generation_config,json_fields,mapped_file}.cpp \
//     $(pkg-config --libs absl_status absl_statusor absl_strings) -o hf_config_fuzz
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/backend/torch/weights/generation_config.h"
#include "engine/backend/torch/weights/hf_config.h"

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto c = tandem::parse_hf_config(text, "f"); c.ok()) {
    check(c->vocab_size > 0 && c->layers > 0 && c->layers <= 1000 && c->kv_heads > 0);
    check(c->heads % c->kv_heads == 0 && c->head_dim > 0 && c->head_dim % 2 == 0);
    check(c->window >= 0 && c->max_positions > 0);
    for (const float f : tandem::rope_inverse_frequencies(c->rope, c->head_dim)) check(f >= 0);
  }
  if (const auto g = tandem::parse_generation_config(text, "f"); g.ok()) {
    check(g->temperature >= 0 && g->top_k >= 0 && g->top_p >= 0 && g->min_p >= 0);
  }
  return 0;
}
