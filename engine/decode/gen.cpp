#include "engine/decode/gen.h"

#include <algorithm>

#include "engine/base/enum_names.h"
#include "engine/pass/constraint.h"

namespace tandem {
namespace {

constexpr auto kRoleNames = enum_names<Role>({
    {Role::kLarge, "large"},
    {Role::kSmall, "small"},
    {Role::kEncoder, "encoder"},
    {Role::kWorker, "worker"},
});

std::span<const Token> answer_of(const std::vector<Token>& seq, const Processors& processors) {
  return std::span(seq).subspan(static_cast<size_t>(processors.prompt_tokens));
}

}  // namespace

const char* role_name(Role r) { return kRoleNames[r].data(); }

Pass Gen::catch_up(Stage stage, int upto) const {
  const auto& seq = s_->tokens();
  const auto end = std::min(static_cast<size_t>(upto), seq.size());
  Pass pass = s_->begin_pass(stage, static_cast<int>(end));
  const int have = stage.first + s_->rows({stage.cache, 0});
  const auto begin = static_cast<size_t>(have) + pass.add.size();
  for (size_t i = begin; i < end; ++i) pass.add.chain(token_in(seq[i]));
  return pass;
}

Pass Gen::catch_up(Stage stage, std::span<const Token> tentative) const {
  const auto seq = static_cast<int>(s_->tokens().size());
  if (tentative.empty()) return catch_up(stage, seq);
  const int have = stage.first + s_->rows({stage.cache, 0});
  Pass pass = catch_up(stage, seq);
  // Some tentative rows may be in the cache already.
  for (auto i = static_cast<size_t>(std::max(0, have - seq)); i < tentative.size(); ++i) {
    pass.add.chain(token_in(tentative[i]));
  }
  return pass;
}

Read Gen::draw(RowList rows) const {
  Read read{.rows = std::move(rows), .warp = s_->warp(), .draw = true};
  read.logprob = s_->wants_logprobs();
  read.raw_logprob = s_->raw_logprobs();
  read.top = s_->top_logprobs();
  return read;
}

std::vector<Token> Gen::forced(int most) const {
  const Processors* const processors = warp().processors.get();
  if (processors == nullptr || !processors->constraint || most <= 0) return {};
  const auto legal = processors->constraint->known(answer_of(seq(), *processors));
  std::vector<Token> tokens;
  if (legal == nullptr) return tokens;
  for (const Token t : legal->forced) {
    if (static_cast<int>(tokens.size()) == most || ends(tokens)) break;
    tokens.push_back(t);
  }
  return tokens;
}

size_t Gen::legal_drafts(std::span<const Token> drafts) const {
  const Processors* const processors = warp().processors.get();
  if (processors == nullptr || !processors->constraint) return drafts.size();
  return processors->constraint->legal_drafts(answer_of(seq(), *processors), drafts);
}

Emitted Gen::emitted(const Out& out, Provenance provenance) const {
  Emitted e;
  e.token = out.token;
  e.provenance = provenance;
  e.logprob = out.logprob;
  if (!out.top.empty()) e.top.assign(out.top.begin(), out.top.end());
  return e;
}

}  // namespace tandem
