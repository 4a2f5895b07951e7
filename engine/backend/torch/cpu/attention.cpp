#include "engine/backend/torch/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "engine/backend/torch/cpu/attention_split.h"
#include "engine/backend/torch/cpu/parallel.h"

namespace tandem::cpu {
namespace {

// Queries per task: they share each read of K and V.
constexpr int kBlockQueries = 64;

// Minimum multiplications of a task that is worth handing to another thread.
constexpr int64_t kLeastWork = 65536;

// Consecutive rows of one sequence, and the range of splits that they see.
struct Block {
  int first_row = 0;
  int end_row = 0;
  int first_split = std::numeric_limits<int>::max();
  int end_split = 0;
  int64_t keys = 0;  // visible keys, summed over rows

  int splits() const { return end_split - first_split; }
};

// Grows and never shrinks. One per thread that starts batches.
template <class A>
struct Workspace {
  std::vector<Block> blocks;
  std::vector<int> first_part;  // per block: index of its first part among all parts
  std::vector<int64_t> first_state;
  std::vector<A> states;
  std::unique_ptr<std::atomic<int>[]> open;  // unfinished splits per (block, kv head)
  size_t opens = 0;
};

// One per thread and type.
template <class A, class K>
struct Scratch {
  std::vector<A> q, state;
  std::vector<K> packed;
};

void find_blocks(const RowView& rows, int block_rows, std::vector<Block>& blocks) {
  blocks.clear();
  for (int r = 0; r < rows.rows; ++r) {
    if (blocks.empty() || rows.table[r] != rows.table[blocks.back().first_row] ||
        r - blocks.back().first_row == block_rows) {
      blocks.emplace_back().first_row = r;
    }
    const int extras = rows.extra_end[r] - rows.first_extra(r);
    const int dense = rows.dense_end[r] - rows.first_dense(r);
    // Numbers of the first and the last visible key.
    const int first = dense > 0 ? rows.first_dense(r) : rows.last_key(r) + 1 - extras;
    const int last = extras > 0 ? rows.last_key(r) : rows.dense_end[r] - 1;
    Block& b = blocks.back();
    b.end_row = r + 1;
    b.first_split = std::min(b.first_split, first / kSplitKeys);
    b.end_split = std::max(b.end_split, last / kSplitKeys + 1);
    b.keys += dense + extras;
  }
}

// Merges `part` into `into`: the softmax state over both sets of keys.
template <class A>
void merge(A* into, const A* part, int head_dim) {
  const int64_t top = SplitState::top(head_dim);
  const int64_t sum = SplitState::sum(head_dim);
  if (part[sum] == 0) return;
  if (into[sum] == 0) {
    std::copy_n(part, SplitState::width(head_dim), into);
    return;
  }
  const A most = std::max(into[top], part[top]);
  const A a = exp_of(into[top] - most);
  const A b = exp_of(part[top] - most);
  for (int i = 0; i < head_dim; ++i) into[i] = into[i] * a + part[i] * b;
  into[top] = most;
  into[sum] = into[sum] * a + part[sum] * b;
}

template <class X, class K, class A>
class Attention {
 public:
  Attention(const AttentionIo<X>& io, const RowView& rows, const PagedKv<const K>& kv, double scale,
            const DistanceBias<A>& bias)
      : io_(io),
        rows_(rows),
        kv_(kv),
        scale_(static_cast<A>(scale)),
        bias_(bias),
        group_(io.heads / kv.kv_heads),
        width_(SplitState::width(kv.head_dim)) {}

