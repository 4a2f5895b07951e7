#include "engine/backend/torch/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/profile.h"
#include "engine/backend/torch/prompt_attention.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The most bytes of logits of one block, unless a single row has more.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

// The first ids that a read may draw (Warp::vocab).
int first_ids(const Read& read, int all) {
  return read.warp.vocab > 0 ? std::min(read.warp.vocab, all) : all;
}

// The most that a read of these works may draw, up to the last single one.
int ids_needed(std::span<const Work> works, int all) {
  int most = 0;
  for (const Work& work : works) {
    for (const Work::Output& o : work.outputs) {
      const Read& read = work.pass->read[static_cast<size_t>(o.read)];
      const bool more = read.warp.more_ids && !read.warp.more_ids->empty();
      const int end = more ? std::min(read.warp.more_ids->back() + 1, all) : 0;
      most = std::max({most, first_ids(read, all), end});
    }
  }
  return most;
}

// Whether a device's answers suffice for all reads of these works.
bool answers_suffice(std::span<const Work> works, int vocab) {
  return vocab <= kMostAnsweredVocab && std::ranges::all_of(works, [](const Work& work) {
           return std::ranges::all_of(work.outputs, [&](const Work::Output& o) {
             const Read& read = work.pass->read[static_cast<size_t>(o.read)];
             return !read.uses_head() || RowReader::can_ask(read);
           });
         });
}

}  // namespace

Executor::Executor(Model& model, const ModelShape& shape, ModelExtras& extras, const KvPool& pool,
                   ValueStore& store, PoolOf pool_of, AnswerCache* answers,
                   std::optional<int64_t> scratch)
    : model_(model),
      shape_(shape),
      extras_(extras),
      pool_(pool),
      store_(store),
      pool_of_(std::move(pool_of)),
      device_queue_(pool.device_queue),
      device_(pool.keys.device()),
      ops_(pool.platform->ops()),
      takes_pieces_(pool.platform->takes_pieces(pool.geometry)),
      placed_(queue_of(device_queue_)),
      reader_(store, shape.vocab_size),
      asker_(&store),
      readback_(queue_of(device_queue_)),
      answer_cache_(answers) {
  const KvGeometry& g = pool.geometry;
  Queue* const queue = queue_of(device_queue_);
  x_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  part_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  hidden_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  pooled_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  normed_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  logits_ = RowBuffer(shape_.vocab_size, at::kFloat, device_, queue);
  answers_ = RowBuffer(sizeof(RowAnswer), at::kByte, device_, queue);
  if (scratch && answer_cache_ != nullptr) {
    graphs_ = std::make_unique<StepGraphs>(model, shape_, pool, *scratch, *answer_cache_,
                                           StepGraphs::Buffers{x_, hidden_, logits_, answers_});
  }
}

void Executor::run(const Batch& batch, std::vector<WorkResult>& results) {
  results.clear();
  results.resize(batch.works.size());
  build(batch, {});
  for (size_t i = 0; i < results.size(); ++i) results[i].status = plan_.items[i].status;
  reader_.prepare(batch, plan_);
  const std::vector<ReadBlock> blocks = read_blocks(batch);
  answers_suffice_ = set_questions(batch, {});
  stepped_ = step(batch, blocks);
  if (plan_.rows() > 0 && !stepped_) {
    plan_.cut_last_layer(shape_);
    set_loras();
    place();
    follow_others();
    launch(device_queue_, [this] { forward(); });
  }
  for (const ReadBlock& block : blocks) read_block(batch, block, results);
  if (plan_.pooled > 0) read_pooled(results);
  if (device_queue_ != nullptr) device_queue_->finish();
  if (graphs_ != nullptr) graphs_->release_retired();
  publish_hidden_rows(batch, results);
}

