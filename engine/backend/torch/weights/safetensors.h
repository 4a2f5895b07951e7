// The safetensors format: eight bytes of header length, little-endian; a JSON header; tensor bytes.
//
// Nothing in a file is trusted. A header that parses describes tensors which lie in the file, do
// not overlap, leave no byte unused, and have exactly the bytes that their type and shape need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct BlockFormat;  // weights/gguf_blocks.h

enum class SafeDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

const char* safe_dtype_name(SafeDType dtype);  // as in the file: "BF16"
size_t safe_dtype_bytes(SafeDType dtype);      // per element

// A tensor's bytes in a mapped file, row-major, little-endian. The address need not be a multiple
// of the element size: read through memcpy or weights/convert.h.
struct TensorView {
  SafeDType dtype = SafeDType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar; every dimension >= 0
  const std::byte* data = nullptr;
  size_t bytes = 0;

  // What GGUF files add: elements in blocks (dtype says nothing then); heads of so many rows, which
  // lie in the file as 0, n/2, 1, n/2 + 1, ... (0: in order); a number to take from each element.
  const BlockFormat* block = nullptr;
  int64_t head_rows = 0;
  float less = 0;

  int64_t elements() const;
};

std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes, as the reference has it

struct Safetensors {
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::map<std::string, TensorView> tensors;    // into the given bytes
};

// Reads the header of `file`, the whole file's bytes; `name` stands for it in messages. Errors are
// INVALID_ARGUMENT: "name: tensor x: field: value; allowed: range". Time is linear in the
// header's length (and n log n in the number of tensors); tensor bytes are not read.
absl::StatusOr<Safetensors> parse_safetensors(std::span<const std::byte> file,
                                              absl::string_view name);

}  // namespace tandem
