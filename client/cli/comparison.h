// Compares the outputs of several methods for one prompt. Pure functions of the server's responses.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/answer.h"
#include "client/cli/json.h"
#include "client/cli/text_diff.h"

namespace tandem::cli {

struct Compared {
  std::string method;  // as requested
  Answer answer;       // incomplete if the request failed
  absl::Status status;
};

// The text of each token, or its id where the server sent no text.
std::vector<std::string> pieces_of(const Answer& answer);

// One line per method: contract, tokens, passes, tokens per pass, time to the first token, tokens
// per second after it, the speed-up over the baseline, and the finish reason. The baseline is the
// first method that succeeded. A method that failed has its status in place of the figures.
std::string comparison_table(const std::vector<Compared>& all);

// {"prompt_tokens", "answers": [{"requested_method", "same", "speed_up", and the fields of
// `generate`}]}. A method that failed has {"requested_method", "error": {"status", "message"}}.
Json comparison_json(const std::vector<Compared>& all);

}  // namespace tandem::cli
