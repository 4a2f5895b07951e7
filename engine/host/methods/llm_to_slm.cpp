#include "engine/decode/llm_to_slm.h"

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/host/methods/entry.h"

namespace tandem {
namespace {

struct Params : LlmToSlmParams {
  std::string adapter;  // the projector, among the small model's extras; empty: not offered
};

MethodNeeds needs_of(const Params& a, const DeploymentConfig& d) {
  MethodNeeds needs{{of_large(d), of_small(d)}, {}};
  needs.models[0].prompt_only = !a.speculative;
  needs.models[1].adapter = a.adapter;
  needs.models[1].fed_by = Role::kLarge;
  if (a.adapter.empty() || d.small.empty()) needs.lacking = Refusal();
  return needs;
}

std::optional<Refusal> misfit_of(const Params& a, const MethodModels& models) {
  if (a.adapter.empty()) return std::nullopt;
  if (models.small == nullptr) {
    return Refusal{"adapter", quote_value(a.adapter), "unset without a `small` model"};
  }
  const AdapterShape& adapter =
      models.small->adapters[find_adapter(*models.small, a.adapter).index()];
  if (adapter.source == 0) {
    return Refusal{"adapter", quote_value(a.adapter), "an adapter of kind projector"};
  }
  if (adapter.source_sample != models.large.sample) {
    return Refusal{"adapter",
                   absl::StrCat(quote_value(a.adapter), ", for rows of a model with the sample ",
                                quote_value(adapter.source_sample)),
                   absl::StrCat("one for model ", models.large.name, ", which has ",
                                quote_value(models.large.sample))};
  }
  if (adapter.source != models.large.hidden_size || adapter.layer > models.large.layers) {
    return Refusal{"adapter",
                   absl::StrCat(quote_value(a.adapter), ", for rows of width ", adapter.source,
                                " after layer ", adapter.layer),
                   absl::StrCat("width ", models.large.hidden_size, " and at most layer ",
                                models.large.layers, " of model ", models.large.name)};
  }
  return std::nullopt;
}

}  // namespace

const MethodEntry& llm_to_slm_entry() {
  using P = Params;
  static const auto* const kEntry = make_entry<P>({
      .name = "llm_to_slm",
      .wants = "a `small` model and `llm_to_slm.adapter`",
      .drafts = true,
      .stricter = {{{"speculative", true}}},
      .fields =
          Fields<P>()
              .add("speculative", &P::speculative, "the large model verifies what the small writes")
              .add("draft_tokens", &P::draft_tokens, {1, 64}, "drafts in a round, if so")
              .add("adapter", &P::adapter, "the projector, among the small model's extras",
                   Field::By::kDeployment),
      .needs = needs_of,
      .misfit = misfit_of,
      .contract = [](const P& a,
                     bool) { return a.speculative ? Contract::kExact : Contract::kLossy; },
      .start = llm_to_slm,
  });
  return *kEntry;
}

}  // namespace tandem
