#include "engine/backend/torch/weights/adapter_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/json_fields.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "tandem-adapter-1";
constexpr size_t kMaxJsonBytes = 1 << 20;
constexpr int64_t kSamples = 64;
constexpr std::array<const char*, 3> kKinds{"head", "masks", "projector"};

class Fnv {
 public:
  void add(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }
  std::string hex() const { return absl::StrFormat("%016x", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

absl::Status check_base(JsonFields& fields, const std::string& path, const DecoderConfig& base,
                        const std::string& fingerprint) {
  const json* object = fields.find("base");
  if (object == nullptr || !object->is_object()) {
    return out_of_range(absl::StrCat(path, ": base"),
                        object == nullptr ? "missing" : value_text(*object), "an object");
  }
  JsonFields inner(*object, absl::StrCat(path, ": base."));
  for (const auto& [field, own] :
       {std::pair{"vocab_size", base.vocab_size}, std::pair{"hidden_size", base.hidden_size},
        std::pair{"layers", base.layers}, std::pair{"heads", base.heads},
        std::pair{"kv_heads", base.kv_heads}, std::pair{"head_dim", base.head_dim}}) {
    const int64_t value = inner.integer(field, std::nullopt, 1, int64_t{1} << 31);
    if (value != own) inner.refuse(field, absl::StrCat(own, ", the model's value"));
  }
  const std::string of = inner.text("fingerprint", std::nullopt);
  if (of != fingerprint) {
    inner.refuse("fingerprint", absl::StrCat(quote_value(fingerprint),
                                             ": the model's (this adapter was made "
                                             "for other weights)"));
  }
  return inner.status();
}

// Reads a projector's `source`, `fusion` and `tokens`.
absl::Status read_source(JsonFields& fields, const std::string& path, AdapterFile* file) {
  const json* object = fields.find("source");
  if (object == nullptr || !object->is_object()) {
    return out_of_range(absl::StrCat(path, ": source"),
                        object == nullptr ? "missing" : value_text(*object), "an object");
  }
  JsonFields inner(*object, absl::StrCat(path, ": source."));
  file->source_hidden = inner.integer("hidden_size", std::nullopt, 1, int64_t{1} << 31);
  const int64_t layers = inner.integer("layers", std::nullopt, 1, 1 << 20);
  file->source_fingerprint = inner.text("fingerprint", std::nullopt);
  TANDEM_RETURN_IF_ERROR(inner.status());
  file->layer = static_cast<int>(fields.integer("layer", std::nullopt, 1, layers));
  const std::string fusion = fields.text("fusion", std::nullopt);
  file->replace = fusion == "replace";
  if (!file->replace && fusion != "add") fields.refuse("fusion", "add, replace");
  const std::string tokens = fields.text("tokens", std::nullopt);
  file->foreign = tokens == "source";
  file->aligned = tokens == "aligned";
  if (!file->foreign && !file->aligned && tokens != "shared") {
    fields.refuse("tokens", "shared, source, aligned");
  }
  if (file->foreign && !file->replace) {
    fields.refuse("tokens", "shared, aligned with fusion add (there is nothing to add to)");
  }
  return fields.status();
}

// Whether files of this kind may have the field.
bool is_known(AdapterFile::Kind kind, absl::string_view field) {
  if (field == "format" || field == "kind" || field == "base") return true;
  if (field == "layer") return kind != AdapterFile::kMasks;
  if (field == "additions") return kind == AdapterFile::kMasks;
  return kind == AdapterFile::kProjector &&
         (field == "source" || field == "fusion" || field == "tokens");
}

// A tensor dimension. Negative: chosen by the file; equal negative numbers must match.
using Dims = std::vector<int64_t>;
struct Wanted {
  const char* name;
  Dims dims;
};

std::vector<Wanted> tensors_of(const AdapterFile& file, const DecoderConfig& base, bool prompt) {
  const int64_t h = base.hidden_size;
  switch (file.kind) {
    case AdapterFile::kHead:
      return {{"down.weight", {-1, h}}, {"up.weight", {h, -1}}};
    case AdapterFile::kMasks: {
      std::vector<Wanted> wanted{{"masks", {-1, h}}};
      const Dims cached{base.layers, -2, base.kv_heads, base.head_dim};
      if (prompt) {
        wanted.push_back({"prompt.keys", cached});
        wanted.push_back({"prompt.values", cached});
      }
      return wanted;
    }
    case AdapterFile::kProjector:
      return {{"0.weight", {-1, file.source_hidden}},
              {"0.bias", {-1}},
              {"2.weight", {h, -1}},
              {"2.bias", {h}}};
  }
  return {};
}

absl::Status check_tensors_of(const AdapterFile& file, const DecoderConfig& base,
                              const std::string& path) {
  const bool prompt =
      file.tensors.find("prompt.keys") != nullptr || file.tensors.find("prompt.values") != nullptr;
  // Dimensions chosen by the file, taken from the first tensor that has them.
  std::map<int64_t, int64_t> chosen;
  std::vector<TensorSpec> specs;
  for (const Wanted& wanted : tensors_of(file, base, prompt)) {
    const TensorView* view = file.tensors.find(wanted.name);
    TensorSpec& spec = specs.emplace_back(TensorSpec{wanted.name, wanted.dims});
    for (size_t i = 0; i < spec.shape.size(); ++i) {
      int64_t& dim = spec.shape[i];
      if (dim >= 0) continue;
      const bool has = view != nullptr && view->shape.size() == spec.shape.size();
      dim = chosen.emplace(dim, has ? std::max<int64_t>(1, view->shape[i]) : 1).first->second;
    }
  }
  absl::Status status =
      check_tensors(file.tensors, specs, [](const std::string&) { return false; });
  if (!status.ok()) return status;
  for (const TensorSpec& spec : specs) {
    TANDEM_RETURN_IF_ERROR(check_finite(*file.tensors.find(spec.name),
                                        absl::StrCat(path, ": tensor ", quote_value(spec.name))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> fingerprint_of(const DecoderConfig& config, bool tied,
                                           const TensorSource& source) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : decoder_tensors(config, tied)) names.push_back(spec.name);
  std::sort(names.begin(), names.end());
  Fnv hash;
  for (const std::string& name : names) {
    for (const char c : name) hash.add(static_cast<uint8_t>(c));
    const TensorView& view = *source.find(name);
    for (int64_t i = 0; i < kSamples; ++i) {
      uint16_t bits = 0;
      const int64_t at = i * (view.elements() - 1) / (kSamples - 1);
      TANDEM_RETURN_IF_ERROR(to_bfloat(view, at, {&bits, 1}));
      hash.add(static_cast<uint8_t>(bits & 0xff));
      hash.add(static_cast<uint8_t>(bits >> 8));
    }
  }
  return hash.hex();
}

absl::StatusOr<AdapterFile> AdapterFile::open(const std::string& directory,
                                              const DecoderConfig& base,
                                              const std::string& fingerprint) {
  const std::string path = directory + "/adapter.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxJsonBytes));
  TANDEM_ASSIGN_OR_RETURN(const json object, parse_json_object(text, path));
  JsonFields fields(object, absl::StrCat(path, ": "));
  if (fields.text("format", std::nullopt) != kFormat) {
    fields.refuse("format", quote_value(kFormat));
  }
  const std::string kind = fields.text("kind", std::nullopt);
  const auto known = std::find(kKinds.begin(), kKinds.end(), kind);
  if (known == kKinds.end()) fields.refuse("kind", absl::StrJoin(kKinds, ", "));
  TANDEM_RETURN_IF_ERROR(fields.status());
  AdapterFile file;
  file.kind = static_cast<Kind>(known - kKinds.begin());
  for (const auto& [field, value] : object.items()) {
    if (!is_known(file.kind, field)) {
      fields.refuse(field.c_str(), "nothing: the field is not known");
    }
  }
  if (file.kind == kHead) {
    file.layer = static_cast<int>(fields.integer("layer", std::nullopt, 1, base.layers));
  }
  const bool added = fields.boolean("additions", false);
  if (file.kind == kProjector) TANDEM_RETURN_IF_ERROR(read_source(fields, path, &file));
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_RETURN_IF_ERROR(check_base(fields, path, base, fingerprint));
  TANDEM_ASSIGN_OR_RETURN(file.tensors, Checkpoint::open_file(directory, "adapter.safetensors"));
  TANDEM_RETURN_IF_ERROR(check_tensors_of(file, base, directory + "/adapter.safetensors"));
  if (added) {
    TANDEM_ASSIGN_OR_RETURN(file.additions, LoraFile::open(directory, base));
  }
  return file;
}

const char* adapter_kind_name(AdapterFile::Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

}  // namespace tandem
