// Batches on a device: values stored there, moves, and faults of one work.
#include "engine/backend/torch/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/driver.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

Pass reading_last(Pass pass) {
  pass.reading(all_logprobs({static_cast<Row>(pass.add.size()) - 1}, 64));
  return pass;
}

Token drawn(const Readout& r) { return r.row[0].token; }

TEST(TorchDevice, ChosenIsTheTokenFed) {
  Driver d(tiny_model());
  const auto text = random_tokens(8, 64, 1);
  for (const int rank : {kDrawn, 0, 2}) {
    Sequence a = d.sequence();
    Pass first = chain_pass(6, text);
    Read read;
    read.rows = {7};
    read.draw = true;
    read.top = 3;
    first.reading(read);
    first.share = true;
    const TicketId ticket = Driver::new_ticket();
    const Readout r = d.run(a, first, 0, ticket);

    Pass chosen;
    chosen.stage.to = 6;
    In in;
    in.kind = In::kChosen;
    in.id = rank;
    in.ref.ticket = ticket;
    in.ref.out = 0;
    chosen.add.chain(in);
    const Rows got = logprobs(d.run(a, reading_last(chosen)));

    Sequence b = d.sequence();
    std::vector<Token> plain = text;
    plain.push_back(rank == kDrawn ? drawn(r) : r.row[0].top[static_cast<size_t>(rank)].token);
    expect_rows(got, logprobs(d.run(b, reading_last(chain_pass(6, plain)))));
    d.release(a);
    d.release(b);
  }
}

// Pages go to the host and into other pages, also of another device, and keep every bit.
TEST(TorchDevice, SavedPagesContinueTheirSequence) {
  const auto text = random_tokens(8, 64, 3);
  const Pass more = reading_last(chain_pass(6, random_tokens(3, 64, 4)));
  Driver d(tiny_model());
  Sequence fresh = d.sequence();
  d.run(fresh, chain_pass(6, text));
  const std::vector<std::byte> saved = d.save(fresh);
  EXPECT_EQ(saved.size(), 2 * static_cast<size_t>(d.shape().page_bytes));
  EXPECT_FALSE(d.shape().page_format.empty());
  const Rows expected = logprobs(d.run(fresh, more));

  Driver other(tiny_model());
  EXPECT_EQ(other.shape().page_format, d.shape().page_format);
  for (Driver* to : {&d, &other}) {
    Sequence restored = to->load(saved, 8);
    EXPECT_EQ(to->save(restored), saved);
    EXPECT_EQ(logprobs(to->run(restored, more)), expected);
  }
}

TEST(TorchDevice, PagesBeyondThePoolAreRefused) {
  Driver d(tiny_model());
  std::vector<std::byte> host(static_cast<size_t>(d.shape().page_bytes));
  for (const auto& [model, page] : {std::pair{d.model(), PageId(1 << 20)},
                                    {d.model(), PageId()},
                                    {ModelId(1 << 20), PageId(0)}}) {
    Batch batch;
    Move& m = batch.moves.emplace_back();
    m.kind = Move::kSave;
    m.from = {model, page, 0};
    m.host = host.data();
    std::promise<BatchResult> done;
    d.device().launch(batch, [&](BatchResult r) { done.set_value(std::move(r)); });
    EXPECT_TRUE(absl::IsInternal(done.get_future().get().status));
  }
}

