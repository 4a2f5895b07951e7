#include "engine/backend/torch/weights/safetensors/packed_ints.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;
using Method = PackedInts::Method;

constexpr int64_t kBlockInputs = 32;  // inputs of a Q4_0 block: fp16 scale, then 16 bytes
constexpr int64_t kBlockBytes = 18;
constexpr int64_t kCodes = 8;  // per word
constexpr int64_t kMaxGroup = 1 << 20;

// --- config.json

PackedInts read_gptq(JsonFields& own) {
  PackedInts ints{.method = Method::kGptq};
  own.integer("bits", std::nullopt, 4, 4);
  const int64_t group = own.integer("group_size", std::nullopt, -1, kMaxGroup);
  ints.group = std::max(group, int64_t{0});
  if (group == 0 || group % kBlockInputs > 0) own.refuse("group_size", "-1, or a multiple of 32");
  if (!own.boolean("sym", true)) own.refuse("sym", "true");
  if (own.boolean("desc_act", false)) own.refuse("desc_act", "false");
  const std::string format = own.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") own.refuse("checkpoint_format", "gptq, gptq_v2");
  ints.zero = format == "gptq" ? 7 : 8;
  return ints;
}

PackedInts read_compressed(JsonFields& own, const std::string& context) {
  PackedInts ints{.method = Method::kCompressedTensors};
  if (own.text("format", "") != "pack-quantized") own.refuse("format", "pack-quantized");
  if (own.find("kv_cache_scheme") != nullptr) own.refuse("kv_cache_scheme", "null");
  const json* const groups = own.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() != 1 ||
      !groups->begin()->is_object()) {
    own.refuse("config_groups", "one group of weights");
    return ints;
  }
  const std::string place = absl::StrCat(context, "config_groups.", groups->begin().key(), ".");
  JsonFields group(*groups->begin(), place);
  for (const char* field : {"input_activations", "output_activations"}) {
    if (group.find(field) != nullptr) group.refuse(field, "null");
  }
  const json none = json::object();
  const json* weights = group.find("weights");
  if (weights == nullptr || !weights->is_object()) {
    group.refuse("weights", "an object");
    weights = &none;
  }
  own.fail(group.status());
  JsonFields scheme(*weights, absl::StrCat(place, "weights."));
  scheme.integer("num_bits", std::nullopt, 4, 4);
  if (scheme.text("type", "int") != "int") scheme.refuse("type", "int");
  if (!scheme.boolean("symmetric", true)) scheme.refuse("symmetric", "true");
  if (scheme.find("actorder") != nullptr && scheme.text("actorder", "") != "weight") {
    scheme.refuse("actorder", "null, weight");  // other values mean reordered inputs
  }
  const std::string strategy = scheme.text("strategy", "group");
  if (strategy == "group") {
    ints.group = scheme.integer("group_size", std::nullopt, kBlockInputs, kMaxGroup);
    if (ints.group % kBlockInputs != 0) scheme.refuse("group_size", "a multiple of 32");
  } else {
    if (strategy != "channel") scheme.refuse("strategy", "group, channel");
    ints.group = 0;
  }
  own.fail(scheme.status());
  return ints;
}

// --- Tensors

// Parts of a matrix: codes by [input][output] or [output][input], scales likewise.
struct Parts {
  const TensorView* codes = nullptr;
  const TensorView* scales = nullptr;
  bool by_input = false;
  int64_t in = 0;
  int64_t out = 0;
  int64_t group = 0;

  int64_t groups() const { return in / group; }
};

uint32_t word(const TensorView& view, int64_t i) {
  uint32_t word = 0;
  std::memcpy(&word, view.data + i * 4, sizeof(word));
  return word;
}

absl::Status wrong(const std::string& name, const TensorView& view, absl::string_view allowed) {
  return out_of_range(absl::StrCat("tensor ", name),
                      absl::StrCat(safe_dtype_name(view.dtype), " ", shape_text(view.shape)),
                      allowed);
}

// dtype: nullopt: any floating type.
absl::StatusOr<const TensorView*> take(const TensorSource& base, const std::string& name,
                                       std::optional<SafeDType> dtype,
                                       const std::vector<int64_t>& shape) {
  const TensorView* const view = base.find(name);
  if (view == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": missing"));
  const bool fits = dtype ? view->dtype == *dtype : is_floating(view->dtype);
  if (fits && view->shape == shape) return view;
  return wrong(name, *view,
               absl::StrCat(dtype ? safe_dtype_name(*dtype) : "F64, F32, F16 or BF16", " ",
                            shape_text(shape)));
}

