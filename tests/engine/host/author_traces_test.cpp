// BiLD and BiTA decide what the authors' implementations decide (make_author_traces.py), token by
// token and pass by pass. docs/reports/claims.md lists the rules by which BiLD differs.
#ifdef TANDEM_WITH_TORCH
#include "tests/engine/backend/torch/author_traces.h"

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/sched/pass_trace.h"
#include "tests/engine/host/kit.h"
#include "tests/engine/host/served_golden.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::run;
using testing::Served;

// An event of a trace; the script explains the letters.
struct AuthorEvent {
  char kind = 0;
  int rolled_back = 0;
  Token token = -1;

  explicit AuthorEvent(absl::string_view text) : kind(text[0]) {
    const std::vector<std::string> numbers = absl::StrSplit(text.substr(1), ':');
    if (kind != 'f') token = std::stoi(numbers.back());
    if (numbers.size() == 2) rolled_back = std::stoi(numbers[0]);
  }
};

struct AuthorRound {
  int accepted = 0, rejected = 0;  // of the small run
  Token last = -1;                 // large's
  friend bool operator==(const AuthorRound&, const AuthorRound&) = default;
  friend std::ostream& operator<<(std::ostream& out, const AuthorRound& r) {
    return out << r.accepted << "+" << r.rejected << ":" << r.last;
  }
};

// The part of an answer in which both implementations are in the same state. Its first token is the
// large model's.
struct AuthorSegment {
  std::vector<Token> before;  // tokens of the answer
  std::vector<Token> tokens;
  std::vector<Provenance> provenance;
  std::vector<AuthorRound> rounds;
  bool left_out = false;  // only the authors' code continues after its end

  void add(Token token, Source proposed, bool corrected) {
    tokens.push_back(token);
    provenance.push_back({proposed, Source::kLarge, corrected});
  }
};

// Rule 1: after a rollback the authors' code calls the large model again at once, so a new segment
// begins with that token. Rule 2: if the first violation is the large model's own choice, the
// authors' code accepts the run, and ours rolls back from the first violation that is not. Rule 3:
// the tail that no large pass has verified is not compared.
std::vector<AuthorSegment> segments_of(const std::string& trace) {
  std::vector<AuthorSegment> segments(1);
  std::vector<Token> said, run;
  bool over = false;
  const auto accept = [&](int kept, Token last, bool corrected) {
    AuthorSegment& s = segments.back();
    for (int i = 0; i < kept; ++i) s.add(run[static_cast<size_t>(i)], Source::kSmall, false);
    s.add(last, Source::kLarge, corrected);
    s.rounds.push_back({kept, static_cast<int>(run.size()) - kept, last});
  };
  for (const absl::string_view word : absl::StrSplit(trace, ' ')) {
    const AuthorEvent e(word);
    if (e.kind == 's') run.push_back(e.token);
    if (e.kind == 'o') {
      accept(static_cast<int>(run.size()) - e.rolled_back, e.token, true);
      segments.back().left_out = true;
      said.insert(said.end(), run.begin(), run.end());
      run.clear();
      over = true;
    }
    if (e.kind != 'L' && e.kind != 'R') continue;
    if (over) {
      EXPECT_EQ(e.kind, 'L');
      EXPECT_TRUE(run.empty());
      segments.emplace_back().before = said;
      over = false;
    }
    const int kept = static_cast<int>(run.size()) - e.rolled_back;
    accept(kept, e.token, e.kind == 'R');
    said.insert(said.end(), run.begin(), run.begin() + kept);
    said.push_back(e.token);
    run.clear();
    over = e.kind == 'R';
  }
  return segments;
}

EngineConfig author_pair(const std::string& large, const std::string& small, int layers) {
  EngineConfig config = testing::real_engine_config("large", large, DType::kFloat32);
  ModelConfig model = config.models[0];
  model.name = "small";
  model.path = small;
  model.layers = layers;
  config.models.push_back(model);
  config.deployments = {{"pair", "large", "small"}};
  return config;
}

// The rounds of the first `n` tokens.
std::vector<AuthorRound> author_rounds(const testing::Recorder& sink, size_t n) {
  std::vector<AuthorRound> rounds;
  for (size_t i = 0; i < n; ++i) {
    const TokenInfo& token = sink.tokens()[i];
    if (token.provenance.proposed != Source::kLarge) continue;
    for (const PassRecord& pass : sink.end().trace->passes) {
      if (pass.pass == token.pass) rounds.push_back({pass.accepted, pass.rejected, token.id});
    }
  }
  return rounds;
}

