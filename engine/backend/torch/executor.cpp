#include "engine/backend/torch/executor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/lane.h"
#endif

namespace tandem {
namespace {

// The head's output is held for whole works up to this size at a time.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

}  // namespace

Executor::Executor(Model& model, const ModelShape& shape, ModelExtras& extras, const KvPool& pool,
                   ValueStore& store)
    : model_(model),
      extras_(extras),
      pool_(pool),
      store_(store),
      device_(pool.keys.device()),
      ops_(ops_of(device_)),
      shape_(shape),
      staging_(device_) {
  const KvGeometry& g = pool.geometry;
  x_ = RowBuffer(g.hidden_size, g.hidden_type, device_);
  part_ = RowBuffer(g.hidden_size, g.hidden_type, device_);
  hidden_ = RowBuffer(g.hidden_size, g.hidden_type, device_);
  logits_ = RowBuffer(shape_.vocab_size, at::kFloat, device_);
}

void Executor::run(const Batch& batch, std::vector<WorkResult>& results) {
  results.clear();
  results.resize(batch.works.size());
  {
    const StepProfile::Section section(StepProfile::kPlan);
    plan_.build(batch, shape_, pool_.size, store_);
  }
  for (size_t i = 0; i < results.size(); ++i) results[i].status = plan_.items[i].status;
  if (plan_.rows() > 0) forward();
  answer(batch, results);
#ifdef TANDEM_CUDA
  if (device_.is_cuda()) cuda::wait_for_stream();
#endif
}

void Executor::place() {
  staging_.begin(plan_.array_bytes());
  placed_.views.clear();
  placed_.segment_rows.clear();
  placed_.captures.clear();
  placed_.token = staging_.place(plan_.token);
  placed_.load = place(plan_.load);
  placed_.save = place(plan_.save);
  const int32_t* extra = staging_.place(plan_.extra);
  const int32_t* pages = staging_.place(plan_.pages);
  const RowView all = place(plan_.columns, extra, pages);
  placed_.position = all.position;
  for (const Segment& s : plan_.segments) {
    placed_.views.push_back(s.all ? all : place(s.columns, extra, pages));
    placed_.segment_rows.push_back(s.all ? nullptr : staging_.place(s.index));
  }
  for (const Capture& c : plan_.captures) placed_.captures.push_back(place(c.copies));
  placed_.head_reads.clear();
  for (const HeadReads& h : plan_.heads) placed_.head_reads.push_back(staging_.place(h.reads));
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
  v.extra = extra;
  v.pages = pages;
  return v;
}

void Executor::forward() {
  place();
  at::Tensor& x = x_.rows(plan_.rows());
  const auto& positions = plan_.columns.position;
  model_.embed(x, placed_.token, placed_.position,
               *std::max_element(positions.begin(), positions.end()));
  const PlacedCopies& load = placed_.load;
  if (load.n > 0) ops_.copy_rows(x, load.to, pool_.frontier, load.from, load.n);

  // What is read after `at` layers must be taken before the next layer runs.
  size_t next = 0;
  const auto capture_up_to = [&](int layers) {
    for (; next < plan_.captures.size() && plan_.captures[next].at <= layers; ++next) {
      const PlacedCopies& c = placed_.captures[next];
      ops_.copy_rows(hidden_.rows(plan_.reads), c.to, x, c.from, c.n);
    }
  };
  for (size_t i = 0; i < plan_.segments.size(); ++i) {
    capture_up_to(plan_.segments[i].from);
    run_segment(plan_.segments[i], placed_.views[i], placed_.segment_rows[i], x);
  }
  capture_up_to(std::numeric_limits<int>::max());
  apply_heads();

  const PlacedCopies& save = placed_.save;
  if (save.n > 0) {
    at::Tensor frontier = pool_.frontier;
    ops_.copy_rows(frontier, save.to, x, save.from, save.n);
  }
}

void Executor::run_segment(const Segment& segment, const RowView& rows, const int64_t* index,
                           at::Tensor& x) {
  if (segment.all) {
    model_.run(segment.from, segment.to, x, rows, pool_);
    return;
  }
  at::Tensor& part = part_.rows(rows.rows);
  ops_.copy_rows(part, nullptr, x, index, rows.rows);
  model_.run(segment.from, segment.to, part, rows, pool_);
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

void Executor::answer(const Batch& batch, std::vector<WorkResult>& results) {
  const size_t n = results.size();
  const int64_t row_bytes = shape_.vocab_size * static_cast<int64_t>(sizeof(float));
  for (size_t begin = 0; begin < n;) {
    // Works whose logits fit the block, at least one.
    size_t end = begin;
    int reads = 0;
    for (; end < n; ++end) {
      const auto more =
          results[end].status.ok() ? static_cast<int>(batch.works[end].outputs.size()) : 0;
      if (end > begin && (reads + more) * row_bytes > kLogitBytes) break;
      reads += more;
    }
    const int first = plan_.items[begin].first_read;
    float* logits = reads > 0 ? logits_on_host(first, reads) : nullptr;
    const StepProfile::Section section(StepProfile::kReadout);
    const auto count = static_cast<int64_t>(end - begin);
    const int team = cpu::team_size();
    const bool many = reads * int64_t{shape_.vocab_size} > 65536;
    const int64_t grain = many ? (count + team - 1) / team : count;
    while (static_cast<int64_t>(readers_.size()) < (count + grain - 1) / grain) {
      readers_.emplace_back(&store_);
    }
    cpu::parallel_for(count, grain, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const size_t w = begin + static_cast<size_t>(i);
        if (!results[w].status.ok()) continue;
        const int64_t offset = plan_.items[w].first_read - first;
        results[w].status =
            read_work(batch.works[w], plan_.items[w], logits + offset * shape_.vocab_size,
                      readers_[static_cast<size_t>(from / grain)], results[w].readout);
      }
    });
    begin = end;
  }
}