// Codes as words [rows, columns], and the resulting numbers of inputs and outputs.
absl::StatusOr<const TensorView*> take_codes(const TensorSource& base, const std::string& name) {
  const TensorView* const view = base.find(name);
  if (view->dtype == SafeDType::kI32 && view->shape.size() == 2 && view->elements() > 0) {
    return view;
  }
  return wrong(name, *view, "I32 of two dimensions");
}

absl::Status check_inputs(const std::string& name, int64_t in, const PackedInts& ints,
                          Parts& parts) {
  parts.in = in;
  parts.group = ints.group == 0 ? in : ints.group;
  if (in % kBlockInputs == 0 && in % parts.group == 0) return absl::OkStatus();
  return out_of_range(absl::StrCat("inputs of ", name), in,
                      absl::StrCat("a multiple of 32, and of the group of ", parts.group));
}

absl::StatusOr<Parts> gptq_parts(const TensorSource& base, const std::string& stem,
                                 const PackedInts& ints) {
  Parts parts{.by_input = true};
  const std::string codes = stem + ".qweight";
  TANDEM_ASSIGN_OR_RETURN(parts.codes, take_codes(base, codes));
  parts.out = parts.codes->shape[1];
  TANDEM_RETURN_IF_ERROR(check_inputs(codes, parts.codes->shape[0] * kCodes, ints, parts));
  TANDEM_ASSIGN_OR_RETURN(parts.scales,
                          take(base, stem + ".scales", std::nullopt, {parts.groups(), parts.out}));
  const std::string zeros = stem + ".qzeros";
  TANDEM_ASSIGN_OR_RETURN(const TensorView* zero,
                          take(base, zeros, SafeDType::kI32, {parts.groups(), parts.out / kCodes}));
  const uint32_t expected = 0x11111111U * static_cast<uint32_t>(ints.zero);
  for (int64_t i = 0; i < zero->elements(); ++i) {
    if (word(*zero, i) == expected) continue;
    return out_of_range(absl::StrCat("tensor ", zeros, ": word ", i), word(*zero, i),
                        absl::StrCat(expected, ", as sym specifies"));
  }
  if (const std::string order = stem + ".g_idx"; base.find(order) != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const TensorView* at, take(base, order, SafeDType::kI32, {parts.in}));
    for (int64_t i = 0; i < parts.in; ++i) {
      if (word(*at, i) == i / parts.group) continue;
      return out_of_range(absl::StrCat("tensor ", order, ": number ", i), word(*at, i),
                          absl::StrCat(i / parts.group, ", inputs in order"));
    }
  }
  return parts;
}

absl::StatusOr<Parts> compressed_parts(const TensorSource& base, const std::string& stem,
                                       const PackedInts& ints) {
  Parts parts;
  const std::string codes = stem + ".weight_packed";
  TANDEM_ASSIGN_OR_RETURN(parts.codes, take_codes(base, codes));
  parts.out = parts.codes->shape[0];
  TANDEM_RETURN_IF_ERROR(check_inputs(codes, parts.codes->shape[1] * kCodes, ints, parts));
  TANDEM_ASSIGN_OR_RETURN(
      parts.scales, take(base, stem + ".weight_scale", std::nullopt, {parts.out, parts.groups()}));
  TANDEM_ASSIGN_OR_RETURN(const TensorView* shape,
                          take(base, stem + ".weight_shape", SafeDType::kI64, {2}));
  std::array<int64_t, 2> size{};
  std::memcpy(size.data(), shape->data, sizeof(size));
  if (size[0] == parts.out && size[1] == parts.in) return parts;
  return out_of_range(absl::StrCat("tensor ", stem, ".weight_shape"), shape_text(size),
                      shape_text({{parts.out, parts.in}}));
}

// All scales as fp16, in file order.
absl::StatusOr<std::vector<uint16_t>> scales_of(const TensorView& view, const std::string& stem) {
  const auto n = static_cast<size_t>(view.elements());
  std::vector<float> scales(n);
  TANDEM_RETURN_IF_ERROR(to_float(view, 0, scales));
  const auto refuse = [&](size_t i) {
    return out_of_range(absl::StrCat("scale ", i, " of ", stem), scales[i],
                        "finite numbers that fp16 holds exactly");
  };
  for (size_t i = 0; i < n; ++i) {
    if (!(std::fabs(scales[i]) <= 65504)) return refuse(i);
  }
  TensorView floats{SafeDType::kF32, {view.elements()}};
  floats.data = reinterpret_cast<const std::byte*>(scales.data());
  floats.bytes = n * sizeof(float);
  std::vector<uint16_t> halves(n);
  TANDEM_RETURN_IF_ERROR(to_half(floats, 0, halves));
  for (size_t i = 0; i < n; ++i) {
    if (half_to_float(halves[i]) != scales[i]) return refuse(i);
  }
  return halves;
}

