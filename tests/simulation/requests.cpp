#include "tests/simulation/requests.h"

#include <algorithm>

#include "engine/decode/autoregressive.h"
#include "engine/decode/llm_to_slm.h"
#include "tests/engine/decode/sketches_values.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/beam.h"

namespace tandem::simulation {
namespace {

bool has_small_model(Kind kind) {
  return kind == Kind::kSpeculative || kind == Kind::kBild || kind == Kind::kEmbedded;
}

std::function<Task<void>(Gen)> method_of(const Request& q) {
  switch (q.kind) {
    case Kind::kAr:
      return autoregressive;
    case Kind::kSpeculative:
      return [a = q.speculative](Gen g) { return speculative(g, a); };
    case Kind::kNgram:
      return [a = q.ngram](Gen g) { return ngram(g, a); };
    case Kind::kBild:
    case Kind::kEarlyExit:
      return [a = q.bild](Gen g) { return bild(g, a); };
    case Kind::kBita:
      return [a = q.bita](Gen g) { return bita(g, a); };
    case Kind::kBeam:
      return [a = q.beam](Gen g) { return beam(g, a); };
    case Kind::kEmbedded:
      return [](Gen g) { return llm_to_slm(g, {}); };
    case Kind::kPpd:
      return [a = q.ppd](Gen g) { return ppd(g, a); };
  }
  return nullptr;
}

// Of each role's model; two that share it share its encoder's cache as well.
void add_encoders(const Request& q, SequenceSpec& s) {
  s.source = q.source;
  const size_t roles = s.roles.size();
  for (size_t i = 0; i < roles; ++i) {
    const ModelId encoder(s.roles[i].model.value + kEncoders);
    auto known = std::ranges::find(s.roles, encoder, &RoleModel::model);
    if (known == s.roles.end()) known = s.roles.insert(known, {Role::kEncoder, encoder, 0});
    s.roles[i].memory = static_cast<int>(known - s.roles.begin());
  }
}

// The large model or its encoder reads; the small one, or its encoder, is fed with its rows.
void tell(const Request& q, SequenceSpec& s) {
  const reference::Fusion& f = q.fusion;
  s.read = f.read;
  s.beside = f.beside;
  s.source = q.source;
  RoleModel& reader = s.roles[0];
  reader.prompt_only = true;
  reader.sees_all = f.reader_sees_all;
  reader.to = f.reader_sees_all ? 0 : f.at;
  if (f.reader_sees_all) reader.model = ModelId(kEncoders);
  if (!q.source.empty()) {
    s.roles[1].memory = 2;
    s.roles.push_back({Role::kEncoder, ModelId(kEncoders + 1)});
  }
  s.roles.back().adapter = f.adapter;
  s.roles.back().fed = {.role = 0, .at = f.reader_sees_all ? 0 : f.at, .replace = f.replace};
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
    s.roles = {{Role::kLarge, ModelId(0), 0}};
    if (has_small_model(q.kind)) {
      s.roles.push_back({Role::kSmall, ModelId(1), 0});
      if (q.kind == Kind::kEmbedded) tell(q, s);
    } else if (q.kind == Kind::kEarlyExit) {
      s.roles.push_back({Role::kSmall, ModelId(0), 1});
    } else if (q.kind == Kind::kPpd) {
      s.roles.push_back({Role::kSmall, ModelId(0), plan.model[1].layers, 2});
      s.roles.push_back({Role::kWorker, ModelId(1), 0});
      s.extra_rows = q.ppd.candidates;
    }
    if (!q.source.empty() && q.kind != Kind::kEmbedded) add_encoders(q, s);
    if (q.kind == Kind::kBita) s.roles[0].masks = AdapterId(0);
    if (q.kind == Kind::kSpeculative) s.roles[1].masks = AdapterId(0);
    s.warp = q.warp;
    s.warp.choice = static_cast<uint32_t>(choice);
    s.stops.eos = q.eos;
    s.stops.max_new_tokens = q.max_new_tokens;
    if (q.kind == Kind::kBeam) s.width = q.beam.width;
    s.priority = q.priority;
    s.client = q.client;
    s.salt = q.salt;
    s.deadline = q.deadline;
    s.time_limit = q.time_limit;
  }
  return choices;
}

std::vector<Token> answer_to(const Plan& plan, size_t index, int choice) {
  const FakeModelConfig& large = plan.model[0];
  const Request& q = plan.requests[index];
  Warp warp = q.warp;
  warp.choice = static_cast<uint32_t>(choice);
  if (q.kind == Kind::kBeam) {
    return reference::beam(reference::Model(large, 0, q.source), q.prompt, q.beam, q.eos,
                           q.max_new_tokens);
  }
  if (q.kind == Kind::kEmbedded) {
    return reference::llm_to_slm(plan.model[1], q.fusion, q.prompt, warp, q.eos, q.max_new_tokens,
                                 q.source);
  }
  return reference::autoregressive(large, q.prompt, warp, q.eos, q.max_new_tokens, q.source);
}

}  // namespace tandem::simulation