TEST(AuthorTraces, BildDecidesAlike) {
  const nlohmann::json traces = test::author_traces();
  int segments = 0, left_out = 0, rollbacks = 0, tokens = 0;
  for (const auto& r : traces["bild"]) {
    const std::string model = r["model"];
    const bool golden = model != "docstring";
    std::unique_ptr<Served> served;
    if (golden) served = std::make_unique<Served>(model);
    const std::string folder = source_dir() + "/models/docstring-";
    const auto engine =
        make_engine(golden ? author_pair(served->path(), served->path(), r["layers"])
                           : author_pair(folder + "large", folder + "small", 0));
    ASSERT_NE(engine, nullptr);
    for (const AuthorSegment& s : segments_of(r["trace"])) {
      // The decoder of an encoder cannot begin within an answer.
      if (model != "llama2" && !s.before.empty()) break;
      SCOPED_TRACE(absl::StrCat(r.dump(), ", from token ", s.before.size()));
      Prompt prompt;
      if (golden) {
        std::vector<Token> text = served->golden.prompt(r["prompt"]);
        text.insert(text.end(), s.before.begin(), s.before.end());
        prompt = text;
      } else {
        prompt = r["text"].get<std::string>();
      }
      // Room for a whole run behind the segment, so that the limit cuts none of its runs.
      const size_t n = s.tokens.size();
      GenerateRequest request = testing::request_for(prompt, static_cast<int64_t>(n) + 11);
      request.method = "bild";
      request.trace = true;
      request.sampling.temperature = 0;
      request.parameters = {{"fallback_threshold", r["fallback"].get<double>()},
                            {"rollback_threshold", r["rollback"].get<double>()},
                            {"max_small_run", int64_t{10}}};
      const auto sink = run(*engine, request);
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      std::vector<Token> ids = sink->ids();
      ids.resize(n);
      EXPECT_EQ(ids, s.tokens);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(sink->tokens()[i].provenance, s.provenance[i]) << "token " << i;
      }
      EXPECT_EQ(author_rounds(*sink, n), s.rounds);
      ++segments;
      left_out += s.left_out ? 1 : 0;
      rollbacks += s.rounds.back().rejected > 0 ? 1 : 0;
      tokens += static_cast<int>(n);
    }
  }
  EXPECT_GT(segments, 60);
  EXPECT_GT(rollbacks, 50);
  EXPECT_GT(left_out, 5);
  EXPECT_GT(tokens, 300);
}

TEST(AuthorTraces, BitaAcceptsAlike) {
  const nlohmann::json traces = test::author_traces();
  const Served served("llama2");
  const test::AdapterFolders folders(served.path());
  EngineConfig config = testing::real_engine_config("llama2", served.path(), DType::kFloat32);
  config.models[0].extras = {test::write_author_masks(folders, traces["masks"])};
  config.deployments[0].methods["bita"] = {{"adapter", std::string("masks")}};
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  int passes = 0, longest = 0;
  for (const auto& r : traces["bita"]) {
    SCOPED_TRACE(absl::StrCat(r["tree"].get<std::string>(), ", prompt ", r["prompt"].get<int>()));
    GenerateRequest request = served.request(r["prompt"], "llama2");
    request.method = "bita";
    request.parameters = {{"tree", r["tree"].get<std::string>()},
                          {"num_masks", r["masks"].get<int64_t>()},
                          {"num_candidates", r["candidates"].get<int64_t>()},
                          {"pace", std::string("PACE_FIXED")}};
    const auto sink = run(*engine, request);
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    size_t next = 0;
    for (const auto& pass : r["passes"]) {
      const int made = pass[1];
      for (int i = 0; i < made; ++i, ++next) {
        const TokenInfo& token = sink->tokens().at(next);
        const bool last = i + 1 == made;
        EXPECT_EQ(token.id, served.golden.greedy(r["prompt"])[next]) << "token " << next;
        EXPECT_EQ(token.provenance.proposed, last ? Source::kLarge : Source::kMask)
            << "token " << next;
        EXPECT_EQ(token.provenance.index, last ? 0 : i) << "token " << next;
        EXPECT_EQ(token.pass, sink->tokens()[next - static_cast<size_t>(i)].pass);
      }
      ++passes;
      longest = std::max(longest, made);
    }
  }
  EXPECT_GT(passes, 80);
  EXPECT_EQ(longest, 4);
}

}  // namespace
}  // namespace tandem
#endif
