#include "engine/backend/torch/model/load.h"

#include <ATen/ops/empty.h>
#include <c10/util/Float8_e4m3fn.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/gguf/round_blocks.h"
#include "engine/base/check.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Asks for huge pages. Weights are streamed from memory once per batch, so fewer pages save TLB
// misses. REQUIRES: the pages are not touched yet
void prefer_huge_pages(std::byte* data, size_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (at + kHuge - 1) / kHuge * kHuge;
  const uintptr_t end = (at + bytes) / kHuge * kHuge;
  if (begin < end) madvise(data + (begin - at), end - begin, MADV_HUGEPAGE);
}

template <class T>
std::span<T> elements(std::byte* out, int64_t n) {
  return {reinterpret_cast<T*>(out), static_cast<size_t>(n)};
}

// Converts elements [first, first + n) of `view` to `type`.
absl::Status convert(const TensorView& view, int64_t first, int64_t n, at::ScalarType type,
                     std::byte* out) {
  switch (type) {
    case at::kDouble:
      return to_double(view, first, elements<double>(out, n));
    case at::kBFloat16:
      return to_bfloat(view, first, elements<uint16_t>(out, n));
    case at::kHalf:
      return to_half(view, first, elements<uint16_t>(out, n));
    default:
      return to_float(view, first, elements<float>(out, n));
  }
}

// The type of the input of PackedMatrix::pack().
at::ScalarType source_type(cpu::WeightType type) {
  switch (type) {
    case cpu::WeightType::kDouble:
      return at::kDouble;
    case cpu::WeightType::kBFloat16:
      return at::kBFloat16;
    case cpu::WeightType::kHalf:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

absl::StatusOr<const TensorView*> find(const TensorSource& source, const std::string& name,
                                       const std::vector<int64_t>& shape) {
  const TensorView* view = source.find(name);
  if (view == nullptr) return absl::NotFoundError(absl::StrCat("tensor ", name, ": missing"));
  if (view->shape != shape) {
    return out_of_range(absl::StrCat("shape of ", name), shape_text(view->shape),
                        shape_text(shape));
  }
  return view;
}

// dst[out][in] = src[in][out], both row-major, of elements of `size` bytes.
void transpose(std::byte* dst, const std::byte* src, int64_t in, int64_t out, size_t size) {
  constexpr int64_t kBlock = 32;
  for (int64_t k0 = 0; k0 < in; k0 += kBlock) {
    for (int64_t o0 = 0; o0 < out; o0 += kBlock) {
      for (int64_t o = o0; o < std::min(out, o0 + kBlock); ++o) {
        for (int64_t k = k0; k < std::min(in, k0 + kBlock); ++k) {
          std::memcpy(dst + static_cast<size_t>(o * in + k) * size,
                      src + static_cast<size_t>(k * out + o) * size, size);
        }
      }
    }
  }
}

// The most consecutive rows in the file, up to `most`.
int64_t run_of(const LinearSpec& spec, int64_t most) {
  return spec.groups.groups > 0 ? spec.groups.head_dim : most;
}

// Calls take(first row, rows, their bytes) for all rows of a layer's matrices, [out, in], in
// chunks.
absl::Status each_rows(const TensorSource& source, const LinearSpec& spec, at::ScalarType type,
                       const std::function<void(int64_t, int64_t, const std::byte*)>& take) {
  constexpr int64_t kRows = 128;
  const auto size = c10::elementSize(type);
  std::vector<std::byte> part, whole;
  int64_t row = 0;
  for (size_t i = 0; i < spec.names.size(); ++i) {
    const std::string name = spec.names[i] + ".weight";
    const int64_t out = spec.outs[i];
    const int64_t n = out * spec.in;
    if (spec.transposed) {
      TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, name, {spec.in, out}));
      part.resize(static_cast<size_t>(n) * size);
      whole.resize(part.size());
      if (absl::Status s = convert(*view, 0, n, type, part.data()); !s.ok()) {
        return annotate(s, name);
      }
      transpose(whole.data(), part.data(), spec.in, out, size);
      take(row, out, whole.data());
      source.done(*view);
    } else {
      TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, name, {out, spec.in}));
      const int64_t step = run_of(spec, kRows);
      part.resize(static_cast<size_t>(std::min(step, out) * spec.in) * size);
      for (int64_t r = 0; r < out; r += step) {
        const int64_t rows = std::min(step, out - r);
        const int64_t first = spec.groups.stored_row(r) * spec.in;
        if (absl::Status s = convert(*view, first, rows * spec.in, type, part.data()); !s.ok()) {
          return annotate(s, name);
        }
        take(row + r, rows, part.data());
      }
      source.done(*view);
    }
    row += out;
  }
  return absl::OkStatus();
}

