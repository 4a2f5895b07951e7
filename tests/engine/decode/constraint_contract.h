// Constraints under every method: each token is one of those that may come next, and methods that
// are EXACT give the tokens of constrained autoregressive decoding. Pools are tight in each fourth
// box, so requests are preempted; some are cancelled.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/decode/beam.h"
#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/llm_to_slm.h"
#include "engine/decode/ngram.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/ppd.h"
#include "engine/decode/speculative.h"
#include "engine/decode/text_history.h"
#include "tests/engine/decode/late_constraint.h"
#include "tests/engine/decode/method_checks.h"
#include "tests/engine/decode/random_constraint.h"
#include "tests/reference/autoregressive.h"
#include "tests/sanitized.h"

namespace tandem::test {

using reference::Tokens;

// The constraint of a case: for each request a new one, all equal.
struct CaseConstraint {
  std::function<std::shared_ptr<TokenConstraint>()> make;
  std::function<bool(const Tokens&)> matches;  // a second opinion on whole answers; may be null
};

struct Constraints {
  std::function<CaseConstraint(Rng&, const AutomatonShape&)> make;
  int vocab = 0;            // of the models; 0: that of the box
  std::vector<Token> ends;  // with `vocab`
  bool late = false;        // of the method's requests: half of the answers wait for it
};

inline Constraints random_automata() {
  return {[](Rng&, const AutomatonShape& shape) {
            return CaseConstraint{[shape] { return std::make_shared<RandomConstraint>(shape); },
                                  nullptr};
          },
          0,
          {},
          false};
}

// Likewise, and answers wait for them.
inline Constraints late_automata() {
  Constraints late = random_automata();
  late.late = true;
  return late;
}

inline int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// `n` cases, a quarter of them under sanitizers, or as many as TANDEM_CONSTRAINT_CASES says.
inline int number_of_cases(int n) { return number_from("TANDEM_CONSTRAINT_CASES", cases(n)); }

// The first seed: 0, or TANDEM_CONSTRAINT_SEED. Failures name theirs, and each has eight cases.
inline int first_seed() { return number_from("TANDEM_CONSTRAINT_SEED", 0); }

inline void constrain(std::shared_ptr<TokenConstraint> constraint, SequenceSpec* s) {
  auto processors =
      std::make_shared<Processors>(s->warp.processors ? *s->warp.processors : Processors());
  processors->prompt_tokens = static_cast<int>(s->prompt.size());
  processors->constraint = std::move(constraint);
  s->warp.processors = std::move(processors);
}

struct Constrained {
  SequenceSpec spec;
  AutomatonShape shape;
};

// A request with end tokens, bans and minimum lengths inside the constraint.
inline Constrained random_constrained(Box& box, Rng& rng, bool greedy, bool dead_ends,
                                      const std::vector<Token>& ends) {
  Constrained c;
  c.spec = random_spec(box, rng, greedy);
  const int vocab = box.config().vocab_size;
  if (!ends.empty()) c.spec.stops.eos = ends;
  if (c.spec.stops.eos.empty()) c.spec.stops.eos = {between(rng, 0, vocab - 1)};
  Processors p;
  if (chance(rng, 40)) {
    p = *random_processors(rng, vocab, static_cast<int>(c.spec.prompt.size()));
  }
  if (dead_ends && chance(rng, 20)) {
    p.min_new_tokens = between(rng, 1, 4);
    p.ends = c.spec.stops.eos;
  }
  c.spec.warp.processors = std::make_shared<const Processors>(std::move(p));
  c.shape = {rng(), vocab, c.spec.stops.eos, dead_ends};
  return c;
}

// Tokens may follow one another, and the end is legal where the model ended the text.
// `constraint`: none of those that the requests have.
inline void expect_legal(const Recorder& r, const CaseConstraint& c, TokenConstraint* constraint) {
  Tokens path;
  for (const Token t : r.tokens) {
    const auto legal = constraint->after(path);
    ASSERT_TRUE(legal && legal->has(t)) << "token " << path.size();
    path.push_back(t);
  }
  if (!r.ok() || r.end.reason != FinishReason::kEos) return;
  const auto legal = constraint->after(path);
  EXPECT_TRUE(legal && legal->may_end);
  if (c.matches) EXPECT_TRUE(c.matches(path)) << testing::PrintToString(path);
}

struct Outcome {
  int64_t cases = 0, dead = 0, preempted = 0, cancelled = 0, drafted = 0;
  int64_t forced = 0;    // tokens that the constraint proposed
  int64_t followed = 0;  // of these, with another draft behind it in the same round
  int64_t late = 0;      // answers that waited for a constraint
};

// `use` gives a request its method.
struct MethodCase {
  std::function<BoxOptions(Rng&, bool tight)> boxes;
  bool exact = true;
  std::function<void(SequenceSpec&, Rng&, const Box&)> use;
};

// Half of the paths, and each for up to 9 ms of virtual time.
inline std::shared_ptr<TokenConstraint> make_late(std::shared_ptr<TokenConstraint> real,
                                                  uint64_t seed, Box& box, int64_t* count) {
  const auto delay = std::chrono::milliseconds(seed % 10);
  return std::make_shared<LateConstraint>(
      std::move(real),
      [seed, count](std::span<const Token> path) {
        uint64_t h = seed;
        for (const Token t : path) h = fake::mix(h, static_cast<uint64_t>(t));
        const bool late = h % 2 == 0;
        *count += late;
        return late;
      },
      after_delay(&box.timer, &box.clock, delay));
}

inline Outcome expect_constrained_ar(const MethodCase& method, int n,
                                     const Constraints& constraints = random_automata()) {
  Outcome seen;
  n = number_of_cases(n);
  for (auto seed = static_cast<uint64_t>(first_seed()); seen.cases < n; ++seed) {
    Rng rng(seed);
    BoxOptions options = method.boxes(rng, /*tight=*/seed % 4 == 0);
    for (BoxModel& m : options.models) {
      if (constraints.vocab > 0) m.config.vocab_size = constraints.vocab;
    }
    Box box{std::move(options)};
    struct Pair {
      CaseConstraint constraint;
      std::shared_ptr<Recorder> method, ar;
      Tokens expected;
      bool cancelled = false;
    };
    std::vector<Pair> all;
    for (int i = 0; i < 8; ++i, ++seen.cases) {
      Constrained c =
          random_constrained(box, rng, chance(rng, 50), seed % 3 == 0, constraints.ends);
      method.use(c.spec, rng, box);
      const CaseConstraint constraint = constraints.make(rng, c.shape);
      SequenceSpec ar = box.spec(c.spec.prompt, c.spec.stops.max_new_tokens);
      ar.warp = c.spec.warp;
      ar.stops.eos = c.spec.stops.eos;
      constrain(constraint.make(), &ar);
      Pair pair{constraint, nullptr, nullptr, {}};
      pair.expected = reference::autoregressive(box.config(), ar.prompt, ar.warp, ar.stops.eos,
                                                ar.stops.max_new_tokens);
      std::shared_ptr<TokenConstraint> own = constraint.make();
      if (constraints.late) own = make_late(std::move(own), rng(), box, &seen.late);
      constrain(std::move(own), &c.spec);
      const RequestId id = c.spec.id;
      pair.method = box.submit(std::move(c.spec));
      pair.cancelled = chance(rng, 6);
      if (pair.cancelled) {
        box.pump_until([&, at = pair.method.get()] { return !at->tokens.empty() || at->ends > 0; });
        if (pair.method->ends == 0) box.loop->stop(id, absl::CancelledError("test"));
      }
      pair.ar = box.submit(std::move(ar));
      all.push_back(std::move(pair));
    }
    box.pump();
    for (const Pair& p : all) {
      // One for both: their paths are mostly equal, and it retains what it computed.
      const std::shared_ptr<TokenConstraint> fresh = p.constraint.make();
      expect_legal(*p.method, p.constraint, fresh.get());
      expect_legal(*p.ar, p.constraint, fresh.get());
      EXPECT_EQ(p.ar->tokens, p.expected);
      seen.dead += !p.ar->end.status.ok();
      seen.preempted += p.method->end.stats.preemptions;
      seen.drafted += p.method->end.stats.small_tokens;
      Source before = Source::kLarge;
      for (const Emitted& e : p.method->emitted) {
        const Source by = e.provenance.proposed;
        seen.forced += by == Source::kGrammar;
        // The last token of a round is the large model's.
        seen.followed += before == Source::kGrammar && by != before && by != Source::kLarge;
        before = by;
      }
      if (absl::IsCancelled(p.method->end.status)) {
        ++seen.cancelled;
        continue;
      }
      if (!p.method->end.status.ok()) {
        // A grammar that cannot end exceeds the limits of a step.
        EXPECT_TRUE(absl::IsFailedPrecondition(p.method->end.status) ||
                    absl::IsResourceExhausted(p.method->end.status))
            << p.method->end.status;
      }
      if (!method.exact) continue;
      EXPECT_EQ(p.method->tokens, p.ar->tokens);
      EXPECT_EQ(p.method->end.status, p.ar->end.status);
      if (p.ar->ok()) EXPECT_EQ(p.method->end.reason, p.ar->end.reason);
    }
    box.expect_idle();
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      break;
    }
  }
  return seen;
}

