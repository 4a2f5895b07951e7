// Parallel draft tokens of the small model (engine/decode/draft_pass.h): parameters that the
// methods which draft with it share.
#pragma once

#include <string>

#include "engine/decode/draft_pass.h"
#include "engine/host/methods/entry.h"

namespace tandem {

// P: parameters with `num_masks` and `adapter`, the mask tokens' name.
template <class P>
int small_masks(const P& a) {
  return a.num_masks.value_or(a.adapter.empty() ? 0 : 1);
}

// Adds them to the needs of the small model, the second of `needs`. field: the method's field that
// names `adapter`.
template <class P>
void need_small_masks(const P& a, MethodNeeds* needs, const std::string& field = "adapter") {
  const int masks = small_masks(a);
  if (masks == 0) return;
  needs->models[1].masks = masks;
  needs->models[1].mask_adapter = a.adapter;
  needs->models[1].mask_field = field;
  if (!a.adapter.empty() || needs->lacking) return;
  needs->lacking = Refusal{"num_masks", std::to_string(masks),
                           "0 (its deployment names no " + field + " of this method)"};
}

}  // namespace tandem
