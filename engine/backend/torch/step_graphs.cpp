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

// What is staged at most: the staging area never moves.
constexpr int kMostExtra = 2048;
constexpr size_t kMostPages = 32768;
constexpr size_t kStagingBytes =
    (kMostExtra + kMostPages) * sizeof(int32_t) +
    StepGraphs::kMostRows *
        (9 * sizeof(int32_t) + 3 * sizeof(int64_t) + sizeof(RowQuestion) + sizeof(ChosenToken)) +
    18 * size_t{16};
static_assert(AnswerCache::kMostReads >= StepGraphs::kMostRows, "each batch has places of its own");

constexpr int kKeys = 256;        // the fewest; as attention cuts them
constexpr int kMostRefusals = 4;  // of a shape, for want of memory

int filled_up(int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); }

// The array with `n` elements, of which those behind its own are fill(i), i counting from 0.
template <class T, class F>
std::vector<T> filled(std::vector<T> array, int n, const F& fill) {
  array.resize(std::min(array.size(), static_cast<size_t>(n)));
  for (T i = 0; array.size() < static_cast<size_t>(n); ++i) array.push_back(fill(i));
  return array;
}

}  // namespace

StepGraphs::StepGraphs(Model& model, const ModelShape& shape, const KvPool& pool, int64_t scratch,
                       const AnswerCache& kept, const Buffers& buffers)
    : model_(model),
      shape_(shape),
      pool_(pool),
      device_queue_(*pool.device_queue),
      ops_(pool.platform->ops()),
      scratch_(scratch),
      answer_cache_(kept),
      buffers_(buffers),
      staging_(queue_of(pool.device_queue),
               mutated(GraphMutation::kOneArea) ? 1 : AnswerCache::kMostBatches),
      fed_(pool.device_queue->queue->device_memory(kMostRows * sizeof(int32_t))) {}

bool StepGraphs::fits(const Plan& plan) {
  if (plan.rows() == 0 || plan.rows() > kMostRows || plan.reads == 0 || plan.reads > kMostRows) {
    return false;
  }
  const bool fed = !plan.fed.empty() || !plan.masks.empty() || !plan.embedded.empty();
  const bool moves = plan.load.size() > 0 || plan.save.size() > 0;
  if (fed || moves || plan.memory.valid() || !plan.heads.empty()) return false;
  if (plan.segments.size() != 1 || plan.captures.size() != 1) return false;
  const Segment& layers = plan.segments.front();
  const Capture& read = plan.captures.front();
  return layers.all && layers.from == 0 && read.at == layers.to && read.left.size() == 0 &&
         plan.extra.size() <= size_t{kMostExtra} && plan.pages.size() + kMostRows <= kMostPages;
}

StepGraphs::Shape StepGraphs::shape_of(const Plan& plan, int ids, bool answers, bool keeps) const {
  Shape s;
  s.rows = filled_up(plan.rows());
  if (mutated(GraphMutation::kRowsCut) && s.rows > plan.rows()) s.rows /= 2;
  s.reads = filled_up(plan.reads);
  s.keys = std::max(kKeys, filled_up(plan.columns.most_keys()));
  s.together = filled_up(RowColumns::together(plan.columns.table));
  s.extra = plan.extra.empty() ? 0 : kMostExtra;
  s.layers = plan.segments.front().to;
  s.ids = ids;
  s.answers = answers;
  s.chosen = !plan.chosen.empty() && !mutated(GraphMutation::kFedAsStaged);
  s.keeps = keeps && !mutated(GraphMutation::kKeptNowhere);
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
  v.position = staging_.place(filled(c.position, n, own));
  v.slot = staging_.place(filled(c.slot, n, [&](int64_t i) { return first + i; }));
  std::vector<int32_t> table = c.table;  // behind that of the scratch pages
  for (int32_t& t : table) t += static_cast<int32_t>(pages);
  v.table = staging_.place(filled(std::move(table), n, none));
  v.first_key = staging_.place(filled(c.first_key, n, own));
  v.dense_end = staging_.place(filled(c.dense_end, n, [](int32_t i) { return i + 1; }));
  v.extra_begin = staging_.place(filled(c.extra_begin, n, none));
  v.extra_end = staging_.place(filled(c.extra_end, n, none));
  v.prompts = staging_.place(filled(c.prompts, n, none));
  if (shape.extra > 0) v.extra = staging_.place(filled(plan.extra, shape.extra, none));
  std::vector<int32_t> all(static_cast<size_t>(pages));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(first / page_rows));
  all.insert(all.end(), plan.pages.begin(), plan.pages.end());
  v.pages = staging_.place(all);  // last: only so many as there are go over
  return v;
}

