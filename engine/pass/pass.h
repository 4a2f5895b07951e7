// The contract between methods, scheduler and backends: a pass.
//
// A pass says "bring layers [0, to) of this cache to n rows and tell me these things about those
// rows". Prefill, decode, verification of a draft, verification of a token tree, early heads,
// continuation of rows that stopped at an earlier layer, and refilling after an eviction are all
// this one thing.
//
// Rows. The rows that a pass adds are numbered 0, 1, ... in the order of `Tree::in`. Negative
// numbers are rows that are in the cache already: -1 is its last row, -2 the one before. A pass
// runs its added rows, and those rows of the cache that have not come to layer `to` yet (the
// frontier).
//
// Visibility and position both follow from the parents: a row sees the cache's past (cut by the
// model's window), its ancestors among the added rows and itself; its position is that of its
// parent plus one.
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

using TicketId = uint64_t;  // a submitted pass; unique within the engine, 0: none

// A value that a pass leaves with its backend and that a later pass is fed with there. The loop
// need not have seen it: the later pass may be launched while the earlier one is under way.
struct ValueRef {
  TicketId ticket = 0;
  int out = 0;          // index into Readout::row
  bool replace = true;  // kEmbed: instead of the token's embedding, or added to it
};

inline constexpr int kNoToken = -2;  // In::id of a row that counts as no token of the text
inline constexpr int kDrawn = -1;    // In::id of kChosen: the drawn token rather than a ranked one

// One input row.
struct In {
  enum Kind : uint8_t {
    kToken,   // id: token
    kChosen,  // id: kDrawn, or rank in the `top` of output ref.out of pass ref.ticket, unread
    kMask,    // id: number i of the adapter's mask embedding m_i, from 0
    kEmbed,   // id: token (its embedding is used when ref.replace is false), or kNoToken; ref:
              // output of a Read::hidden, whose row goes through the pass's adapter, or as it is
              // where there is none
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

// Logits processors as data, applied where the logits lie, before anything is read of a row:
// argmax, confidence, likelihoods and draws all see them. Order and meaning as in Transformers
// (engine/sampling is the reference). They belong to a request and never change.
struct Processors {
  // Divides the positive and multiplies the negative logits of tokens that occur in the prompt or
  // after it. (0, inf); 1: off.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // taken off the logits of tokens that occur after the prompt
  float frequency_penalty = 0;  // likewise, as often as they occur there
  std::vector<std::pair<Token, float>> bias;  // added; ascending ids; -Inf: the token is banned
  // `ends` are banned until so many new tokens are there.
  int min_new_tokens = 0;
  std::vector<Token> ends;
  int prompt_tokens = 0;  // rows [0, prompt_tokens) are the prompt

  // Do they count what was fed before a row? Then Work::history says.
  bool counts_tokens() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  friend bool operator==(const Processors&, const Processors&) = default;
};

// What happens to the logits of a row. Temperature and what follows it are the warpers: they shape
// draws, and do nothing when temperature is 0: greedy.
struct Warp {
  float temperature = 0;
  int top_k = 0;                                 // 0: off
  float top_p = 1;                               // 1: off
  float min_p = 0;                               // 0: off
  float typical_p = 1;                           // 1: off
  std::shared_ptr<const Processors> processors;  // null: none
  // Ids from here on are as if they were not there, in draws, distributions and raw
  // log-probabilities alike: padding of the model's output matrix, and what no draft may be. 0:
  // none are.
  int vocab = 0;
  uint64_t seed = 0;  // with `choice` and the position the key of every draw
  uint32_t choice = 0;

