#include "tests/simulation/plan.h"

#include <algorithm>
#include <limits>

namespace tandem::simulation {
namespace {

constexpr int kVocab = 12;  // small, so that drafts are sometimes accepted
constexpr int kMaxPrompt = 20;
constexpr int kMaxNew = 16;
constexpr int kMaxSource = 12;
// The most rows that one sequence may need: its own, and those of a tree with masks or of drafts.
constexpr int kMaxTree = 14;
constexpr int kMaxRows = kMaxPrompt + kMaxNew + kMaxTree;
constexpr int kMaxBeams = 3;
constexpr int kMaxChoices = 3;
constexpr int kFaultMicros = 20'000;

// Texts of a family share a prefix.
Token token_of(int family, size_t i) {
  return static_cast<Token>((i * 5 + static_cast<size_t>(family)) % kVocab);
}

// Prompts of families, which can share prefixes.
std::vector<Token> make_prompt(Random& r, int longest) {
  std::vector<Token> prompt(static_cast<size_t>(r.between(1, longest)));
  const int family = r.below(3);
  const bool kin = r.one_in(2);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = kin ? token_of(family, i) : r.below(kVocab);
  }
  if (kin) prompt.back() = r.below(kVocab);
  return prompt;
}

std::shared_ptr<const Processors> make_processors(Random& r, const Request& q) {
  auto p = std::make_shared<Processors>();
  if (r.one_in(2)) p->repetition_penalty = r.uniform(0.8F, 2);
  if (r.one_in(2)) p->presence_penalty = r.uniform(-1, 1);
  if (r.one_in(2)) p->frequency_penalty = r.uniform(-1, 1);
  if (r.one_in(2)) p->bias = {{r.below(kVocab), r.uniform(-3, 3)}};
  if (r.one_in(3)) p->bias = {{r.below(kVocab), -std::numeric_limits<float>::infinity()}};
  if (r.one_in(2)) p->min_new_tokens = r.between(1, q.max_new_tokens);
  p->ends = q.eos;
  p->prompt_tokens = static_cast<int>(q.prompt.size());
  return p;
}

void choose_parameters(Random& r, Request& q) {
  q.ngram.draft_tokens = q.speculative.draft_tokens = r.between(1, 4);
  q.ngram.pace = q.speculative.pace = r.one_in(2) ? Pace::kAdaptive : Pace::kFixed;
  if (r.one_in(2)) q.speculative.min_draft_probability = r.uniform(0, 0.6F);
  q.bild.fallback_threshold = r.uniform(0, 1.1F);
  q.bild.rollback_threshold = 0.69F;  // EXACT when greedy: the answer of autoregressive decoding
  q.bild.max_small_run = r.between(1, 4);
  if (r.one_in(3)) q.bild.window = r.between(1, 4);
  q.beam.width = r.between(2, kMaxBeams);
  q.beam.length_penalty = r.uniform(0, 2);
  q.fusion.at = r.between(1, 3);
  q.fusion.replace = r.one_in(2);
  q.ppd.candidates = r.between(1, 3);
  if (q.ppd.candidates == 2) q.ppd.draft_vocabulary = kVocab / 2;
}

// For LLM-to-SLM see add_readers().
bool may_read(MethodKind kind) { return kind != MethodKind::kConditioned; }

BitaParams make_bita(Random& r) {
  BitaParams a;
  do {
    a.num_masks = r.between(1, 3);
    a.num_candidates = r.between(1, 3);
    a.tree = static_cast<BitaTreeKind>(r.below(6));
  } while (bita_tree_rows(a.tree, *a.num_masks, a.num_candidates) > kMaxTree);
  a.pace = r.one_in(2) ? Pace::kFastest : Pace::kFixed;
  if (a.num_candidates == 2) a.draft_vocabulary = kVocab / 2;
  return a;
}

Request make_request(Random& r, bool beams, bool quiet) {
  Request q;
  do {
    q.kind = static_cast<MethodKind>(r.below(kKinds));
  } while (q.kind == MethodKind::kBeam && !beams);
  if (beams && r.one_in(2)) q.kind = MethodKind::kBeam;
  q.prompt = make_prompt(r, kMaxPrompt);
  q.max_new_tokens = r.between(1, kMaxNew);
  if (r.one_in(2)) q.eos = {r.below(kVocab)};
  choose_parameters(r, q);
  const bool plain = q.kind == MethodKind::kBeam;
  // Sampled, the others give autoregressive decoding's own tokens.
  if (!plain && r.one_in(2)) {
    q.bild.fallback_threshold = 1.01F;  // EXACT when sampled as well
    q.bild.window.reset();
    q.warp.temperature = r.uniform(0.5F, 1.5F);
    if (r.one_in(2)) q.warp.top_p = 0.9F;
    q.warp.seed = r.next();
    if (q.kind == MethodKind::kAr && r.one_in(3)) q.choices = r.between(2, kMaxChoices);
  }
  if (r.one_in(3) && !plain) q.warp.processors = make_processors(r, q);
  q.priority = r.below(3);
  q.client = std::string(1, static_cast<char>('a' + r.below(3)));
  if (r.one_in(8)) q.salt = std::to_string(r.next());
  q.arrival = TimePoint(r.micros(kFaultMicros));
  if (quiet) return q;
  const auto later = [&] { return q.arrival + r.micros(kFaultMicros); };
  if (r.one_in(5)) q.deadline = later();
  if (r.one_in(5)) q.time_limit = later();
  if (r.one_in(5)) q.cancel = later();
  q.cancel_ok = r.one_in(2);
  if (r.one_in(4)) {
    q.stall = later();
    if (!r.one_in(5)) q.resume = q.stall + r.micros(kFaultMicros);
  }
  return q;
}

// Many requests of one client and a few of another, on a device for few at a time.
void make_crowd(Random& r, Plan& p) {
  p.crowd = true;
  p.fault_every = 0;
  p.limits.max_running = r.between(1, 3);
  p.limits.max_waiting = 100;
  p.limits.queue_seconds = 60;
  for (int i = 0, n = r.between(20, 30); i < n; ++i) {
    Request q;
    q.prompt = make_prompt(r, 8);
    q.max_new_tokens = r.between(1, 6);
    q.client = i < n - 4 ? "flood" : "few";
    q.arrival = TimePoint(r.micros(i < n - 4 ? 10 : 3000));
    p.requests.push_back(std::move(q));
  }
  p.requests.front().cancel =
      p.requests.front().arrival + r.micros(200);  // every seed needs a fault
}

// Also from separate random numbers.
void add_encoders(Plan& p, uint64_t seed) {
  Random r(seed ^ 0x5eed);
  const int page_rows = p.pool[0].page_rows;
  for (int m = kEncoders; m < kModels; ++m) {
    p.model[m] = p.model[m - kEncoders];
    const int pages = (kMaxSource + page_rows - 1) / page_rows;
    p.pool[m] = {page_rows, pages + r.below(2 * pages), 0, kMaxSource + r.below(kMaxSource)};
  }
}

// LLM-to-SLM: which model conditions, with which tokens, and what is conditioned. Few sources, so
// that prefix look-ups meet rows of other memories.
void add_readers(Plan& p, uint64_t seed) {
  Random r(~seed ^ 0x7e11);
  for (Request& q : p.requests) {
    const int shape = r.below(4), family = r.below(2);
    const bool own = r.one_in(2);
    if (q.kind != MethodKind::kConditioned || q.giant || shape == 0) continue;
    const int most = std::min(kMaxSource, p.limits.step_rows);
    reference::Fusion& f = q.fusion;
    f.encoded = shape > 1;
    if (f.encoded) f.at = p.model[kEncoders].layers;
    if (shape == 3) {
      q.source.resize(static_cast<size_t>(r.between(1, std::min(3, most))));
      const int its = p.alike ? 0 : family;
      for (size_t i = 0; i < q.source.size(); ++i) q.source[i] = token_of(its, i);
    }
    f.read = q.source;
    if (shape == 3 && !own) continue;
    f.read.resize(static_cast<size_t>(r.between(1, most)));
    for (Token& t : f.read) t = r.below(kVocab);
    int row = 0;
    for (size_t i = 0; i < (shape == 3 ? q.source : q.prompt).size(); ++i) {
      row = r.between(row, static_cast<int>(f.read.size()) - 1);
      f.alignment.push_back(row);
    }
  }
}

void add_sources(Plan& p, uint64_t seed) {
  Random r(~seed ^ 0x5eed);
  for (Request& q : p.requests) {
    if (q.giant || !may_read(q.kind) || r.one_in(2)) continue;
    const int longest = std::min(p.alike ? 3 : kMaxSource, p.limits.step_rows);
    q.source.resize(static_cast<size_t>(r.between(1, longest)));
    for (size_t i = 0; i < q.source.size(); ++i) {
      q.source[i] = p.alike ? token_of(0, i) : r.below(kVocab);
    }
  }
}

// LoRA adapters, likewise. Workers of PPD and conditioned small models do not follow the adapter;
// encoders have none.
void add_loras(Plan& p, uint64_t seed) {
  Random r(seed ^ 0x10aa);
  for (Request& q : p.requests) {
    const int lora = r.one_in(3) ? r.below(2) : -1;
    const bool allowed = q.kind != MethodKind::kPpd && q.kind != MethodKind::kConditioned;
    if (allowed && q.source.empty()) q.lora = LoraId(lora);
  }
}

// In one of four seeds with replicas, all prompts and sources share a prefix, so that look-ups
// often meet rows with the same tokens but other dependencies.
void make_alike(Plan& p, uint64_t seed) {
  p.alike = p.replicated && Random(seed ^ 0xa11ce).one_in(4);
  if (!p.alike) return;
  for (Request& q : p.requests) {
    for (size_t i = 0; i + 1 < q.prompt.size(); ++i) q.prompt[i] = token_of(0, i);
  }
}

// Replicas, likewise. Crowds have no faults.
void add_replicas(Plan& p, uint64_t seed) {
  Random r(seed ^ 0x2e911ca5);
  p.replicated = seed >= kFirstWithReplicas;
  if (!p.replicated || p.crowd || r.one_in(2)) return;
  p.lost_device = p.device(r.below(2) + (r.one_in(2) ? kModels : 0));
  p.loss = TimePoint(r.micros(kFaultMicros));
}

}  // namespace

