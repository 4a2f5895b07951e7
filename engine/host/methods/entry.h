// What the server knows of a decoding method: one entry per method, each in its own file, listed in
// registry.cpp. docs/adding.md explains how to add one.
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
#include "engine/host/requests/request.h"
#include "engine/pass/backend.h"

namespace tandem {

struct Deployment;   // engine/host/deployment.h
struct LoadedModel;  // engine/host/models/loaded_model.h

const DeploymentConfig& config_of(const Deployment& deployment);  // Deployment::config

// A model of the configuration in a role.
struct ModelInRole {
  Role role = Role::kLarge;
  std::string model;  // its name in the configuration
  int to = 0;         // layers; 0: all
  // For a role below the top: rows that may lie between two layers at the same time. 0: all.
  int frontier_rows = 0;
  // The extra of the model that its conditioned rows use, from the method's deployment field
  // `adapter`. Empty: none.
  std::string adapter;
  std::string mask_adapter;            // the extra of its mask tokens. Empty: none.
  int masks = 0;                       // that mask_adapter must have
  std::string mask_field = "adapter";  // the method's deployment field that names it
  // Rows that ran all layers keep their hidden states (PoolSize::retains_top_hidden).
  bool retains_top_hidden = false;
  // The role whose hidden states of the prompt condition this one, through `adapter`.
  std::optional<Role> conditioned_by;
  bool prompt_only = false;  // it runs only the prompt, up to the layer that the adapter reads
  std::string field = {};    // the method's field that names the model; empty: `large` or `small`

  friend bool operator==(const ModelInRole&, const ModelInRole&) = default;
};
// The shape whose adapter conditions the role: the model's, or its encoder's.
const ModelShape& adapter_owner(const LoadedModel& model, const ModelInRole& role);

// The models that a method needs, the large one first.
struct MethodNeeds {
  std::vector<ModelInRole> models;
  // Set if the deployment cannot run the method with these parameters. `allowed` names a value of
  // the field that it can run.
  std::optional<Refusal> lacking;
};
inline ModelInRole of_large(const DeploymentConfig& d) { return {Role::kLarge, d.large, 0}; }
inline ModelInRole of_small(const DeploymentConfig& d) { return {Role::kSmall, d.small, 0}; }

// The model's adapter or head of this name. Invalid: it has none.
AdapterId find_adapter(const ModelShape& model, const std::string& name);
HeadId find_head(const ModelShape& model, const std::string& name);
// Why mask_adapter does not serve the role. REQUIRES: the model has it.
std::optional<Refusal> masks_misfit(const ModelShape& model, const ModelInRole& role);

// A counter of one method: MethodStats::own, in the order of the entry.
struct MethodCounter {
  std::string name;      // field of tandem.v1.MethodStats
  std::string help;      // of the metric tandem_METHOD_NAME_total
  bool is_time = false;  // counted in nanoseconds, reported in seconds

  double reported(int64_t count) const {
    return is_time ? static_cast<double>(count) * 1e-9 : static_cast<double>(count);
  }
};

// A method with a request's parameters.
class MethodWithParams {
 public:
  virtual ~MethodWithParams() = default;
  virtual Settings settings() const = 0;  // every field that is set or has a default
  virtual MethodNeeds needs(const DeploymentConfig& deployment) const = 0;
  // Of the algorithm, on batch-invariant devices (ModelShape::batch_invariant).
  virtual Contract contract(bool greedy) const = 0;
  // Why it cannot run with a LoRA adapter of the large model; empty: it can.
  virtual std::string no_lora() const = 0;
  virtual int extra_rows() const = 0;  // SequenceSpec::extra_rows
  virtual int width() const = 0;       // SequenceSpec::width
  // `lora`: of the large model; invalid: none.
  virtual std::function<Task<void>(Gen)> start(const Deployment& deployment, LoraId lora) const = 0;
};

class MethodEntry {
 public:
  virtual ~MethodEntry() = default;

  std::string name;         // as in the protos: "ngram"
  std::string requirement;  // of the deployment, for error messages; empty: only the large model
  // Every row that decides a token runs in a pass of its own, as in autoregressive decoding. Other
  // methods are EXACT on batch-invariant devices, and exact up to rounding on others.
  bool single_row_passes = false;
  // It verifies drafts, and so counts MethodStats::accept_lengths and the like.
  bool drafts = false;
  bool looks_up =
      false;  // it may have a DraftLookup: an index of its text (NgramIndex::kTokenBytes)
  std::vector<MethodCounter> counters;
  // Settings that can give a stricter contract, the preferred one first.
  std::vector<Settings> stricter;
  // Settings with which `auto` runs the method, except those that the deployment sets. Empty:
  // `auto` runs it only as the deployment's default.
  Settings automatic;
  // The switch among the fields that changes the roles. Both values are compiled at load. Empty:
  // none.
  std::string variant;
  std::vector<Field> fields;

