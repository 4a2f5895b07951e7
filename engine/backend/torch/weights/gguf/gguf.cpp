#include "engine/backend/torch/weights/gguf/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr uint64_t kMinEntry = 14;       // bytes of a key-value pair: empty key and 8-bit value
constexpr uint64_t kMinTensor = 33;      // bytes of a tensor description
constexpr uint64_t kMaxKey = 65535;      // bytes
constexpr uint64_t kMaxTensorName = 63;  // bytes; ggml's limit
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kMaxAlignment = 65536;
constexpr const char* kAlignmentKey = "general.alignment";

struct TypeInfo {
  const char* name;
  size_t bytes;  // per value; 0: variable
};
constexpr std::array<TypeInfo, 13> kTypes{{{"u8", 1},
                                           {"i8", 1},
                                           {"u16", 2},
                                           {"i16", 2},
                                           {"u32", 4},
                                           {"i32", 4},
                                           {"f32", 4},
                                           {"bool", 1},
                                           {"string", 0},
                                           {"array", 0},
                                           {"u64", 8},
                                           {"i64", 8},
                                           {"f64", 8}}};
const TypeInfo& info(GgufType type) { return kTypes[static_cast<size_t>(type)]; }

// Names of keys and tensors: UTF-8, not empty, without NUL.
bool good_name(std::string_view name, uint64_t max) {
  return !name.empty() && name.size() <= max && name.find('\0') == std::string_view::npos &&
         is_utf8(name);
}

// Sequential reader. After the first error, which it records with its position, reads return zero.
class Reader {
 public:
  Reader(std::span<const std::byte> file, absl::string_view name) : file_(file), name_(name) {}

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  size_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

  // Context of the following errors: "key x", "tensor y".
  void about(std::string what) { about_ = std::move(what); }

  template <class Value>
  void refuse(absl::string_view field, const Value& value, absl::string_view allowed) {
    if (!status_.ok()) return;
    status_ = out_of_range(absl::StrCat(name_, ": ", about_, about_.empty() ? "" : ": ", field),
                           value, allowed);
    at_ = file_.size();
  }

  std::span<const std::byte> bytes(uint64_t count, absl::string_view field) {
    if (count > left()) {
      refuse(field, absl::StrCat(count, " bytes"),
             absl::StrCat("at most the ", left(), " left in the file"));
      return {};
    }
    const auto part = file_.subspan(at_, count);
    at_ += count;
    return part;
  }

  template <class T>
  T number(absl::string_view field) {
    T value{};
    const auto from = bytes(sizeof(T), field);
    if (from.size() == sizeof(T)) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }

  std::string_view text(absl::string_view field) {
    const auto length = number<uint64_t>(field);
    const auto part = bytes(length, field);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  // A number of items that take at least `smallest` bytes each.
  uint64_t count(absl::string_view field, uint64_t smallest) {
    const auto value = number<uint64_t>(field);
    if (ok() && value > left() / smallest) {
      refuse(field, value, absl::StrCat("at most ", left() / smallest, " in the rest of the file"));
    }
    return ok() ? value : 0;
  }

  GgufType type(absl::string_view field) {
    const auto value = number<uint32_t>(field);
    if (ok() && value >= kTypes.size()) refuse(field, value, "0 to 12");
    return ok() ? static_cast<GgufType>(value) : GgufType::kU8;
  }

 private:
  const std::span<const std::byte> file_;
  const std::string name_;
  size_t at_ = 0;
  std::string about_;
  absl::Status status_;
};

void read_elements(Reader& in, GgufType type, uint64_t count) {
  if (type == GgufType::kString) {
    for (uint64_t i = 0; i < count && in.ok(); ++i) in.text("length of a string");
    return;
  }
  const auto data = in.bytes(count * info(type).bytes, "value");  // no overflow: count()
  if (type != GgufType::kBool) return;
  const auto wrong = std::find_if(
      data.begin(), data.end(), [](std::byte b) { return b != std::byte{0} && b != std::byte{1}; });
  if (wrong != data.end()) in.refuse("bool", static_cast<int>(*wrong), "0, 1");
}

GgufValue read_value(Reader& in, std::span<const std::byte> file) {
  GgufValue value;
  value.type = in.type("type");
  value.element = value.type;
  if (value.type == GgufType::kArray) {
    value.element = in.type("type of elements");
    if (value.element == GgufType::kArray) in.refuse("type of elements", "array", "no arrays");
    const size_t smallest = info(value.element).bytes;
    value.count = in.count("number of elements", smallest == 0 ? sizeof(uint64_t) : smallest);
  }
  const size_t begin = in.at();
  read_elements(in, value.element, value.count);
  if (in.ok()) value.data = file.subspan(begin, in.at() - begin);
  return value;
}

void read_metadata(Reader& in, std::span<const std::byte> file, uint64_t count, Gguf& gguf) {
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    in.about(absl::StrCat("key-value ", i));
    const std::string key(in.text("length of the key"));
    if (in.ok() && !good_name(key, kMaxKey)) {
      in.refuse("key", quote_bytes(key), "1 to 65535 bytes of UTF-8 without NUL");
    }
    in.about(absl::StrCat("key ", quote_value(key)));
    const GgufValue value = read_value(in, file);
    if (in.ok() && !gguf.metadata.emplace(key, value).second) in.refuse("times", 2, "1");
  }
}

