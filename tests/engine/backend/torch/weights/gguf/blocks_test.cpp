#include "engine/backend/torch/weights/gguf/blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"

namespace tandem {
namespace {

// Random blocks with all kinds of scales and extreme codes, against gguf-py's values
// (make_goldens.py).
class GgufBlocks : public testing::Test {
 protected:
  void SetUp() override {
    auto file =
        MappedFile::open(std::string(TANDEM_SOURCE_DIR) + "/tests/data/gguf/blocks.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto parsed = parse_safetensors(file_.bytes(), "goldens");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    tensors_ = std::move(parsed->tensors);
  }

  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

TEST_F(GgufBlocks, MatchTheReferenceBitForBit) {
  int types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const BlockFormat* format = find_block_format(id);
    if (format == nullptr || format->values == 1) continue;
    ++types;
    const TensorView& blocks = tensors_.at(std::string(format->name) + ".blocks");
    const TensorView& values = tensors_.at(std::string(format->name) + ".values");
    ASSERT_EQ(blocks.shape[1], format->bytes);
    ASSERT_EQ(values.shape[1], format->values);
    std::vector<float> out(static_cast<size_t>(format->values));
    const size_t row = out.size() * sizeof(float);
    for (int64_t i = 0; i < blocks.shape[0]; ++i) {
      format->decode(blocks.data + i * format->bytes, out.data());
      EXPECT_EQ(std::memcmp(out.data(), values.data + static_cast<size_t>(i) * row, row), 0)
          << format->name << ", block " << i;
    }
  }
  EXPECT_EQ(types, 12);
}

TEST_F(GgufBlocks, WideningIsLossless) {
  int types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const BlockFormat* from = find_block_format(id);
    const Widening* wider = from == nullptr ? nullptr : find_widening(from->type);
    if (wider == nullptr) continue;
    ++types;
    const BlockFormat* to = find_block_format(static_cast<uint32_t>(wider->to));
    ASSERT_EQ(to->values, from->values);
    ASSERT_EQ(to->bytes, wider->bytes);
    const TensorView& blocks = tensors_.at(std::string(from->name) + ".blocks");
    std::vector<std::byte> wide(static_cast<size_t>(wider->bytes), std::byte{0xa5});
    std::vector<float> expected(static_cast<size_t>(from->values)), found = expected;
    for (int64_t i = 0; i < blocks.shape[0]; ++i) {
      from->decode(blocks.data + i * from->bytes, expected.data());
      wider->block(blocks.data + i * from->bytes, wide.data());
      to->decode(wide.data(), found.data());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
          << from->name << ", block " << i;
    }
  }
  EXPECT_EQ(types, 2) << "Q3_K and IQ4_NL";
}

TEST_F(GgufBlocks, PartialReadsMatchFullReads) {
  TensorView view = tensors_.at("Q5_0.blocks");
  view.block = find_block_format(static_cast<uint32_t>(BlockType::kQ50));
  ASSERT_EQ(view.elements(), 33 * 32);
  view.shape = {11, 96};
  std::vector<float> whole(static_cast<size_t>(view.elements()));
  ASSERT_TRUE(to_float(view, 0, whole).ok());
  for (const int64_t first : {0, 1, 31, 32, 100}) {
    std::vector<float> part(77);
    ASSERT_TRUE(to_float(view, first, part).ok());
    EXPECT_EQ(std::memcmp(part.data(), whole.data() + first, part.size() * sizeof(float)), 0);
  }
  std::vector<float> too_many(2);
  EXPECT_EQ(to_float(view, view.elements() - 1, too_many).code(), absl::StatusCode::kOutOfRange);
}

TEST(GgufBlock, RejectsNonFiniteScales) {
  std::vector<std::byte> bytes(3 * 34);
  bytes[2 * 34 + 1] = std::byte{0x7e};  // d of the last block: NaN
  bytes[2 * 34 + 2] = std::byte{1};
  TensorView view{.shape = {3, 32}, .data = bytes.data(), .bytes = bytes.size()};
  view.block = find_block_format(static_cast<uint32_t>(BlockType::kQ80));
  std::vector<float> out(96);
  EXPECT_EQ(to_float(view, 0, out).message(),
            "scale of block 2 (Q8_0): not finite; allowed: finite numbers");
  EXPECT_TRUE(to_float(view, 0, std::span(out).first(64)).ok());
}

TEST(GgufBlock, OneByOne) {
  float out = 0;
  const uint16_t half = 0x3c01, bfloat = 0xbfc0;
  const float single = 3.25f;
  find_block_format(1)->decode(reinterpret_cast<const std::byte*>(&half), &out);
  EXPECT_EQ(out, 1.0009765625f);
  find_block_format(30)->decode(reinterpret_cast<const std::byte*>(&bfloat), &out);
  EXPECT_EQ(out, -1.5f);
  find_block_format(0)->decode(reinterpret_cast<const std::byte*>(&single), &out);
  EXPECT_EQ(out, 3.25f);
}

}  // namespace
}  // namespace tandem
