#include "engine/backend/torch/weights/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using nlohmann::json;
using test::FileTensor;
using test::safetensors_of;
using test::TempDir;
using testing::HasSubstr;

DecoderConfig base() {
  DecoderConfig c;
  c.vocab_size = 7;
  c.hidden_size = 4;
  c.intermediate_size = 6;
  c.layers = 3;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 4;
  return c;
}

json description(const std::string& kind) {
  json all = {{"format", "tandem-adapter-1"},
              {"kind", kind},
              {"base",
               {{"vocab_size", 7},
                {"hidden_size", 4},
                {"layers", 3},
                {"heads", 2},
                {"kv_heads", 1},
                {"head_dim", 4},
                {"fingerprint", "0123456789abcdef"}}}};
  if (kind == "head") all["layer"] = 2;
  if (kind == "projector") {
    all["layer"] = 5;
    all["source"] = {{"hidden_size", 9}, {"layers", 6}, {"fingerprint", "00112233445566ff"}};
    all["fusion"] = "replace";
    all["tokens"] = "source";
  }
  return all;
}

std::vector<FileTensor> tensors(const std::string& kind) {
  if (kind == "head") return {{"down.weight", "F32", {3, 4}}, {"up.weight", "F32", {4, 3}}};
  if (kind == "masks") {
    return {{"masks", "F32", {2, 4}},
            {"prompt.keys", "F16", {3, 5, 1, 4}},
            {"prompt.values", "F16", {3, 5, 1, 4}}};
  }
  return {{"0.bias", "F32", {6}},
          {"0.weight", "F32", {6, 9}},
          {"2.bias", "F32", {4}},
          {"2.weight", "F32", {4, 6}}};
}

absl::StatusOr<AdapterFile> open(const json& about, const std::string& weights) {
  const TempDir dir;
  dir.write("adapter.json", about.dump());
  if (!weights.empty()) dir.write("adapter.safetensors", weights);
  return AdapterFile::open(dir.path(), base(), "0123456789abcdef");
}

std::string error(const json& about, const std::string& weights) {
  const auto file = open(about, weights);
  EXPECT_FALSE(file.ok());
  return std::string(file.status().message());
}

TEST(AdapterFile, EveryKind) {
  for (const std::string kind : {"head", "masks", "projector"}) {
    const auto file = open(description(kind), safetensors_of(tensors(kind)));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(adapter_kind_name(file->kind), kind);
    EXPECT_EQ(file->layer, kind == "head" ? 2 : kind == "projector" ? 5 : 0);
    EXPECT_EQ(file->source_fingerprint, kind == "projector" ? "00112233445566ff" : "");
    EXPECT_EQ(file->replace, kind == "projector");
    EXPECT_EQ(file->foreign, kind == "projector");
    EXPECT_EQ(file->tensors.names().size(), tensors(kind).size());
  }
  EXPECT_TRUE(open(description("masks"), safetensors_of({{"masks", "BF16", {1, 4}}})).ok());
}

TEST(AdapterFile, TheDescriptionIsChecked) {
  const std::string weights = safetensors_of(tensors("head"));
  const auto with = [&](const char* field, const json& value) {
    json about = description("head");
    about[field] = value;
    return error(about, weights);
  };
  EXPECT_THAT(
      with("format", "tandem-adapter-2"),
      HasSubstr("adapter.json: format: \"tandem-adapter-2\"; allowed: \"tandem-adapter-1\""));
  EXPECT_THAT(with("kind", "lora"), HasSubstr("kind: \"lora\"; allowed: head, masks, projector"));
  EXPECT_THAT(with("layer", 4), HasSubstr("layer: 4; allowed: integers from 1 to 3"));
  EXPECT_THAT(with("layer", nullptr), HasSubstr("layer: missing"));
  EXPECT_THAT(with("rank", 3), HasSubstr("rank: 3; allowed: nothing"));
  EXPECT_THAT(with("base", nullptr), HasSubstr("base: missing"));
  EXPECT_THAT(with("additions", true), HasSubstr("additions: true; allowed: nothing"));
  json added = description("masks");
  added["additions"] = 1;
  EXPECT_THAT(error(added, safetensors_of(tensors("masks"))), HasSubstr("additions: 1; allowed:"));
  added["additions"] = true;
  const auto alone = open(added, safetensors_of(tensors("masks")));
  EXPECT_TRUE(absl::IsNotFound(alone.status()));
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("adapter_config.json"));
  json layered = description("masks");
  layered["layer"] = 1;
  EXPECT_THAT(error(layered, safetensors_of(tensors("masks"))), HasSubstr("layer: 1; allowed: no"));
}

TEST(AdapterFile, ProjectorFieldsAreChecked) {
  const std::string weights = safetensors_of(tensors("projector"));
  const auto with = [&](const char* field, const json& value) {
    json about = description("projector");
    about[field] = value;
    return error(about, weights);
  };
  EXPECT_THAT(with("layer", 7), HasSubstr("layer: 7; allowed: integers from 1 to 6"));
  EXPECT_THAT(with("fusion", "mean"), HasSubstr("fusion: \"mean\"; allowed: add, replace"));
  EXPECT_THAT(with("tokens", "none"), HasSubstr("tokens: \"none\"; allowed: shared, source"));
  EXPECT_THAT(with("fusion", "add"),
              HasSubstr("tokens: \"source\"; allowed: shared, aligned with fusion add"));
  EXPECT_THAT(with("source", 3), HasSubstr("source: 3; allowed: an object"));
  json about = description("projector");
  about["source"]["hidden_size"] = 8;
  EXPECT_THAT(error(about, weights), HasSubstr("\"0.weight\" (shape [6, 9], expected [6, 8])"));
}