bool Executor::start(const Batch& batch) {
  if (graphs_ == nullptr) return false;
  const auto cached_of = [this](const In& in) {
    return answer_cache_->find(in, shape_.vocab_size);
  };
  build(batch, cached_of);
  // A work that is invalid, or whose input only the host will have: run() distinguishes them.
  const auto is_built = [](const Plan::Item& item) { return item.status.ok(); };
  if (!std::ranges::all_of(plan_.items, is_built)) return false;
  const std::span works(batch.works);
  const std::vector<ReadBlock> blocks = read_blocks(batch);
  if (blocks.size() != 1 || !can_replay() || !set_questions(batch, cached_of)) return false;
  if (!StepGraphs::has_room(questions_)) return false;
  if (spare_.empty()) spare_.push_back(std::make_unique<Started>(device_queue_->queue.get()));
  Started& s = *spare_.back();
  AnswerCache::Batch cached = cache_answers(batch);
  const absl::Cleanup undo = [&] { answer_cache_->forget(cached); };
  graphs_->run(plan_, questions_, ids_needed(works, shape_.vocab_size), /*answers=*/true,
               lora_columns_, cached.names.empty() ? std::vector<int64_t>() : cached.places);
  const at::Tensor& answers = answers_.rows(blocks.front().count);
  s.answers = reinterpret_cast<const RowAnswer*>(
      s.readback.bring(answers.const_data_ptr(), answers.nbytes()));
  device_queue_->queue->record(*device_queue_->done);
  device_queue_->queue->record(*s.done);
  s.block = blocks.front();
  std::swap(s.cached, cached);
  std::swap(s.plan, plan_);
  started_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  return true;
}

void Executor::finish(const Batch& batch, std::vector<WorkResult>& results) {
  spare_.push_back(std::move(started_.front()));
  started_.pop_front();
  Started& s = *spare_.back();
  answer_cache_->forget(std::exchange(s.cached, {}));
  s.done->synchronize();
  std::swap(s.plan, plan_);
  plan_.resolve_chosen(batch, store_);
  results.clear();
  results.resize(batch.works.size());
  for (size_t i = 0; i < results.size(); ++i) results[i].status = plan_.items[i].status;
  reader_.read(batch, plan_, s.block, {nullptr, s.answers}, results);
  if (started_.empty()) graphs_->release_retired();
}

void Executor::build(const Batch& batch, const Plan::CachedOf& cached_of) {
  const StepProfile::Section section(StepProfile::kPlan);
  plan_.build(
      batch, shape_, pool_.size, store_,
      [this](const Work::Embed& place, TicketId written_by) { return width_of(place, written_by); },
      [this](ModelId encoder) {
        const KvPool* const pool = memory_pool(encoder);
        return pool == nullptr ? nullptr : &pool->size;
      },
      cached_of, [this](LoraId lora) { return extras_.loras->find(lora) != nullptr; });
  set_loras();
}

const LoraWeights& Executor::weights_of(const RowAdditions& additions) const {
  return additions.masks.valid() ? *extras_.adapters[additions.masks.index()].additions
                                 : *extras_.loras->find(additions.lora);
}

void Executor::set_loras() {
  lora_columns_.clear();
  if (plan_.adapted_rows == 0) return;
  for (const Segment& segment : plan_.segments) {
    LoraColumns& c = lora_columns_.emplace_back();
    const auto rows = segment.all ? static_cast<size_t>(plan_.rows()) : segment.index.size();
    c.adapter.assign(rows, nullptr);
    c.added.assign(rows, -1);
    for (const LoraRows& l : segment.loras) {
      const LoraWeights& weights = weights_of(l.additions);
      if (weights.for_kernels() == nullptr) return lora_columns_.clear();
      c.rank = std::max(c.rank, weights.rank());
      c.parts |= weights.parts();
      for (const int64_t row : l.rows) {
        c.adapter[static_cast<size_t>(row)] = weights.for_kernels();
        c.added[static_cast<size_t>(row)] = static_cast<int32_t>(row);
      }
    }
  }
}

