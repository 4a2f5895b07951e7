#include "engine/backend/torch/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <span>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The head's output is held up to this size at a time, or for one row.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

// Ids that some read of these may draw (Warp::vocab).
int ids_wanted(std::span<const Work> works, int all) {
  int most = 0;
  for (const Work& work : works) {
    for (const Work::Output& o : work.outputs) {
      const int ids = work.pass->read[static_cast<size_t>(o.read)].warp.vocab;
      most = std::max(most, ids > 0 ? std::min(ids, all) : all);
    }
  }
  return most;
}

// Whether a device's answers say all that is read of these.
bool can_ask(std::span<const Work> works, int vocab) {
  return vocab <= kMostAnsweredVocab && std::ranges::all_of(works, [](const Work& work) {
           return std::ranges::all_of(work.outputs, [&](const Work::Output& o) {
             const Read& read = work.pass->read[static_cast<size_t>(o.read)];
             return read.hidden || RowReader::can_ask(read);
           });
         });
}

}  // namespace

Executor::Executor(Model& model, const ModelShape& shape, ModelExtras& extras, const KvPool& pool,
                   ValueStore& store, PoolOf pool_of, AnswerCache* kept,
                   std::optional<int64_t> scratch)
    : model_(model),
      extras_(extras),
      pool_(pool),
      store_(store),
      pool_of_(std::move(pool_of)),
      device_queue_(pool.device_queue),
      device_(pool.keys.device()),
      ops_(pool.platform->ops()),
      shape_(shape),
      staging_(queue_of(device_queue_)),
      readback_(queue_of(device_queue_)),
      kept_(kept) {
  const KvGeometry& g = pool.geometry;
  Queue* const queue = queue_of(device_queue_);
  x_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  part_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  hidden_ = RowBuffer(g.hidden_size, g.hidden_type, device_, queue);
  logits_ = RowBuffer(shape_.vocab_size, at::kFloat, device_, queue);
  answers_ = RowBuffer(sizeof(RowAnswer), at::kByte, device_, queue);
  if (scratch && kept_ != nullptr) {
    graphs_ = std::make_unique<StepGraphs>(model, shape_, pool, *scratch, *kept_,
                                           StepGraphs::Buffers{x_, hidden_, logits_, answers_});
  }
}

void Executor::build(const Batch& batch, const Plan::KeptOf& kept_of) {
  const StepProfile::Section section(StepProfile::kPlan);
  plan_.build(
      batch, shape_, pool_.size, store_,
      [this](const Work::Embed& place, TicketId left_by) { return width_of(place, left_by); },
      [this](ModelId encoder) {
        const KvPool* const pool = memory_pool(encoder);
        return pool == nullptr ? nullptr : &pool->size;
      },
      kept_of);
}

bool Executor::start(const Batch& batch) {
  if (graphs_ == nullptr) return false;
  build(batch, [this](const In& in) { return kept_->find(in, shape_.vocab_size); });
  // A work that is wrong, or fed what one under way leaves to the host alone: run() tells them
  // apart.
  const auto is_built = [](const Plan::Item& item) { return item.status.ok(); };
  if (!std::ranges::all_of(plan_.items, is_built)) return false;
  const std::span works(batch.works);
  const std::vector<ReadBlock> blocks = read_blocks(batch);
  if (blocks.size() != 1 || !StepGraphs::fits(plan_) || !can_ask(works, shape_.vocab_size)) {
    return false;
  }
  ask(batch);
  if (finished_.empty()) finished_.push_back(std::make_unique<Started>(device_queue_->queue.get()));
  Started& s = *finished_.back();
  AnswerCache::Batch kept = keep(batch);
  const absl::Cleanup undo = [&] { kept_->forget(kept); };
  graphs_->run(plan_, questions_, ids_wanted(works, shape_.vocab_size), /*answers=*/true,
               kept.names.empty() ? std::vector<int64_t>() : kept.places);
  const at::Tensor& answers = answers_.rows(blocks.front().count);
  s.answers = reinterpret_cast<const RowAnswer*>(
      s.readback.bring(answers.const_data_ptr(), answers.nbytes()));
  device_queue_->queue->record(*device_queue_->done);
  device_queue_->queue->record(*s.done);
  s.block = blocks.front();
  std::swap(s.kept, kept);
  std::swap(s.plan, plan_);
  std::swap(s.questions, questions_);
  started_.push_back(std::move(finished_.back()));
  finished_.pop_back();
  return true;
}

