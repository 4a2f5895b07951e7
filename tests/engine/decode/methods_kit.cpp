#include "tests/engine/decode/methods_kit.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/rows.h"

namespace tandem::test {

BoxOptions random_pair(Rng& rng, bool tight) {
  BoxOptions o;
  o.models.resize(2);
  const int vocab = between(rng, 3, 12);
  o.models[0].config = tiny_model(rng(), between(rng, 2, 4), vocab);
  o.models[1].config = tiny_model(rng(), between(rng, 1, 3), vocab);
  if (chance(rng, 20)) o.models[1].config = o.models[0].config;
  o.models[1].device = between(rng, 0, 1);
  o.models[1].config.pass_seconds = chance(rng, 50) ? 0.001 : 0.01;
  // Prompts of 10 and 20 tokens at most: this holds one request, and not two.
  if (tight) o.models[0].pool = o.models[1].pool = {4, 9, 9};
  o.shuffle = rng();
  o.limits.prefill_chunk_rows = between(rng, 1, 8);
  o.limits.step_rows = between(rng, 4, 30);
  return o;
}

Warp random_warp(Rng& rng, bool greedy) {
  Warp w;
  w.seed = rng();
  w.choice = static_cast<uint32_t>(rng() % 3);
  if (greedy) return w;
  w.temperature = 0.3F + 3 * fraction(rng);
  if (chance(rng, 30)) w.top_k = between(rng, 1, 6);
  if (chance(rng, 30)) w.top_p = 0.4F + 0.6F * fraction(rng);
  if (chance(rng, 20)) w.min_p = 0.3F * fraction(rng);
  return w;
}

std::shared_ptr<const Processors> random_processors(Rng& rng, int vocab, int prompt_tokens) {
  Processors p;
  p.prompt_tokens = prompt_tokens;
  if (chance(rng, 60)) p.repetition_penalty = 0.7F + fraction(rng);
  if (chance(rng, 60)) p.presence_penalty = 2 * fraction(rng) - 1;
  if (chance(rng, 60)) p.frequency_penalty = 2 * fraction(rng) - 1;
  if (chance(rng, 40)) p.bias = {{between(rng, 0, vocab - 1), 4 * fraction(rng) - 2}};
  return std::make_shared<const Processors>(std::move(p));
}

SequenceSpec random_spec(Box& box, Rng& rng, bool greedy) {
  const int vocab = box.config().vocab_size;
  SequenceSpec s = box.spec(random_prompt(rng, 1, 10, vocab), between(rng, 1, 20));
  s.warp = random_warp(rng, greedy);
  for (int n = between(rng, 0, 2); n > 0; --n) {
    s.stops.eos.push_back(static_cast<Token>(rng() % static_cast<uint64_t>(vocab)));
  }
  return s;
}

std::unique_ptr<TextStops> TokenStop::clone() const { return std::make_unique<TokenStop>(*this); }

int TokenStop::push(Token token) {
  text_.push_back(token);
  return matches(text_) ? 0 : -1;
}

bool TokenStop::would_stop(std::span<const Token> tokens) const {
  std::vector<Token> text = text_;
  for (const Token t : tokens) {
    text.push_back(t);
    if (matches(text)) return true;
  }
  return false;
}

bool TokenStop::matches(const std::vector<Token>& text) const {
  return text.size() >= stop_.size() &&
         std::equal(stop_.begin(), stop_.end(), text.end() - std::ssize(stop_));
}

CacheWatch::CacheWatch(Box* box) : box_(box) {
  for (FakeBackend& b : box->backends) {
    b.set_on_run([this](const Batch& batch) {
      moved_.clear();
      for (const Move& m : batch.moves) follow(m);
      for (const Work& w : batch.works) look(w);
    });
  }
}

void CacheWatch::follow(const std::vector<Token>& prompt, std::shared_ptr<Recorder> recorder) {
  prompt_ = prompt;
  recorder_ = std::move(recorder);
  final_.clear();
  layer_rows = 0;
}

void CacheWatch::follow(const Move& m) {
  if (m.kind != Move::kCopy || m.store != Store::kKv) return;
  const auto slot_of = [this](const Move::Place& p, int i) {
    const auto rows = static_cast<size_t>(box_->memory.model(p.model).pool.page_rows);
    return Place(p.model, p.page.index() * rows + static_cast<size_t>(p.slot + i));
  };
  for (int i = 0; i < m.rows; ++i) moved_[slot_of(m.to, i)] = at(slot_of(m.from, i));
}

FakeMemory::Slot CacheWatch::at(const Place& place) const {
  const auto moved = moved_.find(place);
  return moved != moved_.end() ? moved->second : box_->memory.model(place.first).kv[place.second];
}

void CacheWatch::look(const Work& w) {
  const reference::Tokens seq = reference::joined(prompt_, recorder_->tokens);
  const int begin = w.pass->stage.first;
  const int known = static_cast<int>(seq.size()) - begin;
  const FakeMemory::Model& model = box_->memory.model(w.model);
  const auto page_rows = static_cast<size_t>(model.pool.page_rows);
  // The first pass on a cache since tokens became final: nothing tentative is left.
  const bool first = std::exchange(final_[w.model], seq.size()) != seq.size();
  if (first && !recorder_->tokens.empty()) {
    EXPECT_LT(w.rows_before(), known);
  }
  for (int row = 0; row < std::min(w.rows_before(), known); ++row) {
    const auto r = static_cast<size_t>(row);
    const FakeMemory::Slot slot =
        at({w.model, w.pages[r / page_rows].index() * page_rows + r % page_rows});
    EXPECT_EQ(slot.input, fake::token_input(seq[r + static_cast<size_t>(begin)])) << "row " << row;
    EXPECT_EQ(slot.position, row);
    ++looked_at;
  }
  for (const int from : w.frontier) layer_rows += w.to - from;
  layer_rows += int64_t{w.to} * w.count;
}

bool chi_square_fits(const std::map<std::vector<Token>, double>& probability,
                     const std::map<std::vector<Token>, int>& count, double* z_out) {
  double n = 0, pooled_expected = 0, pooled_count = 0, statistic = 0, cells = 0;
  for (const auto& [cell, c] : count) {
    if (!probability.contains(cell)) return false;  // impossible, and drawn
    n += c;
  }
  for (const auto& [cell, p] : probability) {
    const auto it = count.find(cell);
    const double seen = it == count.end() ? 0 : it->second;
    if (n * p < 5) {
      pooled_expected += n * p;
      pooled_count += seen;
      continue;
    }
    statistic += (seen - n * p) * (seen - n * p) / (n * p);
    ++cells;
  }
  if (pooled_expected > 0) {
    statistic +=
        (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
    ++cells;
  }
  const double k = cells - 1;
  const double z = (std::cbrt(statistic / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
  if (z_out) *z_out = z;
  return z < 3.719;  // p > 1e-4
}

}  // namespace tandem::test
