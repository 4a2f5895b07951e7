#include "engine/backend/torch/weights/safetensors/packed_ints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/hf/config.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Method = PackedInts::Method;

constexpr int64_t kIn = 128, kOut = 24, kGroup = 64;

// A matrix: codes of 0 to 15, and a scale per group of inputs.
int code(int64_t out, int64_t in) {
  return static_cast<int>((out * 7 + in * in * 5 + in / 9) % 16);
}
float scale(int64_t out, int64_t group) {
  return std::ldexp(static_cast<float>(out + 3 * group - 11), -9);
}
float value(int64_t out, int64_t in) {
  return scale(out, in / kGroup) * static_cast<float>(code(out, in) - 8);
}

// Tensors in memory, modified before they are opened.
struct Tensors {
  std::deque<std::vector<std::byte>> bytes;
  std::map<std::string, TensorView> views;

  template <class T>
  T* add(const std::string& name, SafeDType dtype, const std::vector<int64_t>& shape) {
    TensorView view{dtype, shape};
    view.bytes = sizeof(T);
    for (const int64_t size : shape) view.bytes *= static_cast<size_t>(size);
    bytes.emplace_back(view.bytes);
    view.data = bytes.back().data();
    views[name] = view;
    return reinterpret_cast<T*>(bytes.back().data());
  }
};

PackedInts ints_of(Method method) { return {.method = method, .group = kGroup, .zero = 7}; }

// The matrix "a" in the layout of `method`, and "b", which is not packed.
Tensors tensors_of(Method method) {
  const bool gptq = method == Method::kGptq;
  Tensors t;
  auto* words = gptq ? t.add<uint32_t>("a.qweight", SafeDType::kI32, {kIn / 8, kOut})
                     : t.add<uint32_t>("a.weight_packed", SafeDType::kI32, {kOut, kIn / 8});
  auto* scales = gptq ? t.add<float>("a.scales", SafeDType::kF32, {kIn / kGroup, kOut})
                      : t.add<float>("a.weight_scale", SafeDType::kF32, {kOut, kIn / kGroup});
  for (int64_t out = 0; out < kOut; ++out) {
    for (int64_t in = 0; in < kIn; ++in) {
      const int64_t at = gptq ? in / 8 * kOut + out : out * (kIn / 8) + in / 8;
      words[at] |= static_cast<uint32_t>(code(out, in)) << (in % 8 * 4);
      const int64_t g = in / kGroup;
      scales[gptq ? g * kOut + out : out * (kIn / kGroup) + g] = scale(out, g);
    }
  }
  if (gptq) {
    auto* zeros = t.add<uint32_t>("a.qzeros", SafeDType::kI32, {kIn / kGroup, kOut / 8});
    std::fill(zeros, zeros + kIn / kGroup * kOut / 8, 0x77777777U);
    auto* order = t.add<uint32_t>("a.g_idx", SafeDType::kI32, {kIn});
    for (uint32_t i = 0; i < kIn; ++i) order[i] = i / kGroup;
  } else {
    auto* shape = t.add<int64_t>("a.weight_shape", SafeDType::kI64, {2});
    shape[0] = kOut;
    shape[1] = kIn;
  }
  t.add<float>("b.weight", SafeDType::kF32, {3});
  return t;
}

class PackedInt : public testing::TestWithParam<Method> {
 protected:
  bool gptq() const { return GetParam() == Method::kGptq; }
  std::string codes() const { return gptq() ? "a.qweight" : "a.weight_packed"; }
  std::string scales() const { return gptq() ? "a.scales" : "a.weight_scale"; }

