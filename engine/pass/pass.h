// A pass: the contract between methods, scheduler and backends.
//
// A pass runs layers [0, to) of a cache for added rows and for cache rows that have not done them,
// and reads results of these rows. Prefill, decode, verification of a draft or a token tree, early
// heads, continuation of rows that stopped at an earlier layer, and recomputation after preemption
// are all passes.
//
// Rows. The rows that a pass adds are numbered 0, 1, ... in the order of `Tree::in`. Negative
// numbers are rows in the cache: -1 is its last row, -2 the one before. A pass runs its added rows,
// and the cache rows that have done fewer than `to` layers (the frontier).
//
// Visibility and position follow from the parents: a row sees the cache's past (limited by the
// model's window), its ancestors among the added rows, and itself. Its position is its parent's
// plus one.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/base/ids.h"

namespace tandem {

class TokenConstraint;  // constraint.h

using TicketId = uint64_t;  // a submitted pass; unique within the engine, 0: none

// A value that an earlier pass leaves on its backend, as an input of a later pass. The later pass
// may be launched while the earlier one is under way: the value does not pass through the loop.
struct ValueRef {
  TicketId ticket = 0;
  int out = 0;          // index into Readout::row
  bool replace = true;  // kEmbed: replaces the token's embedding; else it is added to it
};

inline constexpr int kNoToken = -2;  // In::id of a row that is no token of the text
inline constexpr int kDrawn = -1;    // In::id of kChosen: the drawn token rather than a ranked one

// One input row.
struct In {
  enum Kind : uint8_t {
    kToken,   // id: token
    kChosen,  // id: kDrawn, or a rank in the `top` of output ref.out of pass ref.ticket
    kMask,    // id: index i of the adapter's mask embedding m_i, from 0
    kEmbed,   // id: token (its embedding is used if ref.replace is false), or kNoToken; ref: an
              // output of a Read::hidden, whose row goes through the pass's adapter, if any
  };
  Kind kind = kToken;
  int32_t id = 0;
  ValueRef ref;
};

inline In token_in(Token t) { return {In::kToken, t, {}}; }

struct Tree {
  std::vector<In> in;
  std::vector<Row> parent;  // parent[i] < i; -1: the cache's last row

  size_t size() const { return in.size(); }
  // Adds a row under `parent_row` and returns its number.
  Row add(In row, Row parent_row) {
    in.push_back(row);
    parent.push_back(parent_row);
    return static_cast<Row>(in.size()) - 1;
  }
  // Adds a row under the last one.
  Row chain(In row) { return add(row, static_cast<Row>(in.size()) - 1); }
};

inline constexpr int kTop = -1;  // Read::at: the last layer that the pass runs

// Logits processors as data. Backends apply them before a row is read: argmax, confidence,
// likelihoods and draws all see the result. Order and meaning are those of Transformers;
// engine/sampling is the reference. They belong to a request and never change.
struct Processors {
  // Divides the positive and multiplies the negative logits of tokens in the prompt or answer.
  // (0, inf); 1: off.
  float repetition_penalty = 1;
  float presence_penalty = 0;                 // subtracted from the logits of tokens in the answer
  float frequency_penalty = 0;                // likewise, times their count in the answer
  std::vector<std::pair<Token, float>> bias;  // added; ascending ids; -Inf: the token is banned
  // `ends` are banned before the answer has this many tokens.
  int min_new_tokens = 0;
  std::vector<Token> ends;
  int prompt_tokens = 0;  // rows [0, prompt_tokens) are the prompt
  // Bans tokens that may not follow the answer; null: none. Rows behind masks and behind illegal
  // drafts are not constrained.
  std::shared_ptr<TokenConstraint> constraint;

  // True: they depend on the tokens before a row, in Work::history.
  bool counts_tokens() const { return has_penalties() || constraint != nullptr; }
  bool has_penalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  friend bool operator==(const Processors&, const Processors&) = default;
};

// How tokens are drawn from the logits of a row. The warpers (temperature to typical_p) have no
// effect if temperature is 0 (greedy).
struct Warp {
  float temperature = 0;
  int top_k = 0;                                 // 0: off
  float top_p = 1;                               // 1: off
  float min_p = 0;                               // 0: off
  float typical_p = 1;                           // 1: off
  std::shared_ptr<const Processors> processors;  // null: none
  // Ids from `vocab` on are excluded from draws, distributions and raw log-probabilities: padding
  // of the output matrix, and ids that drafts may not use. 0: none.
  int vocab = 0;
  // But for these: ids from `vocab` on, ascending. Not of reads that judge. Null: none.
  std::shared_ptr<const std::vector<Token>> more_ids;
  uint64_t seed = 0;  // draws are keyed by seed, choice and position
  uint32_t choice = 0;

