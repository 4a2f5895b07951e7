#include "tests/simulation/requests.h"

#include <algorithm>

#include "engine/backend/fake/model.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/llm_to_slm.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/beam.h"

namespace tandem::simulation {
namespace {

bool has_small_model(MethodKind kind) {
  return kind == MethodKind::kSpeculative || kind == MethodKind::kBild ||
         kind == MethodKind::kConditioned;
}

std::function<Task<void>(Gen)> method_of(const Request& q) {
  switch (q.kind) {
    case MethodKind::kAr:
      return autoregressive;
    case MethodKind::kSpeculative:
      return [a = q.speculative](Gen g) { return speculative(g, a); };
    case MethodKind::kNgram:
      return [a = q.ngram](Gen g) { return ngram(g, a); };
    case MethodKind::kBild:
    case MethodKind::kEarlyExit:
      return [a = q.bild](Gen g) { return bild(g, a); };
    case MethodKind::kBita:
      return [a = q.bita](Gen g) { return bita(g, a); };
    case MethodKind::kBeam:
      return [a = q.beam](Gen g) { return beam(g, a); };
    case MethodKind::kConditioned:
      return [](Gen g) { return llm_to_slm(g, {}); };
    case MethodKind::kPpd:
      return [a = q.ppd](Gen g) { return ppd(g, a); };
  }
  return nullptr;
}

// Adds the encoder of each role's model. Roles of one model share it and its cache.
void add_encoders(Cast& cast) {
  const size_t roles = cast.roles.size();
  for (size_t i = 0; i < roles; ++i) {
    const ModelId encoder(cast.roles[i].model.value + kEncoders);
    auto known = std::ranges::find(cast.roles, encoder, &CastRole::model);
    if (known == cast.roles.end()) known = cast.roles.insert(known, encoder_role(encoder));
    cast.memories.push_back(
        {.reader = static_cast<int>(i), .encoder = static_cast<int>(known - cast.roles.begin())});
  }
}

// Hidden rows of the large model or its encoder condition the small model or its encoder.
void add_conditioning(const Request& q, Cast& cast) {
  const reference::Fusion& f = q.fusion;
  CastRole& large = cast.roles[0];
  large.prompt_only = true;
  large.encodes = f.encoded;
  large.layers = f.encoded ? 0 : f.at;
  if (f.encoded) large.model = ModelId(kEncoders);
  if (!q.source.empty()) {
    cast.memories = {{.reader = 1, .encoder = 2}};
    cast.roles.push_back(encoder_role(ModelId(kEncoders + 1)));
  }
  cast.roles.back().adapter = f.adapter;
  cast.conditioning = {{.from = 0,
                        .to = q.source.empty() ? 1 : 2,
                        .layer = f.encoded ? 0 : f.at,
                        .replace = f.replace}};
}

std::shared_ptr<const Cast> cast_of(const Plan& plan, const Request& q) {
  auto cast = std::make_shared<Cast>();
  cast->roles = {{Role::kLarge, ModelId(0)}};
  if (has_small_model(q.kind)) {
    cast->roles.push_back({Role::kSmall, ModelId(1)});
    if (q.kind == MethodKind::kConditioned) add_conditioning(q, *cast);
  } else if (q.kind == MethodKind::kEarlyExit) {
    cast->roles.push_back({Role::kSmall, ModelId(0), 1});
  } else if (q.kind == MethodKind::kPpd) {
    cast->roles.push_back({Role::kSmall, ModelId(0), plan.model[1].layers, 2});
    cast->roles.push_back({Role::kWorker, ModelId(1)});
  }
  if (!q.source.empty() && q.kind != MethodKind::kConditioned) add_encoders(*cast);
  if (q.kind == MethodKind::kBita) cast->roles[0].mask_adapter = AdapterId(0);
  if (q.kind == MethodKind::kSpeculative) cast->roles[1].mask_adapter = AdapterId(0);
  return q.lora.valid() ? with_lora(*cast, q.lora) : cast;
}

}  // namespace

std::vector<SequenceSpec> specs_of(const Plan& plan, size_t index) {
  const Request& q = plan.requests[index];
  std::vector<SequenceSpec> choices;
  for (int choice = 0; choice < q.choices; ++choice) {
    SequenceSpec& s = choices.emplace_back();
    s.id = id_of(index, choice);
    s.prompt = q.prompt;
    s.method = method_of(q);
    s.cast = cast_of(plan, q);
    s.encoder_tokens = q.source;
    if (q.kind == MethodKind::kConditioned) {
      s.conditioning_tokens = q.fusion.read;
      s.alignment = q.fusion.alignment;
    }
    if (q.kind == MethodKind::kPpd) s.extra_rows = q.ppd.candidates;
    s.warp = q.warp;
    s.warp.choice = static_cast<uint32_t>(choice);
    s.stops.eos = q.eos;
    s.stops.max_new_tokens = q.max_new_tokens;
    if (q.kind == MethodKind::kBeam) s.width = q.beam.width;
    s.priority = q.priority;
    s.client = q.client;
    s.salt = q.salt;
    s.deadline = q.deadline;
    s.time_limit = q.time_limit;
  }
  return choices;
}

std::vector<Token> answer_to(const Plan& plan, size_t index, int choice) {
  const Request& q = plan.requests[index];
  const FakeModelConfig large = fake::with_lora(plan.model[0], q.lora);
  Warp warp = q.warp;
  warp.choice = static_cast<uint32_t>(choice);
  if (q.kind == MethodKind::kBeam) {
    return reference::beam(reference::Model(large, 0, q.source), q.prompt, q.beam, q.eos,
                           q.max_new_tokens);
  }
  if (q.kind == MethodKind::kConditioned) {
    return reference::llm_to_slm(plan.model[1], q.fusion, q.prompt, warp, q.eos, q.max_new_tokens,
                                 q.source);
  }
  return reference::autoregressive(large, q.prompt, warp, q.eos, q.max_new_tokens, q.source);
}

}  // namespace tandem::simulation