// Drafts of an early layer with their distributions kept on the device, verified at the top.
TEST(TorchDevice, AgainstAcceptsWhatTheTargetWouldSay) {
  Driver d(tiny_model());
  for (const int draft_layers : {6, 3}) {  // the target itself, and something else
    Sequence s = d.sequence();
    const auto text = random_tokens(8, 64, 2);
    d.run(s, chain_pass(6, std::span(text).first(7)));
    std::vector<TicketId> tickets;
    std::vector<Token> drafts = {text.back()};
    Sequence draft = d.sequence();
    d.run(draft, chain_pass(draft_layers, std::span(text).first(7)));
    for (int i = 0; i < 4; ++i) {
      Pass p = chain_pass(draft_layers, {&drafts.back(), 1});
      Read read;
      read.rows = {0};
      read.draw = true;
      read.keep = true;
      p.reading(read);
      tickets.push_back(Driver::new_ticket());
      drafts.push_back(drawn(d.run(draft, p, 0, tickets.back())));
    }
    // Greedy distributions are one-hot: drafts are accepted while they are the target's argmax.
    int agree = 0;
    std::vector<Token> argmax;
    {
      Sequence plain = d.sequence();
      d.run(plain, chain_pass(6, std::span(text).first(7)));
      Pass p = chain_pass(6, drafts);
      p.reading(all_logprobs({0, 1, 2, 3, 4}, 64));
      for (const Out& o : d.run(plain, p).row) argmax.push_back(o.argmax);
      while (agree < 4 &&
             argmax[static_cast<size_t>(agree)] == drafts[static_cast<size_t>(agree) + 1]) {
        ++agree;
      }
    }
    Pass verify = chain_pass(6, drafts);
    Read read;
    read.rows = {0, 1, 2, 3, 4};
    read.draw = true;
    read.against.ticket = tickets.front();
    read.against.more.assign(tickets.begin() + 1, tickets.end());
    verify.reading(read);
    const Readout r = d.run(s, verify);
    EXPECT_EQ(r.accepted, agree);
    EXPECT_EQ(r.row[static_cast<size_t>(agree)].token, argmax[static_cast<size_t>(agree)]);
    if (draft_layers == 6) EXPECT_EQ(r.accepted, 4);
    d.release(s);
    d.release(draft);
  }
}

TEST(TorchDevice, FaultsStayWithTheirWork) {
  TinyModel tiny = tiny_model();
  // A token whose embedding is broken.
  std::vector<double>& embedding = tiny.values.at("model.embed_tokens.weight");
  for (int i = 0; i < 32; ++i) {
    embedding[static_cast<size_t>(40 * 32 + i)] = std::numeric_limits<double>::quiet_NaN();
  }
  Driver d(tiny);
  const Pass good = reading_last(chain_pass(6, std::vector<Token>{1, 2, 3}));
  const Pass nan = reading_last(chain_pass(6, std::vector<Token>{1, 40, 3}));
  const Pass beyond = reading_last(chain_pass(6, std::vector<Token>{1, 64, 3}));
  Pass mask = chain_pass(6, std::vector<Token>{1});
  mask.add.in[0].kind = In::kMask;
  Pass unknown = chain_pass(6, std::vector<Token>{1});
  unknown.add.in[0].kind = In::kChosen;
  unknown.add.in[0].ref.ticket = 1234567;
  Pass encoder = chain_pass(6, std::vector<Token>{1, 2});
  encoder.see = See::kAll;
  Pass head = good;
  head.read[0].head = HeadId(3);

  Sequence alone = d.sequence();
  const Rows want = logprobs(d.run(alone, good));
  const Pass* passes[] = {&nan, &good, &beyond, &mask, &good, &unknown, &encoder, &head, &good};
  std::vector<Sequence> sequences(std::size(passes));
  std::vector<Driver::Item> items;
  for (size_t i = 0; i < std::size(passes); ++i) {
    sequences[i] = d.sequence();
    items.push_back({&sequences[i], passes[i]});
  }
  const auto results = d.run(items);
  const absl::StatusCode codes[] = {absl::StatusCode::kInternal,
                                    absl::StatusCode::kOk,
                                    absl::StatusCode::kInvalidArgument,
                                    absl::StatusCode::kInvalidArgument,
                                    absl::StatusCode::kOk,
                                    absl::StatusCode::kInternal,
                                    absl::StatusCode::kInvalidArgument,
                                    absl::StatusCode::kInvalidArgument,
                                    absl::StatusCode::kOk};
  for (size_t i = 0; i < std::size(passes); ++i) {
    EXPECT_EQ(results[i].status.code(), codes[i]) << i << ": " << results[i].status;
    if (codes[i] == absl::StatusCode::kOk) expect_rows(logprobs(results[i].readout), want);
  }
  // Pages that held NaN are used again.
  d.release(sequences[0]);
  Sequence next = d.sequence();
  expect_rows(logprobs(d.run(next, good)), want);
}