inline BoxOptions pair_of_models(Rng& rng, bool tight) {
  BoxOptions o = random_pair(rng, tight);
  o.models[1].config.mask_accuracy = fraction(rng);
  return o;
}

inline SpeculativeParams random_speculative(Rng& rng) {
  SpeculativeParams a;
  a.draft_tokens = between(rng, 1, 7);
  a.pace = chance(rng, 40) ? Pace::kFastest : chance(rng, 50) ? Pace::kAdaptive : Pace::kFixed;
  if (chance(rng, 40)) a.min_draft_probability = fraction(rng);
  if (chance(rng, 40)) a.draft_vocabulary = between(rng, 1, 12);
  if (chance(rng, 50)) a.draft_context = between(rng, 1, 6);
  return a;
}

inline void use_speculative(SequenceSpec& s, const SpeculativeParams& a) {
  s.cast = make_cast(two_models());
  s.method = [a](Gen g) { return speculative(g, a); };
}

// Requests of two tenants whose texts are kept, in all boxes: the models of a box may know nothing
// of what they are offered.
inline void use_history(SequenceSpec& s, Rng& rng, const std::shared_ptr<TextHistory>& history) {
  if (chance(rng, 30)) return;
  s.history = history;
  s.salt = chance(rng, 50) ? "a" : "b";
}

