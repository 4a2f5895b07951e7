// Mask rows and their prompts against Transformers (make_mask_goldens.py). Other rows are
// unaffected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backend/torch/weights/convert.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/source_dir.h"

namespace tandem {
namespace {

const std::string kData = source_dir() + "/tests/data/";

struct Golden {
  std::string name;
  std::vector<Token> text;
  std::vector<Row> at;
  std::vector<float> logprobs;  // [groups, M, vocabulary]

  explicit Golden(const std::string& model) : name(model) {
    const Checkpoint file =
        *Checkpoint::open_file(kData + "golden_masks/" + model, "golden.safetensors");
    for (const float t : numbers(file, "text")) text.push_back(static_cast<Token>(t));
    for (const float r : numbers(file, "at")) at.push_back(static_cast<Row>(r));
    logprobs = numbers(file, "logprobs");
  }
  static std::vector<float> numbers(const Checkpoint& file, const std::string& tensor) {
    const TensorView& view = *file.find(tensor);
    std::vector<float> all(static_cast<size_t>(view.elements()));
    EXPECT_TRUE(to_float(view, 0, all).ok());
    return all;
  }

  Driver load(int page_rows, DType dtype = DType::kFloat64,
              CpuKernels kernels = CpuKernels::kOwn) const {
    ModelConfig m{.name = name, .path = kData + "golden_models/" + name, .dtype = dtype};
    m.page_rows = page_rows;
    m.extras = {{"masks", kData + "golden_masks/" + name}};
    const PoolSize size{.page_rows = page_rows, .pages = 200, .frontier_pages = 0};
    return Driver(m, size, test_shared(), 0, kernels);
  }
};

In mask(int i) {
  In in;
  in.kind = In::kMask;
  in.id = i;
  return in;
}

// Text from row `first` on, and masks on rows of it.
Pass with_masks(const Golden& golden, const Driver& driver, size_t first, int masks) {
  Pass pass;
  pass.stage.to = driver.layers();
  pass.adapter = AdapterId(0);
  for (size_t i = first; i < golden.text.size(); ++i) pass.add.chain(token_in(golden.text[i]));
  for (const Row row : golden.at) {
    Row above = row - static_cast<Row>(first);
    if (above < 0) continue;
    for (int i = 0; i < masks; ++i) above = pass.add.add(mask(i), above);
  }
  return pass;
}

class MaskRowsRead : public testing::TestWithParam<const char*> {
 protected:
  const Golden golden_{GetParam()};
};

// The whole text in one pass, and its last rows behind a cache: pages of any size. LibTorch's
// operators get additions as CUDA's kernels do (LoraView).
TEST_P(MaskRowsRead, EqualTransformers) {
  const bool cpu = test_device().kind == DeviceKind::kCpu;
  for (const int page_rows : {4, 16, 7}) {
    for (const size_t first : {size_t{0}, size_t{12}}) {
      Driver driver = golden_.load(page_rows, DType::kFloat64,
                                   cpu && page_rows == 7 ? CpuKernels::kAten : CpuKernels::kOwn);
      const int vocab = driver.shape().vocab_size;
      ASSERT_EQ(driver.shape().adapters.size(), 1U);
      Sequence s = driver.sequence();
      if (first > 0) {
        driver.run(s, chain_pass(driver.layers(), std::span(golden_.text).first(first)));
      }
      Pass pass = with_masks(golden_, driver, first, 3);
      RowList rows;
      for (auto r = static_cast<Row>(golden_.text.size() - first);
           r < static_cast<Row>(pass.add.size()); ++r) {
        rows.push_back(r);
      }
      pass.reading(all_logprobs(rows, vocab));
      const auto got = logprobs(driver.run(s, pass));
      // Groups whose row is in the cache already are not asked for.
      const size_t skipped = golden_.logprobs.size() / static_cast<size_t>(vocab) - got.size();
      ASSERT_EQ(skipped, first == 0 ? 0U : 3U);
      for (size_t r = 0; r < got.size(); ++r) {
        for (size_t v = 0; v < got[r].size(); ++v) {
          const float want = golden_.logprobs[(skipped + r) * static_cast<size_t>(vocab) + v];
          ASSERT_NEAR(got[r][v], want, 2e-5) << "mask row " << r << ", token " << v;
        }
      }
    }
  }
}

// docs/reliability.md, oracle 6, bit by bit and in every type: mask rows change neither the other
// rows nor the cache.
TEST_P(MaskRowsRead, ChangeNoOtherRows) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    if (!test_device_holds(dtype)) continue;
    Driver driver = golden_.load(16, dtype);
    EXPECT_EQ(driver.shape().adapters[0].additions, golden_.name == "qwen2");
    const int vocab = driver.shape().vocab_size;
    const auto answers = [&](int masks) {
      Sequence s = driver.sequence();
      Pass pass = with_masks(golden_, driver, 0, masks);
      RowList rows;
      for (Row r = 0; r < static_cast<Row>(golden_.text.size()); ++r) rows.push_back(r);
      pass.reading(all_logprobs(rows, vocab));
      auto all = logprobs(driver.run(s, pass));
      std::vector<int> path;
      for (int r = 0; r < static_cast<int>(golden_.text.size()); ++r) path.push_back(r);
      driver.keep(s, static_cast<int>(pass.add.size()), path);
      const Token next = 5;
      Pass after = chain_pass(driver.layers(), {&next, 1});
      after.reading(all_logprobs({0}, vocab));
      all.push_back(logprobs(driver.run(s, after))[0]);
      driver.release(s);
      return all;
    };
    SCOPED_TRACE(dtype_name(dtype));
    expect_rows(answers(3), answers(0), rounding_of(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MaskRowsRead, testing::Values("llama3", "mistral", "qwen2"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace tandem