// Eight codes of an output, inputs 8 at .. 8 at + 7, the first in the lowest bits.
uint32_t codes(const Parts& p, int64_t out, int64_t at) {
  return word(*p.codes, p.by_input ? at * p.out + out : out * (p.in / kCodes) + at);
}

// Writes [out][in / 32] blocks of Q4_0: inputs 0..15 in low nibbles, 16..31 in high nibbles.
void write_blocks(const Parts& p, const std::vector<uint16_t>& scales, std::byte* to) {
  for (int64_t out = 0; out < p.out; ++out) {
    for (int64_t first = 0; first < p.in; first += kBlockInputs) {
      const int64_t group = first / p.group;
      const int64_t at = p.by_input ? group * p.out + out : out * p.groups() + group;
      std::memcpy(to, &scales[static_cast<size_t>(at)], sizeof(uint16_t));
      to += sizeof(uint16_t);
      for (int64_t half = 0; half < 2; ++half) {
        uint32_t low = codes(p, out, first / kCodes + half);
        uint32_t high = codes(p, out, first / kCodes + 2 + half);
        for (int64_t i = 0; i < kCodes; ++i, low >>= 4, high >>= 4) {
          *to++ = static_cast<std::byte>((low & 15) | (high & 15) << 4);
        }
      }
    }
  }
}

const char* codes_of(Method method) {
  return method == Method::kGptq ? ".qweight" : ".weight_packed";
}

std::vector<const char*> parts_of(Method method) {
  if (method == Method::kGptq) return {".qweight", ".qzeros", ".scales", ".g_idx"};
  return {".weight_packed", ".weight_scale", ".weight_shape"};
}

}  // namespace

std::optional<PackedInts> read_packed_ints(JsonFields& fields, absl::string_view file) {
  constexpr const char* kField = "quantization_config";
  const json* const found = fields.find(kField);
  if (found == nullptr) return std::nullopt;
  const std::string method = found->is_object() ? found->value("quant_method", json()).dump() : "";
  const std::string context = absl::StrCat(file, ": ", kField, ".");
  std::optional<PackedInts> ints;
  if (method == "\"gptq\"") {
    JsonFields own(*found, context);
    ints = read_gptq(own);
    fields.fail(own.status());
  } else if (method == "\"compressed-tensors\"") {
    JsonFields own(*found, context);
    ints = read_compressed(own, context);
    fields.fail(own.status());
  } else {
    fields.refuse(kField, "none, or quant_method gptq or compressed-tensors of 4 bits");
  }
  return ints;
}

absl::StatusOr<PackedIntSource> PackedIntSource::make(const TensorSource& base,
                                                      const PackedInts& ints) {
  PackedIntSource source(base);
  for (const std::string& name : base.names()) {
    absl::string_view stem = name;
    if (!absl::ConsumeSuffix(&stem, codes_of(ints.method))) continue;
    if (absl::Status s = source.add(std::string(stem), ints); !s.ok()) {
      return annotate(s, base.where());
    }
  }
  return source;
}

absl::Status PackedIntSource::add(const std::string& stem, const PackedInts& ints) {
  TANDEM_ASSIGN_OR_RETURN(const Parts parts, ints.method == Method::kGptq
                                                 ? gptq_parts(*base_, stem, ints)
                                                 : compressed_parts(*base_, stem, ints));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<uint16_t> scales, scales_of(*parts.scales, stem));
  TensorView view{SafeDType::kF32, {parts.out, parts.in}};
  view.bytes = static_cast<size_t>(parts.out * (parts.in / kBlockInputs) * kBlockBytes);
  view.block = find_block_format(static_cast<uint32_t>(BlockType::kQ40));
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(view.bytes));
  write_blocks(parts, scales, memory_.back().get());
  view.data = memory_.back().get();
  blocks_.emplace(stem + ".weight", std::move(view));
  for (const char* part : parts_of(ints.method)) parts_.insert(stem + part);
  base_->done(*parts.codes);
  return absl::OkStatus();
}

const TensorView* PackedIntSource::find(const std::string& name) const {
  if (const auto at = blocks_.find(name); at != blocks_.end()) return &at->second;
  return parts_.contains(name) ? nullptr : base_->find(name);
}

std::vector<std::string> PackedIntSource::names() const {
  std::set<std::string> names;
  for (const auto& [name, view] : blocks_) names.insert(name);
  for (std::string& name : base_->names()) {
    if (!parts_.contains(name)) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

}  // namespace tandem