// The type of products for a tensor of blocks; none: there are none for its type, or it has to be
// transformed.
std::optional<cpu::QuantType> quant_type(const TensorView& view) {
  if (view.block == nullptr || view.less != 0) return std::nullopt;
  const Widening* wider = find_widening(view.block->type);
  if (wider == nullptr) return view.block->quant;
  return find_block_format(static_cast<uint32_t>(wider->to))->quant;
}

int64_t all_outs(const LinearSpec& spec) {
  return std::accumulate(spec.outs.begin(), spec.outs.end(), int64_t{0});
}

// For errors: the tensor that has this row of a layer's matrices, and its row there.
std::string name_of_row(const LinearSpec& spec, int64_t row) {
  size_t part = 0;
  while (row >= spec.outs[part]) row -= spec.outs[part++];
  return absl::StrCat(spec.names[part], ".weight: row ", row);
}

}  // namespace

absl::StatusOr<at::Tensor> load_tensor(const TensorSource& source, const std::string& name,
                                       const std::vector<int64_t>& shape, at::ScalarType type,
                                       at::Device device) {
  TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, name, shape));
  at::Tensor host = at::empty(shape, type);
  auto* out = static_cast<std::byte*>(host.mutable_data_ptr());
  if (device.is_cpu()) prefer_huge_pages(out, host.nbytes());
  if (absl::Status s = convert(*view, 0, view->elements(), type, out); !s.ok()) {
    return annotate(s, name);
  }
  source.done(*view);
  return host.to(device);
}

absl::StatusOr<at::Tensor> load_matrix(const TensorSource& source, const LinearSpec& spec,
                                       at::ScalarType type, at::Device device) {
  at::Tensor host = at::empty({all_outs(spec), spec.in}, type);
  auto* out = static_cast<std::byte*>(host.mutable_data_ptr());
  if (device.is_cpu()) prefer_huge_pages(out, host.nbytes());
  const size_t row_bytes = static_cast<size_t>(spec.in) * c10::elementSize(type);
  TANDEM_RETURN_IF_ERROR(
      each_rows(source, spec, type, [&](int64_t first, int64_t rows, const std::byte* from) {
        std::memcpy(out + static_cast<size_t>(first) * row_bytes, from,
                    static_cast<size_t>(rows) * row_bytes);
      }));
  return host.to(device);
}

absl::Status load_rows(const TensorSource& source, const LinearSpec& spec, cpu::WeightType type,
                       const std::function<void(int64_t, int64_t, const std::byte*)>& take) {
  return each_rows(source, spec, source_type(type), take);
}

absl::StatusOr<cpu::PackedMatrix> load_packed(const TensorSource& source, const LinearSpec& spec,
                                              cpu::WeightType type, cpu::Layout layout) {
  cpu::PackedMatrix packed(type, all_outs(spec), spec.in, layout);
  TANDEM_RETURN_IF_ERROR(each_rows(
      source, spec, source_type(type),
      [&](int64_t first, int64_t rows, const std::byte* from) { packed.pack(first, rows, from); }));
  return packed;
}