  std::string refusal(const std::function<void(Tensors&)>& change,
                      std::optional<PackedInts> ints = std::nullopt) const {
    Tensors t = tensors_of(GetParam());
    change(t);
    const TensorMap base(t.views, "folder");
    const auto source = PackedIntSource::make(base, ints.value_or(ints_of(GetParam())));
    EXPECT_EQ(source.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(source.status().message());
  }
};

TEST_P(PackedInt, ValuesAreScaleTimesCodeLessEight) {
  const Tensors t = tensors_of(GetParam());
  const TensorMap base(t.views);
  const auto source = PackedIntSource::make(base, ints_of(GetParam()));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(source->names(), ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(source->find(codes()), nullptr);
  EXPECT_EQ(source->find("b.weight")->data, t.views.at("b.weight").data);
  const TensorView* a = source->find("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_THAT(a->shape, ElementsAre(kOut, kIn));
  EXPECT_STREQ(a->block->name, "Q4_0");
  std::vector<float> values(static_cast<size_t>(kIn * kOut));
  ASSERT_TRUE(to_float(*a, 0, values).ok());
  for (int64_t out = 0; out < kOut; ++out) {
    for (int64_t in = 0; in < kIn; ++in) {
      ASSERT_EQ(values[static_cast<size_t>(out * kIn + in)], value(out, in)) << out << " " << in;
    }
  }
}

TEST_P(PackedInt, MalformedTensorsAreNamed) {
  EXPECT_THAT(refusal([&](Tensors& t) { t.views.erase(scales()); }),
              HasSubstr("folder: tensor " + scales() + ": missing"));
  EXPECT_THAT(refusal([&](Tensors& t) { t.views[scales()].shape = {2}; }),
              HasSubstr("tensor " + scales() + ": F32 [2]; allowed: F64, F32, F16 or BF16 ["));
  EXPECT_THAT(refusal([&](Tensors& t) { t.views[codes()].dtype = SafeDType::kF32; }),
              HasSubstr("tensor " + codes() + ": F32 ["));
  for (const float bad : {NAN, INFINITY, 1e30f, 1.0001f}) {
    EXPECT_THAT(refusal([&](Tensors& t) {
                  std::memcpy(t.add<float>(scales(), SafeDType::kF32, t.views[scales()].shape) + 5,
                              &bad, sizeof(bad));
                }),
                HasSubstr("scale 5 of a: "))
        << bad;
  }
  PackedInts other = ints_of(GetParam());
  other.group = 96;
  EXPECT_THAT(refusal([](Tensors&) {}, other),
              HasSubstr("inputs of " + codes() +
                        ": 128; allowed: a multiple of 32, and of the group of 96"));
  other.group = 0;  // one scale for all inputs, but the file has more
  EXPECT_THAT(refusal([](Tensors&) {}, other), HasSubstr("tensor " + scales()));
}

INSTANTIATE_TEST_SUITE_P(Methods, PackedInt,
                         testing::Values(Method::kGptq, Method::kCompressedTensors),
                         [](const auto& info) {
                           return info.param == Method::kGptq ? "Gptq" : "CompressedTensors";
                         });

TEST(PackedInts, RejectsGptqWithZeroPointsOrReordering) {
  const auto refusal = [](const char* name, size_t at, const PackedInts& ints) {
    Tensors t = tensors_of(Method::kGptq);
    auto* bytes = const_cast<std::byte*>(t.views.at(name).data);
    bytes[at] ^= std::byte{1};
    const TensorMap base(t.views);
    return std::string(PackedIntSource::make(base, ints).status().message());
  };
  EXPECT_THAT(refusal("a.qzeros", 4, ints_of(Method::kGptq)),
              HasSubstr("tensor a.qzeros: word 1: 2004318070; allowed: 2004318071"));
  EXPECT_THAT(refusal("a.g_idx", 4 * 70, ints_of(Method::kGptq)),
              HasSubstr("tensor a.g_idx: number 70: 0; allowed: 1, inputs in order"));
  PackedInts newer = ints_of(Method::kGptq);
  newer.zero = 8;
  EXPECT_THAT(refusal("a.g_idx", 4 * 70, newer),
              HasSubstr("allowed: 2290649224, as sym specifies"));
}

TEST(PackedInts, RejectsMisshapenCompressedTensors) {
  Tensors t = tensors_of(Method::kCompressedTensors);
  auto* bytes = const_cast<std::byte*>(t.views.at("a.weight_shape").data);
  bytes[8] = std::byte{127};
  const TensorMap base(t.views);
  EXPECT_THAT(
      std::string(
          PackedIntSource::make(base, ints_of(Method::kCompressedTensors)).status().message()),
      HasSubstr("tensor a.weight_shape: [24, 127]; allowed: [24, 128]"));
}

// --- config.json

absl::StatusOr<DecoderConfig> parse(const json& quantization) {
  const json config = {{"model_type", "llama"},
                       {"vocab_size", 64},
                       {"hidden_size", 64},
                       {"intermediate_size", 128},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"max_position_embeddings", 128},
                       {"rms_norm_eps", 1e-5},
                       {"torch_dtype", "float16"},
                       {"quantization_config", quantization}};
  return parse_hf_config(config.dump(), "config.json");
}

json compressed() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"input_activations", nullptr},
              {"weights",
               {{"num_bits", 4},
                {"type", "int"},
                {"symmetric", true},
                {"strategy", "group"},
                {"group_size", 128}}}}}}}};
}

