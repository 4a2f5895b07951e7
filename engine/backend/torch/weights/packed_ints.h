// Checkpoints whose matrices are integers of 4 bits with a scale for a group of inputs, as GPTQ and
// compressed-tensors (llm-compressor) write them: value = scale (q - 8). They are seen as blocks of
// Q4_0 that have just these values (gguf_blocks.h), so whatever reads those reads them.
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

// The field quantization_config of config.json, `file` in messages. None: absent, or refused, with
// what is read.
std::optional<PackedInts> read_packed_ints(JsonFields& fields, absl::string_view file);

// A checkpoint with NAME.weight [out, in] in blocks of Q4_0 instead of
//
//   GPTQ                NAME.qweight I32 [in / 8, out], .scales [groups, out], .qzeros I32
//                       [groups, out / 8], .g_idx I32 [in]: rising, or absent
//   compressed-tensors  NAME.weight_packed I32 [out, in / 8], .weight_scale [out, groups],
//                       .weight_shape I64 [2]
//
// and its other tensors as they are. The blocks are memory of its own, as much as the file's.
class PackedIntSource final : public TensorSource {
 public:
  // INVALID_ARGUMENT, naming the tensor: missing or misshapen parts; inputs or a group that are no
  // multiple of 32; inputs in another order; zero points that differ from `zero`; a scale that fp16
  // does not hold. `base` outlives it.
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
  std::vector<std::unique_ptr<std::byte[]>> memory_;  // of blocks_
  std::set<std::string> parts_;                       // tensors of base_ that blocks_ stand for
};

}  // namespace tandem
