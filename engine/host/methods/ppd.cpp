#include "engine/decode/ppd.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"

namespace tandem {
namespace {

struct Params : PpdParams {
  int exit_layer = 0;               // 0: none
  std::vector<std::string> models;  // the workers
  std::string reader;               // a head, by name; empty: the model's own
};

Params defaults_of(const DeploymentConfig& d) {
  Params a;
  const auto set = d.methods.find("ppd");
  if (set == d.methods.end()) return a;
  const SettingValue* const workers = find_setting(set->second, "workers");
  if (!workers) return a;
  a.candidates = static_cast<int>(std::get<std::vector<std::string>>(*workers).size());
  return a;
}

MethodNeeds needs_of(const Params& a, const DeploymentConfig& d) {
  MethodNeeds needs{{of_large(d)}, {}};
  if (a.exit_layer == 0) {
    needs.lacking = {"exit_layer", "none", "a layer of the large model, in its deployment"};
  } else if (a.models.empty()) {
    needs.lacking = {"workers", "none", "models of the large one's lower layers"};
  }
  if (needs.lacking) return needs;
  // The last row of the text, and the row that a worker copies.
  needs.models.push_back({Role::kSmall, d.large, a.exit_layer, /*frontier_rows=*/2});
  for (const std::string& name : a.models) {
    ModelInRole worker{Role::kWorker, name};
    worker.field = "workers";
    worker.retains_top_hidden = true;
    needs.models.push_back(worker);
  }
  return needs;
}

// A worker is the lower layers of the large model, on another device queue.
std::optional<Refusal> worker_misfit(const LoadedModel& worker, const LoadedModel& large,
                                     int lower) {
  const ModelConfig &mine = worker.config, &theirs = large.config;
  const std::string name = quote_value(mine.name);
  const auto refused = [&](absl::string_view what, absl::string_view allowed) {
    return Refusal{"workers", absl::StrCat(name, " with ", what), std::string(allowed)};
  };
  const bool same = mine.path == theirs.path && mine.fake.has_value() == theirs.fake.has_value() &&
                    (!mine.fake || mine.fake->seed == theirs.fake->seed);
  if (!same) return refused("another path", absl::StrCat("that of the large model, ", theirs.name));
  if (worker.shape.layers != lower) {
    return refused(absl::StrCat("layers: ", worker.shape.layers),
                   absl::StrCat(lower, ", as many as the large model has above exit_layer"));
  }
  if (mine.dtype != theirs.dtype || mine.kv_dtype != theirs.kv_dtype) {
    return refused("another dtype or kv_dtype", "those of the large model");
  }
  if (mine.page_rows != theirs.page_rows) {
    return refused(absl::StrCat("page_rows: ", mine.page_rows), absl::StrCat(theirs.page_rows));
  }
  for (const LoadedModel* m : worker.instances()) {
    for (const LoadedModel* l : large.instances()) {
      if (m->config.device != l->config.device) continue;
      return refused(absl::StrCat("device: ", m->config.device),
                     "a device or a device queue (cpu:0/1) other than the large model's");
    }
  }
  return std::nullopt;
}

// The model must have the head for the layer that proposes candidates.
std::optional<Refusal> head_misfit(const Params& a, const LoadedModel& model) {
  const HeadId head = find_head(model.shape, a.reader);
  const auto fits = [&](const HeadShape& h) { return h.layer == a.exit_layer; };
  if (head.valid() && fits(model.shape.heads[head.index()])) return std::nullopt;
  std::vector<std::string> names;
  for (const HeadShape& h : model.shape.heads) {
    if (fits(h)) names.push_back(h.name);
  }
  const std::string layer =
      head.valid() ? absl::StrCat(", of layer ", model.shape.heads[head.index()].layer) : "";
  return Refusal{
      "head", absl::StrCat(quote_value(a.reader), layer),
      absl::StrCat(names.empty() ? "none" : absl::StrJoin(names, ", "), ", the heads of layer ",
                   a.exit_layer, " among the extras of model ", model.config.name)};
}

// The path of the head of this name.
std::string path_of_head(const LoadedModel& model, const std::string& name) {
  const auto& extras = model.config.extras;
  const auto found = std::ranges::find(extras, name, &ExtraConfig::name);
  return found == extras.end() ? "" : found->path;
}

// All models that propose candidates need the same head. If exit_layer is half of the layers,
// workers propose too.
std::optional<Refusal> heads_misfit(const Params& a, const Deployment& d) {
  if (a.reader.empty()) return std::nullopt;
  const LoadedModel& large = *d.large;
  if (auto why = head_misfit(a, large)) return why;
  if (large.shape.layers != 2 * a.exit_layer) return std::nullopt;
  const std::string path = path_of_head(large, a.reader);
  for (const std::string& name : a.models) {
    const LoadedModel& worker = *d.models.at(name);
    if (auto why = head_misfit(a, worker)) return why;
    if (const std::string other = path_of_head(worker, a.reader); other != path) {
      return Refusal{"head", absl::StrCat(other, " of model ", name),
                     absl::StrCat(path, ", as the large model has it")};
    }
  }
  return std::nullopt;
}

std::optional<Refusal> misfit_of(const Params& a, const Deployment& d) {
  if (a.exit_layer == 0) {
    if (a.reader.empty()) return std::nullopt;
    return Refusal{"head", quote_value(a.reader), "unset without exit_layer"};
  }
  const int layers = d.large->shape.layers;
  const int lowest = (layers + 1) / 2;
  if (a.exit_layer < lowest || a.exit_layer >= layers) {
    return Refusal{"exit_layer", absl::StrCat(a.exit_layer),
                   absl::StrCat("[", lowest, ", ", layers - 1, "], from half of the large model's ",
                                layers, " layers on")};
  }
  for (const auto& [name, model] : d.models) {
    if (std::ranges::count(a.models, name) > 1) {
      return Refusal{"workers", absl::StrCat(quote_value(name), " twice"), "each model once"};
    }
    if (std::ranges::find(a.models, name) == a.models.end()) continue;
    if (auto why = worker_misfit(*model, *d.large, layers - a.exit_layer)) return why;
  }
  return heads_misfit(a, d);
}

// Device queues of one GPU share its multiprocessors.
std::vector<std::string> notices_of(const Params& a, const Deployment& d) {
  const auto gpu_of = [](const LoadedModel& m) {
    const std::string& device = m.config.device;
    return absl::StartsWith(device, "cuda:") ? device.substr(0, device.find('/')) : "";
  };
  std::vector<std::string> notices;
  if (a.exit_layer == 0) return notices;
  const std::string gpu = gpu_of(*d.large);
  for (const std::string& name : a.models) {
    if (gpu.empty() || gpu_of(*d.models.at(name)) != gpu) continue;
    notices.push_back(absl::StrCat("worker ", name, " shares ", gpu, " with model ", d.config.large,
                                   ": no speed-up is to be expected"));
  }
  return notices;
}

void bind(const Deployment& d, LoraId, Params* a) {
  a->workers = static_cast<int>(a->models.size());
  if (!a->draft_vocabulary) a->draft_vocabulary = d.early_vocabulary;
  if (a->reader.empty()) return;
  a->head = find_head(d.large->shape, a->reader);
  for (const std::string& name : a->models) {
    a->worker_heads.push_back(find_head(d.models.at(name)->shape, a->reader));
  }
}

}  // namespace

const MethodEntry& ppd_entry() {
  using P = Params;
  using By = Field::By;
  constexpr bool kTime = true;
  static const auto* const kEntry = make_entry<P>({
      .name = "ppd",
      .requirement = "`ppd.exit_layer` and `ppd.workers`",
      // In the order of PpdFigures.
      .counters = {{"rounds", "Tokens after which workers ran candidates for the next one."},
                   {"matches", "Rounds in which a candidate was right."},
                   {"first_matches", "Rounds in which the first candidate was right."},
                   {"adopted_rows", "Matches whose worker finished in time."},
                   {"main_layers", "Layers that the large model ran for answers."},
                   {"worker_layers", "Layers that workers ran for candidates."},
                   {"copied_rows", "Rows copied between devices."},
                   {"predicted_main_layers",
                    "Layers that the large model would have run had all workers been in time."},
                   {"copied_bytes", "Bytes of rows copied between devices."},
                   {"lower_seconds",
                    "After the first token: the large model up to the early layer.", kTime},
                   {"upper_seconds", "After the first token: the large model above it.", kTime},
                   {"barrier_seconds", "After the first token: waits for workers.", kTime},
                   {"worker_seconds", "Workers' passes over candidates.", kTime}},
      .fields = Fields<P>()
                    .add("num_candidates", &P::candidates, {1, 16},
                         "tokens that the early layer proposes for the next one")
                    .add("draft_vocabulary", &P::draft_vocabulary, {0, 1 << 24},
                         "only ids below this are proposed; 0: all; unset: chosen for the model")
                    .add("exit_layer", &P::exit_layer, {1, 1023},
                         "the layer of the large model that proposes", By::kDeployment)
                    .add("workers", &P::models, "models that run the lower layers for candidates",
                         By::kDeployment)
                    .add("head", &P::reader,
                         "the head that reads the early layer, among the large model's extras",
                         By::kDeployment),
      .defaults = defaults_of,
      .needs = needs_of,
      .misfit = misfit_of,
      .notices = notices_of,
      .bind = bind,
      .contract = [](const P&, bool) { return Contract::kExact; },
      .no_lora =
          [](const P&) { return "its workers run the large model's layers without the adapter"; },
      .extra_rows = [](const P& a) { return a.candidates; },
      .start = [](Gen g, const P& a) { return ppd(g, a); },
  });
  return *kEntry;
}

}  // namespace tandem