  // The first setting that is not a field of `by`, or is out of range.
  std::optional<Refusal> check(const Settings& settings, Field::By by) const;
  // "ngram.max_ngram"
  std::string path(const std::string& field) const { return name + "." + field; }

  // `asked` overrides the deployment's settings. REQUIRES: both have been checked.
  virtual std::unique_ptr<MethodWithParams> with(const DeploymentConfig& deployment,
                                                 const Settings& asked) const = 0;
  // The first of the deployment's settings that does not fit its models.
  virtual std::optional<Refusal> misfit(const Deployment& deployment) const = 0;
  // Warnings for the operator. REQUIRES: no misfit.
  virtual std::vector<std::string> notices(const Deployment& deployment) const = 0;
};

// How an entry is written. P: the method's parameters, a plain struct whose initial values are the
// defaults.
template <class P>
struct MethodDescription {
  std::string name;
  std::string requirement;
  bool single_row_passes = false;
  bool drafts = false;
  bool looks_up = false;
  std::vector<MethodCounter> counters;
  std::vector<Settings> stricter;
  Settings automatic;
  std::string variant;
  Fields<P> fields;
  // Defaults that depend on the deployment.
  std::function<P(const DeploymentConfig&)> defaults = [](const DeploymentConfig&) { return P(); };
  std::function<MethodNeeds(const P&, const DeploymentConfig&)> needs;
  std::function<std::optional<Refusal>(const P&, const Deployment&)> misfit =
      [](const P&, const Deployment&) { return std::optional<Refusal>(); };
  std::function<std::vector<std::string>(const P&, const Deployment&)> notices =
      [](const P&, const Deployment&) { return std::vector<std::string>(); };
  // Sets the parameters that come from the deployment's models and the request's LoRA adapter.
  std::function<void(const Deployment&, LoraId, P*)> bind = [](const Deployment&, LoraId, P*) {};
  std::function<Contract(const P&, bool greedy)> contract;
  std::function<std::string(const P&)> no_lora = [](const P&) { return std::string(); };
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
      requirement = d_.requirement;
      single_row_passes = d_.single_row_passes;
      drafts = d_.drafts;
      looks_up = d_.looks_up;
      counters = d_.counters;
      stricter = d_.stricter;
      automatic = d_.automatic;
      variant = d_.variant;
      fields = d_.fields.described();
    }

    std::unique_ptr<MethodWithParams> with(const DeploymentConfig& deployment,
                                           const Settings& asked) const override {
      P params = defaults_of(deployment);
      d_.fields.apply(asked, &params);
      return std::make_unique<WithParams>(d_, std::move(params));
    }
    std::optional<Refusal> misfit(const Deployment& deployment) const override {
      return d_.misfit(defaults_of(config_of(deployment)), deployment);
    }
    std::vector<std::string> notices(const Deployment& deployment) const override {
      return d_.notices(defaults_of(config_of(deployment)), deployment);
    }

   private:
    class WithParams final : public MethodWithParams {
     public:
      WithParams(const MethodDescription<P>& d, P params) : d_(d), params_(std::move(params)) {}
      Settings settings() const override { return d_.fields.read(params_); }
      MethodNeeds needs(const DeploymentConfig& deployment) const override {
        return d_.needs(params_, deployment);
      }
      Contract contract(bool greedy) const override { return d_.contract(params_, greedy); }
      std::string no_lora() const override { return d_.no_lora(params_); }
      int extra_rows() const override { return d_.extra_rows(params_); }
      int width() const override { return d_.width(params_); }
      std::function<Task<void>(Gen)> start(const Deployment& deployment,
                                           LoraId lora) const override {
        P bound = params_;
        d_.bind(deployment, lora, &bound);
        return [start = d_.start, a = std::move(bound)](Gen g) { return start(g, a); };
      }

     private:
      const MethodDescription<P>& d_;
      const P params_;
    };

    P defaults_of(const DeploymentConfig& deployment) const {
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