StepGraphs::Step StepGraphs::stage(const Plan& plan, const std::vector<RowQuestion>& questions,
                                   const std::vector<int64_t>& keep, const Shape& shape) {
  Step step;
  step.shape = shape;
  staging_.begin(kStagingBytes);
  const std::vector<Token> token = filled(plan.token, shape.rows, [](Token) { return 0; });
  const bool moves = mutated(GraphMutation::kStagingMoves) && turn_++ % 3 == 1;
  step.token = staging_.place(moves ? std::vector<Token>(token.size()) : token);
  const int reads = std::max(shape.rows, shape.reads);
  step.read =
      staging_.place(filled(plan.captures.front().copies.from, reads, [](int64_t) { return 0; }));
  std::vector<RowQuestion> asked = questions;
  asked.resize(static_cast<size_t>(reads), {.vocab = shape_.vocab_size});
  step.questions = staging_.place(asked);
  if (shape.chosen) {
    std::vector<ChosenToken> chosen = plan.chosen;
    chosen.resize(static_cast<size_t>(shape.rows));
    step.chosen = staging_.place(chosen);
    step.fed = reinterpret_cast<int32_t*>(fed_.get());
  }
  if (shape.keeps) {
    step.keep =
        staging_.place(filled(keep, shape.reads, [](int64_t) { return AnswerCache::kNowhere; }));
  }
  if (shape.chosen || shape.keeps) step.kept = answer_cache_.answers();
  step.rows = stage_rows(plan, shape);
  if (moves) step.token = staging_.place(token);
  step.x = buffers_.x.rows(shape.rows);
  step.hidden = buffers_.hidden.rows(shape.reads);
  step.logits = buffers_.logits.rows(shape.reads);
  if (shape.answers) step.answers = buffers_.answers.rows(shape.reads);
  return step;
}

// Holds all that it names by value, and what outlives this object.
std::function<void()> StepGraphs::work_of(Step step) const {
  return [&model = model_, &pool = pool_, &ops = ops_, step = std::move(step)] {
    at::Tensor x = step.x;
    at::Tensor hidden = step.hidden;
    at::Tensor logits = step.logits;
    const int32_t* token = step.token;
    if (step.shape.chosen) {
      ops.choose(step.fed, token, step.chosen, step.shape.rows,
                 static_cast<const RowAnswer*>(step.kept.const_data_ptr()));
      token = step.fed;
    }
    model.embed(x, token, step.rows.position, step.shape.keys - 1);
    model.run(0, step.shape.layers, x, step.rows, pool, {});
    ops.copy_rows(hidden, nullptr, x, step.read, step.shape.reads);
    model.head(logits, hidden, step.shape.ids);
    if (!step.shape.answers) return;
    ops.answer_rows(logits, step.questions,
                    static_cast<RowAnswer*>(step.answers.mutable_data_ptr()));
    at::Tensor kept = step.kept;
    if (step.shape.keeps) ops.copy_rows(kept, step.keep, step.answers, nullptr, step.shape.reads);
  };
}

StepGraphs::Kept& StepGraphs::kept_of(const Shape& shape) {
  const auto known = kept_.find(shape);
  if (known != kept_.end()) return known->second;
  if (kept_.size() >= kMostShapes) {
    const auto oldest =
        std::ranges::min_element(kept_, {}, [](const auto& k) { return k.second.met; });
    given_up_.push_back(std::move(oldest->second.graph));
    kept_.erase(oldest);
  }
  return kept_[shape];
}

// A device that cannot keep it does without: what is launched instead says whether it is lost.
void StepGraphs::capture(Kept& kept, const std::function<void()>& work) {
  kept.launches = 0;
  const int64_t before = row_buffers_moved;
  try {
    kept.graph = device_queue_.queue->capture(work);
  } catch (...) {
    refuse(kept, caught("steps are launched, not replayed, where a graph was refused"));
  }
  if (row_buffers_moved != before) kept.graph = nullptr;
}

void StepGraphs::refuse(Kept& kept, const absl::Status& why) {
  if (!std::exchange(warned_, true)) TORCH_WARN(std::string(why.message()));
  kept.launches = kStepsBeforeRetry << (3 * kept.refusals);
  kept.hopeless = ++kept.refusals == kMostRefusals || !absl::IsResourceExhausted(why);
}

void StepGraphs::run(const Plan& plan, const std::vector<RowQuestion>& questions, int ids,
                     bool answers, const std::vector<int64_t>& keep) {
  const Shape shape = shape_of(plan, ids, answers, !keep.empty());
  const std::function<void()> work = work_of(stage(plan, questions, keep, shape));
  if (moved_ != row_buffers_moved && !mutated(GraphMutation::kKeptWhenMoved)) {
    for (auto& [key, kept] : kept_) given_up_.push_back(std::move(kept.graph));
    kept_.clear();
  }
  moved_ = row_buffers_moved;
  Shape key = shape;
  if (mutated(GraphMutation::kReadsOfTheFirst)) key.reads = 0;
  if (mutated(GraphMutation::kAnswersOfFirst)) key.answers = false;
  if (mutated(GraphMutation::kVocabOfTheFirst)) key.ids = 0;
  Kept& kept = kept_of(key);
  const bool late = mutated(GraphMutation::kStagedAfterwards) && kept.graph != nullptr;
  if (!late) staging_.upload();
  const bool due = kept.met > 0 && kept.graph == nullptr && !kept.hopeless;
  if (due && kept.launches-- == 0) capture(kept, work);
  if (kept.graph != nullptr) {
    device_queue_.queue->replay(*kept.graph);
  } else {
    device_queue_.queue->launch(work);
  }
  if (late) staging_.upload();
  kept.met = ++steps_;
}

}  // namespace tandem
