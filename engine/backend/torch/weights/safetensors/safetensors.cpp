#include "engine/backend/torch/weights/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

struct DTypeInfo {
  SafeDType dtype;
  const char* name;
  size_t bytes;
};
constexpr std::array<DTypeInfo, 15> kDTypes{{{SafeDType::kBool, "BOOL", 1},
                                             {SafeDType::kU8, "U8", 1},
                                             {SafeDType::kI8, "I8", 1},
                                             {SafeDType::kF8E4M3, "F8_E4M3", 1},
                                             {SafeDType::kF8E5M2, "F8_E5M2", 1},
                                             {SafeDType::kI16, "I16", 2},
                                             {SafeDType::kU16, "U16", 2},
                                             {SafeDType::kF16, "F16", 2},
                                             {SafeDType::kBF16, "BF16", 2},
                                             {SafeDType::kI32, "I32", 4},
                                             {SafeDType::kU32, "U32", 4},
                                             {SafeDType::kF32, "F32", 4},
                                             {SafeDType::kI64, "I64", 8},
                                             {SafeDType::kU64, "U64", 8},
                                             {SafeDType::kF64, "F64", 8}}};
const DTypeInfo& info(SafeDType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

constexpr size_t kMaxRank = 32;
constexpr uint64_t kMaxDimension = std::numeric_limits<int64_t>::max();
constexpr const char* kDimensions = "integers from 0 to 9223372036854775807";
constexpr const char* kOffsets = "[begin, end], two integers";

struct Entry {
  std::string name;
  std::optional<SafeDType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// SAX handler for the header. Stops at the first violation, never builds a tree, and detects
// duplicate keys. Handlers return false to stop.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(absl::string_view file) : file_(file) {}

  absl::Status status() const { return status_; }
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return value < 0 ? unexpected(absl::StrCat(value))
                     : number_unsigned(static_cast<uint64_t>(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(absl::string_view(text).substr(0, 100));
  }
  bool binary(binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > kMaxDimension) return unexpected(absl::StrCat(value));
      if (entry().shape->size() == kMaxRank) {
        return fail(out_of_range(context("shape: number of dimensions"), kMaxRank + 1,
                                 absl::StrCat("at most ", kMaxRank)));
      }
      entry().shape->push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (entry().offsets->size() == 2) {
        return fail(out_of_range(context("data_offsets"), "more than two values", kOffsets));
      }
      entry().offsets->push_back(value);
      return true;
    }
    return unexpected(absl::StrCat(value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata_[key_] = std::move(value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      for (const DTypeInfo& known : kDTypes) {
        if (value == known.name) entry().dtype = known.dtype;
      }
      if (entry().dtype) return true;
      return fail(out_of_range(context("dtype"), quote_value(value),
                               absl::StrJoin(kDTypes, " ", [](std::string* out, const auto& d) {
                                 out->append(d.name);
                               })));
    }
    return unexpected(quote_value(value));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return unexpected("an object");
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kTensor;
    entries_.emplace_back();
    entry().name = key_;
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::kTop) {
      return names_.insert(value).second || fail(twice(quote_value(value)));
    }
    if (place_ == Place::kMetadata) {
      return !metadata_.contains(value) || fail(twice(context(quote_value(value))));
    }
    const bool there = (value == "dtype" && entry().dtype) || (value == "shape" && entry().shape) ||
                       (value == "data_offsets" && entry().offsets);
    if (there) return fail(twice(context(value)));
    if (value == "dtype" || value == "shape" || value == "data_offsets") return true;
    return fail(out_of_range(context("field"), quote_value(value), "dtype, shape, data_offsets"));
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      const char* missing = !entry().dtype     ? "dtype"
                            : !entry().shape   ? "shape"
                            : !entry().offsets ? "data_offsets"
                                               : nullptr;
      if (missing != nullptr) {
        return fail(absl::InvalidArgumentError(absl::StrCat(context(missing), ": missing")));
      }
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      entry().shape.emplace();
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      entry().offsets.emplace();
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && entry().offsets->size() != 2) {
      return fail(out_of_range(context("data_offsets"),
                               absl::StrCat(entry().offsets->size(), " values"), kOffsets));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(absl::InvalidArgumentError(
        absl::StrCat(file_, ": header: not JSON at its byte ", position)));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  Entry& entry() { return entries_.back(); }

  // "file: tensor x: field"
  std::string context(absl::string_view field) const {
    const std::string where = place_ == Place::kMetadata
                                  ? std::string("__metadata__")
                                  : "tensor " + quote_value(entries_.back().name);
    return absl::StrCat(file_, ": ", where, ": ", field);
  }
  absl::Status twice(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        place_ == Place::kTop ? absl::StrCat(file_, ": header: ") : "", what, ": duplicate key"));
  }
  bool fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }
  bool unexpected(absl::string_view value) {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        return fail(out_of_range(absl::StrCat(file_, ": header"), value, "an object"));
      case Place::kTop:
        return fail(out_of_range(absl::StrCat(file_, ": header: ", quote_value(key_)), value,
                                 "an object with dtype, shape, data_offsets"));
      case Place::kMetadata:
        return fail(out_of_range(context(quote_value(key_)), value, "a string"));
      case Place::kShape:
        return fail(out_of_range(context("shape"), value, kDimensions));
      case Place::kOffsets:
        return fail(out_of_range(context("data_offsets"), value, kOffsets));
      case Place::kTensor:
        return fail(out_of_range(context(key_), value,
                                 key_ == "dtype"   ? "the name of a type"
                                 : key_ == "shape" ? "an array of integers"
                                                   : kOffsets));
    }
    return false;
  }

  const std::string file_;
  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_;  // keys of the top-level object
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  absl::Status status_;
};

