// What the server knows of a decoding method: one entry each, in a file of its own beside this one,
// listed in registry.cpp. docs/recipes.md says how one is added.
//
//   const MethodEntry& ngram_entry() {
//     static const auto* const kEntry = make_entry<NgramParams>({
//         .name = "ngram",
//         .drafts = true,
//         .fields = Fields<NgramParams>().add("draft_tokens", ..),
//         .needs = [](const auto&, const DeploymentConfig& d) { return MethodNeeds{{of_large(d)}};
//         }, .contract = [](const auto&, bool greedy) { .. }, .start = ngram,
//     });
//     return *kEntry;
//   }
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/async/task.h"
#include "engine/base/config.h"
#include "engine/base/settings.h"
#include "engine/decode/gen.h"
#include "engine/host/methods/fields.h"
#include "engine/host/request.h"
#include "engine/pass/backend.h"

namespace tandem {

struct AcceptanceStats;  // engine/decode/pacing/acceptance_stats.h
struct LoadedModel;      // deployment.h

// A model of the configuration in a role, the large one first.
struct ModelInRole {
  Role role = Role::kLarge;
  std::string model;  // its name in the configuration
  int to = 0;         // layers; 0: all
  // Of a role below the top: its rows that lie between two layers at the same time. 0: all may.
  int frontier_rows = 0;
  // Which of the model's extras its passes go through: what the deployment's field `adapter` of the
  // method names. Empty: none.
  std::string adapter;
  int masks = 0;  // that the adapter is to have
  // Its rows that have done all layers leave their hidden states (PoolSize::retains_top_hidden).
  bool retains_top_hidden = false;
  // The role whose hidden rows of the prompt it is fed with, as that adapter says: after which
  // layers, and how. That role may run the prompt alone, and no further than it is read.
  std::optional<Role> fed_by;
  bool prompt_only = false;
  std::string field = {};  // of the method's, that names the model; empty: the deployment itself
};
// Whose adapter it goes through: the model's, or where its encoder is fed, that one's.
const ModelShape& fed_shape(const LoadedModel& model, const ModelInRole& role);

// What a method with its parameters wants of its deployment. It is offered where that is there.
struct MethodNeeds {
  std::vector<ModelInRole> models;
  std::optional<Refusal> lacking;  // what is not there, and which value would do without
};
inline ModelInRole of_large(const DeploymentConfig& d) { return {Role::kLarge, d.large, 0}; }
inline ModelInRole of_small(const DeploymentConfig& d) { return {Role::kSmall, d.small, 0}; }

// The models of a deployment as they are, when all are loaded.
struct MethodModels {
  const ModelShape& large;
  const ModelShape* small = nullptr;  // null: there is none
  std::string large_name;             // of the configuration
  std::string small_name;             // likewise; empty: there is none
  bool share_tokens = true;           // the same token behind each id
  const std::map<std::string, const LoadedModel*>* by_name = nullptr;
  int draft_vocabulary = 0;                                // Deployment::draft_vocabulary
  int early_vocabulary = 0;                                // Deployment::early_vocabulary
  std::shared_ptr<AcceptanceStats> acceptance_stats = {};  // of the deployment's requests
};
// Invalid: the model has no adapter of this name.
AdapterId find_adapter(const ModelShape& model, const std::string& name);
// Likewise, of its heads.
HeadId find_head(const ModelShape& model, const std::string& name);
// What of a role's adapter, which is there, will not do.
std::optional<Refusal> adapter_misfit(const ModelShape& model, const ModelInRole& role);

// A method's own counter: MethodStats::own, in the order of the entry.
struct MethodCounter {
  std::string name;      // of a field of tandem.v1.MethodStats
  std::string help;      // of the metric tandem_METHOD_NAME_total
  bool is_time = false;  // counted in nanoseconds, told in seconds

  double told(int64_t count) const {
    return is_time ? static_cast<double>(count) * 1e-9 : static_cast<double>(count);
  }
};

// A method with the parameters that hold for a request.
class MethodWithParams {
 public:
  virtual ~MethodWithParams() = default;
  virtual Settings settings() const = 0;  // every field that is set or has a default
  virtual MethodNeeds needs(const DeploymentConfig& deployment) const = 0;
  // Of its algorithm, where the device keeps the bits of rows (ModelShape::batch_invariant).
  virtual Contract contract(bool greedy) const = 0;
  virtual int extra_rows() const = 0;  // SequenceSpec::extra_rows
  virtual int width() const = 0;       // SequenceSpec::width
  virtual std::function<Task<void>(Gen)> start(const MethodModels& models) const = 0;
};

class MethodEntry {
 public:
  virtual ~MethodEntry() = default;

