// Colors tokens by the model that proposed and confirmed them, and summarizes a method's statistics
// in one line. Pure functions of the server's responses.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

enum class Origin : uint8_t {
  kLarge,      // proposed by the large model: no color
  kSmall,      // proposed by the small model, accepted by the large one
  kUnchecked,  // proposed by the small model, not verified
  kNgram,      // an n-gram of earlier text, accepted
  kMask1,      // proposed by the first mask, accepted
  kMask2,      // by the second mask
  kMask3,      // by a later mask
  kOther,      // by an early head, accepted
  kGrammar,    // the only text that the constraint allows
  kCorrected,  // by the large model, in place of a rejected proposal
};
Origin origin_of(const v1::Token& token);

// Colors the text of a stream. Needs token texts (GenerateRequest.return_token_texts) to locate
// tokens in the text. Where that fails (a character of several tokens, delayed text), the color of
// a neighbouring token is used. The text itself is not changed.
class Painter {
 public:
  // The chunk's text with escape sequences, which always end with a reset.
  std::string paint(const v1::Chunk& chunk);

 private:
  struct Piece {
    std::string text;
    Origin origin = Origin::kLarge;
  };
  std::deque<Piece> waiting_;  // tokens whose text has not arrived
  Origin last_ = Origin::kLarge;
};

// "small, accepted 71 %  large 24 %  corrected 5 %", in color if `colours`; omits origins without
// tokens. For LLM-to-SLM it begins with "prompt, encoded by large", dimmed like an echoed prompt.
std::string legend(v1::Method method, const std::vector<v1::Token>& tokens, bool colours);

// "12 fallbacks, 3 rollbacks of 5 tokens, 2.50 of 4.00 draft tokens accepted"; empty for a method
// with one model and no drafts.
std::string method_figures(v1::Method method, const v1::MethodStats& stats);

}  // namespace tandem::cli