TEST(PackedInts, ConfigOfGptq) {
  const json plain = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}};
  const auto read = parse(plain);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->packed_ints.has_value());
  EXPECT_EQ(read->packed_ints->method, Method::kGptq);
  EXPECT_EQ(read->packed_ints->group, 128);
  EXPECT_EQ(read->packed_ints->zero, 7);

  json rows = plain;
  rows.update({{"group_size", -1}, {"checkpoint_format", "gptq_v2"}});
  EXPECT_EQ(parse(rows)->packed_ints->group, 0);
  EXPECT_EQ(parse(rows)->packed_ints->zero, 8);

  const std::pair<json, const char*> wrong[] = {
      {{{"bits", 3}}, "config.json: quantization_config.bits: 3; allowed: integers from 4 to 4"},
      {{{"sym", false}}, "quantization_config.sym: false; allowed: true"},
      {{{"desc_act", true}}, "quantization_config.desc_act: true; allowed: false"},
      {{{"group_size", 48}},
       "quantization_config.group_size: 48; allowed: -1, or a multiple of 32"},
      {{{"checkpoint_format", "marlin"}}, "checkpoint_format: \"marlin\"; allowed: gptq, gptq_v2"}};
  for (const auto& [change, message] : wrong) {
    json changed = plain;
    changed.update(change);
    EXPECT_THAT(std::string(parse(changed).status().message()), HasSubstr(message));
  }
}

TEST(PackedInts, ConfigOfCompressedTensors) {
  const auto read = parse(compressed());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->packed_ints->method, Method::kCompressedTensors);
  EXPECT_EQ(read->packed_ints->group, 128);

  const std::pair<const char*, json> wrong[] = {
      {"/format", "int-quantized"},
      {"/kv_cache_scheme", json::object()},
      {"/config_groups", json::object()},
      {"/config_groups/group_0/input_activations", {{"num_bits", 8}}},
      {"/config_groups/group_0/weights", nullptr},
      {"/config_groups/group_0/weights/num_bits", 8},
      {"/config_groups/group_0/weights/type", "float"},
      {"/config_groups/group_0/weights/symmetric", false},
      {"/config_groups/group_0/weights/strategy", "tensor"},
      {"/config_groups/group_0/weights/group_size", 40},
      {"/config_groups/group_0/weights/actorder", "group"}};
  for (const auto& [place, value] : wrong) {
    json changed = compressed();
    changed[json::json_pointer(place)] = value;
    std::string field = std::string(place).substr(1);
    std::replace(field.begin(), field.end(), '/', '.');
    EXPECT_THAT(std::string(parse(changed).status().message()),
                HasSubstr("config.json: quantization_config." + field + ": "));
  }
  EXPECT_THAT(std::string(parse("yes").status().message()),
              HasSubstr("quantization_config: \"yes\"; allowed: none, or"));
}

}  // namespace
}  // namespace tandem