absl::StatusOr<cpu::QuantizedMatrix> load_quantized(const TensorSource& source,
                                                    const LinearSpec& spec, cpu::Layout layout) {
  std::vector<const TensorView*> views;
  std::vector<cpu::QuantizedMatrix::Part> parts;
  for (size_t i = 0; i < spec.names.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const TensorView* view,
                            find(source, spec.names[i] + ".weight",
                                 spec.transposed ? std::vector<int64_t>{spec.in, spec.outs[i]}
                                                 : std::vector<int64_t>{spec.outs[i], spec.in}));
    const std::optional<cpu::QuantType> type = quant_type(*view);
    if (!type || spec.transposed || spec.groups.groups > 0) return cpu::QuantizedMatrix();
    views.push_back(view);
    parts.push_back({*type, spec.outs[i]});
  }
  if (layout == cpu::Layout::kPairs &&
      (parts.size() != 2 || parts[0].type != parts[1].type || parts[0].outs != parts[1].outs)) {
    return cpu::QuantizedMatrix();
  }
  cpu::QuantizedMatrix packed(parts, spec.in, layout);
  int64_t row = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    const TensorView& view = *views[i];
    const BlockFormat& format = *view.block;
    const Widening* wider = find_widening(format.type);
    const int64_t blocks = spec.in / format.values;
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    std::atomic<int64_t> broken = kNone;  // the first block whose scale is not finite
    // Rows do not share bytes.
    cpu::parallel_for(spec.outs[i], 8 * cpu::QuantizedMatrix::kUnit, [&](int64_t r, int64_t end) {
      std::vector<std::byte> wide(static_cast<size_t>(wider ? blocks * wider->bytes : 0));
      for (; r < end; ++r) {
        const int64_t at = view.head_rows == 0 ? r : stored_row(r, view.head_rows);
        const std::byte* from = view.data + at * blocks * format.bytes;
        for (int64_t b = 0; b < blocks; ++b) {
          if (has_finite_scales(format, from + b * format.bytes)) continue;
          int64_t first = broken;
          while (at * blocks + b < first && !broken.compare_exchange_weak(first, at * blocks + b)) {
          }
        }
        for (int64_t b = 0; wider && b < blocks; ++b) {
          wider->block(from + b * format.bytes, wide.data() + b * wider->bytes);
        }
        packed.pack(row + r, wider ? wide.data() : from);
      }
    });
    if (const int64_t b = broken; b != kNone) {
      return out_of_range(absl::StrCat(spec.names[i], ".weight: scale of block ", b % blocks,
                                       " of row ", b / blocks, " (", format.name, ")"),
                          "not finite", "finite numbers");
    }
    row += spec.outs[i];
    source.done(view);
  }
  return packed;
}

absl::StatusOr<cpu::QuantizedMatrix> load_rounded(const TensorSource& source,
                                                  const LinearSpec& spec, DType dtype,
                                                  cpu::Layout layout) {
  TANDEM_CHECK(dtype == DType::kInt4 || dtype == DType::kQ40);
  if (spec.in % 32 != 0) return cpu::QuantizedMatrix();
  const bool int4 = dtype == DType::kInt4;
  const BlockType block = int4 != spec.tokens ? BlockType::kQ41
                          : spec.tokens       ? BlockType::kQ80
                                              : BlockType::kQ40;
  const BlockFormat& format = *find_block_format(static_cast<uint32_t>(block));
  const cpu::QuantType type = *format.quant;
  const auto bytes = static_cast<size_t>(spec.in / 32 * format.bytes);
  const int parts = layout == cpu::Layout::kPairs ? 2 : 1;
  const int64_t outs = all_outs(spec) / parts;
  cpu::QuantizedMatrix packed(std::vector<cpu::QuantizedMatrix::Part>(parts, {type, outs}), spec.in,
                              layout);
  std::atomic<int64_t> broken = -1;  // a row that cannot be rounded
  TANDEM_RETURN_IF_ERROR(
      each_rows(source, spec, at::kFloat, [&](int64_t first, int64_t rows, const std::byte* from) {
        // Rows do not share bytes.
        cpu::parallel_for(rows, cpu::QuantizedMatrix::kUnit, [&](int64_t r, int64_t end) {
          std::vector<std::byte> blocks(bytes);
          for (; r < end; ++r) {
            const auto* row = reinterpret_cast<const float*>(from) + r * spec.in;
            if (round_row(block, {row, static_cast<size_t>(spec.in)}, blocks.data())) {
              packed.pack(first + r, blocks.data());
            } else {
              broken = first + r;
            }
          }
        });
      }));
  if (broken < 0) return packed;
  return out_of_range(name_of_row(spec, broken),
                      "a number that is not finite or beyond 65504 (fp16)",
                      absl::StrCat("finite numbers, for ", dtype_name(dtype)));
}

