#include "engine/backend/torch/weights/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backend/torch/weights/mapped_file.h"
#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using test::little_endian;
using test::safetensors_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Safetensors> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors");
}

// One tensor 'x' with these fields in JSON, and this many data bytes.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t data = 8) {
  return safetensors_file(
      "{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
      std::string(data, 'd'));
}

std::string error(const std::string& file) {
  const auto parsed = parse(file);
  EXPECT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("m.safetensors: "));
  return std::string(parsed.status().message());
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string file = safetensors_file(
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ",
      "aaaabbbbbbbbbbbb");
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  ASSERT_EQ(parsed->tensors.size(), 2u);
  const TensorView& a = parsed->tensors.at("a");
  EXPECT_EQ(a.dtype, SafeDType::kF32);
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(a.elements(), 1);
  EXPECT_EQ(static_cast<char>(*a.data), 'a');
  const TensorView& b = parsed->tensors.at("b");
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.bytes, 12u);
  EXPECT_EQ(b.elements(), 6);
  EXPECT_EQ(static_cast<char>(*b.data), 'b');
}

TEST(Safetensors, EveryTypeByNameAndSize) {
  const std::vector<std::pair<std::string, size_t>> types = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  for (const auto& [name, bytes] : types) {
    const auto end = std::to_string(3 * bytes);
    const auto parsed = parse(one("\"" + name + "\"", "[3]", "[0," + end + "]", 3 * bytes));
    ASSERT_TRUE(parsed.ok()) << name << parsed.status();
    EXPECT_EQ(safe_dtype_name(parsed->tensors.at("x").dtype), name);
    EXPECT_EQ(safe_dtype_bytes(parsed->tensors.at("x").dtype), bytes);
  }
}

TEST(Safetensors, EmptyHeaderAndEmptyTensors) {
  EXPECT_TRUE(parse(safetensors_file("{}", "")).ok());
  EXPECT_TRUE(parse(one("\"F32\"", "[0,9223372036854775807]", "[0,0]", 0)).ok());
}

TEST(Safetensors, HeaderLength) {
  EXPECT_THAT(error(""), HasSubstr("size in bytes: 0; allowed: at least 10"));
  EXPECT_THAT(error("1234567"), HasSubstr("size in bytes: 7"));
  EXPECT_THAT(error(little_endian(0) + "{}"), HasSubstr("header length: 0; allowed: 2 to 1000000"));
  EXPECT_THAT(error(little_endian(100'000'001) + "{}"), HasSubstr("header length: 100000001"));
  EXPECT_THAT(error(little_endian(uint64_t{1} << 63) + "{}"),
              HasSubstr("header length: 9223372036854775808"));
  EXPECT_THAT(error(little_endian(~uint64_t{0}) + "{}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(error(little_endian(3) + "{}"),
              HasSubstr("header length: 3; allowed: at most 2, the bytes that follow it"));
}

TEST(Safetensors, OtherFileFormats) {
  EXPECT_THAT(error(std::string("PK\x03\x04\0\0\0\0abc", 11)), HasSubstr("PyTorch"));
  EXPECT_THAT(error(std::string("\x80\x02\x8a\nl\xfc\x9c\x46 bc", 11)), HasSubstr("pickle"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("Git LFS"));
  EXPECT_THAT(error("GGUF\x03\x01\x01\x01 abc"), HasSubstr("GGUF"));
}

TEST(Safetensors, HeaderIsNotAnObject) {
  EXPECT_THAT(error(safetensors_file(" {}", "")), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error(safetensors_file("[]", "")), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error(safetensors_file("{\"x\":", "")), HasSubstr("not JSON at its byte"));
  EXPECT_THAT(error(safetensors_file("{}{}", "")), HasSubstr("not JSON at its byte"));
  EXPECT_THAT(error(safetensors_file("{\"\xff\":1}", "")), HasSubstr("not JSON at its byte"));
  EXPECT_THAT(error(safetensors_file(std::string("{\"x\":") + std::string(1'000'000, '['), "")),
              HasSubstr("header: \"x\": an array; allowed: an object"));
  EXPECT_THAT(error(safetensors_file("{\"x\":1e999}", "")), HasSubstr("m.safetensors: header"));
}

TEST(Safetensors, ShapesWhoseProductWraps) {
  for (const char* shape : {"[4194305,4194305,211106198978564]", "[4294967296,4294967296]",
                            "[9223372036854775807]", "[3,3,9223372036854775807]"}) {
    const std::string message = error(one("\"F32\"", shape, "[0,8]"));
    EXPECT_THAT(message, AllOf(HasSubstr("tensor \"x\": shape: ["), HasSubstr("data bytes")));
  }
}

TEST(Safetensors, Dimensions) {
  EXPECT_THAT(error(one("\"F32\"", "[-1]", "[0,8]")),
              HasSubstr("tensor \"x\": shape: -1; allowed: integers from 0"));
  EXPECT_THAT(error(one("\"F32\"", "[2.0]", "[0,8]")), HasSubstr("shape: 2.0; allowed: integers"));
  EXPECT_THAT(error(one("\"F32\"", "[9223372036854775808]", "[0,8]")),
              HasSubstr("shape: 9223372036854775808"));
  EXPECT_THAT(error(one("\"F32\"", "[18446744073709551616]", "[0,8]")), HasSubstr("shape: 1844"));
  EXPECT_THAT(error(one("\"F32\"", "[\"2\"]", "[0,8]")), HasSubstr("shape: \"2\""));
  EXPECT_THAT(error(one("\"F32\"", "[[2]]", "[0,8]")), HasSubstr("shape: an array"));
  EXPECT_THAT(error(one("\"F32\"", "2", "[0,8]")), HasSubstr("shape: 2; allowed: an array"));
  EXPECT_THAT(error(one("\"F32\"", "null", "[0,8]")), HasSubstr("shape: null; allowed: an array"));
  std::string ones = "[1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  EXPECT_THAT(error(one("\"F64\"", ones + "]", "[0,8]")), HasSubstr("dimensions: 33; allowed"));
}