  void run() {
    thread_local Workspace<A> space;
    space_ = &space;
    const std::vector<Block>& blocks = space.blocks;
    const int block_rows = std::max(1, kBlockQueries / group_);
    Work work = find_work(block_rows, space.blocks);
    const int team = team_size();
    // Use smaller blocks if there are too few tasks for all threads.
    if (team > 1 && work.all > 2 * kLeastWork && team * work.most_of_task > work.all) {
      const int64_t rows = work.all / team * work.most_rows / work.most_of_task;
      if (rows < work.most_rows) {
        work = find_work(static_cast<int>(std::max<int64_t>(1, rows)), space.blocks);
      }
    }
    const auto whole = static_cast<int64_t>(blocks.size()) * kv_.kv_heads;
    // Use whole blocks if they can be distributed evenly.
    const bool even = 2 * team * work.most_of_block <= work.all;
    if (team > 1 && !even && work.splits > static_cast<int>(blocks.size()) &&
        work.all > 2 * kLeastWork) {
      return run_splits(work);
    }
    parallel_for(whole, grain(work.all, whole), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        attend_whole(blocks[static_cast<size_t>(i / kv_.kv_heads)],
                     static_cast<int>(i % kv_.kv_heads));
      }
    });
  }

 private:
  // Statistics of the blocks for a given number of rows per block.
  struct Work {
    int splits = 0;             // total over blocks
    int most_rows = 0;          // largest block
    int64_t all = 0;            // multiplications
    int64_t most_of_block = 0;  // largest block, per kv head
    int64_t most_of_task = 0;   // largest (block, split, kv head)
  };
  Work find_work(int block_rows, std::vector<Block>& blocks) const {
    find_blocks(rows_, block_rows, blocks);
    const int64_t per_key = int64_t{2} * group_ * kv_.head_dim;
    Work w;
    for (const Block& b : blocks) {
      const int rows = b.end_row - b.first_row;
      w.splits += b.splits();
      w.most_rows = std::max(w.most_rows, rows);
      w.all += b.keys * per_key * kv_.kv_heads;
      w.most_of_block = std::max(w.most_of_block, b.keys * per_key);
      w.most_of_task =
          std::max(w.most_of_task, std::min(b.keys, int64_t{rows} * kSplitKeys) * per_key);
    }
    return w;
  }

  static int64_t grain(int64_t work, int64_t tasks) {
    return std::max<int64_t>(1, kLeastWork * tasks / std::max<int64_t>(1, work));
  }
  int64_t queries(const Block& b) const { return int64_t{b.end_row - b.first_row} * group_; }

  static Scratch<A, K>& scratch() {
    thread_local Scratch<A, K> s;
    return s;
  }

  // Gathers and scales the block's queries for one kv head.
  SplitTask<A, K> prepare(const Block& b, int kv_head) const {
    Scratch<A, K>& s = scratch();
    const int d = kv_.head_dim;
    s.q.resize(static_cast<size_t>(queries(b) * d));
    s.packed.resize(static_cast<size_t>(2 * d * kSplitKeys));
    A* q = s.q.data();
    for (int r = b.first_row; r < b.end_row; ++r) {
      const X* from = io_.q + r * io_.q_stride + int64_t{kv_head} * group_ * d;
      for (int i = 0; i < group_ * d; ++i) *q++ = static_cast<A>(from[i]) * scale_;
    }
    SplitTask<A, K> t{.rows = &rows_,
                      .first_row = b.first_row,
                      .end_row = b.end_row,
                      .group = group_,
                      .kv_head = kv_head,
                      .kv = kv_,
                      .bias = bias_,
                      .q = s.q.data(),
                      .packed = s.packed.data()};
    if (bias_.table != nullptr) {
      t.bias.table += int64_t{kv_head} * group_ * (bias_.before + 1 + bias_.after);
    }
    return t;
  }

  // One task for all splits, merged as they are computed.
  void attend_whole(const Block& b, int kv_head) const {
    SplitTask<A, K> t = prepare(b, kv_head);
    std::vector<A>& state = scratch().state;
    const int64_t n = queries(b) * width_;
    state.resize(static_cast<size_t>(2 * n));
    for (int i = 0; i < b.splits(); ++i) {
      t.split = b.first_split + i;
      t.state = state.data() + (i == 0 ? 0 : n);
      attend_split(t);
      if (i == 0) continue;
      for (int64_t j = 0; j < n; j += width_) merge(state.data() + j, t.state + j, kv_.head_dim);
    }
    finish(b, kv_head, state.data());
  }