absl::StatusOr<Fp8Weights> load_fp8(const TensorSource& source, const LinearSpec& spec,
                                    at::Device device) {
  const int64_t outs = all_outs(spec), in = spec.in;
  if (spec.tokens || outs % kFp8Multiple != 0 || in % kFp8Multiple != 0) return Fp8Weights();
  const at::Tensor codes = at::empty({outs, in}, at::kFloat8_e4m3fn);
  const at::Tensor scales = at::empty({1, outs}, at::kFloat);
  auto* const code = static_cast<c10::Float8_e4m3fn*>(codes.mutable_data_ptr());
  auto* const scale = static_cast<float*>(scales.mutable_data_ptr());
  std::atomic<int64_t> broken = -1;  // a row that cannot be rounded
  TANDEM_RETURN_IF_ERROR(
      each_rows(source, spec, at::kFloat, [&](int64_t first, int64_t rows, const std::byte* from) {
        // Rows do not share memory.
        cpu::parallel_for(rows, 8, [&](int64_t r, int64_t end) {
          for (; r < end; ++r) {
            const auto* const x = reinterpret_cast<const float*>(from) + r * in;
            float most = 0;
            bool finite = true;
            for (int64_t k = 0; k < in; ++k) {
              most = std::max(most, std::abs(x[k]));
              finite = finite && std::isfinite(x[k]);
            }
            if (!finite) broken = first + r;
            const float s = std::max(most / kFp8Most, std::numeric_limits<float>::min());
            scale[first + r] = s;
            c10::Float8_e4m3fn* const to = code + (first + r) * in;
            for (int64_t k = 0; k < in; ++k) to[k] = x[k] / s;
          }
        });
      }));
  if (broken >= 0) {
    return out_of_range(name_of_row(spec, broken), "a number that is not finite",
                        "finite numbers, for fp8");
  }
  return Fp8Weights{codes.to(device), scales.to(device)};
}

absl::StatusOr<at::Tensor> load_bias(const TensorSource& source, const LinearSpec& spec,
                                     at::ScalarType type, at::Device device) {
  if (!spec.bias) return at::Tensor();
  at::Tensor host = at::empty({all_outs(spec)}, type);
  auto* out = static_cast<std::byte*>(host.mutable_data_ptr());
  for (size_t i = 0; i < spec.names.size(); ++i) {
    const std::string name = spec.names[i] + ".bias";
    TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, name, {spec.outs[i]}));
    const int64_t step = run_of(spec, spec.outs[i]);
    for (int64_t r = 0; r < spec.outs[i]; r += step) {
      if (absl::Status s = convert(*view, spec.groups.stored_row(r), step, type, out); !s.ok()) {
        return annotate(s, name);
      }
      out += static_cast<size_t>(step) * c10::elementSize(type);
    }
    source.done(*view);
  }
  return host.to(device);
}

}  // namespace tandem
