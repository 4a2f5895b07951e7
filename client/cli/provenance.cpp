#include "client/cli/provenance.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {
namespace {

constexpr size_t kLook = 16;  // pending tokens to search for
constexpr size_t kGap = 8;    // bytes that may come before a token: a space, parts of a character
constexpr char kPlain[] = "\x1b[0m", kDim[] = "\x1b[2m";

struct Look {
  Origin origin;
  const char* name;
  const char* colour;  // empty: none
};
constexpr std::array<Look, 10> kLooks = {{
    {Origin::kSmall, "small, accepted", "\x1b[32m"},
    {Origin::kUnchecked, "small, not verified", "\x1b[33m"},
    {Origin::kNgram, "n-gram, accepted", "\x1b[36m"},
    {Origin::kMask1, "mask 1, accepted", "\x1b[32m"},
    {Origin::kMask2, "mask 2, accepted", "\x1b[36m"},
    {Origin::kMask3, "later masks, accepted", "\x1b[94m"},
    {Origin::kOther, "draft, accepted", "\x1b[34m"},
    {Origin::kGrammar, "grammar, accepted", "\x1b[90m"},
    {Origin::kCorrected, "corrected", "\x1b[35m"},
    {Origin::kLarge, "large", ""},
}};

const char* colour_of(Origin origin) {
  return std::find_if(kLooks.begin(), kLooks.end(),
                      [origin](const Look& l) { return l.origin == origin; })
      ->colour;
}

std::string painted(absl::string_view text, const char* colour) {
  return text.empty() || *colour == '\0' ? std::string(text) : absl::StrCat(colour, text, kPlain);
}

std::string count(int64_t n, const char* one) {
  return absl::StrCat(n, " ", one, n == 1 ? "" : "s");
}

}  // namespace

Origin origin_of(const v1::Token& token) {
  if (token.corrected()) return Origin::kCorrected;
  switch (token.proposed()) {
    case v1::SOURCE_SMALL:
      return token.confirmed() == v1::SOURCE_SMALL ? Origin::kUnchecked : Origin::kSmall;
    case v1::SOURCE_NGRAM:
      return Origin::kNgram;
    case v1::SOURCE_MASK:
      return token.proposed_index() == 0   ? Origin::kMask1
             : token.proposed_index() == 1 ? Origin::kMask2
                                           : Origin::kMask3;
    case v1::SOURCE_EARLY_HEAD:
      return Origin::kOther;
    case v1::SOURCE_GRAMMAR:
      return Origin::kGrammar;
    default:
      return Origin::kLarge;
  }
}

std::string Painter::paint(const v1::Chunk& chunk) {
  for (const v1::Token& token : chunk.tokens()) {
    if (!token.text().empty()) waiting_.push_back({token.text(), origin_of(token)});
  }
  std::string out, run;  // `run`: in the colour of last_
  const auto add = [&](std::string_view text, Origin origin) {
    if (origin != last_) {
      out += painted(run, colour_of(last_));
      run.clear();
      last_ = origin;
    }
    run += text;
  };
  std::string_view rest = chunk.text();
  while (!rest.empty()) {
    size_t end = rest.size(), used = 0;
    Origin origin = waiting_.empty() ? last_ : waiting_.front().origin;
    for (size_t i = 0; i < std::min(waiting_.size(), kLook) && used == 0; ++i) {
      const Piece& piece = waiting_[i];
      const size_t at = rest.substr(0, piece.text.size() + kGap).find(piece.text);
      if (at == std::string_view::npos) continue;
      end = at + piece.text.size();
      used = i + 1;
      origin = piece.origin;
    }
    add(rest.substr(0, end), origin);
    rest.remove_prefix(end);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(used));
  }
  // Drops texts that were not found.
  if (waiting_.size() > kLook) waiting_.erase(waiting_.begin(), waiting_.end() - kLook);
  return out + painted(run, colour_of(last_));
}

std::string legend(v1::Method method, const std::vector<v1::Token>& tokens, bool colours) {
  std::string out;
  if (method == v1::METHOD_LLM_TO_SLM && !tokens.empty()) {
    out = painted("prompt, encoded by large", colours ? kDim : "");
  }
  for (const Look& look : kLooks) {
    const auto n = std::count_if(tokens.begin(), tokens.end(),
                                 [&](const v1::Token& t) { return origin_of(t) == look.origin; });
    if (n == 0) continue;
    const double share = 100.0 * static_cast<double>(n) / static_cast<double>(tokens.size());
    const std::string text = absl::StrFormat("%s %.0f %%", look.name, share);
    absl::StrAppend(&out, out.empty() ? "" : "  ", painted(text, colours ? look.colour : ""));
  }
  return out;
}

std::string method_figures(v1::Method method, const v1::MethodStats& stats) {
  std::string out;
  const auto add = [&](const std::string& text) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", text);
  };
  if (method == v1::METHOD_LLM_TO_SLM) {
    const bool unchecked = stats.accept_lengths_size() == 0;
    add(unchecked ? "answer of the small model, conditioned on the large one"
                  : "drafts of a small model conditioned on the large one");
  }
  if (stats.has_fallbacks()) add(count(stats.fallbacks(), "fallback"));
  if (stats.has_rollbacks()) {
    add(absl::StrCat(count(stats.rollbacks(), "rollback"), " of ",
                     count(stats.rolled_back_tokens(), "token")));
  }
  if (stats.has_match_rate()) {
    add(absl::StrFormat("%.0f %% of %s matched, %d sequential layers (Theorem 4.1: %d)",
                        100 * stats.match_rate(), count(stats.rounds(), "token"),
                        stats.main_layers(), stats.predicted_main_layers()));
    add(absl::StrFormat("%.2f s up to the early layer, %.2f above it, %.2f waiting for workers",
                        stats.lower_seconds(), stats.upper_seconds(), stats.barrier_seconds()));
  }
  int64_t drafts = 0, kept = 0;
  for (int i = 0; i < stats.accept_lengths_size(); ++i) {
    drafts += stats.accept_lengths(i);
    kept += int64_t{i} * stats.accept_lengths(i);
  }
  if (drafts > 0) {
    const auto each = static_cast<double>(drafts);
    add(absl::StrFormat("%.2f of %.2f draft tokens accepted", static_cast<double>(kept) / each,
                        stats.draft_tokens() / each));
  }
  return out;
}

}  // namespace tandem::cli