// One question per head input. Those of works that do not run keep the default, which asks for
// nothing.
bool Executor::set_questions(const Batch& batch, const Plan::CachedOf& cached_of) {
  questions_.rows.assign(static_cast<size_t>(plan_.reads), {.vocab = shape_.vocab_size});
  questions_.changes.clear();
  questions_.drafts.clear();
  if (device_queue_ == nullptr || !answers_suffice(batch.works, shape_.vocab_size)) return false;
  for (size_t w = 0; w < batch.works.size(); ++w) {
    const Plan::Item& item = plan_.items[w];
    if (!item.status.ok()) continue;
    auto next = static_cast<size_t>(item.first_read);
    asker_.begin(batch.works[w]);
    for (const Work::Output& o : batch.works[w].outputs) {
      const Read& read = batch.works[w].pass->read[static_cast<size_t>(o.read)];
      if (!read.uses_head()) continue;
      const auto row = static_cast<size_t>(item.first_row + o.run_row);
      const absl::StatusOr<RowQuestion> question =
          asker_.ask(o, plan_.columns.position[row], shape_.vocab_size, cached_of, questions_);
      if (!question.ok()) return false;
      questions_.rows[next++] = *question;
    }
  }
  return true;
}

AnswerCache::Batch Executor::cache_answers(const Batch& batch) {
  AnswerCache::Batch cached = answer_cache_->begin(plan_.reads);
  for (size_t w = 0; w < batch.works.size(); ++w) {
    if (!plan_.items[w].status.ok()) continue;
    int next = plan_.items[w].first_read;
    for (const Work::Output& o : batch.works[w].outputs) {
      const Read& read = batch.works[w].pass->read[static_cast<size_t>(o.read)];
      if (!read.uses_head()) continue;
      const int i = next++;
      if (!AnswerCache::caches(batch.works[w], o)) continue;
      answer_cache_->add(cached, i, batch.works[w], o,
                         questions_.rows[static_cast<size_t>(i)].vocab);
    }
  }
  return cached;
}

std::vector<ReadBlock> Executor::read_blocks(const Batch& batch) const {
  const int64_t row_bytes = shape_.vocab_size * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(kLogitBytes / row_bytes, 1, model_.most_head_rows());
  return plan_.read_blocks(batch, static_cast<int>(most));
}

void Executor::place() {
  const KvPool* const memory = plan_.memory.valid() ? memory_pool(plan_.memory) : nullptr;
  placed_.place(plan_, questions_, pool_.size.page_rows, memory, lora_columns_);
}

absl::StatusOr<int> Executor::width_of(const Work::Embed& place, TicketId written_by) const {
  const KvPool* const pool = pool_of_(place.model);
  const auto value = place.value;
  if (pool == nullptr || !value.valid() || value.value >= pool->size.values ||
      pool->written_by[value.index()] != written_by) {
    return absl::InternalError(absl::StrCat("hidden row ", value.value, " of model ",
                                            place.model.value, ": pass ", written_by,
                                            " has not written it"));
  }
  return pool->geometry.hidden_size;
}

const KvPool* Executor::memory_pool(ModelId encoder) const {
  const KvPool* const pool = pool_of_(encoder);
  if (pool == nullptr || pool->keys.device() != device_) return nullptr;
  const KvGeometry& there = pool->geometry;
  const KvGeometry& own = pool_.geometry;
  const bool fits = there.layers >= own.layers && there.kv_heads == own.kv_heads &&
                    there.head_dim == own.head_dim && there.kv_type == own.kv_type;
  return fits ? pool : nullptr;
}

void Executor::follow_others() const {
  for (const EmbeddedRows& e : plan_.embedded) {
    follow(device_queue_, pool_of_(e.model)->device_queue);
  }
  if (plan_.memory.valid()) follow(device_queue_, memory_pool(plan_.memory)->device_queue);
}

bool Executor::can_replay() const {
  return StepGraphs::can_run(plan_, !lora_columns_.empty()) &&
         (!takes_pieces_ || pieces_of(plan_.columns).empty());
}

