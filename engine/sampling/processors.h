// Logits processors: changes to a row's logits before all reads.
//
// They run in the order of Transformers (5.x, GenerationMixin._get_logits_processor). The two
// penalties that Transformers lacks follow repetition_penalty, as in vLLM:
//
//   1. bias                added; -Inf bans. SequenceBiasLogitsProcessor. (Transformers applies
//                          NoBadWordsLogitsProcessor after the penalties. The result is the same:
//                          -Inf stays -Inf.)
//   2. repetition_penalty  for tokens of prompt and output: negative logits are multiplied by it,
//                          others divided. RepetitionPenaltyLogitsProcessor
//   3. frequency_penalty   subtracted per occurrence in the output; and
//      presence_penalty    subtracted once per token of the output. OpenAI's definition
//   4. min_new_tokens      bans `ends` below this length. MinNewTokensLengthLogitsProcessor
//   5. constraint          bans tokens that may not follow the answer; see apply_constraint()
//
// Then come the warpers (warp.h). Bans add -Inf, so NaN and +Inf of the model stay detectable.
//
// Penalties count rows, not emitted tokens: the rows of the cache, and the row's ancestors among
// the new rows. So a draft counts only for the rows behind it, and a rejected draft never counts.
#pragma once

#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/constraint.h"
#include "engine/pass/pass.h"
#include "engine/pass/token_history.h"
#include "engine/sampling/row_answer.h"

namespace tandem::sampling {

// The processors' parameters; min_new_tokens, ends and prompt_tokens stay unset. Unset fields are
// off. REQUIRES: validate() (params.h) accepts `params`.
Processors processors_of(const SamplingParams& params);

// Changes the logits of the row that ends the path in `seen`.
// seen: read only if processors.has_penalties(). position: of the row. logits: [vocab]; tokens
// beyond the vocabulary are ignored.
void apply_processors(const Processors& processors, const TokenCounts& seen, int position,
                      std::span<float> logits);

// The same as changes of single logits, for devices: appends those of tokens below question.vocab,
// and sets the question's penalties.
void changes_of(const Processors& processors, const TokenCounts& seen, int position,
                RowQuestion& question, std::vector<RowChange>& changes);
// Makes the question's changes. logits: [question.vocab]
void apply_changes(const RowQuestion& question, const RowChanges& all, std::span<float> logits);

// False: a row of the path has no token, as masks have none. Such rows are not constrained.
bool is_constrained(const TokenCounts& seen);

// Bans tokens that may not follow the row's path. Returns false if no token is left. Then the row
// is a dead end, and only the first end token (else token 0) has a logit: drawn as a final token,
// it ends the request, which fails (SequenceEnd::status).
//
// Call it after apply_processors(), where is_constrained(). legal: TokenConstraint::after() of the
// path; null: no token is banned. ends: the constraint's. logits: [vocab]
bool apply_constraint(const LegalTokens* legal, std::span<const Token> ends,
                      std::span<float> logits);

}  // namespace tandem::sampling
