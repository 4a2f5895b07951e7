// The weights of a Hugging Face directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Or of a GGUF file, by the names that they would have there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/backend/torch/weights/safetensors.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Movable; empty at first. Views point into mapped files and stay valid as long as the checkpoint,
// moved or not. All const methods are thread-safe.
class Checkpoint final : public TensorSource {
 public:
  // NOT_FOUND: no directory, or no weights in it (the message lists what was looked for; a missing
  // shard is named with the tensor that needs it). INVALID_ARGUMENT: a broken file or index.
  static absl::StatusOr<Checkpoint> open(const std::string& directory);
  // Of this file in it alone.
  static absl::StatusOr<Checkpoint> open_file(const std::string& directory,
                                              const std::string& file_name);

  const TensorView* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  const std::string& where() const override { return where_; }
  int64_t total_bytes() const { return total_bytes_; }  // of all tensors
  int64_t total_elements() const { return total_elements_; }

  // The tensor `name`, which is of a floating type and has this shape. INVALID_ARGUMENT otherwise,
  // naming the tensor, what it is and what it should be.
  absl::StatusOr<const TensorView*> require(const std::string& name,
                                            const std::vector<int64_t>& shape) const;

  // The pages behind this tensor may be dropped from memory; reading it again reads the file.
  void done(const TensorView& tensor) const override;

 private:
  absl::Status add_file(const std::string& file_name);
  absl::Status add_gguf(const std::string& path);
  absl::Status add(const std::string& path, const std::string& file_name, MappedFile file,
                   std::map<std::string, TensorView> tensors);

  std::string directory_;
  std::string where_;  // the directory or file, for messages
  std::vector<MappedFile> files_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> origin_;  // tensor -> file name
  int64_t total_bytes_ = 0;
  int64_t total_elements_ = 0;
};

}  // namespace tandem
