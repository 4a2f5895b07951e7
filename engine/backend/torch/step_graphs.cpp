#include "engine/backend/torch/step_graphs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "engine/backend/torch/caught.h"

namespace tandem {
namespace {

// The most that is staged, so that the staging area never moves.
constexpr int kMostExtra = 2048;
constexpr size_t kMostPages = 32768;
constexpr int kFewestChanges = 64;
constexpr int kFewestDrafts = 16;
constexpr size_t kStagingBytes =
    StepGraphs::kMostChanges * sizeof(RowChange) + StepGraphs::kMostDrafts * sizeof(ChosenToken) +
    (kMostExtra + kMostPages) * sizeof(int32_t) +
    StepGraphs::kMostRows * (10 * sizeof(int32_t) + 3 * sizeof(int64_t) + sizeof(RowQuestion) +
                             sizeof(ChosenToken) + sizeof(LoraLayer*)) +
    22 * size_t{16};
static_assert(AnswerCache::kMostReads >= StepGraphs::kMostRows, "each batch has its own places");

constexpr int kKeys = 256;        // the fewest; as attention cuts them
constexpr int kMostRefusals = 4;  // of a shape, for lack of memory

int padded_size(int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); }

// The array with `n` elements: its own, then fill(0), fill(1), ...
template <class T, class F>
std::vector<T> padded(std::vector<T> array, int n, const F& fill) {
  array.resize(std::min(array.size(), static_cast<size_t>(n)));
  for (T i = 0; array.size() < static_cast<size_t>(n); ++i) array.push_back(fill(i));
  return array;
}

}  // namespace

StepGraphs::StepGraphs(Model& model, const ModelShape& shape, const KvPool& pool, int64_t scratch,
                       const AnswerCache& answers, const Buffers& buffers)
    : model_(model),
      shape_(shape),
      pool_(pool),
      device_queue_(*pool.device_queue),
      ops_(pool.platform->ops()),
      scratch_(scratch),
      answer_cache_(answers),
      buffers_(buffers),
      staging_(queue_of(pool.device_queue),
               mutated(GraphMutation::kOneArea) ? 1 : AnswerCache::kMostBatches),
      tokens_(pool.device_queue->queue->device_memory(kMostRows * sizeof(int32_t))) {}

bool StepGraphs::can_run(const Plan& plan, bool loras) {
  if (plan.rows() == 0 || plan.rows() > kMostRows || plan.reads == 0 || plan.reads > kMostRows ||
      plan.pooled > 0) {
    return false;
  }
  const bool only_tokens = plan.replaced.empty() && plan.masks.empty() && plan.embedded.empty();
  const bool moves = plan.load.size() > 0 || plan.save.size() > 0;
  if (!only_tokens || moves || plan.memory.valid() || !plan.heads.empty()) return false;
  if (plan.adapted_rows > 0 && !loras) return false;
  if (plan.segments.size() != 1 || plan.captures.size() != 1) return false;
  const Segment& layers = plan.segments.front();
  const Capture& read = plan.captures.front();
  return layers.all && layers.from == 0 && read.at == layers.to && read.stored.size() == 0 &&
         plan.extra.size() <= size_t{kMostExtra} && plan.pages.size() + kMostRows <= kMostPages;
}

StepGraphs::Shape StepGraphs::shape_of(const Given& given, int ids, bool answers) const {
  const Plan& plan = given.plan;
  Shape s;
  s.rows = padded_size(plan.rows());
  if (mutated(GraphMutation::kRowsCut) && s.rows > plan.rows()) s.rows /= 2;
  s.reads = padded_size(plan.reads);
  s.keys = std::max(kKeys, padded_size(plan.columns.most_keys()));
  s.together = padded_size(RowColumns::together(plan.columns.table));
  s.extra = plan.extra.empty() ? 0 : kMostExtra;
  s.layers = plan.segments.front().to;
  s.ids = ids;
  const auto padded_to = [&](size_t n, int fewest) {
    return answers && n > 0 ? std::max(fewest, padded_size(static_cast<int>(n))) : 0;
  };
  s.changes = padded_to(given.questions.changes.size(), kFewestChanges);
  s.drafts = padded_to(given.questions.drafts.size(), kFewestDrafts);
  if (given.loras != nullptr) {
    s.lora_rank = padded_size(given.loras->rank);
    s.lora_parts = given.loras->parts;
  }
  s.answers = answers;
  s.chosen = !plan.chosen.empty() && !mutated(GraphMutation::kStagedTokensRun);
  s.caches = !given.places.empty() && !mutated(GraphMutation::kNoAnswerCache);
  return s;
}

