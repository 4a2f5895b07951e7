#include "engine/backend/torch/weights/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/backend/torch/weights/gguf/file.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"

namespace tandem {
namespace {

using test::bytes_of;
using test::gguf_array;
using test::gguf_string;
using test::gguf_type;
using test::GgufBuilder;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Gguf> parse(const std::string& file) {
  return parse_gguf(std::as_bytes(std::span(file)), "f.gguf");
}
std::string error(const std::string& file) {
  const absl::StatusOr<Gguf> parsed = parse(file);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(Gguf, ReadsMetadataAndTensors) {
  GgufBuilder b;
  b.set("s", "text").set("u", 7u).set("i", -7).set("f", 0.5f).set("b", true);
  b.set("texts", std::vector<std::string>{"", "x"}).set("ints", std::vector<int32_t>{1, -2});
  b.tensor("one", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor("two", {1});
  b.tensors.push_back({"blocks", {2, 32}, 8, std::string(68, '\1')});
  for (const uint32_t version : {2u, 3u}) {
    b.version = version;
    const std::string file = b.file();
    const absl::StatusOr<Gguf> parsed = parse(file);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    GgufFields fields(*parsed, "f.gguf");
    EXPECT_EQ(fields.text("s", std::nullopt), "text");
    EXPECT_EQ(fields.integer("u", std::nullopt, 0, 10), 7);
    EXPECT_EQ(fields.integer("i", std::nullopt, -10, 10), -7);
    EXPECT_EQ(fields.number("f", std::nullopt, 0, 1), 0.5);
    EXPECT_TRUE(fields.boolean("b", false));
    EXPECT_THAT(fields.texts("texts"), ElementsAre("", "x"));
    EXPECT_THAT(fields.integers("ints"), ElementsAre(1, -2));
    EXPECT_EQ(fields.integer("absent", 3, 0, 10), 3);
    EXPECT_TRUE(fields.status().ok()) << fields.status();
    const GgufTensor& one = parsed->tensors.find("one")->second;
    EXPECT_THAT(one.shape, ElementsAre(2, 3));
    EXPECT_EQ(one.data.size(), 24u);
    const GgufTensor& blocks = parsed->tensors.find("blocks")->second;
    EXPECT_STREQ(blocks.format->name, "Q8_0");
    EXPECT_EQ(blocks.data[67], std::byte{1});
  }
}

TEST(Gguf, EveryTruncationIsRejected) {
  const std::string file = test::tiny_gguf().file();
  ASSERT_TRUE(parse(file).ok());
  for (size_t n = 0; n < file.size(); ++n) {
    EXPECT_FALSE(parse(file.substr(0, n)).ok()) << n << " of " << file.size();
  }
}

TEST(Gguf, MagicAndVersion) {
  std::string file = GgufBuilder().file();
  file[3] = 'X';
  EXPECT_EQ(error(file), "f.gguf: magic: \"GGUX\"; allowed: \"GGUF\"");
  EXPECT_EQ(error(GgufBuilder{.version = 1}.file()), "f.gguf: version: 1; allowed: 2, 3");
  EXPECT_THAT(error(GgufBuilder{.version = 3u << 24}.file()), HasSubstr("big-endian"));
}

TEST(Gguf, CountsBeyondTheFile) {
  EXPECT_THAT(error(GgufBuilder{.more_entries = 1ull << 60}.file()),
              HasSubstr("number of key-values: 1152921504606846976; allowed: at most"));
  EXPECT_THAT(error(GgufBuilder{.more_tensors = UINT64_MAX}.file()),
              HasSubstr("number of tensors: 18446744073709551615; allowed: at most 0"));
  GgufBuilder b;
  b.metadata.emplace_back("k", gguf_array(GgufType::kU8, 1ull << 63, ""));
  EXPECT_THAT(error(b.file()), HasSubstr("key \"k\": number of elements: 9223372036854775808"));
  b.metadata.front().second = gguf_type(GgufType::kString) + bytes_of<uint64_t>(1ull << 40);
  EXPECT_THAT(error(b.file()), HasSubstr("key \"k\": length of a string: 1099511627776 bytes"));
}

TEST(Gguf, KeysAndValues) {
  const auto with = [](const std::string& key, const std::string& value) {
    GgufBuilder b;
    b.metadata.emplace_back(key, value);
    return error(b.file());
  };
  const std::string good = gguf_type(GgufType::kBool) + '\1';
  EXPECT_THAT(with("", good), HasSubstr("key: \"\"; allowed: 1 to 65535 bytes of UTF-8"));
  EXPECT_THAT(with(std::string("general.alignment\0x", 19), good), HasSubstr("without NUL"));
  EXPECT_THAT(with("\xc0\x80", good), HasSubstr("UTF-8"));
  EXPECT_THAT(with("k", gguf_type(GgufType::kBool) + '\7'),
              HasSubstr("key \"k\": bool: 7; allowed: 0, 1"));
  EXPECT_THAT(with("k", bytes_of<uint32_t>(13)),
              HasSubstr("key \"k\": type: 13; allowed: 0 to 12"));
  EXPECT_THAT(with("k", gguf_array(GgufType::kArray, 0, "")),
              HasSubstr("type of elements: array; allowed: no arrays"));
  GgufBuilder twice;
  twice.metadata.assign(2, {"k", good});
  EXPECT_EQ(error(twice.file()), "f.gguf: key \"k\": times: 2; allowed: 1");
}

TEST(Gguf, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 24u, 1u << 31}) {
    EXPECT_THAT(error(GgufBuilder().set("general.alignment", alignment).file()),
                HasSubstr("allowed: powers of 2 from 8 to 65536"));
  }
  EXPECT_THAT(error(GgufBuilder().set("general.alignment", 32).file()),
              HasSubstr("key \"general.alignment\": type: i32; allowed: u32"));
  GgufBuilder wide;
  wide.alignment = 128;
  EXPECT_TRUE(parse(wide.set("general.alignment", 128u).tensor("t", {1}).file()).ok());
}

TEST(Gguf, Tensors) {
  const auto with = [](GgufBuilder::Tensor tensor) {
    GgufBuilder b;
    b.tensors.push_back(std::move(tensor));
    return error(b.file());
  };
  const std::string four(4, '\0');
  EXPECT_THAT(with({"", {1}, 0, four}), HasSubstr("1 to 63 bytes"));
  EXPECT_THAT(with({std::string(64, 'x'), {1}, 0, four}), HasSubstr("1 to 63 bytes"));
  EXPECT_THAT(with({"t", {}, 0, four}), HasSubstr("number of dimensions: 0; allowed: 1 to 4"));
  EXPECT_THAT(with({"t", {1, 1, 1, 1, 1}, 0, four}), HasSubstr("number of dimensions: 5"));
  EXPECT_THAT(with({"t", {0}, 0, ""}), HasSubstr("dimension: 0; allowed: 1 to 2^63 - 1"));
  EXPECT_THAT(with({"t", {-1}, 0, four}), HasSubstr("dimension: -1"));
  EXPECT_THAT(with({"t", {INT64_MAX, INT64_MAX}, 0, four}),
              HasSubstr("[9223372036854775807, 9223372036854775807]; allowed: a product"));
  EXPECT_THAT(with({"t", {INT64_MAX / 2}, 0, four}), HasSubstr("allowed: a size below 2^63 bytes"));
  // 2^42 + 1 rows overflowed in ggml (CVE-2026-33298).
  EXPECT_THAT(with({"t", {(int64_t{1} << 42) + 1, 1 << 10}, 0, four}),
              HasSubstr("tensor \"t\": size"));
  EXPECT_THAT(with({"t", {33}, 2, std::string(36, '\0')}),
              HasSubstr("length of rows: 33; allowed: multiples of 32 for type Q4_0"));
  EXPECT_THAT(with({"t", {32}, 17, four}), HasSubstr("type: IQ2_XS (17); allowed: F32, F16"));
  EXPECT_THAT(with({"t", {32}, 4, four}), HasSubstr("tensor \"t\": type: 4; allowed"));
  EXPECT_THAT(with({"t", {32}, 9, four}), HasSubstr("type: Q8_1 (9); allowed"));
  EXPECT_THAT(with({"t", {9}, 0, four}), HasSubstr("size: 36 bytes; allowed: at most the "));
}

TEST(Gguf, TensorOffsets) {
  GgufBuilder b;
  b.tensor("a", {1}).tensor("b", {1});
  for (const int64_t off : {-32, -31, 1, 32}) {
    b.more_offset = static_cast<uint64_t>(off);
    EXPECT_THAT(error(b.file()), HasSubstr("tensor \"b\": offset: ")) << off;
  }
  b.more_offset = 0;
  b.end = "x";
  EXPECT_EQ(error(b.file()), "f.gguf: bytes after the last tensor: 1; allowed: none");
  b.end = "";
  std::string file = b.file();
  file[file.size() - 40] = 'x';  // between the two tensors
  EXPECT_THAT(error(file), HasSubstr("tensor \"a\": padding: other bytes; allowed: zeros"));
  b.tensors[1].name = "a";
  EXPECT_EQ(error(b.file()), "f.gguf: tensor \"a\": times: 2; allowed: 1");
}

TEST(Gguf, TheLastTensorNeedsNoPadding) {
  const std::string file = GgufBuilder().tensor("a", {1}).file();
  EXPECT_TRUE(parse(file.substr(0, file.size() - 28)).ok());
  EXPECT_FALSE(parse(file.substr(0, file.size() - 27)).ok());
}

TEST(GgufFields, NamesKeyValueAndRange) {
  const std::string file = GgufBuilder()
                               .set("n", 5u)
                               .set("nan", NAN)
                               .set("s", std::string("\xff"))
                               .set("texts", std::vector<std::string>{"\xff"})
                               .set("inf", std::vector<float>{1, INFINITY})
                               .file();
  const absl::StatusOr<Gguf> gguf = parse(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto message = [&](auto read) {
    GgufFields fields(*gguf, "f");
    read(fields);
    return std::string(fields.status().message());
  };
  EXPECT_EQ(message([](GgufFields& f) { f.integer("n", {}, 6, 8); }),
            "f: n: 5; allowed: integers from 6 to 8");
  EXPECT_EQ(message([](GgufFields& f) { f.integer("m", {}, 6, 8); }),
            "f: m: missing; allowed: integers from 6 to 8");
  EXPECT_EQ(message([](GgufFields& f) { f.number("nan", {}, 0, 1); }),
            "f: nan: nan; allowed: numbers from 0 to 1");
  EXPECT_EQ(message([](GgufFields& f) { f.text("n", {}); }),
            "f: n: a value of type u32; allowed: strings");
  EXPECT_EQ(message([](GgufFields& f) { f.text("s", {}); }), "f: s: \"\\xff\"; allowed: UTF-8");
  EXPECT_EQ(message([](GgufFields& f) { f.texts("texts"); }),
            "f: texts[0]: \"\\xff\"; allowed: UTF-8");
  EXPECT_EQ(message([](GgufFields& f) { f.integers("texts"); }),
            "f: texts: an array of string; allowed: an array of integers");
  EXPECT_EQ(message([](GgufFields& f) { f.integer("inf", 0, 0, 1); }),
            "f: inf: an array of f32; allowed: integers from 0 to 1");
  EXPECT_EQ(message([](GgufFields& f) { f.numbers("inf"); }),
            "f: inf[1]: inf; allowed: finite numbers");
}

TEST(IsUtf8, FollowsTheStandard) {
  for (const char* good : {"", "a", "\u00e9", "\u20ac", "\U0001f600", "\ud7ff", "\ue000"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xff"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace tandem
