#include "engine/backend/torch/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using test::safetensors_of;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string message(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}
std::string open_error(const TempDir& dir) {
  return message(Checkpoint::open(dir.path()).status());
}
bool nothing(const std::string&) { return false; }

TEST(Checkpoint, OneFile) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors_of({{"a", "F32", {2, 3}}, {"b", "BF16", {5}}}, 7));
  auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint checkpoint(std::move(*opened));
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b"));
  EXPECT_EQ(checkpoint.total_bytes(), 34);
  EXPECT_EQ(checkpoint.total_elements(), 11);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  const TensorView* b = checkpoint.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(static_cast<int>(b->data[9]), 7);
  checkpoint.done(*b);
  EXPECT_EQ(static_cast<int>(b->data[9]), 7);
}

TEST(Checkpoint, Shards) {
  const TempDir dir;
  dir.write("x-1.safetensors", safetensors_of({{"a", "F32", {2}}}, 1));
  dir.write("x-2.safetensors", safetensors_of({{"b", "F32", {2}}, {"c", "F32", {1}}}, 2));
  dir.write(kIndex, R"({"metadata": {"total_size": 20}, "weight_map":
      {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-2.safetensors"}})");
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(static_cast<int>(*checkpoint->find("a")->data), 1);
  EXPECT_EQ(static_cast<int>(*checkpoint->find("c")->data), 2);
  EXPECT_EQ(checkpoint->total_bytes(), 20);
}

TEST(Checkpoint, NoWeights) {
  const TempDir dir;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::open(dir.path() + "/none").status()));
  EXPECT_THAT(message(Checkpoint::open(dir.path() + "/none").status()),
              HasSubstr("/none: no such directory"));
  EXPECT_THAT(message(Checkpoint::open(dir.write("file", "")).status()),
              HasSubstr("not a directory"));
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::open(dir.path()).status()));
  EXPECT_THAT(open_error(dir), AllOf(HasSubstr("neither model.safetensors nor model.safetensors.i"),
                                     Not(HasSubstr("pytorch_model.bin"))));
  dir.write("pytorch_model.bin", "");
  EXPECT_THAT(open_error(dir), HasSubstr("save the model as safetensors"));
}

TEST(Checkpoint, MalformedFilesAreNamed) {
  const TempDir dir;
  const std::string good = safetensors_of({{"a", "F32", {2}}});
  dir.write("model.safetensors", good.substr(0, good.size() - 1));
  EXPECT_THAT(open_error(dir), AllOf(HasSubstr(dir.path() + "/model.safetensors: tensor \"a\""),
                                     HasSubstr("truncated")));
  dir.write("model.safetensors", "");
  EXPECT_THAT(open_error(dir), HasSubstr("size in bytes: 0"));
}

TEST(Checkpoint, IndexErrors) {
  const TempDir dir;
  const auto with = [&](const std::string& index) {
    dir.write(kIndex, index);
    return open_error(dir);
  };
  EXPECT_THAT(with("{"), HasSubstr("model.safetensors.index.json: not JSON"));
  EXPECT_THAT(with("{}"), HasSubstr("weight_map: missing"));
  EXPECT_THAT(with(R"({"weight_map": {}})"), HasSubstr("weight_map: {}; allowed: an object"));
  EXPECT_THAT(with(R"({"weight_map": ["a"]})"), HasSubstr("weight_map: [\"a\"]"));
  EXPECT_THAT(with(R"({"weight_map": {"a": 1}})"), HasSubstr("weight_map: \"a\": 1; allowed"));
  EXPECT_THAT(with(R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})"),
              HasSubstr("\"a\": duplicate key"));
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "s/x.safetensors", "..", "",
                           "x.bin", ".safetensors", "s\\\\x.safetensors", "x\\u0000.safetensors"}) {
    const std::string text = with(std::string(R"({"weight_map": {"a": ")") + name + "\"}}");
    EXPECT_THAT(text, HasSubstr("allowed: names of *.safetensors files")) << name;
  }
  const std::string missing = with(R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_THAT(missing, HasSubstr("x.safetensors: no such file, but model.safetensors.index.json"));
  EXPECT_THAT(missing, HasSubstr("holds \"a\""));
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::open(dir.path()).status()));
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const TempDir dir;
  dir.write("x.safetensors", safetensors_of({{"a", "F32", {2}}, {"b", "F32", {2}}}));
  dir.write("y.safetensors", safetensors_of({{"c", "F32", {2}}}));
  dir.write(kIndex, R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors",
                                       "c": "y.safetensors"}})");
  EXPECT_THAT(open_error(dir), HasSubstr("weight_map: \"b\" is not in y.safetensors"));
  dir.write(kIndex, R"({"weight_map": {"a": "x.safetensors", "c": "y.safetensors"}})");
  EXPECT_THAT(open_error(dir),
              HasSubstr("x.safetensors: tensor \"b\" is not in model.safetensors."));
  dir.write("y.safetensors", safetensors_of({{"b", "F32", {2}}, {"c", "F32", {2}}}));
  dir.write(kIndex, R"({"weight_map": {"a": "x.safetensors", "b": "x.safetensors",
                                       "c": "y.safetensors"}})");
  EXPECT_THAT(open_error(dir), HasSubstr("y.safetensors: tensor \"b\" is also in x.safetensors"));
}

TEST(Checkpoint, Require) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors_of({{"a", "F32", {2, 3}}, {"i", "I64", {2}}}));
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto a = checkpoint->require("a", {2, 3});
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(*a, checkpoint->find("a"));
  EXPECT_THAT(message(checkpoint->require("b", {4}).status()),
              HasSubstr("tensor \"b\": missing, expected shape [4]"));
  EXPECT_THAT(message(checkpoint->require("a", {3, 2}).status()),
              HasSubstr("model.safetensors: tensor \"a\": shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(message(checkpoint->require("i", {2}).status()),
              HasSubstr("tensor \"i\": dtype I64, expected F64 F32 F16 BF16 F8_E4M3"));
}

TEST(Checkpoint, CheckListsAllProblems) {
  const TempDir dir;
  dir.write("model.safetensors",
            safetensors_of({{"a", "F32", {2, 3}}, {"b", "F32", {2}}, {"extra", "F32", {1}}}));
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto may_ignore = [](const std::string& name) { return name == "extra"; };
  EXPECT_TRUE(check_tensors(*checkpoint, {{"a", {2, 3}}, {"b", {2}}}, may_ignore).ok());
  EXPECT_EQ(message(check_tensors(*checkpoint, {{"a", {2, 3}}, {"b", {2}}}, nothing)),
            dir.path() + ": unexpected tensors: \"extra\" [1]");
  std::vector<TensorSpec> specs = {{"a", {6}}, {"b", {2}}};
  for (int i = 0; i < 7; ++i) specs.push_back({"m" + std::to_string(i), {8}});
  const std::string text = message(check_tensors(*checkpoint, specs, nothing));
  EXPECT_THAT(
      text, HasSubstr("missing tensors: \"m0\" [8], \"m1\" [8], \"m2\" [8], \"m3\" [8], \"m4\" [8] "
                      "and 2 more; tensors that do not fit: \"a\" (shape [2, 3], expected "
                      "[6]); unexpected tensors: \"extra\" [1]"));
}

}  // namespace
}  // namespace tandem