bool Executor::step(const Batch& batch, const std::vector<ReadBlock>& blocks) {
  if (graphs_ == nullptr || blocks.size() != 1 || !can_replay()) return false;
  if (answers_suffice_ && !StepGraphs::has_room(questions_)) return false;
  graphs_->run(plan_, questions_, ids_needed(batch.works, shape_.vocab_size), answers_suffice_,
               lora_columns_);
  return true;
}

void Executor::forward() {
  at::Tensor& x = x_.rows(plan_.rows());
  const auto& positions = plan_.columns.position;
  model_.embed(x, placed_.token, placed_.position,
               *std::max_element(positions.begin(), positions.end()));
  set_inputs(x);
  const PlacedCopies& load = placed_.load;
  if (load.n > 0) ops_.copy_rows(x, load.to, pool_.frontier, load.from, load.n);

  // Rows read after `at` layers are copied before the next layer runs.
  size_t next = 0;
  const auto capture_up_to = [&](int layers) {
    for (; next < plan_.captures.size() && plan_.captures[next].at <= layers; ++next) {
      const PlacedCopies& read = placed_.captures[next];
      if (read.n > 0) ops_.copy_rows(hidden_.rows(plan_.reads), read.to, x, read.from, read.n);
      const PlacedCopies& stored = placed_.stored[next];
      at::Tensor places = pool_.hidden;
      if (stored.n > 0) ops_.copy_rows(places, stored.to, x, stored.from, stored.n);
      const PlacedCopies& pooled = placed_.pooled[next];
      if (pooled.n > 0) {
        ops_.copy_rows(pooled_.rows(plan_.pooled), pooled.to, x, pooled.from, pooled.n);
      }
    }
  };
  for (size_t i = 0; i < plan_.segments.size(); ++i) {
    capture_up_to(plan_.segments[i].from);
    run_segment(i, x);
  }
  capture_up_to(std::numeric_limits<int>::max());
  apply_heads();

  const PlacedCopies& save = placed_.save;
  if (save.n > 0) {
    at::Tensor frontier = pool_.frontier;
    ops_.copy_rows(frontier, save.to, x, save.from, save.n);
  }
}

// Sets or adds to the rows whose input is not a token alone.
void Executor::set_inputs(at::Tensor& x) {
  for (size_t i = 0; i < plan_.masks.size(); ++i) {
    const Adapter& adapter = extras_.adapters[plan_.masks[i].adapter.index()];
    const PlacedCopies& c = placed_.masks[i];
    ops_.copy_rows(x, c.to, adapter.masks, c.from, c.n);
  }
  for (size_t i = 0; i < plan_.embedded.size(); ++i) {
    set_embedded(plan_.embedded[i], placed_.embedded[i], x);
  }
  if (!plan_.replaced.empty()) model_.add_positions(x, placed_.replaced, placed_.position);
}

// The hidden rows, [n, width], on this device, of the residual stream's type. from: their places,
// on this device
at::Tensor Executor::gather(const EmbeddedRows& rows, const int64_t* from) const {
  const KvPool& pool = *pool_of_(rows.model);
  const at::Tensor& places = pool.hidden;
  const auto n = static_cast<int64_t>(rows.copies.from.size());
  at::Tensor all;
  if (reads(device_queue_, pool.device_queue)) {
    all = at::empty({n, places.size(1)}, places.options().device(device_));
    ops_.copy_rows(all, nullptr, places, from, n);
  } else {
    std::vector<int64_t> index = rows.copies.from;
    const at::Tensor on_host = at::from_blob(index.data(), {n}, at::kLong);
    all = places.index_select(0, on_host.to(places.device())).to(device_);
  }
  return all.to(pool_.geometry.hidden_type);
}

