#include "engine/backend/torch/cpu/product.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_tiles.h"
#include "engine/backend/torch/cpu/read_ahead.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Minimum work in nanoseconds that is worth waking another thread for.
constexpr double kMinNanoseconds = 2000;

// Limit of rows * (threads - 1) up to which each thread prepares all rows itself. Beyond it the
// preparation is shared. The limit is lower for quantized weights, whose rows take longer to
// prepare.
constexpr int64_t own_rows(const PackedMatrix&) { return 64; }
constexpr int64_t own_rows(const QuantizedMatrix&) { return 8; }

// Estimated nanoseconds for one panel, at 25 bytes of weights or 100 products per nanosecond.
template <class Matrix>
double panel_time(const Matrix& w, int64_t rows) {
  const auto products = static_cast<double>(w.in() * w.columns() * rows);
  return std::max(static_cast<double>(w.panel_bytes()) / 25, products / 100);
}

// Per-thread buffer.
struct Prepared {
  PreparedRows rows;
  uint64_t call = 0;  // for which the rows were prepared
};
Prepared& prepared() {
  thread_local Prepared mine;
  return mine;
}

// Counts a thread's calls over all instantiations, which share the buffer.
uint64_t next_call() {
  thread_local uint64_t calls = 0;
  return ++calls;
}

// What a product prefetches for its caller.
class Later {
 public:
  Later() = default;
  ~Later() { read_ahead().clear(); }
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;
  const ReadAhead* get() const { return read_ahead().empty() ? nullptr : &read_ahead(); }
};

// Overloads for the two kinds of matrices.
RowType row_type_of(const PackedMatrix& w) { return row_type(w.type()); }
RowType row_type_of(const QuantizedMatrix&) { return RowType::kInt8x32; }

// Prefetches the beginning of a panel before the rows are prepared; the kernels prefetch the rest.
// Pays off for products of a few microseconds.
void fetch_start(const PackedMatrix&, int64_t) {}
void fetch_start(const QuantizedMatrix& w, int64_t panel) {
  const auto fetch = [](const std::byte* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
  };
  for (const QuantizedMatrix::Segment& s : w.segments()) {
    if (panel >= s.first_panel + s.panels) continue;
    const std::byte* const unit = w.panel(s, panel);
    fetch(unit, std::min<int64_t>(512, s.codes_at));
    fetch(unit + s.codes_at, std::min<int64_t>(8192, s.unit_bytes - s.codes_at));
    return;
  }
}

int64_t panel_of(const PackedMatrix& w, int64_t column) { return column / w.columns(); }
int64_t panel_of(const QuantizedMatrix& w, int64_t column) {
  const auto holds = [&](const QuantizedMatrix::Segment& s) {
    return column < s.first_out + s.outs;
  };
  const QuantizedMatrix::Segment& s = *std::ranges::find_if(w.segments(), holds);
  return s.first_panel + (column - s.first_out) / w.columns();
}

TileShape shape_for(const PackedMatrix& w) {
  const TileShape shape = tile_shape(w.type());
  TANDEM_CHECK(shape.columns == w.columns() && shape.inputs == w.inputs());
  return shape;
}
TileShape shape_for(const QuantizedMatrix& w) {
  return {.columns = w.columns(), .inputs = 4, .rows = quantized_rows(), .panels_for_one = 1};
}

template <class O, class A>
TileTask<O, A> task_of(const PackedMatrix* w, const PreparedRows* x, const A* bias, O* out,
                       Then then, Activation activation, const AddedRows<A>* added,
                       const ReadAhead* /*later*/) {
  return {w, x, bias, out, then, activation, added};
}
QuantTask task_of(const QuantizedMatrix* w, const PreparedRows* x, const float* bias, float* out,
                  Then then, Activation activation, const AddedRows<float>* added,
                  const ReadAhead* later) {
  return {w, x, bias, out, then, activation, added, later};
}

template <class O, class A, class Matrix>
struct Call {
  O* out;
  const A* bias;
  const Matrix* weights;
  Rows<A> x;
  const PreparedRows* shared;  // null: each thread prepares its own
  uint64_t number;             // next_call() of the owner
  int64_t panels;              // to compute
  int32_t common;              // of these, the first ones: for all rows
  int32_t whole;               // rows that need the others
  const int32_t* more;         // not null: the others are these panels, for all rows
  int32_t part;                // groups of rows processed together
  Then then;
  Activation activation;
  const AddedRows<A>* added;
  const ReadAhead* later;

  // first: the first panel of this thread, prefetched on its first call
  const PreparedRows& rows(int64_t first) const {
    if (shared != nullptr) return *shared;
    Prepared& mine = prepared();
    if (mine.call != number) {
      fetch_start(*weights, first);
      mine.rows.prepare(row_type_of(*weights), x);
      mine.call = number;
    }
    return mine.rows;
  }

