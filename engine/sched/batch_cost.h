// What a batch's time is made of, and who is charged for it.
#pragma once

namespace tandem {

// A model's batches cost a part each, which is mostly reading the weights, and a part for each row.
// Both are learnt from the batches that were, as a line through seconds / rows over 1 / rows, with
// more weight on late ones. Who adds a row to a batch that runs anyway is charged for the row; the
// rest is everybody's alike. By rows alone drafts would seem as dear as others' tokens even where
// their rows cost next to nothing.
//
// Loop thread only.
class BatchCost {
 public:
  static constexpr double kWeight = 1.0 / 64;  // of a batch, in moving averages

  void observe(int rows, double seconds);

  // The share of a work with `rows` rows in the time of a batch of so many rows and works: those of
  // all its works make 1. As long as all batches were alike it is by rows. In [0, 1].
  double share(int rows, int batch_rows, int works) const;

 private:
  double per_batch() const;  // seconds; so is the next
  double per_row() const { return y_ - per_batch() * x_; }

  int seen_ = 0;
  double x_ = 0, y_ = 0;    // means of 1 / rows and seconds / rows
  double xx_ = 0, xy_ = 0;  // variance and covariance
};

}  // namespace tandem
