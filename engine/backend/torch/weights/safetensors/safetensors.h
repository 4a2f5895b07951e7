// The safetensors format: eight bytes of header length (little-endian), a JSON header, tensor data.
//
// Files are untrusted. A header that parses describes tensors that lie within the file, do not
// overlap, leave no gaps, and have exactly the bytes of their type and shape.
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

struct BlockFormat;  // weights/gguf/blocks.h

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

// A tensor's bytes in a mapped file, row-major, little-endian. May be misaligned: read it through
// memcpy or weights/convert.h.
struct TensorView {
  SafeDType dtype = SafeDType::kF32;
  std::vector<int64_t> shape;  // empty: scalar; dimensions >= 0
  const std::byte* data = nullptr;
  size_t bytes = 0;

  // Only for GGUF: block format (dtype is then unused); rows per head, if stored in the order 0,
  // n/2, 1, n/2 + 1, ... (0: in order); a number to subtract from each element.
  const BlockFormat* block = nullptr;
  int64_t head_rows = 0;
  float less = 0;

  int64_t elements() const;
};

std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the reference's limit

struct Safetensors {
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::map<std::string, TensorView> tensors;    // views into `file`
};

// Parses the header. file: the whole file; name: for messages. Errors are INVALID_ARGUMENT: "name:
// tensor x: field: value; allowed: range". Time is linear in the header's length, and n log n in
// the number of tensors. Tensor data is not read.
absl::StatusOr<Safetensors> parse_safetensors(std::span<const std::byte> file,
                                              absl::string_view name);

}  // namespace tandem