  std::string name;   // as in the protos: "ngram"
  std::string wants;  // of a deployment, for people; empty: no more than its large model
  // Every row that decides a token runs in a pass of its own, as autoregressive decoding runs it.
  // Else EXACT wants kernels that give a row the same bits beside others.
  bool rows_alone = false;
  bool drafts = false;  // it verifies drafts: MethodStats::accept_lengths and the like are its
  std::vector<MethodCounter> counters;
  // Settings that may bring about a stricter contract, the most welcome first.
  std::vector<Settings> stricter;
  // Its settings where the engine chooses it, but for those that the deployment has; none: the
  // engine never does.
  Settings automatic;
  std::vector<Field> fields;

  // The first of them that is no field of `by`, or out of its range.
  std::optional<Refusal> check(const Settings& settings, Field::By by) const;
  // "ngram.max_ngram"
  std::string path(const std::string& field) const { return name + "." + field; }

  // REQUIRES: the settings have been checked, those of `deployment` too.
  virtual std::unique_ptr<MethodWithParams> with(const DeploymentConfig& deployment,
                                                 const Settings& asked) const = 0;
  // What of the deployment's settings does not go with its models.
  virtual std::optional<Refusal> misfit(const DeploymentConfig& deployment,
                                        const MethodModels& models) const = 0;
  // What will do, but its operator should know of. REQUIRES: no misfit.
  virtual std::vector<std::string> notes(const DeploymentConfig& deployment,
                                         const MethodModels& models) const = 0;
};

// How an entry is written. P: the method's parameters, a plain struct whose members' initial values
// are the defaults.
template <class P>
struct MethodDescription {
  std::string name;
  std::string wants;
  bool rows_alone = false;
  bool drafts = false;
  std::vector<MethodCounter> counters;
  std::vector<Settings> stricter;
  Settings automatic;
  Fields<P> fields;
  // Defaults that depend on what the deployment has.
  std::function<P(const DeploymentConfig&)> defaults = [](const DeploymentConfig&) { return P(); };
  std::function<MethodNeeds(const P&, const DeploymentConfig&)> needs;
  std::function<std::optional<Refusal>(const P&, const MethodModels&)> misfit =
      [](const P&, const MethodModels&) { return std::optional<Refusal>(); };
  std::function<std::vector<std::string>(const P&, const MethodModels&)> notes =
      [](const P&, const MethodModels&) { return std::vector<std::string>(); };
  // Fills in what parameters name of the models: their ids.
  std::function<void(const MethodModels&, P*)> bind = [](const MethodModels&, P*) {};
  std::function<Contract(const P&, bool greedy)> contract;
  std::function<int(const P&)> extra_rows = [](const P&) { return 0; };
  std::function<int(const P&)> width = [](const P&) { return 1; };
  std::function<Task<void>(Gen, P)> start;
};

template <class P>
const MethodEntry* make_entry(MethodDescription<P> description) {
  class Entry final : public MethodEntry {
   public:
    explicit Entry(MethodDescription<P> description) : d_(std::move(description)) {
      name = d_.name;
      wants = d_.wants;
      rows_alone = d_.rows_alone;
      drafts = d_.drafts;
      counters = d_.counters;
      stricter = d_.stricter;
      automatic = d_.automatic;
      fields = d_.fields.described();
    }

    std::unique_ptr<MethodWithParams> with(const DeploymentConfig& deployment,
                                           const Settings& asked) const override {
      P params = of(deployment);
      d_.fields.apply(asked, &params);
      return std::make_unique<WithParams>(d_, std::move(params));
    }
    std::optional<Refusal> misfit(const DeploymentConfig& deployment,
                                  const MethodModels& models) const override {
      return d_.misfit(of(deployment), models);
    }
    std::vector<std::string> notes(const DeploymentConfig& deployment,
                                   const MethodModels& models) const override {
      return d_.notes(of(deployment), models);
    }

   private:
    class WithParams final : public MethodWithParams {
     public:
      WithParams(const MethodDescription<P>& d, P params) : d_(d), a_(std::move(params)) {}
      Settings settings() const override { return d_.fields.read(a_); }
      MethodNeeds needs(const DeploymentConfig& deployment) const override {
        return d_.needs(a_, deployment);
      }
      Contract contract(bool greedy) const override { return d_.contract(a_, greedy); }
      int extra_rows() const override { return d_.extra_rows(a_); }
      int width() const override { return d_.width(a_); }
      std::function<Task<void>(Gen)> start(const MethodModels& models) const override {
        P bound = a_;
        d_.bind(models, &bound);
        return [start = d_.start, a = std::move(bound)](Gen g) { return start(g, a); };
      }

     private:
      const MethodDescription<P>& d_;
      const P a_;
    };

    P of(const DeploymentConfig& deployment) const {
      P params = d_.defaults(deployment);
      const auto set = deployment.methods.find(d_.name);
      if (set != deployment.methods.end()) d_.fields.apply(set->second, &params);
      return params;
    }

    const MethodDescription<P> d_;
  };
  return new Entry(std::move(description));
}

}  // namespace tandem
