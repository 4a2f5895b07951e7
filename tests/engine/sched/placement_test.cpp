#include "engine/sched/placement.h"

#include <map>
#include <set>

#include "engine/decode/speculative.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

// Models 0, 1, ... on device 0, then a replica of each on device 1.
BoxOptions on_two_devices(size_t models = 1) {
  BoxOptions o;
  o.models.resize(models);
  for (size_t m = 0; m < models; ++m) {
    BoxModel& replica = o.models.emplace_back(o.models[m]);
    replica.device = 1;
    replica.replica_of = static_cast<int>(m);
  }
  return o;
}

// Records the devices of each request.
struct Placed {
  explicit Placed(const BoxOptions& options) : box(options) {
    for (size_t d = 0; d < box.backends.size(); ++d) {
      box.backends[d].set_faults([this, d](const Batch& batch) {
        Fault fault;
        if (lost.contains(d)) fault.status = absl::UnavailableError("fell off the bus");
        for (const Work& w : batch.works) devices[w.request].insert(d);
        return fault;
      });
    }
  }
  std::shared_ptr<Recorder> submit(const std::vector<Token>& prompt, int max_new_tokens = 4) {
    return box.submit(box.spec(prompt, max_new_tokens));
  }
  // Runs a request alone and returns its device.
  size_t device_of(const std::vector<Token>& prompt) {
    EXPECT_TRUE((submit(prompt), box.pump(), true));
    return *devices.at(box.last_id).begin();
  }

  std::set<size_t> lost;
  std::map<RequestId, std::set<size_t>> devices;
  Box box;
};

std::vector<Token> prompt_of(int length, Token first = 1) {
  std::vector<Token> prompt(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) prompt[static_cast<size_t>(i)] = (first + 7 * i) % 40;
  return prompt;
}

TEST(Placement, GoesWhereTheFewestRowsAreAhead) {
  Placed p{on_two_devices()};
  p.submit(prompt_of(30, 1), 12);
  p.submit(prompt_of(12, 2), 12);  // beside thirty
  p.submit(prompt_of(12, 3), 12);  // twelve are fewer
  p.submit(prompt_of(12, 4), 12);
  p.box.pump();
  EXPECT_EQ(p.devices[1], std::set<size_t>{0});
  for (const RequestId id : {2, 3, 4}) EXPECT_EQ(p.devices[id], std::set<size_t>{1}) << id;
  p.box.expect_idle();
}

TEST(Placement, SequencesThatDecodeCountAsARowEach) {
  Placed p{on_two_devices()};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(p.submit(prompt_of(5, i), 40));
    p.box.pump_until([&] { return !all.back()->tokens.empty(); });
  }
  p.box.pump();
  int on_first = 0;
  for (const auto& [id, devices] : p.devices) on_first += devices.contains(0) ? 1 : 0;
  EXPECT_GE(on_first, 2);
  EXPECT_LE(on_first, 4);
}

TEST(Placement, AKnownPrefixDrawsAsFarAsItSavesRows) {
  Placed p{on_two_devices()};
  const std::vector<Token> known = prompt_of(33);
  ASSERT_EQ(p.device_of(known), 0U);
  const auto again = p.submit(known);
  p.box.pump();
  EXPECT_EQ(p.devices[2], std::set<size_t>{0});
  EXPECT_EQ(again->end.stats.cached_tokens, 32);
  p.submit(prompt_of(20, 2));  // as good as before it on either device
  p.submit(known);             // 32 rows saved, 20 ahead
  p.box.pump();
  EXPECT_EQ(p.devices[4], std::set<size_t>{0});
  p.submit(prompt_of(60, 3));
  const auto elsewhere = p.submit(known);  // 60 ahead
  p.box.pump();
  EXPECT_EQ(p.devices[6], std::set<size_t>{1});
  EXPECT_EQ(elsewhere->tokens, p.box.greedy(known, 4));
  EXPECT_EQ(p.device_of(known), 0U) << "now both know it, and the first is the first";
}

TEST(Placement, GoesWhereMemoryIsFree) {
  BoxOptions o = on_two_devices();
  for (BoxModel& m : o.models) m.pool = {4, 12, 12};
  Placed p{o};
  const std::vector<Token> known = prompt_of(17);
  ASSERT_EQ(p.device_of(known), 0U);
  const auto large = p.submit(prompt_of(38, 5), 9);  // all pages but one
  p.box.pump_until([&] { return large->tokens.size() == 5; });
  EXPECT_EQ(p.device_of(known), 1U);
  EXPECT_EQ(p.devices[2].size(), 1U);
}

TEST(Placement, ModelsOfARequestLieTogetherWhereNothingSpeaksAgainst) {
  BoxOptions o = on_two_devices(2);
  std::swap(o.models[1].device, o.models[3].device);  // the small one's first is on device 1
  Placed p{o};
  SequenceSpec s = p.box.spec(prompt_of(9), 8);
  edit_cast(s).roles.push_back({Role::kSmall, ModelId(1), 0});
  s.method = [](Gen g) { return speculative(g, {}); };
  p.box.submit(std::move(s));
  p.box.pump();
  EXPECT_EQ(p.devices[1].size(), 1U);
}

