// LLM-to-SLM on golden models against PyTorch (make_llm_to_slm_goldens.py).
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/torch/shared.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

constexpr PoolSize kSize = {.page_rows = 4, .pages = 100, .frontier_pages = 50, .values = 128};

// A pair by the name of its folder: the large model encodes, the small one decodes.
struct Pair {
  const char *name, *large, *small;
};
constexpr Pair kPairs[] = {
    {"add", "llama3", "mistral"},       {"replace", "llama3", "mistral"},
    {"aligned", "llama3", "mistral"},   {"aligned_replace", "llama3", "mistral"},
    {"t5_add", "t5_v1_1", "t5"},        {"t5_replace", "t5_v1_1", "t5"},
    {"mt5_replace", "t5_v1_1", "mt5"},  {"gpt2_add", "t5_v1_1", "gpt2"},
    {"gpt2_replace", "t5_v1_1", "gpt2"}};
constexpr Token kStart = 0;  // of T5's decoders

class Fused {
 public:
  Fused(const Pair& pair, DType dtype) {
    const Golden projector(std::string("../llm_to_slm/") + pair.name);
    ModelConfig m{.name = pair.small, .path = Golden(pair.small).directory(), .dtype = dtype};
    m.extras = {{"projector", projector.directory()}};
    small_ = std::make_unique<Driver>(m, kSize, shared_, 1);
    m = {.name = pair.large, .path = Golden(pair.large).directory(), .dtype = dtype};
    large_ = std::make_unique<Driver>(m, kSize, shared_, 0);
  }

  // What the small model says behind a prompt and so many of `tokens`, each in turn; its own ones
  // where there are none.
  std::vector<std::vector<float>> say(const Golden& golden, int p, std::vector<Token> tokens,
                                      int count) {
    const std::vector<Token> prompt = golden.prompt(p);
    const bool encodes = small_->shape().reads_memory;
    Sequence s = small_->sequence(), fed = encodes ? small_->memory() : s;
    const AdapterShape& adapter = small_->device().shape(fed.model).adapters.at(0);
    const TicketId ticket = read(adapter.aligned ? golden.read(p) : prompt, adapter.layer);
    std::vector<int> rows(prompt.size());
    std::iota(rows.begin(), rows.end(), 0);
    if (adapter.aligned) rows = golden.beside(p);
    Pass prefix;
    prefix.adapter = AdapterId(0);
    Driver::Item item{.sequence = &fed, .pass = &prefix};
    for (int i = 0; i < static_cast<int>(prompt.size()); ++i) {
      In in;
      in.kind = In::kEmbed;
      in.id = adapter.foreign ? kNoToken : prompt[static_cast<size_t>(i)];
      const int row = rows[static_cast<size_t>(i)];
      in.ref = {ticket, row, adapter.replace};
      prefix.add.chain(in);
      item.embeds.push_back({i, reader_, PageId(row)});
    }
    if (encodes) {  // its encoder is fed; the decoder begins with its start token
      prefix.see = See::kAll;
      prefix.stage.to = small_->layers();
      EXPECT_TRUE(small_->run({&item, 1})[0].status.ok());
      item = {.sequence = &s, .memory = &fed};
      prefix = chain_pass(small_->layers(), std::vector<Token>{kStart});
    } else {
      item.sequence = &s;
    }
    std::vector<std::vector<float>> said;
    const bool own = tokens.empty();
    Pass next = std::move(prefix);
    for (int i = 0; i < count; ++i) {
      if (i > 0) {
        const Token before = own ? tokens.back() : tokens[static_cast<size_t>(i) - 1];
        next = chain_pass(0, std::vector<Token>{before});
      }
      next.stage.to = small_->layers();
      next.reading(all_logprobs(last_rows(1, next.add.size()), small_->shape().vocab_size));
      item.pass = &next;
      const std::vector<WorkResult> results = small_->run({&item, 1});
      EXPECT_TRUE(results[0].status.ok()) << results[0].status;
      item.embeds.clear();
      said.push_back(logprobs(results[0].readout)[0]);
      if (own) tokens.push_back(results[0].readout.row[0].argmax);
    }
    written = tokens;
    if (encodes) small_->release(fed);
    small_->release(s);
    return said;
  }

  std::vector<Token> written;

 private:
  // Leaves the rows of the prompt in places 0, 1, .. of reader_.
  TicketId read(const std::vector<Token>& prompt, int layer) {
    const bool encodes = large_->shape().reads_memory;
    Sequence l = encodes ? large_->memory() : large_->sequence();
    reader_ = l.model;
    Pass reads = encodes ? source_pass(large_->layers(), prompt) : chain_pass(layer, prompt);
    Read left;
    left.hidden = true;
    left.rows = last_rows(prompt.size(), prompt.size());
    reads.reading(left);
    const TicketId ticket = Driver::new_ticket();
    large_->run(l, reads, 0, ticket);
    large_->release(l);
    return ticket;
  }

  const std::shared_ptr<TorchShared> shared_ = test_shared();
  std::unique_ptr<Driver> large_, small_;
  ModelId reader_;
};

TEST(LlmToSlmGolden, LogitsAreThoseOfPyTorch) {
  for (const Pair& pair : kPairs) {
    const std::string name = pair.name;
    const Golden golden("../llm_to_slm/" + name);
    Fused fused(pair, DType::kFloat32);
    const auto rows = golden.rows("logits");
    const size_t per_prompt = rows.size() / static_cast<size_t>(golden.prompts());
    for (int p = 0; p < golden.prompts(); ++p) {
      const auto said = fused.say(golden, p, golden.greedy(p), static_cast<int>(per_prompt));
      for (size_t i = 0; i < per_prompt; ++i) {
        const auto want = log_softmax(rows[static_cast<size_t>(p) * per_prompt + i]);
        for (size_t v = 0; v < want.size(); ++v) ASSERT_NEAR(said[i][v], want[v], 1e-4) << name;
      }
    }
  }
}

TEST(LlmToSlmGolden, TokensAreThoseOfPyTorch) {
  for (const Pair& pair : kPairs) {
    const std::string name = pair.name;
    const Golden golden("../llm_to_slm/" + name);
    Fused fused(pair, DType::kFloat64);
    for (int p = 0; p < golden.prompts(); ++p) {
      const std::vector<Token> want = golden.greedy(p);
      fused.say(golden, p, {}, static_cast<int>(want.size()));
      EXPECT_EQ(fused.written, want) << name << " " << p;
    }
  }
}

}  // namespace
}  // namespace tandem