TEST(Safetensors, Types) {
  EXPECT_THAT(error(one("\"F31\"", "[2]", "[0,8]")),
              HasSubstr("tensor \"x\": dtype: \"F31\"; allowed: BOOL U8"));
  EXPECT_THAT(error(one("\"f32\"", "[2]", "[0,8]")), HasSubstr("dtype: \"f32\""));
  EXPECT_THAT(error(one("32", "[2]", "[0,8]")), HasSubstr("dtype: 32; allowed: the name"));
}

TEST(Safetensors, Offsets) {
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[0,8]", 7)), HasSubstr("truncated file?"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[8,16]")),
              HasSubstr("data_offsets: [8, 16]; allowed: 0 <= begin <= end <= 8"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[8,0]")), HasSubstr("data_offsets: [8, 0]"));
  EXPECT_THAT(error(one("\"F32\"", "[1]", "[0,8]")), HasSubstr("allowed: 4 bytes for F32 [1]"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[0,18446744073709551615]")), HasSubstr("[0, 18446744"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[18446744073709551608,0]")), HasSubstr("[184467440737"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[0]")), HasSubstr("data_offsets: 1 values"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[0,8,8]")), HasSubstr("more than two values"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[-1,8]")), HasSubstr("data_offsets: -1"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "[0,8.5]")), HasSubstr("data_offsets: 8.5"));
  EXPECT_THAT(error(one("\"F32\"", "[2]", "\"0,8\"")), HasSubstr("data_offsets: \"0,8\""));
}

std::string two(const std::string& a, const std::string& b, size_t data) {
  return safetensors_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + a +
                              "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + b +
                              "}}",
                          std::string(data, 'd'));
}

TEST(Safetensors, EveryByteBelongsToOneTensor) {
  EXPECT_TRUE(parse(two("[4,8]", "[0,4]", 8)).ok());
  EXPECT_THAT(
      error(two("[0,4]", "[2,6]", 8)),
      HasSubstr("tensor \"b\": data_offsets: begin 2; allowed: 4, where \"a\" ends (they overl"));
  EXPECT_THAT(error(two("[0,4]", "[0,4]", 4)), HasSubstr("they overlap"));
  EXPECT_THAT(error(two("[0,4]", "[5,9]", 9)),
              HasSubstr("begin 5; allowed: 4, where \"a\" ends (the"));
  EXPECT_THAT(error(two("[1,5]", "[5,9]", 9)), HasSubstr("allowed: 0, where the header ends"));
  EXPECT_THAT(error(two("[0,4]", "[4,8]", 9)), HasSubstr("data bytes: 9; allowed: 8"));
  EXPECT_THAT(error(safetensors_file("{}", "x")), HasSubstr("trailing bytes"));
}