struct Described {
  std::string name;
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Bytes of the tensor; nullopt after an error.
std::optional<uint64_t> tensor_bytes(Reader& in, const GgufTensor& tensor) {
  const BlockFormat& format = *tensor.format;
  int64_t elements = 1, bytes = 0;
  for (const int64_t d : tensor.shape) {
    if (__builtin_mul_overflow(elements, d, &elements)) {
      in.refuse("dimensions", shape_text(tensor.shape), "a product below 2^63");
      return std::nullopt;
    }
  }
  if (tensor.shape.back() % format.values != 0) {
    in.refuse("length of rows", tensor.shape.back(),
              absl::StrCat("multiples of ", format.values, " for type ", format.name));
    return std::nullopt;
  }
  if (__builtin_mul_overflow(elements / format.values, int64_t{format.bytes}, &bytes)) {
    in.refuse("dimensions", shape_text(tensor.shape), "a size below 2^63 bytes");
    return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

Described read_tensor(Reader& in, uint64_t i) {
  Described d;
  in.about(absl::StrCat("tensor ", i));
  d.name = std::string(in.text("length of the name"));
  if (in.ok() && !good_name(d.name, kMaxTensorName)) {
    in.refuse("name", quote_bytes(d.name), "1 to 63 bytes of UTF-8 without NUL");
  }
  in.about(absl::StrCat("tensor ", quote_value(d.name)));
  const auto rank = in.number<uint32_t>("number of dimensions");
  if (in.ok() && (rank < 1 || rank > kMaxDimensions)) {
    in.refuse("number of dimensions", rank, "1 to 4");
  }
  for (uint32_t k = 0; k < rank && in.ok(); ++k) {
    const auto dimension = in.number<int64_t>("dimension");
    if (in.ok() && dimension < 1) in.refuse("dimension", dimension, "1 to 2^63 - 1");
    d.tensor.shape.push_back(dimension);
  }
  std::reverse(d.tensor.shape.begin(), d.tensor.shape.end());  // innermost first in the file
  const auto type = in.number<uint32_t>("type");
  d.offset = in.number<uint64_t>("offset");
  if (!in.ok()) return d;
  d.tensor.format = find_block_format(type);
  if (d.tensor.format == nullptr) {
    in.refuse("type", ggml_type_text(type), block_format_names());
    return d;
  }
  d.bytes = tensor_bytes(in, d.tensor).value_or(0);
  return d;
}

uint64_t read_alignment(Reader& in, const Gguf& gguf) {
  const auto it = gguf.metadata.find(kAlignmentKey);
  if (it == gguf.metadata.end()) return 32;
  in.about(absl::StrCat("key ", quote_value(kAlignmentKey)));
  if (it->second.type != GgufType::kU32) {
    in.refuse("type", gguf_type_name(it->second.type), "u32");
    return 32;
  }
  uint32_t alignment = 0;
  std::memcpy(&alignment, it->second.data.data(), sizeof(alignment));
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment) {
    in.refuse("value", alignment, "powers of 2 from 8 to 65536");
    return 32;
  }
  return alignment;
}

// Skips zeros up to the next multiple of `alignment`, counted from `begin`. At the end of the file
// they may be missing.
void skip_padding(Reader& in, uint64_t begin, uint64_t alignment) {
  const uint64_t used = (in.at() - begin) % alignment;
  const uint64_t wanted = used == 0 ? 0 : alignment - used;
  if (in.left() == 0) return;
  const auto padding = in.bytes(wanted, "padding");
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    in.refuse("padding", "other bytes", "zeros");
  }
}

void place_tensors(Reader& in, uint64_t alignment, std::vector<Described>& all, Gguf& gguf) {
  in.about("after the descriptions");
  skip_padding(in, 0, alignment);
  const size_t begin = in.at();
  for (Described& d : all) {
    if (!in.ok()) return;
    in.about(absl::StrCat("tensor ", quote_value(d.name)));
    if (d.offset != in.at() - begin) {
      return in.refuse("offset", d.offset,
                       absl::StrCat(in.at() - begin, ": tensors follow one another, aligned to ",
                                    alignment, " bytes"));
    }
    d.tensor.data = in.bytes(d.bytes, "size");
    skip_padding(in, begin, alignment);
    if (in.ok() && !gguf.tensors.emplace(d.name, std::move(d.tensor)).second) {
      in.refuse("times", 2, "1");
    }
  }
  in.about("");
  if (in.ok() && in.left() > 0) in.refuse("bytes after the last tensor", in.left(), "none");
}

void read_magic(Reader& in) {
  const auto magic = in.bytes(4, "magic");
  if (in.ok() && std::memcmp(magic.data(), "GGUF", 4) != 0) {
    in.refuse("magic", quote_bytes({reinterpret_cast<const char*>(magic.data()), 4}), "\"GGUF\"");
  }
  const auto version = in.number<uint32_t>("version");
  if (in.ok() && version != 2 && version != 3) {
    const bool swapped = (version & 0xffff) == 0 && version != 0;
    in.refuse("version", version,
              swapped ? "2, 3 in little-endian order (this file is big-endian)" : "2, 3");
  }
}

}  // namespace