inline MethodCase speculative_case() {
  const auto history = std::make_shared<TextHistory>(3000);
  return {pair_of_models, true, [history](SequenceSpec& s, Rng& rng, const Box&) {
            use_speculative(s, random_speculative(rng));
            use_history(s, rng, history);
          }};
}

inline MethodCase ratio_case() {
  return {pair_of_models, false, [](SequenceSpec& s, Rng& rng, const Box&) {
            SpeculativeParams a = random_speculative(rng);
            a.acceptance = SpeculativeParams::Acceptance::kRatio;
            use_speculative(s, a);
          }};
}

inline MethodCase ngram_case() {
  const auto history = std::make_shared<TextHistory>(3000);
  return {pair_of_models, true, [history](SequenceSpec& s, Rng& rng, const Box&) {
            NgramParams a;
            a.draft_tokens = chance(rng, 20) ? 64 : between(rng, 1, 7);
            a.max_ngram = chance(rng, 50) ? kMaxNgram : between(rng, 1, 8);
            if (chance(rng, 50)) a.pace = Pace::kFastest;
            use_history(s, rng, history);
            s.cast = make_cast({two_models().front()});
            s.method = [a](Gen g) { return ngram(g, a); };
          }};
}

// The parameters under which it is EXACT, or lossy ones.
inline MethodCase bild_case(bool exact) {
  return {pair_of_models, exact, [exact](SequenceSpec& s, Rng& rng, const Box& box) {
            BildParams a;
            a.fallback_threshold = exact ? 0.4F * fraction(rng) : fraction(rng);
            a.rollback_threshold = exact ? 0.69F : 4 * fraction(rng);
            a.max_small_run = between(rng, 1, 8);
            if (exact) s.warp.temperature = 0;
            const bool early = chance(rng, 30) && box.config().layers > 1;
            s.cast = make_cast(early ? early_exit(1) : two_models());
            s.method = [a](Gen g) { return bild(g, a); };
          }};
}