TEST(TorchDevice, RowsMoveBetweenDevices) {
  const auto shared = test_shared();
  const TinyModel tiny = tiny_model();
  Driver main(tiny, shared, 0);
  Driver worker(tiny, shared, 1);
  const auto text = random_tokens(19, 64, 4);
  const auto more = random_tokens(3, 64, 5);
  Sequence there = worker.sequence();
  worker.run(there, chain_pass(6, std::span(text).first(12)));
  worker.run(there, chain_pass(2, std::span(text).subspan(12)));  // KV rows and frontier rows
  Sequence here = main.sequence();
  main.copy(there, here);
  const Rows got = logprobs(main.run(here, reading_last(chain_pass(6, more))));
  const Rows want = logprobs(worker.run(there, reading_last(chain_pass(6, more))));
  expect_rows(got, want);
}

TEST(TorchDevice, BatchesRunInLaunchOrder) {
  Driver d(tiny_model());
  Sequence s = d.sequence();
  const auto text = random_tokens(6, 64, 6);
  // Launched together: each needs the rows of the previous one.
  std::vector<Pass> passes;
  for (size_t i = 0; i < 6; ++i) passes.push_back(reading_last(chain_pass(6, {&text[i], 1})));
  std::vector<Batch> batches(6);
  std::vector<int> order;
  Rows last;
  std::promise<void> all;
  const std::vector<PageId> pages = {PageId(5), PageId(3)};
  for (int i = 0; i < 6; ++i) {
    Work w;
    w.pass = &passes[static_cast<size_t>(i)];
    w.ticket = Driver::new_ticket();
    w.model = d.model();
    w.to = 6;
    w.count = 1;
    w.past = i;
    w.pages = pages;
    w.outputs = {{0, 0, 0, 0}};
    batches[static_cast<size_t>(i)].works.push_back(w);
  }
  for (int i = 0; i < 6; ++i) {
    d.device().launch(batches[static_cast<size_t>(i)], [&, i](BatchResult r) {
      EXPECT_TRUE(r.status.ok()) << r.status;
      EXPECT_GT(r.busy.count(), 0);
      order.push_back(i);
      if (i == 5) {
        last = logprobs(r.works[0].readout);
        all.set_value();
      }
    });
  }
  all.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  Sequence whole = d.sequence();
  const Rows want = logprobs(d.run(whole, reading_last(chain_pass(6, text))));
  expect_rows(last, want);
}

// Neither threads nor the other rows of a batch change a bit.
TEST(TorchDevice, ThreadsChangeNothing) {
  TinyModel tiny = tiny_model();
  tiny.dtype = DType::kFloat32;
  const auto text = random_tokens(50, 64, 9);
  std::vector<Rows> got;
  for (const int threads : {1, 3}) {
    Driver d(tiny, test_shared(), 0, {.page_rows = 4, .pages = 600, .frontier_pages = 200},
             threads);
    Sequence s = d.sequence();
    got.push_back(logprobs(d.run(s, reading_last(chain_pass(6, text)))));
  }
  expect_rows(got[0], got[1]);
}

TEST(TorchDevice, UnknownDevicesAndModelsAreStatuses) {
  const auto shared = std::make_shared<TorchShared>();
  const auto cuda = TorchDevice::create({.kind = DeviceKind::kCuda, .index = 99}, shared);
  EXPECT_EQ(cuda.status().code(), absl::StatusCode::kNotFound);
  // Without a device, with the driver's message.
  EXPECT_THAT(std::string(cuda.status().message()),
              testing::MatchesRegex("device: cuda:99; allowed: .*(this build has no CUDA|CUDA "
                                    "devices of this machine: ([1-9].*|0 \\(.+\\)))\\)?"));
  auto device = *TorchDevice::create({.threads = 1}, shared);
  const absl::Status missing = device->load(ModelId(0), {.name = "m", .path = "/no/such/place"});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_GT(device->free_bytes(), 0);
  Batch batch;
  Pass pass = chain_pass(1, std::vector<Token>{1});
  Work w;
  w.pass = &pass;
  w.model = ModelId(77);
  w.to = w.count = 1;
  const PageId page(0);
  w.pages = {&page, 1};
  batch.works.push_back(w);
  std::promise<BatchResult> done;
  device->launch(batch, [&](BatchResult r) { done.set_value(std::move(r)); });
  EXPECT_EQ(done.get_future().get().status.code(), absl::StatusCode::kInternal);
}

