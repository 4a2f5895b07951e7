#include "engine/backend/torch/weights/gguf/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using test::GgufBuilder;
using test::TempDir;
using test::tiny_gguf;
using testing::HasSubstr;

// tiny_gguf() in three files, as llama-gguf-split --no-tensor-first-split writes them: the first
// has the metadata, the others only the keys of the split.
std::vector<GgufBuilder> split_model() {
  const GgufBuilder whole = tiny_gguf();
  std::vector<GgufBuilder> parts(3);
  parts[0].metadata = whole.metadata;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    GgufBuilder::Tensor tensor = whole.tensors[i];
    tensor.data.assign(tensor.data.size(), static_cast<char>(i + 1));
    parts[1 + i % 2].tensors.push_back(std::move(tensor));
  }
  for (uint32_t i = 0; i < parts.size(); ++i) {
    parts[i].set("split.no", i).set("split.count", 3u);
    parts[i].set("split.tensors.count", static_cast<int32_t>(whole.tensors.size()));
  }
  return parts;
}

// Path of the first file.
std::string write_parts(const TempDir& dir, const std::vector<GgufBuilder>& parts) {
  for (size_t i = parts.size(); i-- > 0;) {
    dir.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", parts[i].file());
  }
  return dir.path() + "/m-00001-of-00003.gguf";
}

std::string open_error(const std::vector<GgufBuilder>& parts) {
  const TempDir dir;
  return std::string(GgufFile::open(write_parts(dir, parts)).status().message());
}

TEST(GgufFile, JoinsTheFilesOfASplitModel) {
  const TempDir dir;
  const std::string path = write_parts(dir, split_model());
  const auto config = load_hf_config(path);
  ASSERT_TRUE(config.ok()) << config.status();
  auto opened = Checkpoint::open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint checkpoint(std::move(*opened));
  const std::vector<GgufBuilder::Tensor> whole = tiny_gguf().tensors;
  EXPECT_EQ(checkpoint.names().size(), whole.size());
  const TensorView* embedding = checkpoint.find("model.embed_tokens.weight");  // tensor 0, file 2
  const TensorView* norm = checkpoint.find("model.norm.weight");               // tensor 1, file 3
  ASSERT_TRUE(embedding != nullptr && norm != nullptr);
  EXPECT_EQ(static_cast<int>(embedding->data[0]), 1);
  EXPECT_EQ(static_cast<int>(norm->data[0]), 2);
  checkpoint.done(*norm);
  EXPECT_EQ(static_cast<int>(norm->data[0]), 2);
}

TEST(GgufFile, RefusesIncompleteSplits) {
  const TempDir dir;
  const std::string path = write_parts(dir, split_model());
  EXPECT_THAT(GgufFile::open(dir.path() + "/m-00002-of-00003.gguf").status().message(),
              HasSubstr("split.no: 1; allowed: 0: name the first file"));
  std::filesystem::remove(dir.path() + "/m-00003-of-00003.gguf");
  const absl::Status missing = GgufFile::open(path).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(missing.message(), HasSubstr("file 3 of 3"));
  const std::string renamed = dir.write("m.gguf", split_model()[0].file());
  EXPECT_THAT(GgufFile::open(renamed).status().message(),
              HasSubstr("allowed: names that end with -00001-of-00003.gguf"));
}

TEST(GgufFile, RefusesFilesOfDistinctSplits) {
  auto parts = split_model();
  parts[2].set("split.no", 1u);
  EXPECT_THAT(open_error(parts), HasSubstr("m-00003-of-00003.gguf: split.no: 1; allowed: 2"));
  parts = split_model();
  parts[1].set("split.count", 2u);
  EXPECT_THAT(open_error(parts), HasSubstr("split.count: 2; allowed: 3, as in "));
  parts = split_model();
  parts[2].tensors.push_back(parts[1].tensors[0]);
  EXPECT_THAT(open_error(parts), HasSubstr("is also in another file of the split"));
  parts = split_model();
  parts[2].tensors.pop_back();
  EXPECT_THAT(open_error(parts), HasSubstr("split.tensors.count: 11; allowed: 10"));
  parts = split_model();
  parts[0].set("split.count", 20000u);
  EXPECT_THAT(open_error(parts),
              HasSubstr("split.count: 20000; allowed: integers from 0 to 10000"));
}

}  // namespace
}  // namespace tandem
