// The GGUF format, versions 2 and 3: typed metadata, descriptions of tensors, tensor bytes.
// (docs/gguf.md in the ggml repository; block types are in gguf_blocks.h.)
//
// Nothing in a file is trusted. A file that parses describes tensors of known types that lie in it
// one after the other, each padded to the file's alignment with zeros, with exactly the bytes that
// their type and shape need, and nothing after the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf_blocks.h"

namespace tandem {

enum class GgufType : uint32_t {  // as in the file
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

const char* gguf_type_name(GgufType type);  // "u32"

// A value of the metadata: a view into the file.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array, never kArray
  uint64_t count = 1;                // elements of an array
  std::span<const std::byte> data;   // the elements; strings with their lengths before them
};

struct GgufTensor {
  const BlockFormat* format = nullptr;  // never null
  std::vector<int64_t> shape;           // outermost first: [out, in]; 1 to 4 dimensions >= 1
  std::span<const std::byte> data;
};

struct Gguf {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// Reads all but the tensors' bytes of `file`, the whole file; `name` stands for it in messages.
// Errors are INVALID_ARGUMENT: "name: key or tensor: field: value; allowed: range". Memory and time
// are linear in the length of metadata and descriptions, whatever counts they claim.
absl::StatusOr<Gguf> parse_gguf(std::span<const std::byte> file, absl::string_view name);

// Well-formed UTF-8 (RFC 3629).
bool is_utf8(std::string_view text);

// As quote_value(), for bytes that may be anything.
std::string quote_bytes(std::string_view bytes);

}  // namespace tandem