void Executor::set_embedded(const EmbeddedRows& rows, const PlacedCopies& copies, at::Tensor& x) {
  at::Tensor inputs = gather(rows, copies.from);
  if (rows.adapter.valid()) {
    at::Tensor projected = at::empty({copies.n, x.size(1)}, x.options());
    extras_.adapters[rows.adapter.index()].projector->project(projected, inputs);
    inputs = std::move(projected);
  }
  if (!rows.replace) {
    at::Tensor& part = part_.rows(copies.n);
    ops_.copy_rows(part, nullptr, x, copies.to, copies.n);
    inputs = part.add_(inputs);
  }
  ops_.copy_rows(x, copies.to, inputs, nullptr, copies.n);
}

void Executor::run_segment(size_t i, at::Tensor& x) {
  const Segment& segment = plan_.segments[i];
  const RowView& rows = placed_.views[i];
  const int64_t* const index = placed_.segment_rows[i];
  const Memory& memory = placed_.memories[i];
  LoraGroups loras;
  if (!placed_.loras.empty()) {
    loras = placed_.loras[i];
  } else {
    loras_.clear();
    for (const LoraRows& l : segment.loras) {
      loras_.push_back(
          {&weights_of(l.additions), l.rows.data(), static_cast<int64_t>(l.rows.size())});
    }
    loras = loras_;
  }
  const auto run = [&](at::Tensor& in) {
    if (segment.kv_only) {
      model_.store_kv(segment.from, in, rows, pool_, loras);
    } else {
      model_.run(segment.from, segment.to, in, rows, pool_, memory, loras);
    }
  };
  if (segment.all) return run(x);
  at::Tensor& part = part_.rows(rows.rows);
  ops_.copy_rows(part, nullptr, x, index, rows.rows);
  run(part);
  if (!segment.kv_only) ops_.copy_rows(x, index, part, nullptr, rows.rows);
}

void Executor::apply_heads() {
  for (size_t i = 0; i < plan_.heads.size(); ++i) {
    const HeadReads& h = plan_.heads[i];
    const auto n = static_cast<int64_t>(h.reads.size());
    at::Tensor& all = hidden_.rows(plan_.reads);
    at::Tensor& part = part_.rows(n);
    ops_.copy_rows(part, nullptr, all, placed_.head_reads[i], n);
    extras_.heads[h.head.index()].apply(part);
    ops_.copy_rows(all, placed_.head_reads[i], part, nullptr, n);
  }
}

void Executor::read_block(const Batch& batch, const ReadBlock& block,
                          std::vector<WorkResult>& results) {
  const HeadRows rows =
      block.count > 0 ? head_rows(block, head_need(batch, block), answers_suffice_) : HeadRows{};
  reader_.read(batch, plan_, block, rows, results);
}

// Masks draw from fewer ids than the rows before them (BitaParams::draft_vocabulary).
cpu::Columns Executor::head_need(const Batch& batch, const ReadBlock& block) {
  const auto works = std::span(batch.works).subspan(block.begin, block.end - block.begin);
  if (device_queue_ != nullptr) return {.first = ids_needed(works, shape_.vocab_size)};
  ids_.clear();
  more_ids_.clear();
  expected_.clear();
  int others = 0;  // the most ids of a read that needs more than its greatest logit
  for (size_t w = block.begin; w < block.end; ++w) {
    if (!plan_.items[w].status.ok()) continue;
    const Work& work = batch.works[w];
    const size_t end = std::min(block.to, work.outputs.size());
    for (size_t i = block.from; i < end; ++i) {
      const Read& read = work.pass->read[static_cast<size_t>(work.outputs[i].read)];
      if (read.hidden) continue;
      ids_.push_back(first_ids(read, shape_.vocab_size));
      if (!RowReader::needs_argmax_alone(read)) others = std::max(others, ids_.back());
      expected_.push_back(i + 1 < end ? plan_.judged(batch, w, i) : -1);
      if (!read.warp.more_ids) continue;
      for (const Token id : *read.warp.more_ids) {
        if (id >= ids_.back() && id < shape_.vocab_size) more_ids_.push_back(id);
      }
    }
  }
  const int most = *std::ranges::max_element(ids_);
  const auto behind = std::find(ids_.rbegin(), ids_.rend(), most).base();
  if (behind == ids_.end() || !more_ids_.empty()) {
    std::ranges::sort(more_ids_);
    const bool equal = std::ranges::all_of(ids_, [&](int ids) { return ids == most; });
    return {.first = most,
            .more = more_ids_,
            .argmax = equal && others == 0 ? most : 0,
            .expected = expected_};
  }
  const int first = *std::max_element(behind, ids_.end());
  const bool equal =
      std::all_of(ids_.begin(), behind, [&](int ids) { return ids == most || ids <= first; });
  return {.first = first,
          .whole = behind - ids_.begin(),
          .argmax = equal && others <= first ? most : 0,
          .expected = expected_};
}

