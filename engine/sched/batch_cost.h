// The cost model of a model's batches, and each work's share of their time.
#pragma once

namespace tandem {

// The shares, in [0, 1], of the works of one batch in its time. They add up to 1.
struct BatchShares {
  double work = 0, row = 0;  // costs of a work without rows, and of a row
  double batch = 1;          // of all works

  double of(int rows) const { return (work + row * rows) / batch; }
};

// A batch has a fixed cost, mostly reading the weights, and a cost per row. Both are estimated from
// past batches: a line fitted to seconds / rows over 1 / rows, weighted towards recent batches. A
// work pays for its rows and an equal part of the fixed cost. Shares by rows alone would overcharge
// draft rows, which add little to a batch that runs anyway.
//
// Loop thread only.
class BatchCost {
 public:
  static constexpr double kWeight = 1.0 / 64;  // of a batch, in moving averages

  void observe(int rows, double seconds);

  // Of a batch with `rows` rows and `works` works. By rows only while all batches have had similar
  // sizes.
  BatchShares shares(int rows, int works) const;

 private:
  double per_batch() const;  // seconds, as is per_row()
  double per_row() const { return y_ - per_batch() * x_; }

  int seen_ = 0;
  double x_ = 0, y_ = 0;    // means of 1 / rows and seconds / rows
  double xx_ = 0, xy_ = 0;  // variance and covariance
};

}  // namespace tandem
