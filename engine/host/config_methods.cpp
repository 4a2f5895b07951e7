#include "engine/host/config_methods.h"

#include <limits>

#include "engine/base/status.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

constexpr double kInf = std::numeric_limits<double>::infinity();

// The number `name` of the message `section`.
#define TANDEM_DEFAULT(section, message, name, min, max, to) \
  TANDEM_RETURN_IF_ERROR(                                    \
      fields.number(section "." #name, (message).has_##name(), (message).name(), min, max, to))

absl::Status speculative_from(const pb::Deployment& deployment, const ConfigFields& fields,
                              SpeculativeDefaults* out) {
  const pb::SpeculativeDefaults& in = deployment.speculative();
  TANDEM_DEFAULT("speculative", in, draft_tokens, 1, 64, &out->draft_tokens);
  TANDEM_DEFAULT("speculative", in, min_draft_probability, 0.0, 1.0, &out->min_draft_probability);
  if (in.has_adaptive()) out->adaptive = in.adaptive();
  if (in.draft() == pb::SpeculativeDefaults::DRAFT_NGRAM) out->draft = DraftSource::kNgram;
  if (in.draft() == pb::SpeculativeDefaults::DRAFT_MODEL) {
    if (deployment.small().empty()) {
      return fields.error("speculative.draft", "DRAFT_MODEL",
                          "DRAFT_NGRAM (the deployment has no `small`)");
    }
    out->draft = DraftSource::kModel;
  }
  return absl::OkStatus();
}

absl::Status bild_from(const pb::BildDefaults& in, const ConfigFields& fields, BildDefaults* out) {
  TANDEM_DEFAULT("bild", in, fallback_threshold, 0.0, 2.0, &out->fallback_threshold);
  TANDEM_DEFAULT("bild", in, rollback_threshold, 0.0, kInf, &out->rollback_threshold);
  TANDEM_DEFAULT("bild", in, max_small_run, 0, 4096, &out->max_small_run);
  TANDEM_DEFAULT("bild", in, early_exit_layer, 1, 1023, &out->early_exit_layer);
  if (in.has_verify_eos()) out->verify_eos = in.verify_eos();
  return absl::OkStatus();
}

#undef TANDEM_DEFAULT

}  // namespace

absl::Status method_defaults_from(const pb::Deployment& in, const ConfigFields& fields,
                                  DeploymentConfig* out) {
  TANDEM_RETURN_IF_ERROR(speculative_from(in, fields, &out->speculative));
  TANDEM_RETURN_IF_ERROR(bild_from(in.bild(), fields, &out->bild));
  switch (in.default_method()) {
    case pb::Deployment::METHOD_SPECULATIVE:
      out->default_method = MethodChoice::kSpeculative;
      break;
    case pb::Deployment::METHOD_BILD:
      if (in.small().empty() && out->bild.early_exit_layer == 0) {
        return fields.error(
            "default_method", "METHOD_BILD",
            "METHOD_AUTOREGRESSIVE, METHOD_SPECULATIVE (the deployment has neither `small` nor "
            "`bild.early_exit_layer`)");
      }
      out->default_method = MethodChoice::kBild;
      break;
    default:
      out->default_method = MethodChoice::kAutoregressive;
  }
  return absl::OkStatus();
}

}  // namespace tandem
