// Rotary parameters of config.json.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;

// Properties of the model that rotary parameters depend on.
struct RopeModel {
  double theta = 0;  // default
  int64_t max_positions = 0;
  int head_dim = 0;
};

// One object of rotary parameters, read by its type.
class RopeObject {
 public:
  RopeObject(const HfFile& file, const json& object, const std::string& source,
             const RopeModel& model)
      : file_(file),
        object_(object),
        inner_(object, absl::StrCat(file.name, ": ", source, ".")),
        model_(model) {}

  RopeConfig read() {
    rope_.theta = inner_.number("rope_theta", model_.theta, 1e-3, 1e15);
    const char* const type_field = inner_.present("rope_type") ? "rope_type" : "type";
    const std::string type = inner_.text(type_field, "default");
    inner_.number("partial_rotary_factor", 1.0, 1, 1);
    if (type == "default") {
      expect_only({"factor", "low_freq_factor", "high_freq_factor", kOriginal});
    } else if (type == "linear" || type == "dynamic") {
      read_factor(type == "linear" ? RopeConfig::kLinear : RopeConfig::kDefault);
    } else if (type == "llama3") {
      read_llama3();
    } else if (type == "yarn") {
      read_yarn();
    } else if (type == "longrope") {
      read_longrope();
    } else {
      inner_.refuse(type_field, "default, linear, dynamic, llama3, yarn, longrope");
    }
    file_.fields.fail(inner_.status());
    return rope_;
  }

 private:
  static constexpr const char* kOriginal = "original_max_position_embeddings";

  // Unknown fields are rejected: they might change results.
  void expect_only(std::vector<const char*> known) {
    known.insert(known.end(), {"rope_type", "type", "rope_theta", "partial_rotary_factor"});
    for (const auto& [key, value] : object_.items()) {
      if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end()) {
        inner_.refuse(key.c_str(), "nothing: the field is not supported");
      }
    }
  }

  // A field of this name outside the object takes precedence, as in Transformers.
  void read_original() {
    const int64_t own = inner_.integer(kOriginal, model_.max_positions, 1, kMaxPositions);
    rope_.original_max_positions = file_.fields.integer(kOriginal, own, 1, kMaxPositions);
  }

  void read_factor(RopeConfig::Kind kind) {
    expect_only({"factor", kOriginal});
    rope_.kind = kind;
    rope_.factor = inner_.number("factor", std::nullopt, 1, kMaxFactor);
  }

  void read_llama3() {
    expect_only({"factor", "low_freq_factor", "high_freq_factor", kOriginal});
    rope_.kind = RopeConfig::kLlama3;
    rope_.factor = inner_.number("factor", std::nullopt, 1, kMaxFactor);
    rope_.low_freq_factor = inner_.number("low_freq_factor", std::nullopt, 1e-6, kMaxFactor);
    rope_.high_freq_factor = inner_.number("high_freq_factor", std::nullopt, 1e-6, kMaxFactor);
    read_original();
    if (rope_.high_freq_factor <= rope_.low_freq_factor) {
      inner_.refuse("high_freq_factor",
                    absl::StrCat("more than low_freq_factor, which is ", rope_.low_freq_factor));
    }
  }

  void read_yarn() {
    expect_only({"factor", kOriginal, "attention_factor", "beta_fast", "beta_slow", "mscale",
                 "mscale_all_dim", "truncate"});
    rope_.kind = RopeConfig::kYarn;
    rope_.factor = inner_.number("factor", std::nullopt, 1, kMaxFactor);
    rope_.beta_fast = inner_.number("beta_fast", 32, 1e-6, kMaxFactor);
    rope_.beta_slow = inner_.number("beta_slow", 1, 1e-6, kMaxFactor);
    rope_.truncate = inner_.boolean("truncate", true);
    read_original();
    if (rope_.beta_fast <= rope_.beta_slow) {
      inner_.refuse("beta_fast", absl::StrCat("more than beta_slow, which is ", rope_.beta_slow));
    }
    if (rope_.theta <= 1) {
      inner_.fail(out_of_range(absl::StrCat(file_.name, ": rope_theta"), rope_.theta,
                               "more than 1 with rope_type yarn"));
    }
    const auto scale = [&](double m) { return 0.1 * m * std::log(rope_.factor) + 1; };
    const double m = inner_.number("mscale", 0, 0, kMaxFactor);
    const double all = inner_.number("mscale_all_dim", 0, 0, kMaxFactor);
    const double inferred = m > 0 && all > 0 ? scale(m) / scale(all) : scale(1);
    rope_.attention_factor = inner_.number("attention_factor", inferred, 1e-6, kMaxFactor);
  }

  void read_longrope() {
    expect_only({"factor", kOriginal, "attention_factor", "short_factor", "long_factor"});
    rope_.kind = RopeConfig::kLongRope;
    rope_.stretch = read_stretch("short_factor");
    read_stretch("long_factor");
    read_original();
    const auto original = static_cast<double>(rope_.original_max_positions);
    const double ratio = static_cast<double>(model_.max_positions) / original;
    rope_.factor = inner_.number("factor", ratio, 1e-6, kMaxFactor);
    const bool longer = rope_.factor > 1 && original > 1;
    const double inferred =
        longer ? std::sqrt(1 + std::log(rope_.factor) / std::log(original)) : 1.0;
    rope_.attention_factor = inner_.number("attention_factor", inferred, 1e-6, kMaxFactor);
  }

  std::vector<float> read_stretch(const char* field) {
    const json* list = inner_.find(field);
    const auto n = static_cast<size_t>(model_.head_dim / 2);
    bool good = list != nullptr && list->is_array() && list->size() == n;
    std::vector<float> all;
    for (size_t i = 0; good && i < n; ++i) {
      const json& one = (*list)[i];
      good = one.is_number() && one.get<double>() >= 1e-6 && one.get<double>() <= kMaxFactor;
      if (good) all.push_back(one.get<float>());
    }
    if (good) return all;
    inner_.refuse(field, absl::StrCat("a list of ", n,
                                      " numbers from 1e-06 to 1e+06, one for each "
                                      "pair of a head's dimensions"));
    return std::vector<float>(n, 1.0f);
  }

  const HfFile& file_;
  const json& object_;
  JsonFields inner_;
  const RopeModel model_;
  RopeConfig rope_;
};