inline MethodCase bita_case() {
  const auto boxes = [](Rng& rng, bool tight) {
    BoxOptions o = pair_of_models(rng, false);
    o.models.resize(1);
    o.models[0].config.mask_accuracy = fraction(rng);
    if (tight) o.models[0].pool = {4, 18, 0};
    return o;
  };
  return {boxes, true, [](SequenceSpec& s, Rng& rng, const Box&) {
            BitaParams a;
            a.num_masks = between(rng, 1, 3);
            a.num_candidates = between(rng, 1, 3);
            a.tree = static_cast<BitaTreeKind>(between(rng, 0, 2));
            a.pace = chance(rng, 50) ? Pace::kFixed : Pace::kFastest;
            CastRole large{Role::kLarge, ModelId(0), 0};
            large.mask_adapter = kAdapter;
            s.cast = make_cast({large});
            s.extra_rows = bita_tree_rows(a.tree, *a.num_masks, a.num_candidates);
            s.method = [a](Gen g) { return bita(g, a); };
          }};
}

inline MethodCase ppd_case() {
  const auto boxes = [](Rng& rng, bool) {
    BoxOptions o;
    o.models.resize(2);
    o.models[0].config = tiny_model(rng(), 4, between(rng, 3, 12));
    o.models[1].config = o.models[0].config;
    o.models[1].config.layers = 2;
    o.models[1].device = 1;
    o.models[1].pool.retains_top_hidden = true;
    return o;
  };
  return {boxes, true, [](SequenceSpec& s, Rng& rng, const Box&) {
            PpdParams a;
            a.workers = 1;
            a.candidates = between(rng, 1, 4);
            s.cast = make_cast({{Role::kLarge, ModelId(0), 0},
                                {Role::kSmall, ModelId(0), 2, 2},
                                {Role::kWorker, ModelId(1), 0}});
            s.extra_rows = a.candidates;
            s.method = [a](Gen g) { return ppd(g, a); };
          }};
}

// The small model writes and is constrained; the large one reads the prompt.
inline MethodCase llm_to_slm_case() {
  const auto boxes = [](Rng& rng, bool) {
    BoxOptions o = random_pair(rng);
    for (BoxModel& m : o.models) m.pool.values = 20;
    return o;
  };
  return {boxes, false, [](SequenceSpec& s, Rng&, const Box&) {
            Cast cast{.roles = two_models()};
            cast.roles[0].layers = 1;
            cast.roles[0].prompt_only = true;
            cast.conditioning = {{.from = 0, .to = 1, .layer = 1, .replace = false}};
            s.cast = std::make_shared<const Cast>(cast);
            s.method = [](Gen g) { return llm_to_slm(g, {}); };
          }};
}

// A hypothesis that ends is complete; one at a dead end is no candidate.
inline MethodCase beam_case() {
  const auto boxes = [](Rng& rng, bool) { return pair_of_models(rng, false); };
  return {boxes, false, [](SequenceSpec& s, Rng& rng, const Box&) {
            BeamParams a;
            a.width = between(rng, 2, 4);
            s.warp.temperature = 0;
            s.width = 2 * a.width;
            s.cast = make_cast({two_models().front()});
            s.method = [a](Gen g) { return beam(g, a); };
          }};
}

}  // namespace tandem::test
