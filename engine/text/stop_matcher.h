// StopMatcher: finds stop strings in text that arrives in pieces, across their borders.
//
// An Aho-Corasick automaton over bytes. Its state is the longest end of the text that begins some
// stop string: exactly that much is held back, everything before it can be sent. Cost is linear in
// the text, whatever the number of stop strings; memory is linear in their total length.
//
// Which match wins: the one that ends first in the text, and of several that end at the same byte
// the longest (its text is the one that must not be shown).
//
// Threading: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  struct Node {
    uint32_t fail = 0;         // node of the longest proper suffix that is a prefix of some stop
    uint32_t first_edge = 0;   // children: edges_[first_edge, first_edge + edge_count)
    uint32_t depth = 0;        // bytes from the root
    uint32_t stop = kNone;     // longest stop that ends here, own or through fail
    uint32_t stop_length = 0;  // its bytes
    uint16_t edge_count = 0;
  };
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };

  void build(const std::vector<std::string>& stops);
  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t step(uint32_t node, uint8_t byte) const;

  const bool include_stop_;
  std::vector<Node> nodes_;                    // [0] is the root
  std::vector<Edge> edges_;                    // sorted by byte within a node
  std::array<uint32_t, 256> root_children_{};  // 0: none

  uint32_t state_ = 0;
  std::string held_;  // nodes_[state_].depth bytes
  std::optional<size_t> matched_;
};

}  // namespace tandem