  bool greedy() const { return temperature <= 0; }
  // Some tokens may get probability 0.
  bool truncates() const { return top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1; }
  friend bool operator==(const Warp&, const Warp&) = default;
};

// The distributions from which a chain of drafts was drawn, left by earlier passes (Read::keep).
// Draft i's is output i of pass `ticket`. If each draft was a pass of its own, `more` names the
// later ones, and draft i's is output 0 of the i-th pass of {ticket, more...}.
struct DistRef {
  TicketId ticket = 0;
  std::vector<TicketId> more;
  bool valid() const { return ticket != 0; }
};

using RowList = absl::InlinedVector<Row, 4>;  // a decode reads one row, a verification a few

// Results to read of some rows.
struct Read {
  RowList rows;   // see "Rows" above; all must run in this pass
  int at = kTop;  // the head reads the output of layers [0, at)
  HeadId head = kOwnHead;
  Warp warp;
  int top = 0;               // this many best tokens, best first
  bool draw = false;         // a token: argmax when greedy, else drawn from the warped distribution
  bool tentative = false;    // of `draw`: another row may draw this position again. Uses a separate
                             // key, so that the two draws are independent
  bool max_prob = false;     // confidence: the largest probability of the unwarped softmax
  bool logprob = false;      // of the drawn token (else of score[i]) and of `top`, under the warped
                             // distribution
  bool raw_logprob = false;  // instead under the model's softmax before processors
  // Excludes all other fields: the rows' hidden states after `at` layers, before the last norm,
  // stay on the backend until the sequence's next round. They are inputs of later passes, also of
  // other models (kEmbed). The round has reserved a place for each (ConditioningEdge).
  bool hidden = false;
  // Excludes all other fields: the sum over `rows` of their hidden states after the last norm, in
  // Readout::pooled. One such read per pass, which runs all layers.
  bool pool = false;
  bool keep = false;         // the warped distribution stays on the backend, see DistRef
  std::vector<Token> score;  // negative log-likelihood of score[i] at rows[i], unwarped softmax;
                             // may be shorter than rows
  // Judging: rows is a chain of n + 1 rows whose last n inputs are drafts, accepted in order.
  // `match`: each row draws its token, and a draft is accepted if it equals that
  // (docs/decoding_methods.md section 1, exact sampling). `against`: the ratio rule on the n
  // distributions from which the drafts were drawn. The first rejected row draws from the residual;
  // if none is, the last row draws.
  bool match = false;
  DistRef against;
  // Of `keep`, `tentative` and `against` reads: the position at which the method's round began.
  // Part of the key of draft, acceptance and residual draws.
  int round_start = 0;

  bool judges() const { return match || against.valid(); }
  bool uses_head() const { return !hidden && !pool; }
};

// The last `n` rows of a pass with `added` rows, oldest first.
inline RowList last_rows(size_t n, size_t added) {
  RowList rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = static_cast<Row>(added) - static_cast<Row>(n - i);
  return rows;
}

// Layers [0, to) of a cache.
struct Stage {
  CacheId cache;
  int to = 0;
  // Index of the cache's first row among the sequence's tokens. Draws are keyed by the positions
  // there.
  int first = 0;
};

enum class See : uint8_t {
  kCausal,
  kAll,  // an encoder: all rows of the pass see each other; never divided
};

struct Pass {
  Stage stage;
  Tree add;
  See see = See::kCausal;
  CacheId memory;     // cross-attention; invalid: none
  AdapterId adapter;  // invalid: none
  std::vector<Read> read;
  bool share = false;  // later passes may name this one's picks (kChosen)

  // Resets it, but keeps the buffers of its rows and reads.
  void clear() {
    add.in.clear();
    add.parent.clear();
    read.clear();
    stage = {};
    see = See::kCausal;
    memory = {};
    adapter = {};
    share = false;
  }
  Pass& reading(Read r) {
    read.push_back(std::move(r));
    return *this;
  }
};

struct Ranked {
  Token token = -1;
  float logprob = 0;
};

inline constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();

// The result of one row of one read. Fields that were not requested are unset.
struct Out {
  Token token = -1;              // Read::draw, or judging
  Token argmax = -1;             // always set, except after a rejected draft
  float max_prob = kUnset;       // Read::max_prob
  float nll = kUnset;            // Read::score
  float logprob = kUnset;        // Read::logprob
  float score_logprob = kUnset;  // Read::logprob: of score[i], even if a token is drawn
  std::span<const Ranked> top;   // into Readout::ranked
};

// The results of a pass, in the order of Pass::read and of each read's rows.
struct Readout {
  absl::InlinedVector<Out, 1> row;
  int accepted = 0;            // drafts accepted, where a read judges
  std::vector<Ranked> ranked;  // storage of Out::top
  std::vector<double> pooled;  // Read::pool: [hidden_size]; else empty

  Readout() = default;
  Readout(Readout&&) noexcept = default;
  Readout& operator=(Readout&&) noexcept = default;
  Readout(const Readout&) = delete;  // `top` points into this object's heap storage
  Readout& operator=(const Readout&) = delete;
};

}  // namespace tandem
