#include "engine/backend/fake/fake_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/pass/rows.h"
#include "engine/sampling/late_work.h"

namespace tandem {
namespace {

// The layers that the batch's longest work runs.
int layers_of(const Batch& batch) {
  int layers = 0;
  for (const Work& work : batch.works) {
    int from = work.count > 0 ? 0 : work.to;
    for (const int done : work.frontier) from = std::min(from, done);
    layers = std::max(layers, work.to - from);
  }
  return layers;
}

// Memory and batch disagree: a bug in the scheduler's bookkeeping.
[[noreturn]] void broken(const Work& work, int row, const char* what) {
  std::fprintf(stderr,
               "fake device: %s: model %d, cache %d, cache row %d, pass to layer %d (past %d, "
               "frontier %d, added %d..%d)\n",
               what, work.model.value, work.cache.value, row, work.to, work.past,
               work.frontier_rows(), work.first, work.first + work.count);
  std::abort();
}

// Checks that past rows have read no other memory than `memory` (a hash; 0: none), and records it
// for the new rows.
void check_memory(const Work& work, uint64_t memory, FakeMemory::Model* model) {
  const int page_rows = model->pool.page_rows;
  const int first = memory != 0 ? 0 : work.past / page_rows;
  for (int p = first; p * page_rows < work.past + work.run_rows(); ++p) {
    uint64_t& read = model->memory[work.pages[static_cast<size_t>(p)].index()];
    const bool fresh = p * page_rows >= work.past;
    if (!fresh && memory != 0 && read != 0 && read != memory) {
      broken(work, p * page_rows, "a past row has read another memory");
    }
    if (fresh || memory != 0) read = memory;
  }
}

// A digest of the page tables, which are in the sequences' caches and must not change.
uint64_t digest(const Batch& batch) {
  uint64_t sum = 0;
  for (const Work& work : batch.works) {
    for (const PageId page : work.pages) sum = sum * 31 + page.index();
    sum = sum * 31 + static_cast<uint64_t>(work.lora.value);
  }
  return sum;
}

}  // namespace

void FakeMemory::copy_page(const Move& m) {
  const bool saves = m.kind == Move::kSave;
  const Move::Place& place = saves ? m.from : m.to;
  Model& owner = model(place.model);
  const auto rows = static_cast<size_t>(owner.pool.page_rows);
  TANDEM_CHECK(FakeBackend::page_bytes(owner.pool.page_rows) ==
               static_cast<int64_t>(rows * sizeof(SavedSlot)));
  if (saves) TANDEM_CHECK(owner.memory[place.page.index()] == 0);  // its rows have read none
  owner.memory[place.page.index()] = 0;
  for (size_t i = 0; i < rows; ++i) {
    Slot& slot = owner.kv[place.page.index() * rows + i];
    std::byte* const host = m.host + i * sizeof(SavedSlot);
    SavedSlot saved = {slot.input, slot.position, slot.layers, slot.chain};
    if (saves) {
      TANDEM_CHECK(slot.input != 0 && !slot.lora.valid());
      std::memcpy(host, &saved, sizeof(saved));
    } else {
      std::memcpy(&saved, host, sizeof(saved));
      slot = {saved.input, saved.position, saved.layers, saved.chain, LoraId()};
    }
  }
}

void FakeMemory::move(const Move& m) {
  if (m.kind == Move::kSave || m.kind == Move::kLoad) return copy_page(m);
  Model& source = model(m.from.model);
  const auto from = m.from.page.index() * static_cast<size_t>(source.pool.page_rows);
  if (m.kind == Move::kFree && m.store == Store::kValue) {
    source.values[m.from.page.index()] = {};
    return;
  }
  if (m.kind == Move::kFree) {
    if (m.store == Store::kKv) source.memory[m.from.page.index()] = 0;
    for (int i = 0; i < source.pool.page_rows; ++i) {
      const size_t slot = from + static_cast<size_t>(i);
      if (m.store == Store::kKv) {
        source.kv[slot] = {};
      } else {
        source.frontier[slot] = {};
      }
    }
    return;
  }
  Model& target = model(m.to.model);
  TANDEM_CHECK(m.from.slot + m.rows <= source.pool.page_rows);
  TANDEM_CHECK(m.to.slot + m.rows <= target.pool.page_rows);
  const auto to = m.to.page.index() * static_cast<size_t>(target.pool.page_rows);
  if (m.store == Store::kKv) {
    target.memory[m.to.page.index()] = source.memory[m.from.page.index()];
  }
  for (int i = 0; i < m.rows; ++i) {
    const size_t a = from + static_cast<size_t>(m.from.slot + i);
    const size_t b = to + static_cast<size_t>(m.to.slot + i);
    if (m.store == Store::kKv) {
      TANDEM_CHECK(source.kv[a].input != 0);
      target.kv[b] = source.kv[a];
      target.kv[b].layers = std::min(target.kv[b].layers, m.layers);
    } else {
      TANDEM_CHECK(source.frontier[a].chain != 0);
      target.frontier[b] = source.frontier[a];
    }
  }
}

FakeBackend::FakeBackend(FakeMemory* memory, ValueStore* values, const Clock* clock, Timer* timer)
    : memory_(memory), values_(values), clock_(clock), timer_(timer), reader_(values) {}

FakeBackend::~FakeBackend() = default;

void FakeBackend::remove_model(ModelId id) {
  memory_->remove(id);
  const MutexLock lock(&mutex_);
  traces_.erase(id);
}

void FakeMemory::set_lora(ModelId model, LoraId lora, bool loaded) {
  const MutexLock lock(&mutex_);
  if (loaded) {
    unloaded_.erase({model, lora});
  } else {
    unloaded_.emplace(model, lora);
  }
}

bool FakeMemory::was_unloaded(ModelId model, LoraId lora) const {
  const MutexLock lock(&mutex_);
  return unloaded_.contains({model, lora});
}

const FakeModelConfig& FakeMemory::Model::config_with(LoraId lora) {
  if (!lora.valid()) return config;
  const auto known = adapted.find(lora);
  if (known != adapted.end()) return known->second;
  return adapted.emplace(lora, fake::with_lora(config, lora)).first->second;
}

void FakeBackend::add_model(ModelId id, const std::string& name, const FakeModelConfig& config,
                            const PoolSize& pool, int window,
                            const std::vector<ExtraConfig>& loras) {
  FakeMemory::Model m;
  m.shape.name = name;
  m.shape.architecture = "fake";
  m.shape.dtype = "none";
  m.shape.vocab_size = config.vocab_size;
  m.shape.layers = config.layers;
  m.shape.hidden_size = static_cast<int>(fake::kStateWidth);
  m.shape.max_positions = config.max_positions;
  m.shape.window = window;
  m.shape.page_bytes = page_bytes(pool.page_rows);
  m.shape.frontier_page_bytes =
      static_cast<int64_t>(sizeof(FakeMemory::HiddenRow)) * pool.page_rows;
  m.shape.batch_invariant = true;
  m.shape.reads_single_ids = true;
  for (const ExtraConfig& lora : loras) m.shape.loras.push_back({lora.name, 1, 0});
  m.shape.page_format = absl::StrCat("fake ", config.seed, " ", config.vocab_size);
  m.pool = pool;
  m.config = config;
  for (Token t = 0; !config.answers.empty() && t < config.vocab_size; ++t) {
    m.tokens[fake::token_input(t)] = t;
  }
  m.kv.resize(static_cast<size_t>(pool.pages * pool.page_rows));
  m.memory.resize(static_cast<size_t>(pool.pages));
  m.frontier.resize(static_cast<size_t>(pool.frontier_pages * pool.page_rows));
  m.values.resize(static_cast<size_t>(pool.values));
  memory_->add(id, std::move(m));
}

int64_t FakeBackend::page_bytes(int page_rows) {
  constexpr int64_t kSlotBytes = 24;  // fixed: budgets do not change with what a slot records
  return kSlotBytes * page_rows;
}

const ModelShape& FakeBackend::shape(ModelId model) const { return memory_->model(model).shape; }
const PoolSize& FakeBackend::pool(ModelId model) const { return memory_->model(model).pool; }

void FakeBackend::launch(const Batch& batch, Done done) {
  Fault fault;
  if (faults_) fault = faults_(batch);
  if (batch.behind && refused_) fault = {absl::ResourceExhaustedError("behind a batch"), {}, {}};
  refused_ = absl::IsResourceExhausted(fault.status);
  Duration busy = fault.delay;
  BatchTrace* trace = nullptr;
  int64_t number = -1;
  if (fault.status.ok() && !batch.works.empty()) {
    const ModelId model = batch.works.front().model;
    const MutexLock lock(&mutex_);
    if (const auto it = traces_.find(model); it != traces_.end()) {
      trace = it->second.get();
      number = trace->begin();
    }
    const FakeModelConfig& config = memory_->model(model).config;
    busy +=
        Duration(std::llround(1e9 * (config.pass_seconds + config.row_seconds * batch.run_rows() +
                                     config.layer_seconds * layers_of(batch))));
  }
  free_at_ = std::max(free_at_, clock_->now()) + busy;
  // The result takes the fault's status along: one that both threads held would be freed by a
  // count that TSan, blind inside the system's absl, cannot see.
  timer_->at(free_at_, [this, fault = std::move(fault), busy, trace, number, &batch,
                        tables = digest(batch), done = std::move(done)]() mutable {
    TANDEM_CHECK(digest(batch) == tables);
    BatchResult result = run(batch, std::move(fault), number);
    result.busy = busy;
    if (trace) trace->done(number, clock_->now());
    if (on_done_) on_done_();
    done(std::move(result));
  });
}

BatchResult FakeBackend::run(const Batch& batch, Fault fault, int64_t traced) {
  if (on_run_) on_run_(batch);
  BatchResult result;
  result.status = std::move(fault.status);
  values_->forget(batch.forget);
  for (const Move& m : batch.moves) memory_->move(m);
  if (result.status.ok()) {
    std::vector<char> nan(batch.works.size(), 0);
    for (const int w : fault.nan_works) nan[static_cast<size_t>(w)] = 1;
    for (size_t w = 0; w < batch.works.size(); ++w) {
      const Work& work = batch.works[w];
      result.works.push_back(run(work, nan[w] != 0, traced));
      if (result.works.back().status.ok()) continue;
      if (absl::IsAborted(result.works.back().status)) continue;  // it has not run
      incomplete_.insert(work.cache);
      failed_tickets_.insert(work.ticket);
    }
  } else if (!absl::IsResourceExhausted(result.status)) {
    for (const Work& work : batch.works) {
      incomplete_.insert(work.cache);
      failed_tickets_.insert(work.ticket);
    }
  }
  return result;
}

WorkResult FakeBackend::run(const Work& work, bool nan, int64_t traced) {
  FakeMemory::Model& model = memory_->model(work.model);
  const auto page_rows = static_cast<size_t>(model.pool.page_rows);
  const int window = model.shape.window;
  if (work.lora.valid() && memory_->was_unloaded(work.model, work.lora)) {
    broken(work, 0, "its LoRA adapter was unloaded");
  }
  const FakeModelConfig& config = model.config_with(work.lora);
  const Pass& pass = *work.pass;
  WorkResult result;
  if (work.late != nullptr && work.late->load()) {
    result.status = absl::AbortedError("fake device: answers of its sequence are late");
    return result;
  }
  if (incomplete_.contains(work.cache) || incomplete_.contains(work.memory)) {
    result.status = absl::InternalError("fake device: an earlier pass on this cache has failed");
    return result;
  }
  const auto kv = [&](int row) -> FakeMemory::Slot& {
    const auto r = static_cast<size_t>(row);
    return model.kv[work.pages[r / page_rows].index() * page_rows + r % page_rows];
  };
  const auto hidden = [&](int row) -> FakeMemory::HiddenRow& {
    const auto r = static_cast<size_t>(row);
    if (r / page_rows >= work.frontier_pages.size() ||
        !work.frontier_pages[r / page_rows].valid()) {
      broken(work, row, "no frontier page");
    }
    return model.frontier[work.frontier_pages[r / page_rows].index() * page_rows + r % page_rows];
  };

  // The past, as attention would read it: terms[p] is the contribution of position p. Unused if the
  // answer is the batch number; then checks are optional too.
  std::vector<uint64_t> terms(traced < 0 ? static_cast<size_t>(work.past) : 0);
  const bool look = traced < 0 || model.config.check_memory;
  uint64_t chain = look || work.past == 0 ? 0 : kv(work.past - 1).chain;
  for (int row = 0; look && row < work.past; ++row) {
    const FakeMemory::Slot& slot = kv(row);
    if (slot.input == 0) broken(work, row, "a past row was never written, or is freed");
    if (slot.position != row) broken(work, row, "a past row has another position");
    if (slot.layers < work.to) broken(work, row, "a past row has not done all layers");
    if (slot.lora != work.lora) broken(work, row, "a past row has another LoRA adapter");
    chain = fake::mix(chain, slot.input);
    if (slot.chain != chain) broken(work, row, "a past row belongs to another sequence");
    if (traced < 0) terms[static_cast<size_t>(row)] = fake::seen(slot.input, row);
  }

  uint64_t memory_sum = 0;
  for (int row = 0; row < work.memory_rows; ++row) {
    const FakeMemory::Model& encoder = memory_->model(work.memory_model);
    const auto rows = static_cast<size_t>(encoder.pool.page_rows);
    const auto r = static_cast<size_t>(row);
    const FakeMemory::Slot& slot =
        encoder.kv[work.memory_pages[r / rows].index() * rows + r % rows];
    if (slot.input == 0) broken(work, row, "a memory row was never written, or is freed");
    memory_sum += fake::mix(3, fake::seen(slot.input, row));
  }
  check_memory(work, memory_sum, &model);

  const int n = work.run_rows();
  const std::vector<int> position = run_positions(work);
  std::vector<uint64_t> input(static_cast<size_t>(n)), chains(static_cast<size_t>(n));
  for (int j = 0; j < n; ++j) {
    const auto k = static_cast<size_t>(j);
    const int row = work.past + j;  // its slot; run rows are consecutive
    const int parent = parent_run_row(work, j);
    const uint64_t before = parent < 0 ? chain : chains[static_cast<size_t>(parent)];
    FakeMemory::Slot& slot = kv(row);
    if (j < work.frontier_rows()) {
      const int from = work.frontier[k];
      if (slot.input == 0) broken(work, row, "a frontier row was never written, or is freed");
      if (slot.layers != from) broken(work, row, "a frontier row has done other layers");
      if (slot.lora != work.lora) broken(work, row, "a frontier row has another LoRA adapter");
      input[k] = slot.input;
      chains[k] = fake::mix(before, slot.input);
      if (slot.chain != chains[k]) broken(work, row, "a frontier row of another sequence");
      const FakeMemory::HiddenRow& h = hidden(row);
      if (h.chain != slot.chain || h.layers != from) broken(work, row, "a stale frontier row");
      slot.layers = work.to;
    } else {
      const absl::StatusOr<uint64_t> added = input_of(work, work.first + j - work.frontier_rows());
      if (!added.ok()) {
        result.status = added.status();
        return result;
      }
      input[k] = *added;
      chains[k] = fake::mix(before, input[k]);
      slot = {input[k], position[k], work.to, chains[k], work.lora};
    }
    if (work.save_frontier) hidden(row) = {chains[k], work.to};
  }

  // The token that the model's script has after a run row; -1: none.
  const auto scripted = [&](int run_row) -> Token {
    if (model.tokens.empty()) return -1;
    std::vector<uint64_t> inputs;
    for (int j = run_row; j >= 0; j = parent_run_row(work, j)) {
      inputs.push_back(input[static_cast<size_t>(j)]);
    }
    for (int row = work.past - 1; row >= 0; --row) inputs.push_back(kv(row).input);
    std::vector<Token> tokens;
    for (auto one = inputs.rbegin(); one != inputs.rend(); ++one) {
      const auto token = model.tokens.find(*one);
      if (token == model.tokens.end()) return -1;
      tokens.push_back(token->second);
    }
    return fake::scripted(model.config, tokens);
  };

  reader_.prepare(work, position).IgnoreError();  // its reads meet the same error
  reader_.begin(work);
  std::unique_ptr<LateWork> late;
  std::vector<float> logits(static_cast<size_t>(model.shape.vocab_size));
  std::vector<double> pooled;
  for (const Work::Output& output : work.outputs) {
    const Read& read = pass.read[static_cast<size_t>(output.read)];
    const int at = read.at == kTop ? work.to : read.at;
    const auto run = static_cast<size_t>(output.run_row);
    if (output.run_row < 0 || output.run_row >= n) broken(work, output.run_row, "not a run row");
    if (output.run_row < work.frontier_rows() && at < work.frontier[run]) {
      broken(work, output.run_row, "read below the layers that the row runs");
    }
    if (at <= 0 || at > work.to) broken(work, output.run_row, "read above the pass");
    if (read.hidden) {
      const bool whole = pass.see == See::kAll;
      const uint64_t row = whole ? fake::mix(chains.back(), chains[run]) : chains[run];
      model.values.at(output.value.index()) = {work.ticket, output.out, row, at};
      if (late != nullptr) {
        late->add({}, 0, -1);
      } else {
        reader_.skip();
      }
      continue;
    }
    if (read.pool) {
      const std::vector<double> state = fake::state(config, chains[run]);
      pooled.resize(state.size());
      for (size_t i = 0; i < state.size(); ++i) pooled[i] += state[i];
      reader_.skip();
      continue;
    }
    if (traced < 0) {
      const int first_seen = window > 0 ? std::max(0, position[run] - window + 1) : 0;
      uint64_t sum = memory_sum;
      if (pass.see == See::kAll) {
        for (int j = 0; j < n; ++j) {
          sum += fake::seen(input[static_cast<size_t>(j)], position[static_cast<size_t>(j)]);
        }
      } else {
        for (int j = output.run_row; j >= 0; j = parent_run_row(work, j)) {
          const auto k = static_cast<size_t>(j);
          if (position[k] >= first_seen) sum += fake::seen(input[k], position[k]);
        }
        for (int p = first_seen; p < work.past; ++p) sum += terms[static_cast<size_t>(p)];
      }
      fake::logits(config, sum, at, logits);
      // A mask row. Mask rows above it may have run in an earlier chunk.
      int masks = 0;
      uint64_t plain = sum;
      const Tree& added = pass.add;
      for (Row i = is_mask(work, output.run_row)
                       ? work.first + output.run_row - work.frontier_rows()
                       : -1;
           i >= 0 && added.in[static_cast<size_t>(i)].kind == In::kMask;
           i = added.parent[static_cast<size_t>(i)], ++masks) {
        const int mask = added.in[static_cast<size_t>(i)].id;
        plain -= fake::seen(fake::mask_input(pass.adapter, mask), position[run] - masks);
      }
      if (const Token token = scripted(output.run_row); token >= 0) {
        std::fill(logits.begin(), logits.end(), 0.0F);
        logits[static_cast<size_t>(token)] = 100;
      } else if (masks > 0) {
        fake::predict(config, sum, plain, position[run] - masks, masks - 1, at, logits);
      }
    } else {
      std::fill(logits.begin(), logits.end(), 0.0F);
      logits[static_cast<size_t>(BatchTrace::token(traced))] = 100;
    }
    if (nan) logits[0] = std::numeric_limits<float>::quiet_NaN();
    // Of a drafted chain: the draft after this row.
    Token next = -1;
    if (read.judges() && output.index + 1 < static_cast<int>(read.rows.size())) {
      const In& in =
          pass.add.in[static_cast<size_t>(read.rows[static_cast<size_t>(output.index) + 1])];
      next = in.id;
      if (in.kind == In::kChosen) {
        const absl::StatusOr<Token> picked = values_->pick(in.ref, in.id);
        next = picked.ok() ? *picked : -1;
      }
    }
    if (work.late != nullptr && late == nullptr) {
      const absl::StatusOr<bool> waits = reader_.must_wait(output, position[run]);
      result.status = waits.status();
      if (!result.status.ok()) return result;
      if (*waits) {
        work.late->store(true);
        const auto next_output = static_cast<size_t>(&output - work.outputs.data());
        late = std::make_unique<LateWork>(work, std::move(reader_), next_output);
      }
    }
    if (late != nullptr) {
      late->add(logits, position[run], next);
      continue;
    }
    result.status = reader_.read(output, logits, position[run], next);
    if (!result.status.ok()) return result;
  }
  if (late != nullptr) {
    result.late = std::move(late);
    return result;
  }
  result.readout = reader_.take();
  result.readout.pooled = std::move(pooled);
  return result;
}

absl::StatusOr<uint64_t> FakeBackend::input_of(const Work& work, int i) const {
  const In& in = work.pass->add.in[static_cast<size_t>(i)];
  const auto check = [&](Token token) {
    const bool known = token >= 0 && token < memory_->model(work.model).shape.vocab_size;
    if (!known) broken(work, i, "a token outside the vocabulary");
  };
  switch (in.kind) {
    case In::kToken:
      check(in.id);
      return fake::token_input(in.id);
    case In::kChosen: {
      TANDEM_ASSIGN_OR_RETURN(const Token token, values_->pick(in.ref, in.id));
      check(token);
      return fake::token_input(token);
    }
    case In::kMask:
      return fake::mask_input(work.pass->adapter, in.id);
    case In::kEmbed:
      break;
  }
  const auto embed = std::ranges::find(work.embeds, i, &Work::Embed::row);
  if (embed == work.embeds.end()) broken(work, i, "an embedded row without a place");
  const FakeMemory::Value& value = memory_->model(embed->model).values.at(embed->value.index());
  if (value.ticket == 0) {
    if (failed_tickets_.contains(in.ref.ticket)) {
      return absl::InternalError("the pass that was to leave a hidden row has failed");
    }
    broken(work, i, "a hidden row that was never left, or is forgotten");
  }
  if (value.ticket != in.ref.ticket || value.out != in.ref.out) {
    broken(work, i, "a hidden row of another pass or output");
  }
  if (!in.ref.replace) check(in.id);
  return fake::embed_input(work.pass->adapter, value.chain, value.layers,
                           in.ref.replace ? -1 : in.id);
}

}  // namespace tandem
