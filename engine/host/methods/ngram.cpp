#include "engine/decode/ngram.h"

#include "engine/decode/ngram_index.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"

namespace tandem {

const MethodEntry& ngram_entry() {
  using P = NgramParams;
  static const auto* const kEntry = make_entry<P>({
      .name = "ngram",
      .drafts = true,
      .looks_up = true,
      .automatic = {{"draft_tokens", int64_t{64}}, {"pace", std::string("PACE_FASTEST")}},
      .fields =
          Fields<P>()
              .add("draft_tokens", &P::draft_tokens, {1, 64}, "draft tokens in a round, at most")
              .add("max_ngram", &P::max_ngram, {1, kMaxNgram},
                   "the longest suffix of the text that is looked up")
              .add("pace", &P::pace,
                   {{"PACE_FIXED", Pace::kFixed},
                    {"PACE_ADAPTIVE", Pace::kAdaptive},
                    {"PACE_FASTEST", Pace::kFastest}},
                   "how many drafts: always draft_tokens, after the accept length, or the fastest"),
      .needs = [](const P&, const DeploymentConfig& d) { return MethodNeeds{{of_large(d)}, {}}; },
      .bind = [](const Deployment& d, LoraId lora, P* a) { a->stats = d.acceptance_of(lora); },
      .contract = [](const P&, bool) { return Contract::kExact; },
      .start = ngram,
  });
  return *kEntry;
}

}  // namespace tandem
