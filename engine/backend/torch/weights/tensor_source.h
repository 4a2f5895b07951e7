// Source of a model's tensors: a checkpoint, a GGUF file, or arrays in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"

namespace tandem {

// Thread-safe. Views stay valid for the lifetime of the source.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const TensorView* find(const std::string& name) const = 0;  // null: no such tensor
  virtual std::vector<std::string> names() const = 0;                 // sorted
  // Path of the source, for messages.
  virtual const std::string& where() const = 0;
  // Hint: the tensor will not be read again soon.
  virtual void done(const TensorView& tensor) const { (void)tensor; }
};

// Tensors owned elsewhere.
class TensorMap final : public TensorSource {
 public:
  explicit TensorMap(std::map<std::string, TensorView> tensors, std::string where = "memory")
      : tensors_(std::move(tensors)), where_(std::move(where)) {}

  const TensorView* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  const std::string& where() const override { return where_; }

 private:
  std::map<std::string, TensorView> tensors_;
  std::string where_;
};

// A required tensor.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// Describes why a tensor is not floating and of this shape; empty: it is.
std::string mismatch(const TensorView& tensor, const std::vector<int64_t>& shape);

// INVALID_ARGUMENT: an element is NaN or infinite; the message begins with `field` and has its
// number. REQUIRES: floating
absl::Status check_finite(const TensorView& tensor, const std::string& field);

// Checks that all `specs` are present with their shape and a floating type, and that there are no
// other tensors except those with may_ignore(name). INVALID_ARGUMENT lists the first few that are
// missing, misshapen or unexpected.
absl::Status check_tensors(const TensorSource& source, const std::vector<TensorSpec>& specs,
                           const std::function<bool(const std::string&)>& may_ignore);

}  // namespace tandem
