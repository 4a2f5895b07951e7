// StopMatcher: finds stop strings in streamed text, also across chunk borders.
//
// An Aho-Corasick automaton over bytes. Its state is the longest suffix of the text that is a
// prefix of a stop string: exactly this suffix is held back, and everything before it is released.
// The cost is linear in the text, for any number of stop strings; memory is linear in their total
// length.
//
// The match that ends first wins; of matches that end at the same byte, the longest.
//
// Requests with the same stop strings can share StopStrings and its automaton, which is built at
// the first text. So waiting requests cost only their strings.
//
// Threading: a matcher belongs to one thread at a time; StopStrings is thread-safe.
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

// The stop strings of a request. Immutable.
class StopStrings {
 public:
  // stops: UTF-8. Empty strings never match. Of equal strings, the first is reported.
  explicit StopStrings(std::vector<std::string> stops = {});
  ~StopStrings();

  const std::string& at(size_t index) const { return stops_.at(index); }
  bool any() const { return any_; }        // at least one string can match
  const StopAutomaton& automaton() const;  // built at the first call

 private:
  const std::vector<std::string> stops_;
  const bool any_;
  mutable std::once_flag built_;
  mutable std::unique_ptr<const StopAutomaton> automaton_;
};

class StopMatcher {
 public:
  // include_stop: releases the stop string too.
  StopMatcher(std::shared_ptr<const StopStrings> stops, bool include_stop)
      : stops_(std::move(stops)), include_stop_(include_stop) {}
  StopMatcher(std::vector<std::string> stops, bool include_stop)
      : StopMatcher(std::make_shared<const StopStrings>(std::move(stops)), include_stop) {}

  // Reads the next piece of text and appends the text that can be sent to `releasable`. Returns the
  // index of the stop string that matched. After a match, further calls release nothing and return
  // the same index.
  std::optional<size_t> push(std::string_view text, std::string& releasable);

  // Ends the text and appends the held text. After a match there is none.
  void finish(std::string& releasable);

  // The stop string that matched, if any.
  std::optional<size_t> matched() const { return matched_; }

 private:
  std::shared_ptr<const StopStrings> stops_;
  bool include_stop_;
  uint32_t state_ = 0;
  std::string held_;  // as long as the depth of the state
  std::optional<size_t> matched_;
};

}  // namespace tandem
