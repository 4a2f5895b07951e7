// Logits processors: what a request changes about a row's logits before anything is read of it.
//
// They are applied in the order of Transformers (5.x, GenerationMixin._get_logits_processor); the
// two penalties that it does not have come directly behind the one that it has, as in vLLM:
//
//   1. bias                added; -Inf bans. SequenceBiasLogitsProcessor. (Transformers has
//                          NoBadWordsLogitsProcessor behind the penalties; what is -Inf stays so,
//                          so bans may as well come first.)
//   2. repetition_penalty  of tokens in the prompt or behind it: logits below 0 are multiplied by
//                          it, others divided. RepetitionPenaltyLogitsProcessor
//   3. frequency_penalty   times the occurrences behind the prompt, subtracted; and
//      presence_penalty    subtracted where there is one. OpenAI's definition
//   4. min_new_tokens      bans `ends` while there are fewer. MinNewTokensLengthLogitsProcessor
//
// Then come the warpers (warp.h). A banned token is made -Inf by adding it, so that a NaN or +Inf
// of the model's stays one and is found.
//
// What was fed up to a row is counted on rows, never on what was emitted: the rows of the cache and
// the row's own ancestors among the new ones. So a draft counts for the rows behind it and for
// nothing else, and once rejected it never was.
#pragma once

#include <span>

#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/pass.h"
#include "engine/pass/token_history.h"

namespace tandem::sampling {

// The processors' parameters; min_new_tokens, ends and prompt_tokens stay unset. Unset fields are
// off. REQUIRES: validate() (params.h) accepts `params`.
Processors processors_of(const SamplingParams& params);

// Changes the logits of the row that ends the path in `seen`.
// seen: of use where processors.counts_tokens(). position: of the row. logits: [vocab]; tokens
// beyond the vocabulary have no logit to change.
void apply_processors(const Processors& processors, const TokenCounts& seen, int position,
                      std::span<float> logits);

}  // namespace tandem::sampling