AnswerCache::Batch Executor::keep(const Batch& batch) {
  AnswerCache::Batch kept = kept_->begin(plan_.reads);
  for (size_t w = 0; w < batch.works.size(); ++w) {
    if (!plan_.items[w].status.ok()) continue;
    int next = plan_.items[w].first_read;
    for (const Work::Output& o : batch.works[w].outputs) {
      const Read& read = batch.works[w].pass->read[static_cast<size_t>(o.read)];
      if (read.hidden) continue;
      const int i = next++;
      if (!AnswerCache::keeps(batch.works[w], o)) continue;
      kept_->add(kept, i, batch.works[w], o, questions_[static_cast<size_t>(i)].vocab);
    }
  }
  return kept;
}

void Executor::finish(const Batch& batch, std::vector<WorkResult>& results) {
  finished_.push_back(std::move(started_.front()));
  started_.pop_front();
  Started& s = *finished_.back();
  kept_->forget(std::exchange(s.kept, {}));
  s.done->synchronize();
  std::swap(s.plan, plan_);
  std::swap(s.questions, questions_);
  plan_.settle(batch, store_);
  results.clear();
  results.resize(batch.works.size());
  for (size_t i = 0; i < results.size(); ++i) results[i].status = plan_.items[i].status;
  answer_block(batch, s.block, {nullptr, s.answers}, results);
  if (started_.empty()) graphs_->let_go();
}

void Executor::run(const Batch& batch, std::vector<WorkResult>& results) {
  results.clear();
  results.resize(batch.works.size());
  build(batch, {});
  for (size_t i = 0; i < results.size(); ++i) results[i].status = plan_.items[i].status;
  const std::vector<ReadBlock> blocks = read_blocks(batch);
  ask(batch);
  stepped_ = step(batch, blocks);
  if (plan_.rows() > 0 && !stepped_) {
    place();
    follow_others();
    launch(device_queue_, [this] { forward(); });
  }
  for (const ReadBlock& block : blocks) read_block(batch, block, results);
  if (device_queue_ != nullptr) device_queue_->finish();
  if (graphs_ != nullptr) graphs_->let_go();
  name_left(batch, results);
}

bool Executor::step(const Batch& batch, const std::vector<ReadBlock>& blocks) {
  if (graphs_ == nullptr || blocks.size() != 1 || !StepGraphs::fits(plan_)) return false;
  const std::span works(batch.works);
  graphs_->run(plan_, questions_, ids_wanted(works, shape_.vocab_size),
               can_ask(works, shape_.vocab_size));
  return true;
}

void Executor::follow_others() const {
  for (const EmbeddedRows& e : plan_.embedded)
    follow(device_queue_, pool_of_(e.model)->device_queue);
  if (plan_.memory.valid()) follow(device_queue_, memory_pool(plan_.memory)->device_queue);
}

