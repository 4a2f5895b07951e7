// Raw logits of the golden models against Transformers, within 1e-4 in fp32: the model alone,
// without the executor, whose answers are log-probabilities and would not show a shift of all
// logits.
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/decoder.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

class Logits : public testing::TestWithParam<std::string> {};

TEST_P(Logits, OfAllPositionsEqualTransformers) {
  const c10::InferenceMode inference;
  const Golden golden(GetParam());
  absl::StatusOr<DecoderConfig> config = load_hf_config(golden.directory());
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::open(golden.directory());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto layout = check_decoder(*config, *checkpoint);
  ASSERT_TRUE(layout.ok()) << layout.status();
  config->names = layout->names;
  absl::StatusOr<DecoderWeights> weights =
      DecoderWeights::load(*config, layout->tied, *checkpoint, WeightStore{});
  ASSERT_TRUE(weights.ok()) << weights.status();
  Decoder model(GetParam(), *config, std::make_shared<const DecoderWeights>(*std::move(weights)),
                at::kFloat);
  PoolSize size;
  size.page_rows = 16;
  size.pages = 8;
  size.frontier_pages = 1;
  const KvPool pool(model.geometry(), size, at::kCPU);

  const int window = model.shape().window;
  int compared = 0;
  for (int i = 0; i < golden.prompts(); ++i) {
    const std::string tensor = "prompt_logits." + std::to_string(i);
    if (!golden.has(tensor)) continue;
    const std::vector<Token> prompt = golden.prompt(i);
    const auto n = static_cast<int>(prompt.size());
    ASSERT_LE(n, size.page_rows * size.pages);
    // One sequence, row r at position r in slot r: each row sees the window's rows up to itself.
    RowColumns columns;
    for (int r = 0; r < n; ++r) {
      columns.position.push_back(r);
      columns.slot.push_back(r);
      columns.table.push_back(0);
      columns.first_key.push_back(window > 0 ? std::max(0, r - window + 1) : 0);
      columns.dense_end.push_back(r + 1);
      columns.extra_begin.push_back(0);
      columns.extra_end.push_back(0);
    }
    std::vector<int32_t> pages(static_cast<size_t>(size.pages));
    std::iota(pages.begin(), pages.end(), 0);
    RowView rows;
    rows.rows = n;
    rows.page_rows = size.page_rows;
    rows.position = columns.position.data();
    rows.slot = columns.slot.data();
    rows.table = columns.table.data();
    rows.first_key = columns.first_key.data();
    rows.dense_end = columns.dense_end.data();
    rows.extra_begin = columns.extra_begin.data();
    rows.extra_end = columns.extra_end.data();
    rows.pages = pages.data();

    at::Tensor x = at::empty({n, config->hidden_size}, at::kFloat);
    at::Tensor logits = at::empty({n, config->vocab_size}, at::kFloat);
    model.embed(x, prompt.data(), rows.position, n - 1);
    model.run(0, config->layers, x, rows, pool, {}, {});
    model.head(logits, x, {});
    const auto want = golden.rows(tensor);
    const float* got = logits.mutable_data_ptr<float>();
    for (const std::vector<float>& row : want) {
      for (const float logit : row) {
        ASSERT_NEAR(*got++, logit, 1e-4) << tensor;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

INSTANTIATE_TEST_SUITE_P(Models, Logits,
                         testing::Values("llama2", "llama3", "qwen2", "mistral", "qwen3", "gemma3",
                                         "gpt2", "phi3", "falcon", "falcon_groups",
                                         "falcon_one_norm", "falcon_serial", "yarn", "longrope",
                                         "starcoder2"));

}  // namespace
}  // namespace tandem
