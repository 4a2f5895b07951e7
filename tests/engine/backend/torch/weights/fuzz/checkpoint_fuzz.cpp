// Fuzzes model.safetensors.index.json next to two valid shards. A checkpoint that opens has exactly
// their tensors, and no file outside the folder is opened.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backend/torch/weights/checkpoint.h"
#include "tests/engine/backend/torch/weights/files.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir outside;
  static const std::string folder = outside.path() + "/model";
  static const bool once = [] {
    outside.write("model/a.safetensors", test::safetensors_of({{"x", "F32", {2}}}));
    outside.write("model/b.safetensors",
                  test::safetensors_of({{"y", "F16", {3}}, {"z", "F32", {}}}));
    outside.write("c.safetensors", test::safetensors_of({{"outside", "F32", {2}}}));
    return true;
  }();
  (void)once;
  outside.write("model/model.safetensors.index.json", fuzz::text_of(data, size));
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) {
    const bool missing = absl::IsNotFound(checkpoint.status());
    if (!missing) fuzz::check_refusal(checkpoint.status());
    return 0;
  }
  fuzz::check(checkpoint->find("outside") == nullptr, "a file outside the folder");
  for (const std::string& name : checkpoint->names()) {
    fuzz::check(name == "x" || name == "y" || name == "z", "a tensor of no file", name);
  }
  return 0;
}
