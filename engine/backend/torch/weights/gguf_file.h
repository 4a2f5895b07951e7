// A GGUF file, mapped and parsed, and its metadata with types checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf.h"
#include "engine/backend/torch/weights/mapped_file.h"

namespace tandem {

// Whether `path` names a GGUF file rather than a Hugging Face directory.
bool is_gguf(absl::string_view path);

struct GgufFile {
  MappedFile file;
  Gguf content;  // views into the file

  // NOT_FOUND: no such file; INVALID_ARGUMENT: a broken one.
  static absl::StatusOr<GgufFile> open(const std::string& path);
};

// The metadata of one file, with the error of the first key that is wrong: read all, then ask
// status(). After an error, and for an absent key, readers return their fallback; an absent key
// without a fallback is an error.
class GgufFields {
 public:
  // `name` stands for the file in messages. `gguf` must outlive this.
  GgufFields(const Gguf& gguf, absl::string_view name) : gguf_(gguf), name_(name) {}

  const absl::Status& status() const { return status_; }
  const std::string& name() const { return name_; }
  bool present(std::string_view key) const { return gguf_.metadata.contains(key); }

  // Of any integer type.
  int64_t integer(const std::string& key, std::optional<int64_t> fallback, int64_t min,
                  int64_t max);
  // Of any floating or integer type, finite.
  double number(const std::string& key, std::optional<double> fallback, double min, double max);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::optional<std::string>& fallback);  // UTF-8

  // Arrays; empty where the key is absent. Strings are views into the file, and UTF-8.
  std::vector<std::string_view> texts(const std::string& key);
  std::vector<int64_t> integers(const std::string& key);
  std::vector<float> numbers(const std::string& key);  // of f32, finite

  // Records the error "name: key: value; allowed: ..." unless there is one already.
  void refuse(const std::string& key, absl::string_view value, absl::string_view allowed);

 private:
  // The value, if it is there and `fits`; refuses it otherwise.
  const GgufValue* find(const std::string& key, bool array, bool (*fits)(GgufType),
                        absl::string_view allowed);

  const Gguf& gguf_;
  const std::string name_;
  absl::Status status_;
};

}  // namespace tandem