// A hint for files of other formats, from their first bytes.
const char* hint(std::span<const std::byte> file) {
  const auto* c = reinterpret_cast<const unsigned char*>(file.data());
  if (c[0] == 'P' && c[1] == 'K') return " (a zip archive: a renamed PyTorch file?)";
  if (c[0] == 0x80 && c[1] >= 2 && c[1] <= 5) return " (a pickle: a renamed PyTorch file?)";
  if (std::memcmp(c, "version ", 8) == 0)
    return " (a Git LFS pointer: the file was not downloaded?)";
  if (std::memcmp(c, "GGUF", 4) == 0) return " (a GGUF file?)";
  return "";
}

// Bytes of a tensor of this shape; nullopt on overflow.
std::optional<uint64_t> bytes_needed(SafeDType dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = safe_dtype_bytes(dtype);
  bool overflow = false;
  for (const int64_t d : shape) {
    if (d == 0) return 0;
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes);
  }
  if (overflow) return std::nullopt;
  return bytes;
}

}  // namespace

int64_t TensorView::elements() const {
  if (block == nullptr) return static_cast<int64_t>(bytes / safe_dtype_bytes(dtype));
  return static_cast<int64_t>(bytes) / block->bytes * block->values;
}

const char* safe_dtype_name(SafeDType dtype) { return info(dtype).name; }
size_t safe_dtype_bytes(SafeDType dtype) { return info(dtype).bytes; }

std::string shape_text(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<Safetensors> parse_safetensors(std::span<const std::byte> file,
                                              absl::string_view name) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return out_of_range(absl::StrCat(name, ": size in bytes"), file.size(), "at least 10");
  }
  std::memcpy(&length, file.data(), sizeof(length));
  const char* const other = hint(file);
  if (length < 2 || length > kMaxSafetensorsHeader) {
    return out_of_range(absl::StrCat(name, ": header length"), length,
                        absl::StrCat("2 to ", kMaxSafetensorsHeader, other));
  }
  if (length > file.size() - sizeof(length)) {
    return out_of_range(
        absl::StrCat(name, ": header length"), length,
        absl::StrCat("at most ", file.size() - sizeof(length), ", the bytes that follow it",
                     *other != 0 ? other : " (a truncated file?)"));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(length);
  if (*text != '{') {
    return absl::InvalidArgumentError(absl::StrCat(name, ": header: does not begin with '{'"));
  }
  HeaderReader reader(name);
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) return reader.status();

  const std::span<const std::byte> data = file.subspan(sizeof(length) + length);
  std::vector<Entry>& entries = reader.entries();
  for (const Entry& e : entries) {
    const std::string where = absl::StrCat(name, ": tensor ", quote_value(e.name), ": ");
    const std::optional<uint64_t> needed = bytes_needed(*e.dtype, *e.shape);
    if (!needed || *needed > data.size()) {
      return out_of_range(
          absl::StrCat(where, "shape"), shape_text(*e.shape),
          absl::StrCat("at most the ", data.size(), " data bytes of the file (a truncated file?)"));
    }
    const uint64_t begin = (*e.offsets)[0], end = (*e.offsets)[1];
    if (begin > end || end > data.size()) {
      return out_of_range(absl::StrCat(where, "data_offsets"),
                          absl::StrCat("[", begin, ", ", end, "]"),
                          absl::StrCat("0 <= begin <= end <= ", data.size(),
                                       ", the data bytes of the file (a truncated file?)"));
    }
    if (end - begin != *needed) {
      return out_of_range(absl::StrCat(where, "data_offsets"),
                          absl::StrCat("[", begin, ", ", end, "]"),
                          absl::StrCat(*needed, " bytes for ", safe_dtype_name(*e.dtype), " ",
                                       shape_text(*e.shape)));
    }
  }

  // Sorted by offset, each tensor must begin where the previous one ends.
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return *a.offsets < *b.offsets; });
  uint64_t used = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    const uint64_t begin = (*e.offsets)[0];
    if (begin != used) {
      const std::string before = i == 0 ? "the header" : quote_value(entries[i - 1].name);
      return out_of_range(absl::StrCat(name, ": tensor ", quote_value(e.name), ": data_offsets"),
                          absl::StrCat("begin ", begin),
                          absl::StrCat(used, ", where ", before, " ends (",
                                       begin < used ? "they overlap" : "there is a gap", ")"));
    }
    used = (*e.offsets)[1];
  }
  if (used != data.size()) {
    return out_of_range(absl::StrCat(name, ": data bytes"), data.size(),
                        absl::StrCat(used, ", where the last tensor ends (trailing bytes)"));
  }

  Safetensors result;
  result.metadata = std::move(reader.metadata());
  for (Entry& e : entries) {
    TensorView view;
    view.dtype = *e.dtype;
    view.shape = std::move(*e.shape);
    view.data = data.data() + (*e.offsets)[0];
    view.bytes = (*e.offsets)[1] - (*e.offsets)[0];
    result.tensors.emplace(std::move(e.name), std::move(view));
  }
  return result;
}

}  // namespace tandem
