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

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/pass.h"

namespace tandem::sampling {

// The processors' parameters; min_new_tokens, ends and prompt_tokens stay unset. Unset fields are
// off. REQUIRES: validate() (params.h) accepts `params`.
Processors processors_of(const SamplingParams& params);

// How often each token occurs on the path from a sequence's first row to some row of it. The path
// is a stack, so a tree is walked without counting its trunk again. Keeps its memory when cleared.
class TokenCounts {
 public:
  struct Count {
    Token token;
    int all;     // times on the path
    int output;  // of them behind the prompt
  };

  // An empty path; rows [0, prompt_tokens) of it are going to be the prompt.
  void clear(int prompt_tokens);
  // Adds the row at position rows(). t < 0: it has no token (a mask).
  void push(Token t);
  void pop();  // the last row

  int rows() const { return static_cast<int>(path_.size()); }
  int prompt_tokens() const { return prompt_tokens_; }
  std::span<const Count> counts() const { return counts_; }  // distinct tokens, by first occurrence

 private:
  int prompt_tokens_ = 0;
  std::vector<Token> path_;
  std::vector<Count> counts_;
  std::vector<int32_t> index_;  // by token: into counts_; -1: not there
};

// Changes the logits of the row that ends the path in `seen`.
// seen: of use where processors.counts_tokens(). position: of the row. logits: [vocab]; tokens
// beyond the vocabulary have no logit to change.
void apply_processors(const Processors& processors, const TokenCounts& seen, int position,
                      std::span<float> logits);

}  // namespace tandem::sampling
