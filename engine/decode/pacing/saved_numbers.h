// Statistics as a list of numbers, to be kept in a file. A class visits its numbers in a fixed
// order, in the same function for both directions.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tandem {

class SavedNumbers {
 public:
  static constexpr double kMost = 1e12;

  // Collects the numbers that are visited.
  SavedNumbers() = default;
  // Sets the numbers that are visited to these, up to the first that is out of its range.
  explicit SavedNumbers(std::span<const double> from) : from_(from), restores_(true) {}

  bool restores() const { return restores_; }
  // All numbers were read, and each was in its range.
  bool complete() const { return ok_ && from_.empty(); }
  std::vector<double> take() { return std::move(collected_); }

  void visit(double* x, double least = 0, double most = kMost) {
    if (!restores_) return collected_.push_back(*x);
    ok_ = ok_ && !from_.empty() && from_.front() >= least && from_.front() <= most;  // not for NaN
    if (!ok_) return;
    *x = from_.front();
    from_ = from_.subspan(1);
  }
  template <std::integral T>
  void visit(T* x, T least, T most) {
    double number = static_cast<double>(*x);
    visit(&number, static_cast<double>(least), static_cast<double>(most));
    require(std::floor(number) == number);
    if (restores_ && ok_) *x = static_cast<T>(number);
  }
  // Of at most `most` entries with keys in [0, largest]. each: visits a value.
  template <class T, class F>
  void visit(std::map<int, T>* map, size_t most, int largest, const F& each) {
    size_t size = map->size();
    visit(&size, size_t{0}, most);
    if (!restores_) {
      for (auto& [key, value] : *map) {
        int copy = key;
        visit(&copy, 0, largest);
        each(&value);
      }
      return;
    }
    map->clear();
    int least = 0;
    for (size_t i = 0; ok_ && i < size; ++i, ++least) {
      int key = least;
      visit(&key, least, largest);
      if (ok_) each(&(*map)[least = key]);
    }
  }
  void require(bool condition) { ok_ = ok_ && (condition || !restores_); }

 private:
  std::span<const double> from_;
  const bool restores_ = false;
  bool ok_ = true;
  std::vector<double> collected_;
};

// Of a T with `void visit(SavedNumbers*)`.
template <class T>
std::vector<double> numbers_of(T& x) {
  SavedNumbers numbers;
  x.visit(&numbers);
  return numbers.take();
}

// Changes nothing and returns false if the numbers are not those of a T.
template <class T>
bool restore(std::span<const double> from, T* x) {
  T trial;
  SavedNumbers checked(from);
  trial.visit(&checked);
  if (!checked.complete()) return false;
  SavedNumbers numbers(from);
  x->visit(&numbers);
  return true;
}

}  // namespace tandem