TEST(AdapterFile, AdaptersOfOtherModelsAreRejected) {
  const std::string weights = safetensors_of(tensors("head"));
  for (const char* field :
       {"vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim"}) {
    json about = description("head");
    about["base"][field] = 5;
    EXPECT_THAT(error(about, weights), HasSubstr(std::string("base.") + field + ": 5; allowed: "));
  }
  json about = description("head");
  about["base"]["fingerprint"] = "fedcba9876543210";
  EXPECT_THAT(error(about, weights),
              HasSubstr("base.fingerprint: \"fedcba9876543210\"; allowed: \"0123456789abcdef\""));
}

TEST(AdapterFile, TensorsAreChecked) {
  const auto wrong = [](const std::string& kind, size_t i, std::vector<int64_t> shape) {
    std::vector<FileTensor> some = tensors(kind);
    some[i].shape = std::move(shape);
    return error(description(kind), safetensors_of(some));
  };
  EXPECT_THAT(wrong("head", 0, {3, 5}),
              HasSubstr("\"down.weight\" (shape [3, 5], expected [3, 4])"));
  EXPECT_THAT(wrong("head", 1, {4, 2}), HasSubstr("\"up.weight\" (shape [4, 2], expected [4, 3])"));
  EXPECT_THAT(wrong("masks", 1, {3, 6, 1, 4}), HasSubstr("\"prompt.values\" (shape [3, 5, 1, 4]"));
  EXPECT_THAT(wrong("masks", 0, {0, 4}), HasSubstr("\"masks\" (shape [0, 4], expected [1, 4])"));
  EXPECT_THAT(wrong("projector", 0, {7}), HasSubstr("\"0.bias\" (shape [7], expected [6])"));

  for (const std::string kind : {"head", "masks", "projector"}) {
    std::vector<FileTensor> some = tensors(kind);
    some.pop_back();
    EXPECT_THAT(error(description(kind), safetensors_of(some)),
                HasSubstr("adapter.safetensors: missing tensors: \"" + tensors(kind).back().name));
  }
  std::vector<FileTensor> more = tensors("head");
  more.push_back({"masks", "F32", {2, 4}});
  EXPECT_THAT(error(description("head"), safetensors_of(more)),
              HasSubstr("unexpected tensors: \"masks\" [2, 4]"));
  std::vector<FileTensor> integers = tensors("head");
  integers[0].dtype = "I64";
  EXPECT_THAT(error(description("head"), safetensors_of(integers)), HasSubstr("dtype I64"));
}

TEST(AdapterFile, NonFiniteNumbers) {
  // All bytes are 0xff: NaN in fp32.
  EXPECT_THAT(error(description("head"), safetensors_of(tensors("head"), '\xff')),
              HasSubstr("adapter.safetensors: tensor \"down.weight\"[0]: nan; allowed: finite"));
  std::string one = safetensors_of(tensors("head"));
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(one.data() + one.size() - sizeof(float), &infinite, sizeof(float));
  EXPECT_THAT(error(description("head"), one),
              HasSubstr("tensor \"up.weight\"[11]: inf; allowed: finite numbers"));
}

TEST(AdapterFile, MissingAndTruncatedFiles) {
  const TempDir empty;
  const auto none = AdapterFile::open(empty.path(), base(), "");
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("/adapter.json"));
  const auto alone = open(description("head"), "");
  EXPECT_TRUE(absl::IsNotFound(alone.status())) << alone.status();
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("/adapter.safetensors"));
  const std::string whole = safetensors_of(tensors("head"));
  for (const size_t bytes : {size_t{4}, size_t{20}, whole.size() - 1}) {
    EXPECT_THAT(error(description("head"), whole.substr(0, bytes)),
                HasSubstr("/adapter.safetensors: "));
  }
}

TEST(AdapterFile, FingerprintsIdentifyModels) {
  std::map<std::string, std::vector<float>> values;
  const auto sample = [&](bool half = false) {
    std::map<std::string, std::vector<uint16_t>> bits;
    std::map<std::string, TensorView> views;
    for (const TensorSpec& spec : decoder_tensors(base(), false)) {
      int64_t n = 1;
      for (const int64_t d : spec.shape) n *= d;
      std::vector<float>& v = values[spec.name];
      for (auto i = static_cast<int64_t>(v.size()); i < n; ++i) {
        v.push_back(static_cast<float>(i) + 1.25f);
      }
      TensorView& view = views[spec.name];
      view = {SafeDType::kF32, spec.shape, reinterpret_cast<const std::byte*>(v.data()),
              v.size() * sizeof(float)};
      if (!half) continue;
      std::vector<uint16_t>& b = bits[spec.name];
      b.resize(v.size());
      EXPECT_TRUE(to_bfloat(view, 0, b).ok());
      view = {SafeDType::kBF16, spec.shape, reinterpret_cast<const std::byte*>(b.data()),
              b.size() * sizeof(uint16_t)};
    }
    const auto got = fingerprint_of(base(), false, TensorMap(views));
    EXPECT_TRUE(got.ok()) << got.status();
    return got.value_or("");
  };
  const std::string first = sample();
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(sample(), first);
  EXPECT_EQ(sample(/*half=*/true), first);
  values.at("model.layers.2.mlp.down_proj.weight").back() += 1;
  EXPECT_NE(sample(), first);
}

}  // namespace
}  // namespace tandem