float* Executor::logits_on_host(int first, int count) {
  at::Tensor& logits = logits_.rows(count);
  model_.head(logits, hidden_.rows(plan_.reads).narrow(0, first, count));
  if (device_.is_cpu()) return logits.mutable_data_ptr<float>();
#ifdef TANDEM_CUDA
  if (!host_logits_.defined() || host_logits_.size(0) < count) {
    host_logits_ = at::empty({row_bucket(count), shape_.vocab_size},
                             at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  }
  host_logits_.narrow(0, 0, count).copy_(logits, /*non_blocking=*/true);
  cuda::wait_for_stream();
#endif
  return host_logits_.mutable_data_ptr<float>();
}

absl::Status Executor::read_work(const Work& work, const Plan::Item& item, float* logits,
                                 RowReader& reader, Readout& readout) const try {
  const auto vocab = static_cast<size_t>(shape_.vocab_size);
  reader.begin(work);
  for (size_t i = 0; i < work.outputs.size(); ++i, logits += vocab) {
    const Work::Output& o = work.outputs[i];
    const auto row = static_cast<size_t>(item.first_row + o.run_row);
    // In a chain that is verified, each row judges what was fed in the next.
    Token next_input = -1;
    const bool judged = work.pass->read[static_cast<size_t>(o.read)].judges();
    if (judged && i + 1 < work.outputs.size() && work.outputs[i + 1].read == o.read) {
      next_input = plan_.token[static_cast<size_t>(item.first_row + work.outputs[i + 1].run_row)];
    }
    TANDEM_RETURN_IF_ERROR(
        reader.read(o, {logits, vocab}, plan_.columns.position[row], next_input));
  }
  readout = reader.take();
  return absl::OkStatus();
} catch (const std::exception& e) {
  return absl::InternalError(absl::StrCat("reading logits: ", e.what()));
}

}  // namespace tandem
