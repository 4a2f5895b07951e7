// The trace of a sequence: its records, their sums, and what is not recorded.
#include "engine/sched/pass_trace.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/decode/bild.h"
#include "engine/decode/speculative.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

BoxOptions pair_of_models(uint64_t small_seed = 2, int small_device = 0) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(small_seed);
  o.models[1].device = small_device;
  return o;
}

SequenceSpec traced(Box& box, std::vector<Token> prompt, int tokens) {
  SequenceSpec s = box.spec(std::move(prompt), tokens);
  s.trace = true;
  return s;
}

SequenceSpec speculating(Box& box, std::vector<Token> prompt, int tokens, int drafts = 3) {
  SequenceSpec s = traced(box, std::move(prompt), tokens);
  s.cast = make_cast({{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(1), 0}});
  SpeculativeParams a;
  a.draft_tokens = drafts;
  s.method = [a](Gen g) { return speculative(g, a); };
  return s;
}

SequenceSpec by_bild(Box& box, std::vector<Token> prompt, int tokens) {
  SequenceSpec s = speculating(box, std::move(prompt), tokens);
  BildParams a;
  a.fallback_threshold = 0.1F;
  a.rollback_threshold = 0.69F;
  a.max_small_run = 3;
  s.method = [a](Gen g) { return bild(g, a); };
  return s;
}

int64_t passes_of(const PassTrace& trace, Role role) {
  return std::ranges::count_if(trace.passes, [role](const PassRecord& p) {
    return p.role == role && p.kind != PassKind::kRecompute;
  });
}

int64_t accepted_by(const MethodStats& stats) {
  int64_t sum = 0;
  for (size_t i = 0; i < stats.accept_lengths.size(); ++i) {
    sum += static_cast<int64_t>(i) * stats.accept_lengths[i];
  }
  return sum;
}

// The sums of the records are the statistics of the request.
void expect_sums(const SequenceEnd& end) {
  ASSERT_NE(end.trace, nullptr);
  const PassTrace& trace = *end.trace;
  EXPECT_EQ(trace.omitted, 0);
  EXPECT_EQ(passes_of(trace, Role::kLarge), end.stats.large_passes);
  EXPECT_EQ(passes_of(trace, Role::kSmall), end.stats.small_passes);
  int64_t accepted = 0, rejected = 0;
  int64_t verifications = 0;
  for (const PassRecord& p : trace.passes) {
    accepted += p.accepted;
    rejected += p.rejected;
    verifications += p.kind == PassKind::kVerify;
    EXPECT_EQ(p.kind == PassKind::kVerify, p.accepted + p.rejected > 0) << p.pass;
  }
  EXPECT_EQ(accepted, accepted_by(end.stats));
  EXPECT_EQ(accepted + rejected, end.stats.draft_tokens);
  EXPECT_EQ(verifications, std::accumulate(end.stats.accept_lengths.begin(),
                                           end.stats.accept_lengths.end(), int64_t{0}));
}

// Numbers are unique, ends do not fall, and a pass has rows of its own in its batch.
void expect_ordered(const PassTrace& trace) {
  int64_t end = 0;
  std::map<int, int> numbers;
  for (const PassRecord& p : trace.passes) {
    EXPECT_EQ(++numbers[p.pass], 1) << p.pass;
    EXPECT_GE(p.pass, 1);
    EXPECT_LE(p.start_us, p.end_us);
    EXPECT_GE(p.end_us, end);
    end = p.end_us;
    EXPECT_GE(p.rows, 1);
    EXPECT_GE(p.batch_requests, 1);
    if (p.batches == 1) {
      EXPECT_GE(p.batch_rows, p.rows);
    }
  }
}

// Each token names a pass of the model that confirmed it.
void expect_tokens_of(const PassTrace& trace, const std::vector<Emitted>& tokens) {
  std::map<int, Role> roles;
  for (const PassRecord& p : trace.passes) roles[p.pass] = p.role;
  for (const Emitted& e : tokens) {
    ASSERT_TRUE(roles.contains(e.pass)) << e.pass;
    EXPECT_EQ(roles[e.pass] == Role::kLarge, e.provenance.confirmed == Source::kLarge);
  }
}