RowView StepGraphs::stage_rows(const Plan& plan, const Shape& shape) {
  const RowColumns& c = plan.columns;
  const int n = shape.rows;
  const int64_t page_rows = pool_.size.page_rows;
  const int64_t first = (mutated(GraphMutation::kNoScratch) ? 0 : scratch_) * page_rows;
  const int64_t pages = scratch_pages(pool_.size.page_rows);
  const auto own = [](auto i) { return i; };
  const auto none = [](auto) { return 0; };
  RowView v;
  v.rows = n;
  v.page_rows = pool_.size.page_rows;
  v.most_keys = shape.keys;
  v.together = shape.together;
  v.position = staging_.place(padded(c.position, n, own));
  v.slot = staging_.place(padded(c.slot, n, [&](int64_t i) { return first + i; }));
  std::vector<int32_t> table = c.table;  // after that of the scratch pages
  for (int32_t& t : table) t += static_cast<int32_t>(pages);
  v.table = staging_.place(padded(std::move(table), n, none));
  v.first_key = staging_.place(padded(c.first_key, n, own));
  v.dense_end = staging_.place(padded(c.dense_end, n, [](int32_t i) { return i + 1; }));
  v.extra_begin = staging_.place(padded(c.extra_begin, n, none));
  v.extra_end = staging_.place(padded(c.extra_end, n, none));
  v.prompts = staging_.place(padded(c.prompts, n, none));
  if (shape.extra > 0) v.extra = staging_.place(padded(plan.extra, shape.extra, none));
  std::vector<int32_t> all(static_cast<size_t>(pages));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(first / page_rows));
  all.insert(all.end(), plan.pages.begin(), plan.pages.end());
  v.pages = staging_.place(all);  // last, so that only as many as there are are copied
  return v;
}

LoraView StepGraphs::stage_loras(const LoraColumns& columns, const Shape& shape) {
  const auto n = static_cast<size_t>(shape.rows);
  std::vector<const LoraLayer*> adapter = columns.adapter;
  std::vector<int32_t> added = columns.added;
  adapter.resize(n, nullptr);
  added.resize(n, -1);
  return {staging_.place(adapter), staging_.place(added), shape.lora_rank, shape.lora_parts};
}

StepGraphs::Step StepGraphs::stage(const Given& given, const Shape& shape) {
  const Plan& plan = given.plan;
  Step step;
  step.shape = shape;
  staging_.begin(kStagingBytes);
  const std::vector<Token> token = padded(plan.token, shape.rows, [](Token) { return 0; });
  const bool moves = mutated(GraphMutation::kStagingMoves) && turn_++ % 3 == 1;
  step.token = staging_.place(moves ? std::vector<Token>(token.size()) : token);
  const int reads = std::max(shape.rows, shape.reads);
  step.read =
      staging_.place(padded(plan.captures.front().copies.from, reads, [](int64_t) { return 0; }));
  std::vector<RowQuestion> asked = given.questions.rows;
  asked.resize(static_cast<size_t>(reads), {.vocab = shape_.vocab_size});
  step.questions = staging_.place(asked);
  if (shape.changes > 0) {
    std::vector<RowChange> changes = given.questions.changes;
    changes.resize(static_cast<size_t>(shape.changes));
    step.changes.changes = staging_.place(changes);
  }
  if (shape.drafts > 0) {
    std::vector<ChosenToken> drafts = given.questions.drafts;
    drafts.resize(static_cast<size_t>(shape.drafts));
    step.changes.drafts = staging_.place(drafts);
    step.changes.kept = static_cast<const RowAnswer*>(answer_cache_.answers().const_data_ptr());
  }
  if (shape.chosen) {
    std::vector<ChosenToken> chosen = plan.chosen;
    chosen.resize(static_cast<size_t>(shape.rows));
    step.chosen = staging_.place(chosen);
    step.tokens = reinterpret_cast<int32_t*>(tokens_.get());
  }
  if (shape.caches) {
    step.places = staging_.place(
        padded(given.places, shape.reads, [](int64_t) { return AnswerCache::kNowhere; }));
  }
  if (shape.chosen || shape.caches) step.cached = answer_cache_.answers();
  if (given.loras != nullptr) {
    step.loras = stage_loras(*given.loras, shape);
  } else if (mutated(GraphMutation::kLorasOfTheFirst)) {
    stage_loras({}, shape);  // in the same places
  }
  step.rows = stage_rows(plan, shape);
  if (moves) step.token = staging_.place(token);
  step.x = buffers_.x.rows(shape.rows);
  step.hidden = buffers_.hidden.rows(shape.reads);
  step.logits = buffers_.logits.rows(shape.reads);
  if (shape.answers) step.answers = buffers_.answers.rows(shape.reads);
  return step;
}

