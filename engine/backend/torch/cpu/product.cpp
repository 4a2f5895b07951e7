#include "engine/backend/torch/cpu/product.h"

#include <algorithm>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Nanoseconds of work that make a range worth handing to another thread.
constexpr double kShare = 4000;

// What one panel takes for so many rows, roughly: weights at 25 bytes, products at 100 a
// nanosecond.
double panel_time(const PackedMatrix& w, int64_t rows) {
  const auto products = static_cast<double>(w.in() * w.columns() * rows);
  return std::max(static_cast<double>(w.panel_bytes()) / 25, products / 100);
}

template <class O, class A>
void run(O* out, const PreparedRows& x, const PackedMatrix& w, const A* bias, bool add) {
  TANDEM_CHECK(x.in() == w.in());
  TANDEM_CHECK(x.type() == row_type(w.type()));
  const TileShape shape = tile_shape(w.type());
  TANDEM_CHECK(shape.columns == w.columns() && shape.inputs == w.inputs());
  const TileTask<O, A> task{&w, &x, bias, out, add};

  const int64_t threads = team_size();
  const int64_t panels = w.panels();
  if (threads == 1) return product_tiles(task, 0, panels, 0, x.groups());
  // Rows are split among threads only where columns do not suffice: each part reads all weights.
  int64_t parts = 1;
  while (parts < x.groups() && panels * parts < 4 * threads) ++parts;
  const int64_t part = (x.groups() + parts - 1) / parts;
  parts = (x.groups() + part - 1) / part;
  const auto worth = static_cast<int64_t>(kShare / panel_time(w, x.rows() / parts)) + 1;
  const int64_t at_once = x.rows() == 1 ? shape.panels_for_one : 1;
  int64_t grain = std::max({worth, panels / (16 * threads), std::min(at_once, panels / threads)});
  grain = panels / std::max<int64_t>(1, panels / std::min(grain, panels));  // of about one size
  // Where there is enough, first a long range for each thread: at the end of a range, what was
  // fetched ahead is of no use to its thread. Short ones then even out who came late.
  const int64_t first = panels >= 8 * threads * grain ? panels / (2 * threads) : 0;
  const int64_t firsts = first > 0 ? threads : 0;
  const int64_t ranges = firsts + (panels - firsts * first + grain - 1) / grain;
  parallel_for(parts * ranges, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t r = i % ranges;
      const int64_t begin = r < firsts ? r * first : firsts * first + (r - firsts) * grain;
      const int64_t p = i / ranges;
      product_tiles(task, begin, r < firsts ? begin + first : std::min(panels, begin + grain),
                    p * part, std::min(x.groups(), (p + 1) * part));
    }
  });
}

}  // namespace

void product(float* out, const PreparedRows& x, const PackedMatrix& weights, const float* bias,
             bool add) {
  run(out, x, weights, bias, add);
}

void product(float* out, const PreparedRows& x, const PackedMatrix& weights, const double* bias,
             bool add) {
  run(out, x, weights, bias, add);
}

void product(double* out, const PreparedRows& x, const PackedMatrix& weights, const double* bias,
             bool add) {
  run(out, x, weights, bias, add);
}

}  // namespace tandem::cpu
