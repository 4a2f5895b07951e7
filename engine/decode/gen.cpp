#include "engine/decode/gen.h"

namespace tandem {

const char* role_name(Role r) {
  switch (r) {
    case Role::kLarge:
      return "large";
    case Role::kSmall:
      return "small";
    case Role::kEncoder:
      return "encoder";
    case Role::kWorker:
      return "worker";
  }
  return "?";
}

Pass Gen::catch_up(Stage stage, std::span<const Token> tentative) const {
  Pass pass = s_->blank_pass();
  pass.stage = stage;
  const auto& seq = s_->tokens();
  const auto have = static_cast<size_t>(s_->rows({stage.cache, 0}));
  for (size_t i = have; i < seq.size(); ++i) pass.add.chain(token_in(seq[i]));
  const size_t fed = have > seq.size() ? have - seq.size() : 0;  // tentative rows already there
  for (size_t i = fed; i < tentative.size(); ++i) pass.add.chain(token_in(tentative[i]));
  return pass;
}

Read Gen::draw(RowList rows) const {
  Read read;
  read.rows = std::move(rows);
  read.warp = s_->warp();
  read.draw = true;
  read.logprob = s_->wants_logprobs();
  read.raw_logprob = s_->raw_logprobs();
  read.top = s_->top_logprobs();
  return read;
}

Emitted Gen::emitted(const Out& out, Provenance provenance) const {
  Emitted e;
  e.token = out.token;
  e.provenance = provenance;
  e.logprob = out.logprob;
  e.top.assign(out.top.begin(), out.top.end());
  return e;
}

}  // namespace tandem