  bool greedy() const { return temperature <= 0; }
  // Some tokens may get probability 0.
  bool truncates() const { return top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1; }
  friend bool operator==(const Warp&, const Warp&) = default;
};

// The distributions that a chain of drafts was drawn from, which earlier passes left with their
// backend.
// Draft i's is output i of pass `ticket`; or, where each draft was a pass of its own and `more`
// names the second and later ones, output 0 of the i-th of {ticket, more...}.
struct DistRef {
  TicketId ticket = 0;
  std::vector<TicketId> more;
  bool valid() const { return ticket != 0; }
};

// Instead of a ticket in DistRef: the drafts were certain (an n-gram's), q is one-hot.
inline constexpr TicketId kOneHot = std::numeric_limits<TicketId>::max();

using RowList = absl::InlinedVector<Row, 4>;  // a decode reads one row, a verification a few

// What is wanted of which rows.
struct Read {
  RowList rows;   // see "Rows" above; every row must run in this pass
  int at = kTop;  // layers whose output feeds the head: [0, at)
  HeadId head = kOwnHead;
  Warp warp;
  int top = 0;               // this many best tokens, best first
  bool draw = false;         // a token: argmax when greedy, else drawn from the warped distribution
  bool tentative = false;    // of `draw`: the position may be drawn again by another row, and that
                             // draw must not depend on this one; keyed apart from it
  bool max_prob = false;     // confidence: largest probability of the unwarped softmax
  bool logprob = false;      // of the drawn token (where none is, of score[i]), and of `top`, under
                             // the warped distribution
  bool raw_logprob = false;  // ... or instead under the model's own softmax, before processors
  // Instead of all the rest: the rows' hidden states after `at` layers, before the last norm, stay
  // with the backend until the next round, which reserves a place for each (Need::hidden). Later
  // passes, also of other models, are fed with them (kEmbed).
  bool hidden = false;
  bool keep = false;         // the warped distribution stays with the backend, see DistRef
  std::vector<Token> score;  // negative log-likelihood of score[i] at rows[i], unwarped softmax;
                             // may be shorter than rows
  // rows is then a chain of n + 1 rows whose last n inputs are drafts, accepted in order. Either
  // each row draws its own token, and a draft stays if it is that (shared draws, sampling/race.h);
  // or drafts were drawn from the n distributions `against`: the ratio rule, with a draw from the
  // residual at the first rejection, or after the last one from that row's own distribution.
  bool match = false;
  DistRef against;
  // Of `keep`, `tentative` and `against` reads: position at which the method's round began, part of
  // the key of draft, acceptance and residual draws.
  int round_start = 0;

  bool judges() const { return match || against.valid(); }
};

// The last `n` rows that a pass with `added` rows runs, oldest first.
inline RowList last_rows(size_t n, size_t added) {
  RowList rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = static_cast<Row>(added) - static_cast<Row>(n - i);
  return rows;
}

// Layers [0, to) of a cache.
struct Stage {
  CacheId cache;
  int to = 0;
};

enum class See : uint8_t {
  kCausal,
  kAll,  // an encoder: every row of the pass sees every other; never split
};

struct Pass {
  Stage stage;
  Tree add;
  See see = See::kCausal;
  CacheId memory;     // cross-attention; invalid: none
  AdapterId adapter;  // invalid: none
  std::vector<Read> read;
  bool share = false;  // later passes may name this one's picks (kChosen)

  // As new, but for the memory of its rows and reads, which it keeps to be filled again.
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

// About one row of one read. Fields that were not asked for are unset.
struct Out {
  Token token = -1;              // Read::draw, or judging
  Token argmax = -1;             // always there; but nothing is said behind a rejected draft
  float max_prob = kUnset;       // Read::max_prob
  float nll = kUnset;            // Read::score
  float logprob = kUnset;        // Read::logprob
  float score_logprob = kUnset;  // Read::logprob: of score[i], whatever is drawn here
  std::span<const Ranked> top;   // into Readout::ranked
};

// Answers in the order of Pass::read and of each read's rows.
struct Readout {
  absl::InlinedVector<Out, 1> row;
  int accepted = 0;            // drafts accepted, where a read judges
  std::vector<Ranked> ranked;  // storage of Out::top

  Readout() = default;
  Readout(Readout&&) noexcept = default;
  Readout& operator=(Readout&&) noexcept = default;
  Readout(const Readout&) = delete;  // `top` points into this object's heap storage
  Readout& operator=(const Readout&) = delete;
};

}  // namespace tandem
