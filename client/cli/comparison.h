// What several methods made of one prompt, side by side. Pure functions of what the server said.
#pragma once

#include <string>
#include <vector>

#include "client/cli/answer.h"
#include "client/cli/json.h"
#include "client/cli/text_diff.h"

namespace tandem::cli {

struct Compared {
  std::string method;  // as it was asked for
  Answer answer;
};

// Token texts, of which the answer's own text is made; the ids where the server gave no texts.
std::vector<std::string> pieces_of(const Answer& answer);

// One line for each: contract, tokens, passes, tokens a pass, time to the first token, tokens a
// second after it, how many times the first one's rate that is, and how it ended.
std::string comparison_table(const std::vector<Compared>& all);

// {"prompt_tokens", "answers": [{"asked", "same", "speed_up", and the fields of `generate`}]}
Json comparison_json(const std::vector<Compared>& all);

}  // namespace tandem::cli
