// Fuzzes config.json and generation_config.json.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/hf/generation_config.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::fuzz::check;
  const std::string text = tandem::fuzz::text_of(data, size);
  if (const auto c = tandem::parse_hf_config(text, "f"); c.ok()) {
    check(c->vocab_size > 0 && c->layers > 0 && c->layers <= 1000 && c->kv_heads > 0);
    check(c->heads % c->kv_heads == 0 && c->head_dim > 0);
    check(!c->rotary || c->head_dim % 2 == 0);
    check(c->full_layers.empty() || static_cast<int>(c->full_layers.size()) == c->layers);
    check(c->window >= 0 && c->max_positions > 0);
    for (const float f : tandem::rope_inverse_frequencies(c->rope, c->head_dim)) check(f >= 0);
  } else {
    tandem::fuzz::check_refusal(c.status());
  }
  if (const auto g = tandem::parse_generation_config(text, "f"); g.ok()) {
    const tandem::SamplingParams& s = g->sampling;
    check(s.temperature.value_or(0) >= 0 && s.top_k.value_or(0) >= 0);
    check(s.top_p.value_or(0) >= 0 && s.min_p.value_or(0) >= 0);
  } else {
    tandem::fuzz::check_refusal(g.status());
  }
  return 0;
}
