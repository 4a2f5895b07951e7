// StopMatcher: finds stop strings in text that arrives in pieces, across their borders.
//
// An Aho-Corasick automaton over bytes. Its state is the longest end of the text that begins some
// stop string: exactly that much is held back, everything before it can be sent. Cost is linear in
// the text, whatever the number of stop strings; memory is linear in their total length.
//
// Which match wins: the one that ends first in the text, and of several that end at the same byte
// the longest (its text is the one that must not be shown).
//
// Everybody who looks for the same stop strings shares them, and the automaton, which never
// changes; it is built when the first text comes, so what only waits costs no more than its
// strings.
//
// Threading: a matcher belongs to one thread at a time, StopStrings to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

class StopAutomaton;

// What to look for. Immutable.
class StopStrings {
 public:
  // `stops` are UTF-8; empty ones never match. Of equal ones the first is reported.
  explicit StopStrings(std::vector<std::string> stops = {});
  ~StopStrings();

  const std::string& at(size_t index) const { return stops_.at(index); }
  bool any() const { return any_; }        // there is one that can match
  const StopAutomaton& automaton() const;  // built when it is first asked for

 private:
  const std::vector<std::string> stops_;
  const bool any_;
  mutable std::once_flag built_;
  mutable std::unique_ptr<const StopAutomaton> automaton_;
};

class StopMatcher {
 public:
  // With `include_stop` the stop string itself is released too.
  StopMatcher(std::shared_ptr<const StopStrings> stops, bool include_stop)
      : stops_(std::move(stops)), include_stop_(include_stop) {}
  StopMatcher(std::vector<std::string> stops, bool include_stop)
      : StopMatcher(std::make_shared<const StopStrings>(std::move(stops)), include_stop) {}

  // Takes the next piece of text and appends to `releasable` what can be sent. Returns the index of
  // the stop string that matched; from then on nothing is released and the index is returned again.
  std::optional<size_t> push(std::string_view text, std::string& releasable);

  // The text has ended: appends what was held back (nothing after a match).
  void finish(std::string& releasable);

  // The stop string that matched, if any.
  std::optional<size_t> matched() const { return matched_; }

 private:
  std::shared_ptr<const StopStrings> stops_;
  bool include_stop_;
  uint32_t state_ = 0;
  std::string held_;  // as long as the state is deep
  std::optional<size_t> matched_;
};

}  // namespace tandem
