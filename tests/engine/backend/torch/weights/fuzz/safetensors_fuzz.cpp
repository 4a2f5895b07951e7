// A file that parses describes bytes that exist.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace {

using tandem::fuzz::check;

void parse(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto parsed = tandem::parse_safetensors(bytes, "f");
  if (!parsed.ok()) {
    tandem::fuzz::check_refusal(parsed.status());
    return;
  }
  size_t used = 0;
  for (const auto& [name, view] : parsed->tensors) {
    check(view.data >= bytes.data() && view.data + view.bytes <= bytes.data() + bytes.size());
    size_t needed = tandem::safe_dtype_bytes(view.dtype);
    for (const int64_t d : view.shape) {
      check(d >= 0);
      needed = view.bytes == 0 ? 0 : needed * static_cast<size_t>(d);
    }
    check(needed == view.bytes);
    used += view.bytes;
    volatile std::byte touched{};
    for (size_t i = 0; i < view.bytes; ++i) touched = view.data[i];
    (void)touched;
  }
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  check(sizeof(header) + header + used == bytes.size());
}

}  // namespace

// Uses the input as a file and as a header with the correct length, so that most inputs get past
// the header length. The first input byte is the number of data bytes that follow the header.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input = tandem::fuzz::text_of(data, size);
  parse(input);
  if (size < 3) return 0;
  const uint64_t length = size - 1;
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  parse(file + input.substr(1) + std::string(data[0], 'd'));
  return 0;
}
