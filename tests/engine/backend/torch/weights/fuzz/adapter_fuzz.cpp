// Fuzzes adapter.json next to valid tensors. An adapter that opens is within the ranges of its
// base.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backend/torch/weights/adapter_file.h"
#include "tests/engine/backend/torch/weights/files.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir folder;
  static const DecoderConfig base = [] {
    DecoderConfig config;
    config.vocab_size = 16;
    config.hidden_size = 8;
    config.layers = 2;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 4;
    return config;
  }();
  static const bool once = [] {
    folder.write("adapter.safetensors", test::safetensors_of({{"masks", "F32", {2, 8}},
                                                              {"down.weight", "F32", {3, 8}},
                                                              {"up.weight", "F32", {8, 3}},
                                                              {"0.weight", "F32", {5, 6}},
                                                              {"0.bias", "F32", {5}},
                                                              {"2.weight", "F32", {8, 5}},
                                                              {"2.bias", "F32", {8}}}));
    return true;
  }();
  (void)once;
  folder.write("adapter.json", fuzz::text_of(data, size));
  const auto adapter = AdapterFile::open(folder.path(), base, "9c41b7e2f00d5a13");
  if (!adapter.ok()) {
    fuzz::check_refusal(adapter.status());
    return 0;
  }
  fuzz::check(adapter->layer >= 0, "a negative layer");
  fuzz::check(adapter->kind != AdapterFile::kHead || adapter->layer <= base.layers, "a high layer");
  fuzz::check(adapter->kind != AdapterFile::kProjector || adapter->source_hidden == 6, "a width");
  fuzz::check(!adapter->foreign || adapter->replace, "tokens of the source without \"replace\"");
  return 0;
}
