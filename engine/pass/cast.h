// Which models a request runs on, in which roles, and which rows one role passes to another.
//
// A Cast describes how a deployment runs one method. It is immutable and shared by all choices of a
// request. Per-request data (prompt, encoder tokens, alignment) is in SequenceSpec (sched/spec.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

enum class Role : uint8_t { kLarge, kSmall, kEncoder, kWorker };
inline constexpr size_t kRoles = 4;

// A model in a role. Roles of one model share one cache (early exit).
struct CastRole {
  Role role = Role::kLarge;
  // In a cast that is not placed, any replica may take the place of this model.
  ModelId model;
  int layers = 0;  // that its passes run: [0, layers); 0: all
  // Of a role below the top: the most rows that are between two layers at one time. 0: no bound.
  int frontier_rows = 0;
  // A pass has rows of at most one of the two. Invalid: none.
  AdapterId adapter;         // of its conditioned rows
  AdapterId mask_adapter;    // of its mask rows, which leave nothing in the cache
  LoraId lora;               // of all its rows; roles of one model have the same. Invalid: none
  bool prompt_only = false;  // its cache holds prompt rows only
  // An encoder: its rows see each other, so they run in one pass. Set for each Role::kEncoder, and
  // for an encoder in another role, whose hidden rows condition the small model.
  bool encodes = false;

  // The most frontier pages that `rows` rows need in a model of `model_layers` layers.
  int64_t frontier_pages(int model_layers, int page_rows, int64_t rows) const {
    if (layers <= 0 || layers >= model_layers) return 0;
    const int64_t all = (rows + page_rows - 1) / page_rows;
    if (frontier_rows == 0) return all;
    const int64_t run = (frontier_rows - 2 + page_rows) / page_rows + 1;  // at any offset
    return std::min(all, run);
  }
};

inline CastRole encoder_role(ModelId model) {
  return {.role = Role::kEncoder, .model = model, .encodes = true};
}

// LLM-to-SLM (docs/decoding_methods.md): hidden rows of role `from` condition role `to`. They pass
// through `to`'s adapter and become inputs of its prompt rows; of an encoder, of all its rows.
// Passes of `from` leave the rows. Roles are indices into Cast::roles.
struct ConditioningEdge {
  int from = -1;
  int to = -1;
  int layer = 0;         // of `from`, after which the rows are taken; 0: the last that it runs
  bool replace = false;  // the rows replace the token embeddings; else they are added to them
  bool distinct_tokenizer = false;  // the prompt's ids belong to another vocabulary than `to`'s
};

// Cross-attention: each pass of `reader` reads the rows of `encoder`.
struct MemoryEdge {
  int reader = -1;
  int encoder = -1;
};

struct Cast {
  std::vector<CastRole> roles;  // the large model first
  std::vector<ConditioningEdge> conditioning;
  std::vector<MemoryEdge> memories;

  bool has_edges() const { return !conditioning.empty() || !memories.empty(); }
  // The encoder whose rows a role reads; -1: none.
  int memory_of(size_t role) const {
    const auto edge = std::ranges::find(memories, static_cast<int>(role), &MemoryEdge::reader);
    return edge == memories.end() ? -1 : edge->encoder;
  }
  // The edge that conditions a role; null: none.
  const ConditioningEdge* conditioning_of(size_t role) const {
    const auto edge =
        std::ranges::find(conditioning, static_cast<int>(role), &ConditioningEdge::to);
    return edge == conditioning.end() ? nullptr : &*edge;
  }
  // True: the role's hidden rows condition another role.
  bool conditions(size_t role) const {
    return std::ranges::find(conditioning, static_cast<int>(role), &ConditioningEdge::from) !=
           conditioning.end();
  }
};

inline std::shared_ptr<const Cast> make_cast(std::vector<CastRole> roles) {
  return std::make_shared<const Cast>(Cast{std::move(roles), {}, {}});
}

// `cast` with `lora` in the roles of the large model: the first role, and roles that run lower
// layers of its cache.
inline std::shared_ptr<const Cast> with_lora(const Cast& cast, LoraId lora) {
  const auto out = std::make_shared<Cast>(cast);
  for (CastRole& role : out->roles) {
    if (role.model == cast.roles.front().model) role.lora = lora;
  }
  return out;
}

}  // namespace tandem
