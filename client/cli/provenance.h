// Who wrote what, for a person to see: tokens in colours by what proposed and confirmed them, and
// what a method did in one line. Pure functions of what the server said.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

enum class Origin : uint8_t {
  kLarge,      // the large model's own: no colour
  kSmall,      // the small model's, kept by the large one
  kUnchecked,  // the small model's, and nobody looked at it
  kNgram,      // found in the text so far, and kept
  kMask1,      // the first mask's, kept
  kMask2,      // the second's
  kMask3,      // that of a later one
  kOther,      // an early head's, kept
  kCorrected,  // the large model's, in place of a proposal that it dropped
};
Origin origin_of(const v1::Token& token);

// Colours a stream's text. Tokens need their own texts (GenerateRequest.return_token_texts) and are
// found by them; where that is not possible (a character of several tokens, text that was held
// back) a neighbour's colour is taken. The text itself is never changed.
class Painter {
 public:
  // The chunk's text with escape sequences; the last one always takes the colour off.
  std::string paint(const v1::Chunk& chunk);

 private:
  struct Piece {
    std::string text;
    Origin origin = Origin::kLarge;
  };
  std::deque<Piece> waiting_;  // tokens whose text has not come yet
  Origin last_ = Origin::kLarge;
};

// "small, kept 71 %  large 24 %  corrected 5 %", each in its colour where `colours`; what did not
// occur is left out. Of LLM-to-SLM, who read comes first: "prompt, read by large", as dim as an
// echoed prompt.
std::string legend(v1::Method method, const std::vector<v1::Token>& tokens, bool colours);

// "12 fallbacks, 3 rollbacks of 5 tokens, 2.50 of 4.00 draft tokens kept"; empty for a method that
// drafts nothing and has one model.
std::string method_figures(v1::Method method, const v1::MethodStats& stats);

}  // namespace tandem::cli