TEST(Safetensors, DuplicateAndMissingAndUnknownKeys) {
  const std::string x = "\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
  EXPECT_THAT(error(safetensors_file("{" + x + "," + x + "}", "")),
              HasSubstr("\"x\": duplicate key"));
  EXPECT_THAT(error(safetensors_file("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "")),
              HasSubstr("tensor \"x\": dtype: duplicate key"));
  EXPECT_THAT(error(safetensors_file("{\"x\":{\"shape\":[],\"shape\":[]}}", "")),
              HasSubstr("shape: duplicate key"));
  EXPECT_THAT(error(safetensors_file("{\"x\":{\"dtype\":\"F32\",\"shape\":[]}}", "")),
              HasSubstr("tensor \"x\": data_offsets: missing"));
  EXPECT_THAT(error(safetensors_file("{\"x\":{}}", "")), HasSubstr("tensor \"x\": dtype: missing"));
  EXPECT_THAT(error(safetensors_file("{\"x\":{\"strides\":[1]}}", "")),
              HasSubstr("tensor \"x\": field: \"strides\""));
  EXPECT_THAT(error(safetensors_file("{\"x\":true}", "")), HasSubstr("header: \"x\": true"));
}

TEST(Safetensors, Metadata) {
  EXPECT_THAT(error(safetensors_file("{\"__metadata__\":{\"a\":1}}", "")),
              HasSubstr("__metadata__: \"a\": 1; allowed: a string"));
  EXPECT_THAT(error(safetensors_file("{\"__metadata__\":{\"a\":{}}}", "")),
              HasSubstr("__metadata__: \"a\": an object"));
  EXPECT_THAT(error(safetensors_file("{\"__metadata__\":[]}", "")), HasSubstr("an array"));
  EXPECT_THAT(error(safetensors_file("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", "")),
              HasSubstr("__metadata__: \"a\": duplicate key"));
  EXPECT_THAT(error(safetensors_file("{\"__metadata__\":{},\"__metadata__\":{}}", "")),
              HasSubstr("duplicate key"));
}

TEST(Safetensors, NamesInMessagesAreCutAndEscaped) {
  const std::string name = "\\n\\u0001" + std::string(1000, 'y');
  const std::string message = error(safetensors_file("{\"" + name + "\":{}}", ""));
  EXPECT_THAT(message, HasSubstr("\"\\n\\001yyy"));
  EXPECT_LT(message.size(), 250u);
}

TEST(Safetensors, EveryTruncationIsRejected) {
  const std::string file = test::safetensors_of({{"a", "F32", {3}}, {"b", "BF16", {2, 2}}}, 'd');
  ASSERT_TRUE(parse(file).ok());
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(parse(file.substr(0, n)).ok()) << n;
}

// Each is looked up by name. Quadratic time would exceed ctest's limit.
TEST(Safetensors, HundredThousandTensors) {
  std::vector<test::FileTensor> tensors;
  for (int i = 0; i < 100'000; ++i) tensors.push_back({"t" + std::to_string(i), "F32", {1}});
  const std::string file = test::safetensors_of(tensors);
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tensors.size(), 100'000u);
}

TEST(Safetensors, ReadsFilesOfTheReferenceLibrary) {
  const auto file = MappedFile::open(std::string(TANDEM_SOURCE_DIR) +
                                     "/tests/data/golden_models/llama2/golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto parsed = parse_safetensors(file->bytes(), "golden");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->tensors.at("greedy").shape, ElementsAre(20, 64));
  EXPECT_EQ(parsed->tensors.at("greedy").dtype, SafeDType::kI32);
  EXPECT_THAT(parsed->metadata.at("notes"), HasSubstr("transformers"));
}

}  // namespace
}  // namespace tandem