  // Tasks [begin, end) of the list (part of the rows, panel), panels varying fastest.
  void operator()(int64_t begin, int64_t end) const {
    const PreparedRows& prepared = rows(begin % panels);
    const auto task = task_of(weights, &prepared, bias, out, then, activation, added, later);
    while (begin < end) {
      const int64_t p = begin / panels;
      const int64_t to = std::min(end, (p + 1) * panels);
      const int64_t from_group = p * part, to_group = std::min(prepared.groups(), (p + 1) * part);
      const int64_t from = begin - p * panels, last = to - p * panels;
      const int64_t split = std::clamp<int64_t>(common, from, last);
      if (from < split) product_tiles(task, from, split, from_group, to_group);
      for (int64_t i = split; more != nullptr && i < last; ++i) {
        product_tiles(task, more[i - common], more[i - common] + 1, from_group, to_group);
      }
      int64_t whole_group = from_group;
      while (whole_group < to_group && prepared.first_row(whole_group) < whole) ++whole_group;
      if (split < last && from_group < whole_group) {
        product_tiles(task, split, last, from_group, whole_group);
      }
      begin = to;
    }
  }
};

// The panels from `common` on that hold columns.more.
template <class Matrix>
const std::vector<int32_t>& more_panels(const Matrix& w, const Columns& columns, int64_t common) {
  thread_local std::vector<int32_t> panels;
  panels.clear();
  for (const int32_t column : columns.more) {
    const auto panel = static_cast<int32_t>(panel_of(w, column));
    if (panel >= common && (panels.empty() || panel != panels.back())) panels.push_back(panel);
  }
  return panels;
}

template <class O, class A, class Matrix>
void run(O* out, const Rows<A>& x, const Matrix& w, const A* bias, Then then, Activation activation,
         const Columns& columns, const AddedRows<A>* added) {
  TANDEM_CHECK(x.in == w.in());
  TANDEM_CHECK(then != Then::kGate || w.layout() == Layout::kPairs);
  TANDEM_CHECK(columns.first == 0 || then != Then::kGate);
  TANDEM_CHECK(columns.more.empty() || (columns.whole == 0 && columns.more.back() < w.outs()));
  TANDEM_CHECK(added == nullptr || then == Then::kGate);
  const Later later;
  const TileShape shape = shape_for(w);
  const int64_t threads = team_size();
  const bool all = columns.first == 0 || columns.first >= w.outs();
  const int64_t common = all ? w.panels() : panel_of(w, columns.first - 1) + 1;
  const std::vector<int32_t>& more = more_panels(w, columns, common);
  const int64_t panels = columns.whole > 0 ? w.panels() : common + std::ssize(more);
  const int64_t groups = (x.rows + shape.rows - 1) / shape.rows;
  // Rows are divided among threads only if there are too few panels: each part reads all weights.
  int64_t parts = 1;
  while (parts < groups && panels * parts < 4 * threads) ++parts;
  const int64_t part = (groups + parts - 1) / parts;
  parts = (groups + part - 1) / part;
  Call<O, A, Matrix> call{.out = out,
                          .bias = bias,
                          .weights = &w,
                          .x = x,
                          .shared = nullptr,
                          .number = next_call(),
                          .panels = panels,
                          .common = static_cast<int32_t>(common),
                          .whole = static_cast<int32_t>(columns.whole),
                          .more = more.empty() ? nullptr : more.data(),
                          .part = static_cast<int32_t>(part),
                          .then = then,
                          .activation = activation,
                          .added = added,
                          .later = later.get()};
  static_assert(sizeof(call) <= internal::kClosureBytes);
  const int64_t tasks = parts * panels;
  if (threads == 1 || panel_time(w, x.rows) * static_cast<double>(panels) < kMinNanoseconds) {
    return call(0, tasks);
  }
  if (x.rows * (threads - 1) > own_rows(w)) {
    PreparedRows& all = prepared().rows;
    prepared().call = 0;
    all.shape(row_type_of(w), x.rows, x.in);
    parallel_for(groups, 1, [&](int64_t begin, int64_t end) { all.fill(x, begin, end); });
    call.shared = &all;
  }
  // A single row takes several panels at once.
  const int64_t at_once = x.rows == 1 ? shape.panels_for_one : 1;
  parallel_for(tasks, std::max<int64_t>(1, std::min(at_once, tasks / (4 * threads))), call);
}

}  // namespace

ReadAhead& read_ahead() {
  thread_local ReadAhead mine;
  return mine;
}

void product(float* out, const Rows<float>& x, const PackedMatrix& weights, const float* bias,
             Then then, Activation activation, const Columns& columns,
             const AddedRows<float>* added) {
  TANDEM_CHECK(weights.type() != WeightType::kDouble);
  run(out, x, weights, bias, then, activation, columns, added);
}

void product(float* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then, Activation activation, const Columns& columns,
             const AddedRows<double>* added) {
  TANDEM_CHECK(weights.type() == WeightType::kDouble);
  run(out, x, weights, bias, then, activation, columns, added);
}

void product(double* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then, Activation activation, const Columns& columns,
             const AddedRows<double>* added) {
  TANDEM_CHECK(weights.type() == WeightType::kDouble);
  run(out, x, weights, bias, then, activation, columns, added);
}

void product(float* out, const Rows<float>& x, const QuantizedMatrix& weights, const float* bias,
             Then then, Activation activation, const Columns& columns,
             const AddedRows<float>* added) {
  run(out, x, weights, bias, then, activation, columns, added);
}

}  // namespace tandem::cpu