TEST(PassTrace, OfAutoregressiveDecodingHasAPassPerToken) {
  Box box{BoxOptions()};
  box.clock.advance_to(box.clock.now() + std::chrono::milliseconds(5));
  const auto r = box.submit(traced(box, {7, 3, 9}, 4));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  expect_sums(r->end);
  const std::vector<PassRecord>& p = r->end.trace->passes;
  ASSERT_EQ(p.size(), 4U);
  // A batch takes 1 ms, and 0.1 ms for each row (tiny_model).
  int64_t at = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const int rows = i == 0 ? 3 : 1;
    EXPECT_EQ(p[i].start_us, at) << i;
    at += 1000 + 100 * rows;
    EXPECT_EQ(p[i].end_us, at) << i;
    EXPECT_EQ(p[i].pass, static_cast<int>(i) + 1);
    EXPECT_EQ(p[i].rows, rows);
    EXPECT_EQ(p[i].batches, 1);
    EXPECT_EQ(p[i].batch_rows, rows);
    EXPECT_EQ(p[i].batch_requests, 1);
    EXPECT_EQ(p[i].role, Role::kLarge);
    EXPECT_EQ(p[i].kind, i == 0 ? PassKind::kPrefill : PassKind::kDecode);
    EXPECT_EQ(r->emitted[i].pass, p[i].pass);
  }
}

TEST(PassTrace, OfSpeculativeDecodingHasDraftsAndVerifications) {
  for (const int device : {0, 1}) {
    Box box{pair_of_models(1, device)};  // equal models: every draft is accepted
    const auto r = box.submit(speculating(box, {7, 3, 9}, 9));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    expect_sums(r->end);
    expect_ordered(*r->end.trace);
    expect_tokens_of(*r->end.trace, r->emitted);
    std::map<PassKind, int> kinds;
    for (const PassRecord& p : r->end.trace->passes) ++kinds[p.kind];
    EXPECT_EQ(kinds[PassKind::kPrefill], 2) << "one of each model";
    EXPECT_EQ(kinds[PassKind::kVerify], 2) << "3 drafts and a token of its own, twice";
    EXPECT_EQ(kinds[PassKind::kDraft], 6);
    EXPECT_EQ(kinds[PassKind::kDecode], 0);
    for (const PassRecord& p : r->end.trace->passes) {
      if (p.kind == PassKind::kVerify) {
        EXPECT_EQ(p.accepted, 3);
      }
    }
  }
}

TEST(PassTrace, SumsAreTheStatistics) {
  int64_t rejected = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    std::mt19937_64 rng(seed);
    BoxOptions o = pair_of_models(seed % 3 ? 2 : 1, static_cast<int>(seed / 2 % 2));
    o.shuffle = seed;
    o.limits.prefill_chunk_rows = 4;
    const bool tight = seed % 4 == 3;
    if (tight) o.models[0].pool.pages = o.models[1].pool.pages = 9;
    Box box{o};
    std::vector<std::shared_ptr<Recorder>> all;
    for (int i = 0; i < 4; ++i) {
      const auto prompt = random_prompt(rng, 1, 9);
      SequenceSpec s = i % 2 ? by_bild(box, prompt, 18) : speculating(box, prompt, 18);
      s.warp.temperature = rng() % 2 ? 1.2F : 0;
      s.warp.seed = seed;
      all.push_back(box.submit(std::move(s)));
    }
    box.pump();
    int64_t large = 0, small = 0, accepted = 0, preemptions = 0;
    for (const auto& r : all) {
      ASSERT_TRUE(r->ok()) << seed << ": " << r->end.status;
      expect_sums(r->end);
      expect_ordered(*r->end.trace);
      expect_tokens_of(*r->end.trace, r->emitted);
      large += passes_of(*r->end.trace, Role::kLarge);
      small += passes_of(*r->end.trace, Role::kSmall);
      for (const PassRecord& p : r->end.trace->passes) {
        accepted += p.accepted;
        rejected += p.rejected;
      }
      preemptions += r->end.stats.preemptions;
    }
    // The metrics count the same.
    EXPECT_EQ(box.metrics.models[0].passes[static_cast<size_t>(Role::kLarge)].value(), large);
    EXPECT_EQ(box.metrics.models[1].passes[static_cast<size_t>(Role::kSmall)].value(), small);
    EXPECT_EQ(box.metrics.series.front().accepted_tokens.value(), accepted);
    EXPECT_EQ(box.metrics.preemptions.value(), preemptions);
    if (tight) {
      EXPECT_GT(preemptions, 0) << seed;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(rejected, 0);
}

TEST(PassTrace, ALongPromptIsOnePassOfSeveralBatches) {
  BoxOptions o;
  o.limits.prefill_chunk_rows = 4;
  Box box{o};
  const auto r = box.submit(traced(box, {7, 3, 9, 1, 4, 4, 2, 8, 5, 3}, 2));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  const PassRecord& prefill = r->end.trace->passes.front();
  EXPECT_EQ(prefill.kind, PassKind::kPrefill);
  EXPECT_EQ(prefill.batches, 3);
  EXPECT_EQ(prefill.rows, 10);
  EXPECT_EQ(prefill.batch_rows, 2) << "of the last one";
  EXPECT_EQ(prefill.start_us, 0);
  EXPECT_EQ(prefill.end_us, 3 * 1000 + 10 * 100);
  expect_sums(r->end);
}

TEST(PassTrace, AfterPreemptionThePromptIsReadAgain) {
  BoxOptions o;
  o.models[0].pool.pages = 9;
  o.models[0].prefix_cache = false;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 3; ++i) all.push_back(box.submit(traced(box, {7, 3, 9, i}, 20)));
  box.pump();
  int64_t preemptions = 0, prefills = 0;
  for (const auto& r : all) {
    ASSERT_TRUE(r->ok()) << r->end.status;
    expect_sums(r->end);
    preemptions += r->end.stats.preemptions;
    prefills += std::ranges::count(r->end.trace->passes, PassKind::kPrefill, &PassRecord::kind);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(prefills, 3);
}

TEST(PassTrace, EachChoiceHasItsOwn) {
  Box box{BoxOptions()};
  SequenceSpec s = traced(box, {7, 3, 9, 1, 4}, 6);
  s.warp.temperature = 1.2F;
  s.warp.seed = 11;
  const auto all = box.submit(s, 3);
  box.pump();
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i]->ok()) << all[i]->end.status;
    expect_sums(all[i]->end);
    const PassRecord& first = all[i]->end.trace->passes.front();
    EXPECT_EQ(first.kind, PassKind::kPrefill);
    EXPECT_EQ(first.rows, i == 0 ? 5 : 1) << "the others begin with its rows";
    EXPECT_EQ(first.batch_requests, 1) << "choices are one request";
  }
  EXPECT_NE(all[0]->end.trace, all[1]->end.trace);
}

