// Speculative sampling without caches (docs/architecture.md, Algorithms), with a draft model or
// n-grams.
#pragma once

#include "engine/base/outcome.h"
#include "engine/decode/ngram.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/speculative.h"
#include "tests/reference/bita.h"
#include "tests/reference/rows.h"

namespace tandem::reference {

// Of either method.
struct Drafting : SpeculativeParams {
  int max_ngram = 0;     // 0: the draft model's
  AdapterId by_adapter;  // its masks

  bool by_lookup() const { return max_ngram > 0; }
  NgramParams ngram() const { return {draft_tokens, max_ngram, pace}; }
};

struct Speculated {
  Tokens tokens;
  MethodStats stats;
  int64_t draft_passes = 0;  // with masks, where nothing was evicted, but for the prompt's
};

// What followed the most recent earlier occurrence of the longest suffix, of at most `longest`
// tokens; a copy that reaches the end continues with itself. Of long suffixes, the index compares
// only the last places.
inline Tokens prompt_lookup(const Tokens& text, int longest, int n) {
  const int size = static_cast<int>(text.size());
  for (int k = std::min({longest, NgramIndex::kHashed, size - 1}); k >= 1; --k) {
    int best = 0, next = 0, candidates = 0;
    for (int at = size - k - 1; at >= 0 && candidates < NgramIndex::kCandidates; --at) {
      if (!std::equal(text.end() - k, text.end(), text.begin() + at)) continue;
      ++candidates;
      int more = 0;
      while (k + more < longest && more < at &&
             text[Row::index(at - 1 - more)] == text[Row::index(size - k - 1 - more)]) {
        ++more;
      }
      if (k + more > best) best = k + more, next = at + k;
    }
    if (best == 0) continue;
    Tokens copy = text;
    for (int i = 0; i < n; ++i) copy.push_back(copy[Row::index(next + i)]);
    return {copy.begin() + size, copy.end()};
  }
  return {};
}

// Tokens of one pass of a draft model with masks after `text`, at most `room`: the `guesses` that
// it confirms, then a token of its own. Afterwards `guesses` holds the predictions of its masks
// after that token, with their confidence.
struct Guess {
  Token token;
  double confidence;
};
// more: the ids beyond the draft vocabulary that may be drafted
inline std::vector<Guess> said(const Model& draft, Tokens text, const Warp& w, const Drafting& a,
                               const Tokens& more, int room, std::vector<Guess>* guesses) {
  std::vector<Guess> out;
  const int ids = a.draft_vocabulary.value_or(0);
  const auto judged = std::min(guesses->size(), Row::index(room - 1));
  for (size_t i = 0;; ++i) {
    const Row row(draft, text, ids, more);
    out.push_back({row.draw(w), row.confidence()});
    if (i == judged || out.back().token != (*guesses)[i].token) break;
    text.push_back(out.back().token);
  }
  guesses->clear();
  for (int i = 0; i < std::min(*a.num_masks, room - static_cast<int>(out.size())); ++i) {
    const Row mask(mask_logits(draft, text, i, a.by_adapter), 0, ids, more);
    guesses->push_back({mask.argmax, mask.confidence()});
  }
  return out;
}

// All drafts of a round by such passes.
inline Tokens masked_drafts(const Model& draft, const Output& out, const Warp& w, const Drafting& a,
                            int gamma, int64_t* passes) {
  Tokens x;
  const Tokens more = a.drafts_text_ids ? out.seq : Tokens();
  std::vector<Guess> guesses;
  const auto add = [&](const std::vector<Guess>& tokens) {
    for (const Guess& g : tokens) {
      if (g.confidence < a.min_draft_probability) return false;
      x.push_back(g.token);
      if (out.would_end(x)) return false;
    }
    return true;
  };
  while (static_cast<int>(x.size() + guesses.size()) < gamma) {
    const int room = gamma - static_cast<int>(x.size());
    ++*passes;
    if (!add(said(draft, joined(out.seq, x), w, a, more, room, &guesses))) return x;
  }
  add(guesses);
  return x;
}

// `broken`: rejected tokens are drawn again from p instead of the residual, or drafts are drawn
// independently of the target's tokens. Tests must detect both.
inline Speculated speculative(const Model& target, const Model& draft, const Tokens& prompt,
                              const Warp& w, const Drafting& a, const Tokens& eos,
                              int max_new_tokens, bool broken = false) {
  using sampling::Purpose;
  const bool lookup = a.by_lookup();
  const bool by_ratio = !lookup && !speculative_is_exact(a, w.greedy());
  const Purpose drawn_with = by_ratio || broken ? Purpose::kDraft : Purpose::kToken;
  Speculated result;
  Output out{prompt, eos, max_new_tokens, {}, false};
  double average = a.draft_tokens - 1;
  out.push(Row(target, out.seq).draw(w));  // the first token is the target's own
  while (!out.ended) {
    const int start = static_cast<int>(out.seq.size());
    const int length =
        a.pace == Pace::kAdaptive
            ? std::clamp(static_cast<int>(std::floor(average + 1.5)), 1, a.draft_tokens)
            : a.draft_tokens;
    const int gamma = std::min(length, out.remaining() - 1);
    Tokens x = lookup ? prompt_lookup(out.seq, a.max_ngram, gamma) : Tokens();
    const bool masked = !lookup && !by_ratio && a.num_masks.value_or(0) > 0;
    if (masked && gamma > 0) x = masked_drafts(draft, out, w, a, gamma, &result.draft_passes);
    std::vector<std::vector<float>> q;
    for (size_t i = 0; i < x.size(); ++i) {
      if (out.is_eos(x[i])) x.resize(i + 1);
    }
    while (!lookup && !masked && static_cast<int>(x.size()) < gamma) {
      const Row row(draft, joined(out.seq, x), a.draft_vocabulary.value_or(0),
                    a.drafts_text_ids ? out.seq : Tokens());
      if (a.min_draft_probability > 0) {
        if (out.would_end(x) || row.confidence() < a.min_draft_probability) break;
      }
      q.push_back(row.warped(w));
      q.back().resize(static_cast<size_t>(target.config.vocab_size));
      x.push_back(row.draw(w, drawn_with, start));
    }
    const Tokens text = out.seq;
    int accepted = 0, useful = 0;  // useful: accepted before the end
    for (size_t i = 0; i <= x.size(); ++i) {
      const Tokens before(x.begin(), x.begin() + static_cast<int>(i));
      const Row row(target, joined(text, before));
      std::vector<float> p = row.warped(w);
      if (i == x.size()) {  // bonus
        out.push(row.draw(w));
        break;
      }
      const Token d = x[i];
      if (!by_ratio) {
        const Token own = row.draw(w);
        useful += out.push(own) && own == d;
        if (own != d) break;
        ++accepted;
        continue;
      }
      if (row.uniform(w, Purpose::kAccept, start) * q[i][Row::index(d)] < p[Row::index(d)]) {
        useful += out.push(d);
        ++accepted;
        continue;
      }
      std::vector<float> residual(p.size());
      double total = 0;
      for (size_t t = 0; t < p.size(); ++t) total += residual[t] = std::max(0.0F, p[t] - q[i][t]);
      if (total > 0 && !broken) p = residual;
      out.push(row.first_home(p, w, Purpose::kResidual, start));
      break;
    }
    const int drafted = static_cast<int>(x.size());
    result.stats.count_verification(drafted, useful);
    const bool says_nothing = accepted == drafted && drafted < length;
    if (!says_nothing) average += 0.25 * (accepted - average);
  }
  result.tokens = out.tokens;
  return result;
}

}  // namespace tandem::reference
