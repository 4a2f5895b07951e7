#include "engine/decode/beam.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

namespace tandem {
namespace {

// A token of one or more hypotheses, and the token before it. Hypotheses share prefixes.
struct Node {
  int before = -1;
  Emitted token;
};

struct Beam {
  Stage stage;
  std::vector<Token> tokens;  // after the prompt
  int node = -1;              // of the last token
  double sum = 0;             // of log p
};

struct Finished {
  int node = -1;
  double score = 0;
};

struct Candidate {
  size_t beam = 0;
  size_t rank = 0;  // in that beam's row
  double sum = 0;
};

// A beam's candidates are ranks [0, n) of its row's `top`.
Read ranked(Gen g, const Pass& pass, int n) {
  Read read = g.draw(last_rows(1, pass.add.size()));
  read.warp.temperature = 0;  // log p is not warped
  read.draw = false;
  read.logprob = true;
  read.raw_logprob = false;
  read.top = std::max(n, read.top);
  return read;
}

// The k best of all beams' rows, best first; ties go to the earlier beam, then the lower rank.
std::vector<Candidate> best_of(const std::vector<Beam>& beams, const std::vector<Readout>& rows,
                               size_t k) {
  std::vector<Candidate> all;
  for (size_t b = 0; b < beams.size(); ++b) {
    const auto top = rows[b].row[0].top;
    for (size_t rank = 0; rank < std::min(k, top.size()); ++rank) {
      if (std::isinf(top[rank].logprob)) break;  // banned
      all.push_back({b, rank, beams[b].sum + double{top[rank].logprob}});
    }
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.sum, a.beam, a.rank) < std::tuple(-b.sum, b.beam, b.rank);
  });
  all.resize(std::min(all.size(), k));
  return all;
}

// Gives each beam of `next`, whose stage is still its parent's, a cache with its parent's rows. The
// first child of a parent takes the parent's cache, others a fork of it.
void assign_caches(Gen g, CacheId root, const std::vector<Beam>& beams, std::vector<Beam>& next) {
  std::vector<CacheId> taken;
  for (Beam& child : next) {
    const CacheId parent = child.stage.cache;
    if (std::find(taken.begin(), taken.end(), parent) == taken.end()) {
      taken.push_back(parent);
    } else {
      child.stage.cache = g.fork(parent);
    }
  }
  for (const Beam& beam : beams) {
    const CacheId cache = beam.stage.cache;
    if (std::find(taken.begin(), taken.end(), cache) != taken.end()) continue;
    if (cache == root) {
      g.truncate(root, 0);
    } else {
      g.drop(cache);
    }
  }
}

}  // namespace

Task<void> beam(Gen g, BeamParams a) {
  const auto width = static_cast<size_t>(a.width);
  // Enough that `width` of them stay open even if each end token is among every beam's best.
  const size_t candidates = width * static_cast<size_t>(std::max(2, 1 + g.end_tokens()));
  const int shown = g.draw({}).top;  // alternatives in the response
  const bool raw = g.draw({}).raw_logprob;
  std::vector<Node> nodes;
  std::vector<Beam> beams(1);
  const Stage root = beams[0].stage = g.stage(a.writer);
  std::vector<Finished> finished;  // at most `width`, best first
  int open = -1;                   // the best open hypothesis
  for (double length = 1; !beams.empty(); ++length) {
    Needs needs;
    for (const Beam& b : beams) {
      needs.push_back({b.stage, g.missing(b.stage) + static_cast<int>(b.tokens.size())});
    }
    co_await g.round(std::move(needs));
    std::vector<Ticket> tickets;
    for (const Beam& b : beams) {
      Pass p = g.catch_up(b.stage, b.tokens);
      p.reading(ranked(g, p, static_cast<int>(candidates)));
      if (raw) {  // the same tokens, for the response
        Read read = p.read[0];
        read.raw_logprob = true;
        p.reading(std::move(read));
      }
      tickets.push_back(g.submit(std::move(p)));
    }
    std::vector<Readout> rows;
    for (Ticket& t : tickets) {
      Readout r = co_await t;
      rows.push_back(std::move(r));
    }

    // The writer has read its rows; the large model is not needed any more.
    if (a.writer != Role::kLarge) g.truncate(g.stage(Role::kLarge).cache, 0);

    std::vector<Beam> next;
    const std::vector<Candidate> best = best_of(beams, rows, candidates);
    for (size_t i = 0; i < best.size(); ++i) {
      const Candidate& c = best[i];
      const Beam& parent = beams[c.beam];
      const auto top = rows[c.beam].row.back().top;
      std::vector<Token> tokens = parent.tokens;
      tokens.push_back(top[c.rank].token);
      const bool ends = g.ends(tokens);
      // Only the `width` best may end; the others are there to stay open.
      if (ends ? i >= width : next.size() == width) continue;
      const int node = static_cast<int>(nodes.size());
      Node& n = nodes.emplace_back();
      n.before = parent.node;
      n.token.token = tokens.back();
      n.token.logprob = top[c.rank].logprob;
      n.token.top.assign(top.begin(), top.begin() + std::min<ptrdiff_t>(shown, std::ssize(top)));
      if (ends) {
        const double score = c.sum / std::pow(length, double{a.length_penalty});
        const auto worse = std::find_if(finished.begin(), finished.end(),
                                        [&](const Finished& f) { return f.score < score; });
        finished.insert(worse, {node, score});
      } else {
        next.push_back({parent.stage, std::move(tokens), node, c.sum});
      }
    }
    finished.resize(std::min(finished.size(), width));

    // The best open hypothesis cannot beat the worst finished one.
    if (finished.size() == width && !next.empty() &&
        next[0].sum / std::pow(length, double{a.length_penalty}) <= finished.back().score) {
      break;
    }
    assign_caches(g, root.cache, beams, next);
    if (!next.empty()) open = next[0].node;
    beams = std::move(next);
  }

  // None is finished if all continuations are banned.
  std::vector<Emitted> out;
  for (int n = finished.empty() ? open : finished[0].node; n >= 0;
       n = nodes[static_cast<size_t>(n)].before) {
    out.push_back(std::move(nodes[static_cast<size_t>(n)].token));
  }
  std::reverse(out.begin(), out.end());
  if (!out.empty()) g.emit(std::move(out));
}

}  // namespace tandem