HeadRows Executor::head_rows(const ReadBlock& block, const cpu::Columns& need, bool answers) {
  const int first = block.first;
  const int count = block.count;
  at::Tensor& logits = logits_.rows(count);
  if (!stepped_) {
    launch(device_queue_, [this, logits, first, count, need]() mutable {
      model_.head(logits, hidden_.rows(plan_.reads).narrow(0, first, count), need);
    });
  }
  if (device_queue_ == nullptr) return {logits.mutable_data_ptr<float>()};
  if (!answers) {
    std::byte* const host = readback_.bring(logits.const_data_ptr(), logits.nbytes());
    device_queue_->queue->synchronize();
    return {reinterpret_cast<float*>(host)};
  }
  const at::Tensor& all = answers_.rows(count);
  auto* const to = static_cast<RowAnswer*>(all.mutable_data_ptr());
  if (!stepped_) {
    const RowQuestion* const asked = placed_.questions + first;
    launch(device_queue_, [this, logits, changes = placed_.changes, asked, to]() mutable {
      ops_.answer_rows(logits, {.changes = changes}, asked, to);
    });
  }
  std::byte* const host = readback_.bring(to, all.nbytes());
  device_queue_->queue->synchronize();
  return {nullptr, reinterpret_cast<const RowAnswer*>(host)};
}

void Executor::read_pooled(std::vector<WorkResult>& results) {
  at::Tensor& normed = normed_.rows(plan_.pooled);
  launch(device_queue_,
         [this, normed]() mutable { model_.final_norm(normed, pooled_.rows(plan_.pooled)); });
  const void* from = normed.const_data_ptr();
  if (device_queue_ != nullptr) {
    from = readback_.bring(from, normed.nbytes());
    device_queue_->queue->synchronize();
  }
  const at::Tensor rows = at::from_blob(const_cast<void*>(from), normed.sizes(),
                                        at::TensorOptions().dtype(normed.scalar_type()))
                              .to(at::kDouble);
  const auto width = static_cast<size_t>(normed.size(1));
  for (size_t w = 0; w < results.size(); ++w) {
    const Plan::Item& item = plan_.items[w];
    if (!results[w].status.ok() || item.pooled == 0) continue;
    std::vector<double>& sum = results[w].readout.pooled;
    sum.assign(width, 0);
    const double* row = static_cast<const double*>(rows.const_data_ptr()) +
                        static_cast<size_t>(item.first_pooled) * width;
    for (int i = 0; i < item.pooled; ++i, row += width) {
      for (size_t k = 0; k < width; ++k) sum[k] += row[k];
    }
    if (!std::ranges::all_of(sum, [](double x) { return std::isfinite(x); })) {
      results[w].status = absl::InternalError("hidden states after the last norm: not finite");
    }
  }
}

void Executor::publish_hidden_rows(const Batch& batch, const std::vector<WorkResult>& results) {
  for (size_t w = 0; w < results.size(); ++w) {
    if (!results[w].status.ok()) continue;
    const Work& work = batch.works[w];
    for (const Work::Output& o : work.outputs) {
      if (work.pass->read[static_cast<size_t>(o.read)].hidden) {
        pool_.written_by[o.value.index()] = work.ticket;
      }
    }
  }
}

}  // namespace tandem