absl::StatusOr<int> Executor::width_of(const Work::Embed& place, TicketId left_by) const {
  const KvPool* const pool = pool_of_(place.model);
  const auto value = place.value;
  if (pool == nullptr || !value.valid() || value.value >= pool->size.values ||
      pool->left_by[value.index()] != left_by) {
    return absl::InternalError(absl::StrCat("hidden row ", value.value, " of model ",
                                            place.model.value, ": pass ", left_by,
                                            " has left none there"));
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

void Executor::name_left(const Batch& batch, const std::vector<WorkResult>& results) {
  for (size_t w = 0; w < results.size(); ++w) {
    if (!results[w].status.ok()) continue;
    const Work& work = batch.works[w];
    for (const Work::Output& o : work.outputs) {
      if (work.pass->read[static_cast<size_t>(o.read)].hidden) {
        pool_.left_by[o.value.index()] = work.ticket;
      }
    }
  }
}

// What there is to be asked about each head input. Those of which answers will not do are asked for
// nothing.
void Executor::ask(const Batch& batch) {
  questions_.assign(static_cast<size_t>(plan_.reads), {.vocab = shape_.vocab_size});
  if (device_queue_ == nullptr || shape_.vocab_size > kMostAnsweredVocab) return;
  for (size_t w = 0; w < batch.works.size(); ++w) {
    const Plan::Item& item = plan_.items[w];
    if (!item.status.ok()) continue;
    auto next = static_cast<size_t>(item.first_read);
    for (const Work::Output& o : batch.works[w].outputs) {
      const Read& read = batch.works[w].pass->read[static_cast<size_t>(o.read)];
      if (read.hidden) continue;
      RowQuestion& question = questions_[next++];
      if (!RowReader::can_ask(read)) continue;
      const auto row = static_cast<size_t>(item.first_row + o.run_row);
      question =
          RowReader::question(batch.works[w], o, plan_.columns.position[row], shape_.vocab_size);
    }
  }
}

void Executor::place() {
  staging_.begin(plan_.array_bytes() + questions_.size() * sizeof(RowQuestion) + 16);
  placed_.views.clear();
  placed_.memories.clear();
  placed_.segment_rows.clear();
  placed_.captures.clear();
  placed_.left.clear();
  placed_.masks.clear();
  placed_.embedded.clear();
  placed_.token = staging_.place(plan_.token);
  placed_.fed = staging_.place(plan_.fed);
  placed_.load = place(plan_.load);
  placed_.save = place(plan_.save);
  const int32_t* extra = staging_.place(plan_.extra);
  const int32_t* pages = staging_.place(plan_.pages);
  const RowView all = place(plan_.columns, extra, pages);
  placed_.position = all.position;
  const int32_t* zeros = staging_.place(plan_.zeros);
  for (const Segment& s : plan_.segments) {
    const RowColumns& columns = s.all ? plan_.columns : s.columns;
    const RowView& view = placed_.views.emplace_back(s.all ? all : place(columns, extra, pages));
    placed_.memories.push_back(place_memory(columns, view, zeros));
    placed_.segment_rows.push_back(s.all ? nullptr : staging_.place(s.index));
  }
  for (const Capture& c : plan_.captures) {
    placed_.captures.push_back(place(c.copies));
    placed_.left.push_back(place(c.left));
  }
  for (const MaskRows& m : plan_.masks) placed_.masks.push_back(place(m.copies));
  for (const EmbeddedRows& e : plan_.embedded) placed_.embedded.push_back(place(e.copies));
  placed_.head_reads.clear();
  for (const HeadReads& h : plan_.heads) placed_.head_reads.push_back(staging_.place(h.reads));
  placed_.questions = staging_.place(questions_);
  staging_.upload();
}

Executor::PlacedCopies Executor::place(const RowCopies& copies) {
  return {staging_.place(copies.from), staging_.place(copies.to), copies.size()};
}

RowView Executor::place(const RowColumns& c, const int32_t* extra, const int32_t* pages) {
  RowView v;
  v.rows = c.rows();
  v.page_rows = pool_.size.page_rows;
  v.position = staging_.place(c.position);
  v.slot = staging_.place(c.slot);
  v.table = staging_.place(c.table);
  v.first_key = staging_.place(c.first_key);
  v.dense_end = staging_.place(c.dense_end);
  v.extra_begin = staging_.place(c.extra_begin);
  v.extra_end = staging_.place(c.extra_end);
  v.prompts = staging_.place(c.prompts);
  v.extra = extra;
  v.pages = pages;
  v.most_keys = c.most_keys();
  v.together = RowColumns::together(c.table);
  return v;
}

Memory Executor::place_memory(const RowColumns& c, const RowView& own, const int32_t* zeros) {
  if (!plan_.memory.valid()) return {};
  Memory memory{own, memory_pool(plan_.memory)};
  RowView& v = memory.rows;
  v.page_rows = memory.pool->size.page_rows;
  v.slot = nullptr;
  v.table = staging_.place(c.memory_table);
  v.first_key = v.extra_begin = v.extra_end = zeros;
  v.dense_end = staging_.place(c.memory_rows);
  v.prompts = nullptr;
  v.most_keys = *std::max_element(c.memory_rows.begin(), c.memory_rows.end());
  v.together = RowColumns::together(c.memory_table);
  return memory;
}

void Executor::forward() {
  at::Tensor& x = x_.rows(plan_.rows());
  const auto& positions = plan_.columns.position;
  model_.embed(x, placed_.token, placed_.position,
               *std::max_element(positions.begin(), positions.end()));
  feed(x);
  const PlacedCopies& load = placed_.load;
  if (load.n > 0) ops_.copy_rows(x, load.to, pool_.frontier, load.from, load.n);

  // What is read after `at` layers must be taken before the next layer runs.
  size_t next = 0;
  const auto capture_up_to = [&](int layers) {
    for (; next < plan_.captures.size() && plan_.captures[next].at <= layers; ++next) {
      const PlacedCopies& read = placed_.captures[next];
      if (read.n > 0) ops_.copy_rows(hidden_.rows(plan_.reads), read.to, x, read.from, read.n);
      const PlacedCopies& left = placed_.left[next];
      at::Tensor places = pool_.hidden;
      if (left.n > 0) ops_.copy_rows(places, left.to, x, left.from, left.n);
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

// Rows whose input is not a token alone.
void Executor::feed(at::Tensor& x) {
  for (size_t i = 0; i < plan_.masks.size(); ++i) {
    const Adapter& adapter = extras_.adapters[plan_.masks[i].adapter.index()];
    const PlacedCopies& c = placed_.masks[i];
    ops_.copy_rows(x, c.to, adapter.masks, c.from, c.n);
  }
  for (size_t i = 0; i < plan_.embedded.size(); ++i) {
    feed_embedded(plan_.embedded[i], placed_.embedded[i], x);
  }
  if (!plan_.fed.empty()) model_.place_fed(x, placed_.fed, placed_.position);
}

// [n, width], of this device and of the residual stream's type. from: places, on this device
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

void Executor::feed_embedded(const EmbeddedRows& rows, const PlacedCopies& copies, at::Tensor& x) {
  at::Tensor fed = gather(rows, copies.from);
  if (rows.adapter.valid()) {
    at::Tensor projected = at::empty({copies.n, x.size(1)}, x.options());
    extras_.adapters[rows.adapter.index()].projector->project(projected, fed);
    fed = projected;
  }
  if (!rows.replace) {
    at::Tensor& part = part_.rows(copies.n);
    ops_.copy_rows(part, nullptr, x, copies.to, copies.n);
    fed = part.add_(fed);
  }
  ops_.copy_rows(x, copies.to, fed, nullptr, copies.n);
}

void Executor::run_segment(size_t i, at::Tensor& x) {
  const Segment& segment = plan_.segments[i];
  const RowView& rows = placed_.views[i];
  const int64_t* const index = placed_.segment_rows[i];
  const Memory& memory = placed_.memories[i];
  if (segment.all) {
    model_.run(segment.from, segment.to, x, rows, pool_, memory);
    return;
  }
  at::Tensor& part = part_.rows(rows.rows);
  ops_.copy_rows(part, nullptr, x, index, rows.rows);
  model_.run(segment.from, segment.to, part, rows, pool_, memory);
  ops_.copy_rows(x, index, part, nullptr, rows.rows);
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

std::vector<ReadBlock> Executor::read_blocks(const Batch& batch) const {
  const int64_t row_bytes = shape_.vocab_size * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(kLogitBytes / row_bytes, 1, model_.most_head_rows());
  return plan_.read_blocks(batch, static_cast<int>(most));
}

void Executor::read_block(const Batch& batch, const ReadBlock& block,
                          std::vector<WorkResult>& results) {
  const auto works = std::span(batch.works).subspan(block.begin, block.end - block.begin);
  const int ids = ids_wanted(works, shape_.vocab_size);
  const bool answers = device_queue_ != nullptr && can_ask(works, shape_.vocab_size);
  answer_block(batch, block, block.count > 0 ? see(block, ids, answers) : Seen{}, results);
}

void Executor::answer_block(const Batch& batch, const ReadBlock& block, const Seen& seen,
                            std::vector<WorkResult>& results) {
  const StepProfile::Section section(StepProfile::kReadout);
  const auto count = static_cast<int64_t>(block.end - block.begin);
  const int team = cpu::team_size();
  const bool many = seen.answers == nullptr && block.count * int64_t{shape_.vocab_size} > 65536;
  const int64_t grain = many ? (count + team - 1) / team : count;
  while (static_cast<int64_t>(readers_.size()) < (count + grain - 1) / grain) {
    readers_.emplace_back(&store_);
  }
  cpu::parallel_for(count, grain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const size_t w = block.begin + static_cast<size_t>(i);
      if (!results[w].status.ok()) continue;
      const int64_t offset = std::max(0, plan_.items[w].first_read - block.first);
      const Seen own = seen.answers != nullptr ? Seen{nullptr, seen.answers + offset}
                                               : Seen{seen.logits + offset * shape_.vocab_size};
      results[w].status =
          read_work(batch.works[w], plan_.items[w], block, own,
                    readers_[static_cast<size_t>(from / grain)], results[w].readout);
    }
  });
}

Executor::Seen Executor::see(const ReadBlock& block, int ids, bool answers) {
  const int first = block.first;
  const int count = block.count;
  at::Tensor& logits = logits_.rows(count);
  if (!stepped_) {
    launch(device_queue_, [this, logits, first, count, ids]() mutable {
      model_.head(logits, hidden_.rows(plan_.reads).narrow(0, first, count), ids);
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
    launch(device_queue_, [this, logits, asked, to] { ops_.answer_rows(logits, asked, to); });
  }
  std::byte* const host = readback_.bring(to, all.nbytes());
  device_queue_->queue->synchronize();
  return {nullptr, reinterpret_cast<const RowAnswer*>(host)};
}

absl::Status Executor::read_work(const Work& work, const Plan::Item& item, const ReadBlock& block,
                                 Seen seen, RowReader& reader, Readout& readout) const try {
  const auto vocab = static_cast<size_t>(shape_.vocab_size);
  if (block.from == 0) reader.begin(work);
  const size_t end = std::min(block.to, work.outputs.size());
  for (size_t i = block.from; i < end; ++i) {
    const Work::Output& o = work.outputs[i];
    const Read& read = work.pass->read[static_cast<size_t>(o.read)];
    if (read.hidden) {
      reader.skip();
      continue;
    }
    const auto row = static_cast<size_t>(item.first_row + o.run_row);
    // In a chain that is verified, each row judges what was fed in the next.
    Token next_input = -1;
    if (read.judges() && i + 1 < work.outputs.size() && work.outputs[i + 1].read == o.read) {
      next_input = plan_.token[static_cast<size_t>(item.first_row + work.outputs[i + 1].run_row)];
    }
    const int position = plan_.columns.position[row];
    if (seen.answers != nullptr) {
      TANDEM_RETURN_IF_ERROR(
          reader.read(o, *seen.answers++, position, shape_.vocab_size, next_input));
    } else {
      TANDEM_RETURN_IF_ERROR(reader.read(o, {seen.logits, vocab}, position, next_input));
      seen.logits += vocab;
    }
  }
  if (end == work.outputs.size()) readout = reader.take();
  return absl::OkStatus();
} catch (const std::exception& e) {
  return absl::InternalError(absl::StrCat("reading logits: ", e.what()));
}

}  // namespace tandem
