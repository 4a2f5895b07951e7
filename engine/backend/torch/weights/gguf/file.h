// A mapped and parsed GGUF file or set of split files, and typed access to the metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf/gguf.h"
#include "engine/backend/torch/weights/mapped_file.h"

namespace tandem {

// Whether `path` names a GGUF file rather than a Hugging Face directory.
bool is_gguf(absl::string_view path);

struct GgufFile {
  std::vector<MappedFile> files;  // one, or all files of a split model in order
  Gguf content;                   // views into the files; without the keys of the split

  // path: a file, or the first file of a split model ("NAME-00001-of-00003.gguf"), which has the
  // metadata; the others lie beside it. NOT_FOUND: no such file, or one of the split is missing.
  // INVALID_ARGUMENT: malformed, not the first file, or files of distinct splits.
  static absl::StatusOr<GgufFile> open(const std::string& path,
                                       FileAccess access = FileAccess::kMapped);
};

// Typed metadata access that records the first error: read all fields, then check status(). After
// an error, and for absent keys, readers return the fallback. An absent key without a fallback is
// an error.
class GgufFields {
 public:
  // name: the file, for messages. REQUIRES: `gguf` outlives this.
  GgufFields(const Gguf& gguf, absl::string_view name) : gguf_(gguf), name_(name) {}

  const absl::Status& status() const { return status_; }
  const std::string& name() const { return name_; }
  bool present(std::string_view key) const { return gguf_.metadata.contains(key); }

  // Accepts any integer type.
  int64_t integer(const std::string& key, std::optional<int64_t> fallback, int64_t min,
                  int64_t max);
  // Accepts any integer or floating type; finite.
  double number(const std::string& key, std::optional<double> fallback, double min, double max);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::optional<std::string>& fallback);  // UTF-8

  // Arrays; empty if absent. Strings are UTF-8 views into the file.
  std::vector<std::string_view> texts(const std::string& key);
  std::vector<int64_t> integers(const std::string& key);
  std::vector<float> numbers(const std::string& key);  // of f32, finite

  // Records "name: key: value; allowed: ..." unless there is an earlier error.
  void refuse(const std::string& key, absl::string_view value, absl::string_view allowed);

 private:
  // The value if present and `fits`; records an error if it does not fit.
  const GgufValue* find(const std::string& key, bool array, bool (*fits)(GgufType),
                        absl::string_view allowed);

  const Gguf& gguf_;
  const std::string name_;
  absl::Status status_;
};

}  // namespace tandem
