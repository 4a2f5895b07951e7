// How a small model drafts for the large one (SpeculativeParams): fields that the methods which
// draft so share.
#pragma once

#include <string>
#include <utility>

#include "engine/decode/speculative.h"
#include "engine/host/methods/fields.h"

namespace tandem {

// P: derived from SpeculativeParams, or the same. mask_field: the name of its mask tokens' field.
template <class P>
Fields<P> draft_fields(Fields<P> fields, const std::string& mask_field) {
  return std::move(fields)
      .add("draft_tokens", &P::draft_tokens, {1, 64}, "draft tokens in a round, at most")
      .add("pace", &P::pace,
           {{"PACE_FIXED", Pace::kFixed},
            {"PACE_ADAPTIVE", Pace::kAdaptive},
            {"PACE_FASTEST", Pace::kFastest}},
           "how many drafts: always draft_tokens, after the accept length, or the fastest")
      .add("min_draft_probability", &P::min_draft_probability, {0, 1},
           "drafting stops below this probability")
      .add("num_masks", &P::num_masks, {0, 16},
           "parallel draft tokens: mask tokens of the small model in each of its passes")
      .add(mask_field, &P::adapter, "mask tokens: one of the small model's `extras`",
           Field::By::kDeployment)
      .add("draft_vocabulary", &P::draft_vocabulary, {0, 1 << 24},
           "only ids below this are drafted; 0: all; unset: chosen by the models");
}

}  // namespace tandem