RopeConfig read_rope_object(const HfFile& file, const json& object, const std::string& source,
                            double theta, DecoderConfig& c) {
  if (!object.is_object()) {
    file.fields.fail(
        out_of_range(absl::StrCat(file.name, ": ", source), value_text(object), "an object"));
    return {.theta = theta};
  }
  const RopeModel model{theta, c.max_positions, c.head_dim};
  RopeConfig rope = RopeObject(file, object, source, model).read();
  if (rope.kind == RopeConfig::kLongRope) {
    c.max_positions =
        static_cast<int>(std::min<int64_t>(c.max_positions, rope.original_max_positions));
  }
  return rope;
}

}  // namespace

void read_rope(const HfFile& file, DecoderConfig& c) {
  c.rope.theta = file.fields.number("rope_theta", 10000.0, 1e-3, 1e15);
  const bool old = file.fields.find("rope_scaling") != nullptr;
  const char* const source = old ? "rope_scaling" : "rope_parameters";
  const json* object = file.fields.find(source);
  if (object != nullptr) c.rope = read_rope_object(file, *object, source, c.rope.theta, c);
}

void read_rope_by_layers(const HfFile& file, const RopeBases& defaults, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  c.rope.theta = fields.number("rope_theta", defaults.full, 1e-3, 1e15);
  RopeConfig local{.theta = fields.number("rope_local_base_freq", defaults.local, 1e-3, 1e15)};
  if (const json* all = fields.find("rope_parameters"); all != nullptr) {
    for (const auto& [key, value] : all->items()) {
      if (key != "full_attention" && key != "sliding_attention") {
        fields.refuse("rope_parameters", "an object of full_attention and sliding_attention");
        return;
      }
      if (value.is_null()) continue;
      RopeConfig& rope = key == "full_attention" ? c.rope : local;
      rope = read_rope_object(file, value, "rope_parameters." + key, rope.theta, c);
    }
  }
  if (const json* scaling = fields.find("rope_scaling"); scaling != nullptr) {
    c.rope = read_rope_object(file, *scaling, "rope_scaling", c.rope.theta, c);
  }
  c.local_rope = local;
}

}  // namespace tandem
