#include "engine/sched/conditioning.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/sequence_parts.h"

namespace tandem {
namespace {

std::string conditioned_by(const SequenceSpec& spec, size_t role) {
  const ConditioningEdge* const edge = spec.cast->conditioning_of(role);
  if (edge == nullptr) return "";
  const CastRole& source = spec.roles()[static_cast<size_t>(edge->from)];
  return absl::StrCat("rows of ", source.model.value, " after ", edge->layer, " of ", source.layers,
                      edge->replace ? " alone" : " and tokens", " through ",
                      spec.roles()[role].adapter.value, " with ", source.lora.value, " of ",
                      absl::StrJoin(spec.conditioning_tokens, ","));
}

}  // namespace

std::string prefix_dependencies(const SequenceSpec& spec, size_t role) {
  std::string key = conditioned_by(spec, role);
  const int memory = spec.cast->memory_of(role);
  if (memory < 0) return key;
  // The tokens themselves, not a hash: different inputs never share a key.
  const auto encoder = static_cast<size_t>(memory);
  absl::StrAppend(&key, spec.roles()[encoder].model.value, ":",
                  absl::StrJoin(spec.request_tokens(encoder), ","),
                  mutated(Mutation::kForgetConditioning) ? "" : conditioned_by(spec, encoder));
  return key;
}

std::unique_ptr<Conditioning> Conditioning::create(SequenceParts* parts, LoopServices* loop) {
  if (!parts->spec.cast->has_edges()) return nullptr;
  return std::unique_ptr<Conditioning>(new Conditioning(parts, loop));
}

const Cast& Conditioning::cast() const { return *parts_->spec.cast; }

const ConditioningEdge* Conditioning::edge_to(const SequenceCache& cache) const {
  return cast().conditioning_of(parts_->caches.first_role_of(cache));
}

int Conditioning::memory_role(const SequenceCache& cache) const {
  return cast().memory_of(parts_->caches.first_role_of(cache));
}

CacheId Conditioning::memory_of(const SequenceCache& cache) const {
  const int role = memory_role(cache);
  return role < 0 ? CacheId() : parts_->caches.stage_of(static_cast<size_t>(role)).cache;
}

Conditioning::HiddenRows* Conditioning::hidden_rows(CacheId cache) {
  const auto found = std::ranges::find(hidden_, cache, &HiddenRows::cache);
  return found == hidden_.end() ? nullptr : &*found;
}

// An encoder's rows run in one pass, so its cache has all of them or none.
void Conditioning::require(std::span<const Need> needs, Requirements* required) {
  for (const Need& need : needs) {
    const int role = memory_role(*parts_->caches.find(need.stage.cache));
    if (role < 0) continue;
    const auto encoder = static_cast<size_t>(role);
    CacheRequirement& memory =
        required->of(parts_->caches.find(memory_of(*parts_->caches.find(need.stage.cache))));
    memory.rows = static_cast<int>(parts_->spec.request_tokens(encoder).size());
    memory.adoptable = 0;
  }
  require_sources(required);
}

// A source needs capacity for the rows that it runs, and for the hidden rows that it leaves. Rows
// that it has already leave nothing, so they are dropped and run again. A source that runs its own
// tokens leaves all of them: the alignment may name any.
void Conditioning::require_sources(Requirements* required) {
  hidden_.clear();
  for (size_t i = 0; i < required->size(); ++i) {  // sources may be conditioned themselves
    const SequenceCache& target = *(*required)[i].cache;
    const ConditioningEdge* const edge = edge_to(target);
    if (edge == nullptr) continue;
    const auto to = static_cast<size_t>(edge->to), from = static_cast<size_t>(edge->from);
    const auto rows = static_cast<int>(parts_->spec.request_tokens(to).size());
    if (target.rows() >= rows) continue;
    const Stage stage = parts_->caches.stage_of(from);
    SequenceCache* const source = parts_->caches.find(stage.cache);
    const bool fixed = parts_->spec.runs_fixed_tokens(from);
    const int first = fixed ? 0 : target.rows();
    const int end = fixed ? static_cast<int>(parts_->spec.request_tokens(from).size()) : rows;
    if (source->idle()) source->commit_tree();
    if (source->rows() > first) source->truncate(first);
    CacheRequirement& need = required->of(source);
    need.rows = std::max(need.rows, end);
    need.adoptable = std::min(need.adoptable, first);
    need.values = end - first;
    if (stage.to < source->pools()->layers) {
      need.frontier_to = stage.to;
      need.frontier_begin = 0;
      need.frontier_end = std::max(need.frontier_end, end);
    }
    hidden_.push_back({source->id(), first, end, edge->layer > 0 ? edge->layer : stage.to});
  }
}

Conditioning::Inputs Conditioning::inputs_of(const SequenceCache& cache) {
  const ConditioningEdge* const edge = edge_to(cache);
  if (edge == nullptr) return {};
  const SequenceSpec& spec = parts_->spec;
  const auto to = static_cast<size_t>(edge->to), from = static_cast<size_t>(edge->from);
  const auto rows = static_cast<int>(spec.request_tokens(to).size());
  if (cache.rows() >= rows) return {};
  if (mutated(Mutation::kRefillWithTokens) && parts_->accounts.stats().preemptions > 0) return {};
  const Stage source = parts_->caches.stage_of(from);
  const bool fixed = spec.runs_fixed_tokens(from);
  HiddenRows* const hidden = hidden_rows(source.cache);
  TANDEM_CHECK(hidden != nullptr);
  if (hidden->ticket == 0) {
    Pass pass = fixed ? fixed_pass(from) : parts_->passes.blank();
    pass.stage = source;
    for (int i = parts_->caches.find(source.cache)->rows(); !fixed && i < rows; ++i) {
      pass.add.chain(token_in(parts_->output.tokens()[static_cast<size_t>(i)]));
    }
    submit(std::move(pass), SequencePasses::kRequested)->detach();
  }
  TANDEM_CHECK(hidden->ticket != 0 && hidden->first <= cache.rows());
  TANDEM_CHECK(hidden->end == (fixed ? static_cast<int>(spec.request_tokens(from).size()) : rows));
  return {edge, hidden, rows};
}

In Conditioning::input(const Inputs& inputs, Token token, int row) const {
  const std::vector<int>& alignment = parts_->spec.alignment;
  const bool same = alignment.empty() || mutated(Mutation::kIgnoreAlignment);
  const int from = same ? row : alignment[static_cast<size_t>(row)];
  In in;
  in.kind = In::kEmbed;
  in.id = inputs.edge->distinct_tokenizer ? kNoToken : token;
  in.ref = {inputs.rows->ticket, inputs.rows->out + from - inputs.rows->first,
            inputs.edge->replace};
  return in;
}

Pass Conditioning::begin_pass(Stage stage, int end) {
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const Inputs inputs = inputs_of(cache);
  Pass pass = parts_->passes.blank();
  pass.stage = stage;
  const std::vector<Token>& tokens = parts_->output.tokens();
  for (int row = cache.rows(); row < std::min(inputs.end, end); ++row) {
    pass.add.chain(input(inputs, tokens[static_cast<size_t>(row)], row));
  }
  return pass;
}

Pass Conditioning::fixed_pass(size_t role) {
  const Stage stage = parts_->caches.stage_of(role);
  const bool bare =
      mutated(Mutation::kRefillUnconditioned) && parts_->accounts.stats().preemptions > 0;
  const Inputs inputs = bare ? Inputs() : inputs_of(*parts_->caches.find(stage.cache));
  Pass pass = parts_->passes.blank();
  pass.stage = stage;
  pass.see = cast().roles[role].encodes ? See::kAll : See::kCausal;
  const std::vector<Token>& tokens = parts_->spec.request_tokens(role);
  for (int row = 0; row < static_cast<int>(tokens.size()); ++row) {
    const Token token = tokens[static_cast<size_t>(row)];
    pass.add.chain(row < inputs.end ? input(inputs, token, row) : token_in(token));
  }
  return pass;
}

void Conditioning::recompute_memory(const SequenceCache& reader) {
  const int role = memory_role(reader);
  if (role < 0) return;
  if (parts_->caches.find(memory_of(reader))->rows() > 0) return;
  submit(fixed_pass(static_cast<size_t>(role)), SequencePasses::kRecompute)->detach();
}

Flight* Conditioning::submit(Pass&& pass, SequencePasses::Purpose purpose) {
  const SequenceCache& cache = *parts_->caches.find(pass.stage.cache);
  recompute_memory(cache);
  HiddenRows* const hidden = hidden_rows(pass.stage.cache);
  const int begin = cache.rows();
  const bool leaves = hidden && hidden->ticket == 0 && begin <= hidden->first &&
                      begin + static_cast<int>(pass.add.size()) >= hidden->end;
  if (leaves) {
    hidden->out = 0;
    for (const Read& read : pass.read) hidden->out += static_cast<int>(read.rows.size());
    Read rows;
    rows.at = hidden->layer;
    rows.hidden = true;
    for (int row = hidden->first; row < hidden->end; ++row) rows.rows.push_back(row - begin);
    pass.reading(std::move(rows));
  }
  Flight* const flight =
      parts_->passes.submit(std::move(pass), parts_->caches, loop_, purpose, memory_of(cache));
  if (leaves) hidden->ticket = flight->id;
  return flight;
}

}  // namespace tandem
