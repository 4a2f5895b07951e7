#include "engine/host/methods/registry.h"

#include <algorithm>

namespace tandem {

const MethodEntry& autoregressive_entry();
const MethodEntry& speculative_entry();
const MethodEntry& ngram_entry();
const MethodEntry& bild_entry();
const MethodEntry& bita_entry();
const MethodEntry& ppd_entry();
const MethodEntry& llm_to_slm_entry();

const Methods& all_methods() {
  static const auto* const kAll = new Methods{
      &autoregressive_entry(), &speculative_entry(), &ngram_entry(),      &bild_entry(),
      &bita_entry(),           &ppd_entry(),         &llm_to_slm_entry(),
  };
  return *kAll;
}

const MethodEntry* find_method(absl::string_view name, const Methods& methods) {
  const auto it = std::ranges::find(methods, name, &MethodEntry::name);
  return it == methods.end() ? nullptr : *it;
}

}  // namespace tandem
