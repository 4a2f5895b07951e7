#include "tests/engine/backend/torch/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/source_dir.h"

namespace tandem {

namespace {

// `bytes` must outlive what is read of them.
Safetensors open(const std::string& path, MappedFile* bytes) {
  auto mapped = MappedFile::open(path);
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  *bytes = *std::move(mapped);
  auto file = parse_safetensors(bytes->bytes(), path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

}  // namespace

Golden::Golden(const std::string& name)
    : directory_(source_dir() + "/tests/data/golden_models/" + name),
      file_(open(directory_ + "/golden.safetensors", &bytes_)),
      lengths_(integers("prompt_lengths")) {}

std::vector<int32_t> Golden::integers(const std::string& tensor) const {
  return integers(file_, tensor);
}

std::vector<int32_t> Golden::integers(const Safetensors& file, const std::string& tensor) {
  const TensorView& view = file.tensors.at(tensor);
  EXPECT_EQ(view.dtype, SafeDType::kI32);
  std::vector<int32_t> values(view.bytes / sizeof(int32_t));
  std::memcpy(values.data(), view.data, view.bytes);
  return values;
}

std::vector<int32_t> Golden::row(const std::string& tensor, int i, int32_t count) const {
  const std::vector<int32_t> all = integers(tensor);
  const auto width = static_cast<int64_t>(all.size() / lengths_.size());
  const auto begin = all.begin() + i * width;
  return {begin, begin + count};
}

std::vector<Token> Golden::prompt(int i) const {
  return row("prompts", i, lengths_[static_cast<size_t>(i)]);
}

std::vector<Token> Golden::read(int i) const {
  return row("read", i, integers("read_lengths")[static_cast<size_t>(i)]);
}

std::vector<int> Golden::beside(int i) const {
  return row("beside", i, lengths_[static_cast<size_t>(i)]);
}

std::vector<Token> Golden::greedy(int i) const {
  const std::vector<int32_t> all = integers("greedy");
  const auto width = static_cast<int64_t>(all.size() / lengths_.size());
  return {all.begin() + i * width, all.begin() + (i + 1) * width};
}

std::vector<Token> Golden::beam(int i) const {
  MappedFile bytes;  // decoders have them in a file of their own
  const std::vector<int32_t> all =
      has("beams") ? integers("beams")
                   : integers(open(directory_ + "/beams.safetensors", &bytes), "beams");
  const auto width = static_cast<int64_t>(all.size() / lengths_.size());
  const auto begin = all.begin() + i * width;
  return {begin, std::find(begin, begin + width, -1)};
}

std::vector<std::vector<float>> Golden::rows(const std::string& tensor) const {
  const TensorView& view = file_.tensors.at(tensor);
  EXPECT_EQ(view.dtype, SafeDType::kF32);
  const auto width = static_cast<size_t>(view.shape.back());
  std::vector<std::vector<float>> rows(view.bytes / sizeof(float) / width);
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].resize(width);
    std::memcpy(rows[r].data(), view.data + r * width * sizeof(float), width * sizeof(float));
  }
  return rows;
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - top);
  std::vector<double> out;
  for (const float l : logits) out.push_back(l - top - std::log(sum));
  return out;
}

}  // namespace tandem
