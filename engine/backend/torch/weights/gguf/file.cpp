#include "engine/backend/torch/weights/gguf/file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "engine/backend/torch/weights/load.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

bool is_integer(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}
bool is_number(GgufType type) {
  return is_integer(type) || type == GgufType::kF32 || type == GgufType::kF64;
}
bool is_bool(GgufType type) { return type == GgufType::kBool; }
bool is_text(GgufType type) { return type == GgufType::kString; }
bool is_f32(GgufType type) { return type == GgufType::kF32; }

// Calls visit(value) with the i-th number in its own type.
template <class Visit>
auto with_number(const GgufValue& value, uint64_t i, Visit visit) {
  const std::byte* at = value.data.data();
  switch (value.element) {
    case GgufType::kU8:
      return visit(load<uint8_t>(at + i));
    case GgufType::kI8:
      return visit(load<int8_t>(at + i));
    case GgufType::kU16:
      return visit(load<uint16_t>(at + 2 * i));
    case GgufType::kI16:
      return visit(load<int16_t>(at + 2 * i));
    case GgufType::kU32:
      return visit(load<uint32_t>(at + 4 * i));
    case GgufType::kI32:
      return visit(load<int32_t>(at + 4 * i));
    case GgufType::kU64:
      return visit(load<uint64_t>(at + 8 * i));
    case GgufType::kF32:
      return visit(load<float>(at + 4 * i));
    case GgufType::kF64:
      return visit(load<double>(at + 8 * i));
    default:
      return visit(load<int64_t>(at + 8 * i));
  }
}

// Values beyond int64 become the maximum, which is outside every allowed range.
int64_t integer_at(const GgufValue& value, uint64_t i) {
  if (value.element == GgufType::kU64) {
    return static_cast<int64_t>(
        std::min<uint64_t>(load<uint64_t>(value.data.data() + i * sizeof(uint64_t)), INT64_MAX));
  }
  return with_number(value, i, [](auto v) { return static_cast<int64_t>(v); });
}

std::string_view text_at(const std::byte*& at) {
  const auto length = load<uint64_t>(at);
  const std::string_view text(reinterpret_cast<const char*>(at + sizeof(length)), length);
  at += sizeof(length) + length;
  return text;
}

// Keys that llama-gguf-split writes: zero-based number of the file, number of files, number of
// tensors in all files.
constexpr char kSplitNumber[] = "split.no";
constexpr char kSplitCount[] = "split.count";
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr int64_t kMaxSplit = 10000;

// The ending of file `i` (zero-based) of `count`.
std::string split_ending(int64_t i, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", i + 1, count);
}

