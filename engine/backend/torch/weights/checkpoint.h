// The weights of a model: model.safetensors or the shards of model.safetensors.index.json in a
// Hugging Face directory, or a GGUF file, under the names of a Hugging Face checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Movable; default-constructed empty. Views point into mapped files and stay valid for the lifetime
// of the checkpoint, also after a move. Const methods are thread-safe.
class Checkpoint final : public TensorSource {
 public:
  // NOT_FOUND: no such directory, or no weights in it (the message lists the accepted file names;
  // for a missing shard, it names a tensor that needs it). INVALID_ARGUMENT: a malformed file or
  // index.
  static absl::StatusOr<Checkpoint> open(const std::string& directory);
  // Opens only `file` of the directory.
  static absl::StatusOr<Checkpoint> open_file(const std::string& directory,
                                              const std::string& file_name,
                                              FileAccess access = FileAccess::kMapped);
  // Tensors in `files`, one or more, that are open. path: of the first
  static absl::StatusOr<Checkpoint> of_files(const std::string& path, std::vector<MappedFile> files,
                                             std::map<std::string, TensorView> tensors);

  const TensorView* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  const std::string& where() const override { return where_; }
  int64_t total_bytes() const { return total_bytes_; }  // over all tensors
  int64_t total_elements() const { return total_elements_; }

  // Returns the tensor `name`. INVALID_ARGUMENT: it is missing, not floating, or of another shape;
  // the message has the actual and the expected values.
  absl::StatusOr<const TensorView*> require(const std::string& name,
                                            const std::vector<int64_t>& shape) const;

  // Allows the kernel to drop the tensor's pages. Reading it again reads the file.
  void done(const TensorView& tensor) const override;

 private:
  absl::Status add_file(const std::string& file_name, FileAccess access = FileAccess::kMapped);
  absl::Status add_gguf(const std::string& path);
  absl::Status add_files(const std::string& path, std::vector<MappedFile> files,
                         std::map<std::string, TensorView> tensors);
  absl::Status add(const std::string& path, const std::string& file_name, MappedFile file,
                   std::map<std::string, TensorView> tensors);

  std::string directory_;
  std::string where_;  // directory or file, for messages
  std::vector<MappedFile> files_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> origin_;  // tensor -> file name
  int64_t total_bytes_ = 0;
  int64_t total_elements_ = 0;
};

}  // namespace tandem