const char* gguf_type_name(GgufType type) { return info(type).name; }

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
    const uint8_t lead = at(i);
    const size_t length = lead < 0x80            ? 1
                          : lead >> 5 == 0b110   ? 2
                          : lead >> 4 == 0b1110  ? 3
                          : lead >> 3 == 0b11110 ? 4
                                                 : 0;
    if (length == 0 || length > text.size() - i) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7f >> length);
    for (size_t k = i + 1; k < i + length; ++k) {
      if (at(k) >> 6 != 0b10) return false;
      code = code << 6 | (at(k) & 0x3f);
    }
    constexpr std::array<uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (code < kSmallest[length] || code > 0x10ffff || surrogate) return false;
    i += length;
  }
  return true;
}

std::string quote_bytes(std::string_view bytes) {
  if (is_utf8(bytes)) return quote_value({bytes.data(), bytes.size()});
  constexpr size_t kMost = 100;
  const std::string shown(bytes.substr(0, kMost));
  return absl::StrCat("\"", absl::CHexEscape(shown), bytes.size() > kMost ? "...\"" : "\"");
}

absl::StatusOr<Gguf> parse_gguf(std::span<const std::byte> file, absl::string_view name) {
  Reader in(file, name);
  read_magic(in);
  const auto tensors = in.number<uint64_t>("number of tensors");
  const uint64_t entries = in.count("number of key-values", kMinEntry);
  Gguf gguf;
  read_metadata(in, file, entries, gguf);
  in.about("");
  if (in.ok() && tensors > in.left() / kMinTensor) {
    in.refuse("number of tensors", tensors,
              absl::StrCat("at most ", in.left() / kMinTensor, " in the rest of the file"));
  }
  std::vector<Described> described;
  for (uint64_t i = 0; i < tensors && in.ok(); ++i) described.push_back(read_tensor(in, i));
  if (in.ok()) place_tensors(in, read_alignment(in, gguf), described, gguf);
  if (!in.ok()) return in.status();
  return gguf;
}

}  // namespace tandem
