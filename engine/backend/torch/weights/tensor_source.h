// Where a model's tensors come from: a checkpoint, another format's file, arrays that a test made.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/safetensors.h"

namespace tandem {

// Thread-safe. Views stay valid as long as the source.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const TensorView* find(const std::string& name) const = 0;  // null: no such tensor
  virtual std::vector<std::string> names() const = 0;                 // sorted
  // What holds the tensors, for messages: a path.
  virtual const std::string& where() const = 0;
  // The tensor will not be read again soon.
  virtual void done(const TensorView& tensor) const { (void)tensor; }
};

// Tensors that somebody else owns.
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

// A tensor that a model needs.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// What is wrong with a tensor that should be floating and of this shape; empty: nothing.
std::string mismatch(const TensorView& tensor, const std::vector<int64_t>& shape);

// Every tensor of `specs` is there in the right shape and a floating type, and no others but those
// for which `may_ignore(name)`. INVALID_ARGUMENT, listing the first few that are missing, misshapen
// or unexpected.
absl::Status check_tensors(const TensorSource& source, const std::vector<TensorSpec>& specs,
                           const std::function<bool(const std::string&)>& may_ignore);

}  // namespace tandem