Plan make_plan(uint64_t seed) {
  Random r(seed);
  Plan p;
  const int page_rows = r.between(1, 5);
  // Each beam may have its own pages.
  const bool beams = r.one_in(3);
  const int alone = (kMaxRows + page_rows - 1) / page_rows;
  for (int m = 0; m < 2; ++m) {
    p.model[m].vocab_size = kVocab;
    p.model[m].layers = m == 0 || r.one_in(4) ? 3 : 2;
    p.model[m].seed = static_cast<uint64_t>(r.between(1, 3));  // sometimes both models are equal
    p.model[m].pass_seconds = 1e-6 * r.between(20, 400);
    p.model[m].row_seconds = 1e-6 * r.between(0, 20);
    const int pages = beams ? kMaxBeams * (alone + 1) + r.below(alone)
                            : alone + r.below(r.one_in(4) ? 4 * alone : alone / 2 + 1);
    p.pool[m] = {page_rows, pages, pages, kMaxPrompt + r.below(kMaxPrompt), m == 1};
  }
  add_encoders(p, seed);
  p.small_device = r.below(2);
  p.limits.step_rows = r.between(1, 40);
  p.limits.prefill_chunk_rows = r.between(1, 20);
  p.limits.max_running = r.one_in(3) ? r.between(1, 3) : r.between(4, 16);
  p.limits.max_waiting = r.one_in(4) ? 3 : 100;
  if (r.one_in(6)) p.limits.max_waiting_tokens = r.between(10, 60);
  if (r.one_in(8)) p.limits.queue_seconds = 0.003;
  p.limits.slow_reader_hold_seconds = 1e-6 * r.between(0, 5000);
  p.limits.stalled_stream_seconds = 0.03;
  if (r.one_in(3)) p.limits.preemption = Preemption::kYoungest;
  p.shuffle = r.next();
  p.quiet = TimePoint(std::chrono::microseconds(kFaultMicros));
  p.fault_every = r.one_in(4) ? 0 : r.between(5, 60);
  if (r.one_in(8)) {
    make_crowd(r, p);
    add_replicas(p, seed);
    return p;
  }
  add_replicas(p, seed);
  if (r.one_in(5)) p.shutdown = TimePoint(r.micros(kFaultMicros));
  for (int i = 0, n = r.between(8, 12); i < n; ++i) {
    Request q = make_request(r, beams, false);
    q.choices = std::min(q.choices, p.limits.max_running);
    if (r.one_in(40)) {
      q.giant = true;
      q.prompt.resize(static_cast<size_t>(p.pool[0].page_rows * p.pool[0].pages) + 1);
    }
    p.requests.push_back(std::move(q));
  }
  for (int i = 0; i < 2; ++i) {
    p.requests.push_back(make_request(r, beams, true));
    p.requests.back().arrival = p.quiet;
    p.requests.back().choices = 1;
  }
  // From separate random numbers, so that they do not change the rest of the plan.
  Random separate(~seed);
  p.model[0].mask_accuracy = separate.uniform(0, 1);
  Random masks(~seed / 2);
  p.model[1].mask_accuracy = masks.uniform(0, 1);
  for (Request& q : p.requests) {
    q.bita = make_bita(separate);
    q.speculative.num_masks = masks.between(0, 2);
    // A worker has fewer layers.
    const bool as_deep = p.model[1].layers >= p.model[0].layers;
    if (q.kind == MethodKind::kPpd && as_deep) q.kind = MethodKind::kSpeculative;
  }
  make_alike(p, seed);
  add_readers(p, seed);
  if (seed >= kFirstWithSources) add_sources(p, seed);
  add_loras(p, seed);
  const auto faulty = [](const Request& q) {
    return q.deadline != kNever || q.time_limit != kNever || q.cancel != kNever ||
           q.stall != kNever;
  };
  if (std::none_of(p.requests.begin(), p.requests.end(), faulty)) {
    p.requests.front().cancel = p.requests.front().arrival + r.micros(2000);
  }
  return p;
}

}  // namespace tandem::simulation