TEST(Placement, AnEncoderIsWhereItsReaderIs) {
  BoxOptions o = on_two_devices(2);
  Placed p{o};
  std::set<size_t> used;
  for (int i = 0; i < 4; ++i) {
    SequenceSpec s = p.box.spec({1}, 6);
    s.encoder_tokens = prompt_of(6, i);
    edit_cast(s).roles.push_back(encoder_role(ModelId(1)));
    edit_cast(s).memories = {{.reader = 0, .encoder = 1}};
    p.box.submit(std::move(s));
  }
  p.box.pump();
  for (const auto& [id, devices] : p.devices) {
    EXPECT_EQ(devices.size(), 1U) << id;
    used.insert(*devices.begin());
  }
  EXPECT_EQ(used.size(), 2U);
  p.box.expect_idle();
}

TEST(Placement, AllChoicesOfARequestStayTogether) {
  Placed p{on_two_devices()};
  SequenceSpec s = p.box.spec(prompt_of(14), 10);
  s.warp.temperature = 1;
  p.box.submit(s, 3);
  p.submit(prompt_of(9, 2), 10);
  p.box.pump();
  for (const RequestId id : {1, 2, 3}) EXPECT_EQ(p.devices[id], std::set<size_t>{0}) << id;
  EXPECT_EQ(p.devices[4], std::set<size_t>{1});
}

// Sequences with two models stay on their devices after preemption.
TEST(Placement, IsForGood) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 rng(seed);
    BoxOptions o = on_two_devices(2);
    o.shuffle = seed;
    for (size_t m : {0, 2}) o.models[m].pool = {4, 14, 14};
    for (size_t m : {1, 3}) {
      o.models[m].pool = {4, 14, 14};
      o.models[m].config.seed = 2;
    }
    Placed p{o};
    std::map<RequestId, std::map<size_t, std::set<ModelId>>> models;  // by role
    std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 12; ++i) {
      SequenceSpec s = p.box.spec(random_prompt(rng, 4, 20), 20);
      edit_cast(s).roles.push_back({Role::kSmall, ModelId(1), 0});
      s.method = [](Gen g) { return speculative(g, {}); };
      const std::vector<Token> prompt = s.prompt;
      all.emplace_back(prompt, p.box.submit(std::move(s)));
    }
    while (p.box.tick()) {
      p.box.loop->visit([&](const SequenceRun& run) {
        for (size_t i = 0; run.spec().placed && i < 2; ++i) {
          models[run.id()][i].insert(run.spec().roles()[i].model);
        }
      });
    }
    for (const auto& [prompt, r] : all) EXPECT_EQ(r->tokens, p.box.greedy(prompt, 20)) << seed;
    EXPECT_EQ(models.size(), 12U);
    for (const auto& [id, roles] : models) {
      for (const auto& [role, its] : roles) EXPECT_EQ(its.size(), 1U) << id;
    }
    p.box.expect_idle();
  }
}

TEST(Placement, ALostReplicaEndsItsOwnRequestsOnly) {
  Placed p{on_two_devices()};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 4; ++i) all.push_back(p.submit(prompt_of(10, i), 20));
  p.box.pump_until([&] { return all[3]->tokens.size() == 5; });
  p.lost = {1};
  p.box.pump();
  for (size_t i = 0; i < 4; ++i) {
    const bool there = p.devices[i + 1].contains(1);
    EXPECT_EQ(there, i % 2 == 1);
    EXPECT_EQ(all[i]->end.status.code(),
              there ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
  }
  // New requests use the other device, even if the lost one has their prefix.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(p.device_of(prompt_of(10, i)), 0U);
  p.lost = {0, 1};
  for (int i = 0; i < 2; ++i) {
    const auto last = p.submit(prompt_of(10));
    p.box.pump();
    EXPECT_EQ(last->end.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(last->admitted, 1 - i) << "with both lost, no request is admitted";
  }
}

TEST(Placement, WaitingRequestsOutliveALossIfThereIsAnotherReplica) {
  BoxOptions o = on_two_devices();
  o.limits.max_running = 2;
  Placed p{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 6; ++i) all.push_back(p.submit(prompt_of(10, i), 10));
  p.lost = {1};
  p.box.pump();
  int lost = 0;
  for (const auto& r : all) lost += r->end.status.ok() ? 0 : 1;
  EXPECT_EQ(lost, 1);
}

TEST(Placement, WhatOneReplicaCannotHoldIsRefused) {
  BoxOptions o = on_two_devices();
  o.models[1].pool = {4, 5, 5};
  Placed p{o};
  const auto r = p.submit(prompt_of(18), 4);
  p.box.pump();
  EXPECT_EQ(r->end.status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(Placement, NamedAndPlacedReplicasAreKept) {
  Placed p{on_two_devices()};
  for (int i = 0; i < 2; ++i) {
    SequenceSpec s = p.box.spec(prompt_of(9, i), 3);
    edit_cast(s).roles[0].model = ModelId(1);
    p.box.submit(std::move(s));
  }
  for (int i = 0; i < 2; ++i) {
    SequenceSpec s = p.box.spec(prompt_of(9, i), 3);
    s.placed = true;
    p.box.submit(std::move(s));
  }
  p.box.pump();
  for (const RequestId id : {1, 2}) EXPECT_EQ(p.devices[id], std::set<size_t>{1}) << id;
  for (const RequestId id : {3, 4}) EXPECT_EQ(p.devices[id], std::set<size_t>{0}) << id;
}

}  // namespace
}  // namespace tandem::test
