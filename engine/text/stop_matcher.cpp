#include "engine/text/stop_matcher.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace tandem {

class StopAutomaton {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Node {
    uint32_t fail = 0;         // node of the longest proper suffix that is a prefix of some stop
    uint32_t first_edge = 0;   // children: edges_[first_edge, first_edge + edge_count)
    uint32_t depth = 0;        // bytes from the root
    uint32_t stop = kNone;     // longest stop that ends here, own or through fail
    uint32_t stop_length = 0;  // its bytes
    uint16_t edge_count = 0;
  };

  explicit StopAutomaton(const std::vector<std::string>& stops);

  const Node& node(uint32_t number) const { return nodes_[number]; }
  uint32_t step(uint32_t node, uint8_t byte) const;

 private:
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;                    // [0] is the root
  std::vector<Edge> edges_;                    // sorted by byte within a node
  std::array<uint32_t, 256> root_children_{};  // 0: none
};

// Builds the trie level by level. In sorted order, stops with the same prefix are adjacent: each
// node owns a range of stops, and its children own the subranges with the same next byte.
// Breadth-first order completes a node's fail target, which is shallower, before the node.
StopAutomaton::StopAutomaton(const std::vector<std::string>& stops) {
  std::vector<uint32_t> order(stops.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order, [&](uint32_t i) { return stops[i].empty(); });
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return stops[a] != stops[b] ? stops[a] < stops[b] : a < b;
  });

  struct Range {
    uint32_t begin, end;  // of `order`
  };
  nodes_.emplace_back();
  std::vector<Range> ranges = {{0, static_cast<uint32_t>(order.size())}};
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    const uint32_t depth = nodes_[n].depth;
    auto [i, end] = ranges[n];
    if (n > 0) {
      Node& node = nodes_[n];
      if (stops[order[i]].size() == depth) {
        node.stop = order[i];
        node.stop_length = depth;
      } else {
        node.stop = nodes_[node.fail].stop;
        node.stop_length = nodes_[node.fail].stop_length;
      }
    }
    while (i < end && stops[order[i]].size() == depth) ++i;  // they end here
    nodes_[n].first_edge = static_cast<uint32_t>(edges_.size());
    while (i < end) {
      const uint8_t byte = static_cast<uint8_t>(stops[order[i]][depth]);
      const uint32_t begin = i;
      while (i < end && static_cast<uint8_t>(stops[order[i]][depth]) == byte) ++i;
      const uint32_t id = static_cast<uint32_t>(nodes_.size());
      Node child_node;
      child_node.depth = depth + 1;
      child_node.fail = n == 0 ? 0 : step(nodes_[n].fail, byte);
      edges_.push_back({byte, id});
      nodes_.push_back(child_node);
      ranges.push_back({begin, i});
      ++nodes_[n].edge_count;
      if (n == 0) root_children_[byte] = id;
    }
  }
}

uint32_t StopAutomaton::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return root_children_[byte];
  const Node& n = nodes_[node];
  const auto begin = edges_.begin() + n.first_edge;
  const auto end = begin + n.edge_count;
  const auto found =
      std::lower_bound(begin, end, byte, [](const Edge& edge, uint8_t b) { return edge.byte < b; });
  return found != end && found->byte == byte ? found->node : 0;
}

uint32_t StopAutomaton::step(uint32_t node, uint8_t byte) const {
  for (;;) {
    const uint32_t next = child(node, byte);
    if (next != 0 || node == 0) return next;
    node = nodes_[node].fail;
  }
}

StopStrings::StopStrings(std::vector<std::string> stops)
    : stops_(std::move(stops)),
      any_(std::any_of(stops_.begin(), stops_.end(), [](const auto& s) { return !s.empty(); })) {}

StopStrings::~StopStrings() = default;

const StopAutomaton& StopStrings::automaton() const {
  std::call_once(built_, [this] { automaton_ = std::make_unique<const StopAutomaton>(stops_); });
  return *automaton_;
}

std::optional<size_t> StopMatcher::push(std::string_view text, std::string& releasable) {
  if (matched_.has_value()) return matched_;
  if (!stops_->any()) {
    releasable.append(text);
    return std::nullopt;
  }
  const StopAutomaton& automaton = stops_->automaton();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton.step(state_, static_cast<uint8_t>(text[i]));
    const StopAutomaton::Node& node = automaton.node(state_);
    if (node.stop == StopAutomaton::kNone) continue;
    matched_ = node.stop;
    held_.append(text.substr(0, i + 1));
    if (!include_stop_) held_.resize(held_.size() - node.stop_length);
    releasable.append(held_);
    held_.clear();
    return matched_;
  }
  held_.append(text);
  const size_t released = held_.size() - automaton.node(state_).depth;
  releasable.append(held_, 0, released);
  held_.erase(0, released);
  return std::nullopt;
}

void StopMatcher::finish(std::string& releasable) {
  releasable.append(held_);
  held_.clear();
  state_ = 0;
}

}  // namespace tandem
