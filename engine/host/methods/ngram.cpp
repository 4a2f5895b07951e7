#include "engine/decode/ngram.h"

#include "engine/decode/ngram_index.h"
#include "engine/host/methods/entry.h"

namespace tandem {

const MethodEntry& ngram_entry() {
  using P = NgramParams;
  static const auto* const kEntry = make_entry<P>({
      .name = "ngram",
      .drafts = true,
      .automatic = {{"draft_tokens", int64_t{8}}, {"adaptive", true}, {"only_if_faster", true}},
      .fields =
          Fields<P>()
              .add("draft_tokens", &P::draft_tokens, {1, 64}, "drafts in a round, at most")
              .add("max_ngram", &P::max_ngram, {1, kMaxNgram},
                   "the longest suffix of the text that is looked up")
              .add("adaptive", &P::adaptive, "steer draft_tokens by what is kept")
              .add("only_if_faster", &P::only_if_faster, "drafts as far as they make it faster"),
      .needs = [](const P&, const DeploymentConfig& d) { return MethodNeeds{{of_large(d)}, {}}; },
      .contract = [](const P&, bool) { return Contract::kExact; },
      .start = ngram,
  });
  return *kEntry;
}

}  // namespace tandem
