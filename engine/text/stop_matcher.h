// StopMatcher: finds stop strings in text that arrives in pieces, across their borders.
//
// An Aho-Corasick automaton over bytes. Its state is the longest end of the text that begins some
// stop string: exactly that much is held back, everything before it can be sent. Cost is linear in
// the text, whatever the number of stop strings; memory is linear in their total length.
//
// Which match wins: the one that ends first in the text, and of several that end at the same byte
// the longest (its text is the one that must not be shown).
//
// A matcher's copies share the automaton, which never changes; without stop strings there is none.
//
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class StopMatcher {
 public:
  // `stops` are UTF-8; empty ones never match. Of equal ones the first is reported. With
  // `include_stop` the stop string itself is released too.
  StopMatcher(const std::vector<std::string>& stops, bool include_stop);

  // Takes the next piece of text and appends to `releasable` what can be sent. Returns the index of
  // the stop string that matched; from then on nothing is released and the index is returned again.
  std::optional<size_t> push(std::string_view text, std::string& releasable);

  // The text has ended: appends what was held back (nothing after a match).
  void finish(std::string& releasable);

  // The stop string that matched, if any.
  std::optional<size_t> matched() const { return matched_; }

 private:
  class Automaton;

  std::shared_ptr<const Automaton> automaton_;  // null: nothing to look for
  bool include_stop_;
  uint32_t state_ = 0;
  std::string held_;  // as long as the state is deep
  std::optional<size_t> matched_;
};

}  // namespace tandem