TEST(TorchDevice, TooMuchMemoryIsResourceExhausted) {
  const auto shared = test_shared();
  auto device = *TorchDevice::create({.threads = 1}, shared);
  ASSERT_TRUE(tiny_model().load_into(*device, ModelId(900), 16).ok());
  const absl::Status s = device->allocate_pools(
      ModelId(900), {.page_rows = 16, .pages = int64_t{1} << 36, .frontier_pages = 0});
  EXPECT_EQ(s.code(), absl::StatusCode::kResourceExhausted) << s;
}

TEST(TorchDevice, PacksWeightsThatFitIfNothingIsConfigured) {
  const int64_t bytes = 8 * (64 * 32 + 6 * (32 * 64 + 32 * 32 + 3 * 32 * 48));  // of one model
  const auto device_with = [](std::optional<bool> packed) {
    auto device = *TorchDevice::create(
        {.threads = 1, .cpu_kernels = CpuKernels::kAten, .packed_products = packed},
        std::make_shared<TorchShared>());
    for (const int id : {910, 911}) {
      EXPECT_TRUE(tiny_model().load_into(*device, ModelId(id), 16).ok());
    }
    return device;
  };
  const auto unset = device_with(std::nullopt);
  EXPECT_EQ(*unset->pack_weights(2 * bytes - 1), bytes);
  EXPECT_EQ(*unset->pack_weights(2 * bytes), 0) << "decided once";
  EXPECT_EQ(*device_with(std::nullopt)->pack_weights(2 * bytes), 2 * bytes);
  EXPECT_EQ(*device_with(std::nullopt)->pack_weights(bytes - 1), 0);
  EXPECT_EQ(*device_with(true)->pack_weights(2 * bytes), 0) << "packed at load";
  EXPECT_EQ(*device_with(false)->pack_weights(2 * bytes), 0);
}

TEST(TorchDevice, CpuTargetIsTheSameForAllDevices) {
  const std::string best = cpu::target();
  const absl::Cleanup reset = [] { static_cast<void>(cpu::force_target("")); };
  const auto create = [](const std::string& target, const std::shared_ptr<TorchShared>& shared) {
    return TorchDevice::create({.threads = 1, .cpu_target = target}, shared).status();
  };
  const auto shared = std::make_shared<TorchShared>();
  EXPECT_TRUE(create("EMU128", shared).ok());
  EXPECT_EQ(cpu::target(), "EMU128");
  EXPECT_TRUE(create("EMU128", shared).ok());
  for (const char* other : {"", "AVX2"}) {
    const absl::Status refused = create(other, shared);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(), absl::StrCat("cpu:0.cpu_target: ", *other == 0 ? "unset" : other,
                                              "; allowed: EMU128, as on other devices"));
  }
  EXPECT_EQ(cpu::target(), "EMU128");

  EXPECT_THAT(std::string(create("MMX", std::make_shared<TorchShared>()).message()),
              testing::StartsWith("cpu_target: target: MMX; allowed: "));
  EXPECT_EQ(cpu::target(), best);
}

TEST(TorchDevice, ReadsNoCpuTargetFromTheEnvironment) {
  const std::string best = cpu::target();
  setenv("TANDEM_CPU_TARGET", "EMU128", /*replace=*/1);
  const absl::Cleanup reset = [] { unsetenv("TANDEM_CPU_TARGET"); };
  EXPECT_TRUE(TorchDevice::create({.threads = 1}, std::make_shared<TorchShared>()).ok());
  EXPECT_EQ(cpu::target(), best);
}

TEST(TorchDevice, ShapeSaysWhatWasLoaded) {
  Driver d(tiny_model(tiny_config(), 1, /*tied=*/true));
  const ModelShape& shape = d.shape();
  EXPECT_EQ(shape.layers, 6);
  EXPECT_EQ(shape.dtype, "fp64");
  const int64_t layer = 32 * 64 + 32 * 32 + 3 * 32 * 48 + 2 * 32;
  EXPECT_EQ(shape.parameters, 64 * 32 + 6 * layer + 32);
  EXPECT_EQ(shape.weight_bytes, shape.parameters * 8);
  EXPECT_EQ(shape.page_bytes, 2 * 6 * 2 * 4 * 8 * 8);
  EXPECT_EQ(shape.frontier_page_bytes, 4 * 32 * 8);
}

}  // namespace
}  // namespace tandem
