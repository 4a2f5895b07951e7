#include "engine/host/models/loaded_model.h"

#include "engine/text/merge_order.h"

namespace tandem {

std::vector<const LoadedModel*> LoadedModel::instances() const {
  std::vector<const LoadedModel*> all = {this};
  all.insert(all.end(), replicas.begin(), replicas.end());
  return all;
}

int64_t LoadedModel::kv_rows() const {
  int64_t rows = pool.pages * pool.page_rows;
  for (const LoadedModel* r : replicas) rows = std::min(rows, r->pool.pages * r->pool.page_rows);
  return rows;
}

int LoadedModel::named_tokens() const {
  Token end = tokenizer->vocab_size();
  for (const Token t : eos) end = std::max(end, t + 1);
  return std::min(end, shape.vocab_size);
}

int64_t source_length_of(const LoadedModel& model, int64_t step_rows) {
  const LoadedModel& encoder = *model.encoder;
  return std::min<int64_t>({encoder.shape.max_positions, encoder.kv_rows(), step_rows});
}

int draft_vocabulary_of(const ModelShape& model, const Tokenizer& tokenizer) {
  constexpr int kFrequent = 32768;
  constexpr double kLeastShare = 0.125;  // of the parameters that one token reads
  const int64_t head = int64_t{model.vocab_size} * model.hidden_size;
  // Untied embeddings are not counted: a token reads one row of them.
  const bool pays_off =
      model.vocab_size >= 2 * kFrequent &&
      static_cast<double>(head) >= kLeastShare * static_cast<double>(model.parameters);
  return pays_off && merges_in_order(tokenizer) ? kFrequent : 0;
}

}  // namespace tandem