// The launches of a step. They hold its tensors, and refer only to objects that outlive this one.
std::function<void()> StepGraphs::work_of(Step step) const {
  return [&model = model_, &pool = pool_, &ops = ops_, step = std::move(step)] {
    at::Tensor x = step.x;
    at::Tensor hidden = step.hidden;
    at::Tensor logits = step.logits;
    const int32_t* token = step.token;
    if (step.shape.chosen) {
      ops.choose(step.tokens, token, step.chosen, step.shape.rows,
                 static_cast<const RowAnswer*>(step.cached.const_data_ptr()));
      token = step.tokens;
    }
    model.embed(x, token, step.rows.position, step.shape.keys - 1);
    model.run(0, step.shape.layers, x, step.rows, pool, {}, step.loras);
    ops.copy_rows(hidden, nullptr, x, step.read, step.shape.reads);
    model.head(logits, hidden, {.first = step.shape.ids});
    if (!step.shape.answers) return;
    ops.answer_rows(logits, step.changes, step.questions,
                    static_cast<RowAnswer*>(step.answers.mutable_data_ptr()));
    at::Tensor cached = step.cached;
    if (step.shape.caches) {
      ops.copy_rows(cached, step.places, step.answers, nullptr, step.shape.reads);
    }
  };
}

StepGraphs::Entry& StepGraphs::entry_of(const Shape& shape) {
  const auto known = entries_.find(shape);
  if (known != entries_.end()) return known->second;
  if (entries_.size() >= kMostShapes) {
    const auto oldest =
        std::ranges::min_element(entries_, {}, [](const auto& e) { return e.second.last_step; });
    retired_.push_back(std::move(oldest->second.graph));
    entries_.erase(oldest);
  }
  return entries_[shape];
}

// A refused capture is no error: the step is launched instead, which fails if the device is lost.
void StepGraphs::capture(Entry& entry, const std::function<void()>& work) {
  entry.launches = 0;
  const int64_t before = row_buffers_moved;
  try {
    entry.graph = device_queue_.queue->capture(work);
    ++counts_.captured;
  } catch (...) {
    refuse(entry, caught("a graph was refused; its steps are launched, not replayed"));
  }
  if (row_buffers_moved != before) entry.graph = nullptr;
}

void StepGraphs::refuse(Entry& entry, const absl::Status& why) {
  counts_.reason = std::string(why.message());
  if (counts_.refused++ == 0) TORCH_WARN(counts_.reason);
  entry.launches = kStepsBeforeRetry << (3 * entry.refusals);
  entry.refused = ++entry.refusals == kMostRefusals || !absl::IsResourceExhausted(why);
}

void StepGraphs::run(const Plan& plan, const Questions& questions, int ids, bool answers,
                     const std::vector<LoraColumns>& loras, const std::vector<int64_t>& places) {
  const Given given{plan, questions, places, loras.empty() ? nullptr : loras.data()};
  const Shape shape = shape_of(given, ids, answers);
  const std::function<void()> work = work_of(stage(given, shape));
  if (moved_ != row_buffers_moved && !mutated(GraphMutation::kNotRetiredWhenMoved)) {
    for (auto& [key, entry] : entries_) retired_.push_back(std::move(entry.graph));
    entries_.clear();
  }
  moved_ = row_buffers_moved;
  Shape key = shape;
  if (mutated(GraphMutation::kReadsOfTheFirst)) key.reads = 0;
  if (mutated(GraphMutation::kAnswersOfFirst)) key.answers = false;
  if (mutated(GraphMutation::kVocabOfTheFirst)) key.ids = 0;
  if (mutated(GraphMutation::kLorasOfTheFirst)) key.lora_rank = 0, key.lora_parts = 0;
  Entry& entry = entry_of(key);
  const bool late = mutated(GraphMutation::kStagedAfterwards) && entry.graph != nullptr;
  if (!late) staging_.upload();
  const bool due = entry.last_step > 0 && entry.graph == nullptr && !entry.refused;
  if (due && entry.launches-- == 0) capture(entry, work);
  if (entry.graph != nullptr) {
    device_queue_.queue->replay(*entry.graph);
    ++counts_.replayed;
  } else {
    device_queue_.queue->launch(work);
    ++counts_.launched;
  }
  if (late) staging_.upload();
  entry.last_step = ++steps_;
}

}  // namespace tandem
