// What Transformers computed with a golden model (tests/data/golden_models/README.md).
#pragma once

#include <string>
#include <vector>

#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/base/ids.h"

namespace tandem {

class Golden {
 public:
  explicit Golden(const std::string& name);

  const std::string& directory() const { return directory_; }
  int prompts() const { return static_cast<int>(lengths_.size()); }
  std::vector<Token> prompt(int i) const;
  std::vector<Token> greedy(int i) const;
  // Of projectors whose rows are aligned: what the large model reads in the prompt's place, and
  // which row of that each of the prompt's tokens is fed with.
  std::vector<Token> read(int i) const;
  std::vector<int> beside(int i) const;
  std::vector<Token> beam(int i) const;  // the best one's tokens
  bool has(const std::string& tensor) const { return file_.tensors.count(tensor) > 0; }
  // Rows of a float32 tensor [rows, vocab].
  std::vector<std::vector<float>> rows(const std::string& tensor) const;

 private:
  std::vector<int32_t> integers(const std::string& tensor) const;
  // The first `count` of row i of [prompts, longest].
  std::vector<int32_t> row(const std::string& tensor, int i, int32_t count) const;
  static std::vector<int32_t> integers(const Safetensors& file, const std::string& tensor);

  std::string directory_;
  MappedFile bytes_;
  Safetensors file_;
  std::vector<int32_t> lengths_;
};

// Log-softmax in double.
std::vector<double> log_softmax(const std::vector<float>& logits);

}  // namespace tandem
