// Checkpoints with 4-bit integer matrices and a scale per group of inputs, as written by GPTQ and
// compressed-tensors (llm-compressor): value = scale (q - 8). They are converted, without loss, to
// blocks of Q4_0 (gguf/blocks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Reads quantization_config of config.json. file: for messages. Nullopt if it is absent or
// rejected; the error is then in `fields`.
std::optional<PackedInts> read_packed_ints(JsonFields& fields, absl::string_view file);

// Presents NAME.weight [out, in] in blocks of Q4_0 in place of
//
//   GPTQ                NAME.qweight I32 [in / 8, out], .scales [groups, out], .qzeros I32
//                       [groups, out / 8], .g_idx I32 [in]: ascending, or absent
//   compressed-tensors  NAME.weight_packed I32 [out, in / 8], .weight_scale [out, groups],
//                       .weight_shape I64 [2]
//
// and passes other tensors through. The blocks are copies, of about the size of the file.
class PackedIntSource final : public TensorSource {
 public:
  // INVALID_ARGUMENT, with the tensor: missing or misshapen parts; inputs or a group not a multiple
  // of 32; reordered inputs; zero points other than `zero`; a scale that is not exact in fp16.
  // REQUIRES: `base` outlives the source.
  static absl::StatusOr<PackedIntSource> make(const TensorSource& base, const PackedInts& ints);

  const TensorView* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  const std::string& where() const override { return base_->where(); }
  void done(const TensorView& tensor) const override { base_->done(tensor); }

 private:
  explicit PackedIntSource(const TensorSource& base) : base_(&base) {}
  absl::Status add(const std::string& stem, const PackedInts& ints);

  const TensorSource* base_;
  std::map<std::string, TensorView> blocks_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;  // holds blocks_
  std::set<std::string> parts_;                       // tensors of base_ that blocks_ replace
};

}  // namespace tandem