// Opens files 1 ... count - 1 of the split whose file 0 is in `model`, and adds their tensors.
absl::Status add_split_files(const std::string& path, int64_t count, FileAccess access,
                             GgufFile* model) {
  const std::string ending = split_ending(0, count);
  if (!absl::EndsWith(path, ending)) {
    return out_of_range("name of a split model", quote_value(path),
                        absl::StrCat("names that end with ", ending));
  }
  const std::string stem = path.substr(0, path.size() - ending.size());
  std::map<std::string, GgufTensor, std::less<>>& all = model->content.tensors;
  for (int64_t i = 1; i < count; ++i) {
    const std::string part = stem + split_ending(i, count);
    auto file = MappedFile::open(part, access);
    if (!file.ok()) {
      return annotate(file.status(), absl::StrCat(path, ": file ", i + 1, " of ", count));
    }
    TANDEM_ASSIGN_OR_RETURN(Gguf content, parse_gguf(file->bytes(), part));
    GgufFields fields(content, part);
    if (const int64_t n = fields.integer(kSplitNumber, -1, 0, kMaxSplit); n != i) {
      fields.refuse(kSplitNumber, absl::StrCat(n), absl::StrCat(i));
    }
    if (const int64_t n = fields.integer(kSplitCount, 1, 0, kMaxSplit); n != count) {
      fields.refuse(kSplitCount, absl::StrCat(n), absl::StrCat(count, ", as in ", path));
    }
    TANDEM_RETURN_IF_ERROR(fields.status());
    for (auto& [name, tensor] : content.tensors) {
      if (!all.emplace(name, std::move(tensor)).second) {
        return absl::InvalidArgumentError(absl::StrCat(part, ": tensor ", quote_value(name),
                                                       " is also in another file of the split"));
      }
    }
    model->files.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

// A file that says it is one of several: adds the others.
absl::Status join_split(const std::string& path, FileAccess access, GgufFile* model) {
  GgufFields fields(model->content, path);
  const int64_t count = fields.integer(kSplitCount, 1, 0, kMaxSplit);
  const int64_t number = fields.integer(kSplitNumber, 0, 0, kMaxSplit);
  const int64_t tensors = fields.integer(kSplitTensors, -1, -1, INT32_MAX);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (count <= 1) return absl::OkStatus();
  if (number != 0) {
    return out_of_range(absl::StrCat(path, ": ", kSplitNumber), number,
                        "0: name the first file of the split model, which has its metadata");
  }
  TANDEM_RETURN_IF_ERROR(add_split_files(path, count, access, model));
  if (const auto found = static_cast<int64_t>(model->content.tensors.size());
      tensors >= 0 && tensors != found) {
    return out_of_range(absl::StrCat(path, ": ", kSplitTensors), tensors,
                        absl::StrCat(found, ", the number of tensors in all files"));
  }
  for (const char* key : {kSplitNumber, kSplitCount, kSplitTensors}) {
    model->content.metadata.erase(key);
  }
  return absl::OkStatus();
}

}  // namespace

bool is_gguf(absl::string_view path) { return absl::EndsWith(path, ".gguf"); }

absl::StatusOr<GgufFile> GgufFile::open(const std::string& path, FileAccess access) {
  GgufFile gguf;
  TANDEM_ASSIGN_OR_RETURN(MappedFile first, MappedFile::open(path, access));
  TANDEM_ASSIGN_OR_RETURN(gguf.content, parse_gguf(first.bytes(), path));
  gguf.files.push_back(std::move(first));
  TANDEM_RETURN_IF_ERROR(join_split(path, access, &gguf));
  return gguf;
}

void GgufFields::refuse(const std::string& key, absl::string_view value,
                        absl::string_view allowed) {
  if (!status_.ok()) return;
  status_ = out_of_range(absl::StrCat(name_, ": ", key), value, allowed);
}

const GgufValue* GgufFields::find(const std::string& key, bool array, bool (*fits)(GgufType),
                                  absl::string_view allowed) {
  const auto it = gguf_.metadata.find(key);
  if (it == gguf_.metadata.end()) return nullptr;
  const GgufValue& value = it->second;
  if ((value.type == GgufType::kArray) == array && fits(value.element)) return &value;
  const char* const what = value.type == GgufType::kArray ? "an array of " : "a value of type ";
  refuse(key, absl::StrCat(what, gguf_type_name(value.element)),
         absl::StrCat(array ? "an array of " : "", allowed));
  return nullptr;
}

int64_t GgufFields::integer(const std::string& key, std::optional<int64_t> fallback, int64_t min,
                            int64_t max) {
  const std::string allowed = absl::StrCat("integers from ", min, " to ", max);
  const GgufValue* value = find(key, false, is_integer, allowed);
  if (value == nullptr) {
    if (!fallback) refuse(key, "missing", allowed);
    return fallback.value_or(min);
  }
  const int64_t found = integer_at(*value, 0);
  if (found >= min && found <= max) return found;
  refuse(key, absl::StrCat(found), allowed);
  return fallback.value_or(min);
}

double GgufFields::number(const std::string& key, std::optional<double> fallback, double min,
                          double max) {
  const std::string allowed = absl::StrCat("numbers from ", min, " to ", max);
  const GgufValue* value = find(key, false, is_number, allowed);
  if (value == nullptr) {
    if (!fallback) refuse(key, "missing", allowed);
    return fallback.value_or(min);
  }
  const double found = with_number(*value, 0, [](auto v) { return static_cast<double>(v); });
  if (found >= min && found <= max) return found;
  refuse(key, absl::StrCat(found), allowed);
  return fallback.value_or(min);
}

bool GgufFields::boolean(const std::string& key, bool fallback) {
  const GgufValue* value = find(key, false, is_bool, "true, false");
  return value == nullptr ? fallback : value->data[0] != std::byte{0};
}

std::string GgufFields::text(const std::string& key, const std::optional<std::string>& fallback) {
  const GgufValue* value = find(key, false, is_text, "strings");
  if (value == nullptr) {
    if (!fallback) refuse(key, "missing", "strings");
    return fallback.value_or("");
  }
  const std::byte* at = value->data.data();
  const std::string_view found = text_at(at);
  if (!is_utf8(found)) refuse(key, quote_bytes(found), "UTF-8");
  return std::string(found);
}

std::vector<std::string_view> GgufFields::texts(const std::string& key) {
  std::vector<std::string_view> all;
  const GgufValue* value = find(key, true, is_text, "strings");
  if (value == nullptr) return all;
  all.reserve(value->count);
  const std::byte* at = value->data.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    all.push_back(text_at(at));
    if (is_utf8(all.back())) continue;
    refuse(absl::StrCat(key, "[", i, "]"), quote_bytes(all.back()), "UTF-8");
    return {};
  }
  return all;
}

std::vector<int64_t> GgufFields::integers(const std::string& key) {
  std::vector<int64_t> all;
  const GgufValue* value = find(key, true, is_integer, "integers");
  if (value == nullptr) return all;
  all.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) all.push_back(integer_at(*value, i));
  return all;
}

std::vector<float> GgufFields::numbers(const std::string& key) {
  std::vector<float> all;
  const GgufValue* value = find(key, true, is_f32, "f32 numbers");
  if (value == nullptr) return all;
  all.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    all.push_back(load<float>(value->data.data() + i * sizeof(float)));
    if (std::isfinite(all.back())) continue;
    refuse(absl::StrCat(key, "[", i, "]"), absl::StrCat(all.back()), "finite numbers");
    return {};
  }
  return all;
}

}  // namespace tandem