  // One task per split. The thread that finishes a block's last split merges all of them in order.
  void run_splits(const Work& work) const {
    Workspace<A>& p = *space_;
    p.first_part.clear();
    p.first_state.clear();
    int parts = 0;
    int64_t states = 0;
    for (const Block& b : p.blocks) {
      p.first_part.push_back(parts);
      p.first_state.push_back(states);
      parts += b.splits() * kv_.kv_heads;
      states += b.splits() * kv_.kv_heads * queries(b) * width_;
    }
    if (static_cast<int64_t>(p.states.size()) < states)
      p.states.resize(static_cast<size_t>(states));
    const size_t opens = p.blocks.size() * static_cast<size_t>(kv_.kv_heads);
    if (p.opens < opens) {
      p.open = std::make_unique<std::atomic<int>[]>(opens);
      p.opens = opens;
    }
    for (size_t i = 0; i < opens; ++i) {
      p.open[i].store(p.blocks[i / static_cast<size_t>(kv_.kv_heads)].splits(),
                      std::memory_order_relaxed);
    }
    const int64_t tasks = int64_t{work.splits} * kv_.kv_heads;
    parallel_for(tasks, grain(work.all, tasks), [&](int64_t begin, int64_t end) {
      size_t block = 0;
      for (int64_t i = begin; i < end; ++i) {
        while (block + 1 < p.blocks.size() && p.first_part[block + 1] <= i) ++block;
        attend_part(block, static_cast<int>(i) - p.first_part[block]);
      }
    });
  }

  void attend_part(size_t block, int part) const {
    const Block& b = space_->blocks[block];
    const int kv_head = part / b.splits();
    const int64_t n = queries(b) * width_;
    A* head_states = space_->states.data() + space_->first_state[block] + kv_head * b.splits() * n;
    SplitTask<A, K> t = prepare(b, kv_head);
    t.split = b.first_split + part % b.splits();
    t.state = head_states + part % b.splits() * n;
    attend_split(t);
    const size_t head = block * static_cast<size_t>(kv_.kv_heads) + static_cast<size_t>(kv_head);
    if (space_->open[head].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int i = 1; i < b.splits(); ++i) {
      for (int64_t j = 0; j < n; j += width_) {
        merge(head_states + j, head_states + i * n + j, kv_.head_dim);
      }
    }
    finish(b, kv_head, head_states);
  }

  void finish(const Block& b, int kv_head, const A* state) const {
    const int d = kv_.head_dim;
    for (int r = b.first_row; r < b.end_row; ++r) {
      X* out = io_.out + int64_t{r} * io_.heads * d + int64_t{kv_head} * group_ * d;
      for (int h = 0; h < group_; ++h, state += width_, out += d) {
        const A all = A{1} / state[SplitState::sum(d)];
        for (int i = 0; i < d; ++i) out[i] = static_cast<X>(state[i] * all);
      }
    }
  }

  const AttentionIo<X>& io_;
  const RowView& rows_;
  PagedKv<const K> kv_;
  A scale_;
  DistanceBias<A> bias_;
  int group_;
  int64_t width_;
  Workspace<A>* space_ = nullptr;
};

}  // namespace

template <class X, class K, class A>
void attention(const AttentionIo<X>& io, const RowView& rows, const PagedKv<const K>& kv,
               double scale, const DistanceBias<A>& bias) {
  Attention<X, K, A>(io, rows, kv, scale, bias).run();
}

#define TANDEM_INSTANCE(X, K, A)                                                                   \
  template void attention<X, K, A>(const AttentionIo<X>&, const RowView&, const PagedKv<const K>&, \
                                   double, const DistanceBias<A>&)
TANDEM_INSTANCE(float, float, float);
TANDEM_INSTANCE(float, BFloat16, float);
TANDEM_INSTANCE(BFloat16, float, float);
TANDEM_INSTANCE(BFloat16, BFloat16, float);
TANDEM_INSTANCE(double, double, double);
#undef TANDEM_INSTANCE

}  // namespace tandem::cpu
