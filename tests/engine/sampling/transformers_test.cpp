// Processors and warpers together, in their order, against Transformers (processor_goldens.py).
//
// TANDEM_PROCESSOR_GOLDEN: another file of that format. TANDEM_PROCESSOR_GOLDEN_ROWS: least number
// of rows of each kind; transformers_test.py makes thousands.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/sampling/params.h"
#include "engine/sampling/processors.h"
#include "engine/sampling/warp.h"

namespace tandem::sampling {
namespace {

constexpr int kKinds = 14;

double number(const std::string& word) { return std::strtod(word.c_str(), nullptr); }

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

struct Case {
  std::string kind;
  SamplingParams params;
  int64_t min_new_tokens = 0;
  std::vector<Token> ends;
  std::vector<double> expected;
};

void set(Case& c, const std::string& field, const std::string& value) {
  SamplingParams& p = c.params;
  if (const SamplingParameter* const row = find_sampling_parameter(field)) {
    p.*row->member = number(value);
  } else if (field == "min_new_tokens") {
    c.min_new_tokens = std::stoll(value);
  } else if (field == "logit_bias") {
    for (const std::string& entry : split(value, ',')) {
      p.logit_bias.emplace_back(std::stoll(entry), number(split(entry, ':')[1]));
    }
  } else if (field == "bad_token_ids") {
    for (const std::string& id : split(value, ',')) p.bad_token_ids.push_back(std::stoll(id));
  } else if (field == "ends") {
    for (const std::string& id : split(value, ',')) c.ends.push_back(std::stoi(id));
  } else {
    ADD_FAILURE() << "unknown field " << field;
  }
}

Case parse_case(std::istream& in) {
  Case c;
  std::string word;
  in >> c.kind;
  for (in >> word; in && word != "="; in >> word) {
    const size_t equals = word.find('=');
    set(c, word.substr(0, equals), word.substr(equals + 1));
  }
  for (in >> word; in; in >> word) c.expected.push_back(number(word));
  return c;
}

TEST(Transformers, ProcessorsAndWarpersAreEqual) {
  const char* const other = std::getenv("TANDEM_PROCESSOR_GOLDEN");
  const char* const rows = std::getenv("TANDEM_PROCESSOR_GOLDEN_ROWS");
  std::ifstream file(other ? other
                           : TANDEM_SOURCE_DIR "/tests/engine/sampling/processor_golden.txt");
  ASSERT_TRUE(file.is_open());
  std::vector<float> logits;
  std::vector<Token> tokens;
  int prompt_tokens = 0;
  std::map<std::string, int> cases;
  Scratch scratch;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "row") {
      size_t vocab = 0;
      in >> vocab;
      logits.resize(vocab);
      for (float& x : logits) in >> x;
      ASSERT_TRUE(in) << line;
      continue;
    }
    if (what == "fed") {
      in >> prompt_tokens;
      tokens.clear();
      for (Token t = 0; in >> t;) tokens.push_back(t);
      continue;
    }
    const Case c = parse_case(in);
    ASSERT_EQ(c.expected.size(), logits.size()) << line;
    ASSERT_TRUE(validate(c.params, static_cast<int>(logits.size())).ok()) << line;
    Processors p = processors_of(c.params);
    p.prompt_tokens = prompt_tokens;
    p.min_new_tokens = static_cast<int>(c.min_new_tokens);
    p.ends = c.ends;
    TokenCounts seen;
    seen.clear(prompt_tokens);
    for (const Token t : tokens) seen.push(t);
    std::vector<float> got = logits;
    apply_processors(p, seen, seen.rows() - 1, got);
    const Warp warp = warp_of(c.params);
    if (!warp.greedy()) warp_to_probs(warp, got, got, scratch);
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == c.expected[i]) continue;  // -Inf
      ASSERT_NEAR(got[i], c.expected[i], 1e-5 * (warp.greedy() ? 1 + std::abs(got[i]) : 1))
          << line << "\n token " << i;
      const bool tiny = c.expected[i] > 0 && c.expected[i] < 1e-30;  // may be 0 in fp32
      if (!warp.greedy() && !tiny) {
        ASSERT_EQ(got[i] > 0, c.expected[i] > 0) << line << "\n token " << i;
      }
    }
    ++cases[c.kind];
  }
  EXPECT_EQ(cases.size(), static_cast<size_t>(kKinds));
  for (const auto& [kind, n] : cases) EXPECT_GE(n, rows ? std::atoi(rows) : 8) << kind;
}

}  // namespace
}  // namespace tandem::sampling