TEST(PassTrace, BatchesCountAllRequests) {
  Box box{BoxOptions()};
  const auto r = box.submit(traced(box, {7, 3, 9}, 5));
  const auto other = box.submit(box.spec({1, 2}, 5));
  box.pump();
  ASSERT_TRUE(r->ok() && other->ok());
  const std::vector<PassRecord>& p = r->end.trace->passes;
  ASSERT_EQ(p.size(), 5U);
  EXPECT_EQ(p[0].rows, 3);
  EXPECT_EQ(p[0].batch_rows, 5);
  for (const PassRecord& record : p) EXPECT_EQ(record.batch_requests, 2);
  EXPECT_EQ(other->end.trace, nullptr);
}

TEST(PassTrace, OfACancelledRequestEndsWithItsLastPass) {
  Box box{BoxOptions()};
  SequenceSpec s = traced(box, {7, 3, 9}, 50);
  const RequestId id = s.id;
  const auto r = box.submit(std::move(s));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 4; }));
  box.loop->stop(id, absl::OkStatus());
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->end.reason, FinishReason::kCancelled);
  expect_sums(r->end);
  EXPECT_EQ(r->end.trace->passes.size(), 4U) << "the pass under way has no record";
}

TEST(PassTrace, KeepsTheFirstRecordsAndCountsTheOthers) {
  BoxOptions o;
  o.models[0].pool.pages = 4096;
  Box box{o};
  const int tokens = static_cast<int>(PassTrace::kMostRecords) + 10;
  const auto r = box.submit(traced(box, {7, 3, 9}, tokens));
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->end.trace->passes.size(), PassTrace::kMostRecords);
  EXPECT_EQ(r->end.trace->omitted, 10);
  EXPECT_EQ(r->end.trace->passes.front().pass, 1);
  EXPECT_EQ(r->end.stats.large_passes, tokens);
}

// A verification behind the last record must not be added to another pass.
TEST(PassTrace, VerificationsWithoutARecordAreOmitted) {
  PassRecorder recorder{SequenceSpec()};
  recorder.verified(2, 1);
  EXPECT_TRUE(recorder.trace()->passes.empty());
}

TEST(PassTrace, IsOnlyMadeOnRequest) {
  Box box{pair_of_models()};
  SequenceSpec s = speculating(box, {7, 3, 9}, 12);
  s.trace = false;
  EXPECT_EQ(PassRecorder::create(s), nullptr);
  const auto r = box.submit(std::move(s));
  ASSERT_TRUE(box.pump_until([&] { return !r->tokens.empty(); }));
  box.loop->visit([](const SequenceRun& run) { EXPECT_EQ(run.recorder(), nullptr); });
  box.pump();
  ASSERT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(r->end.trace, nullptr);
  for (const Emitted& e : r->emitted) EXPECT_GT(e.pass, 0) << "numbers need no trace";
}

}  // namespace
}  // namespace tandem::test
