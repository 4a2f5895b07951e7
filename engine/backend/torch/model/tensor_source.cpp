#include "engine/backend/torch/model/tensor_source.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Weights are streamed from memory once per batch: fewer, larger pages spare the processor
// look-ups. Only a wish, and before the pages are touched.
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

// n elements of `view` as `type`, from the first-th on.
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

// Type of the numbers that PackedMatrix::pack takes.
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

}  // namespace

absl::StatusOr<at::Tensor> load_stacked(const TensorSource& source,
                                        const std::vector<std::string>& names,
                                        const std::vector<std::vector<int64_t>>& shapes,
                                        at::ScalarType type, at::Device device) {
  std::vector<int64_t> shape = shapes.front();
  shape[0] = 0;
  for (const auto& s : shapes) shape[0] += s[0];
  at::Tensor host = at::empty(shape, type);
  auto* out = static_cast<std::byte*>(host.mutable_data_ptr());
  if (device.is_cpu()) prefer_huge_pages(out, host.nbytes());
  for (size_t i = 0; i < names.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, names[i], shapes[i]));
    if (absl::Status s = convert(*view, 0, view->elements(), type, out); !s.ok()) {
      return annotate(s, names[i]);
    }
    out += view->elements() * static_cast<int64_t>(c10::elementSize(type));
    if (source.done) source.done(*view);
  }
  return host.to(device);
}

absl::StatusOr<cpu::PackedMatrix> load_packed(const TensorSource& source,
                                              const std::vector<std::string>& names,
                                              const std::vector<std::vector<int64_t>>& shapes,
                                              cpu::WeightType type, cpu::Layout layout) {
  int64_t outs = 0;
  for (const auto& s : shapes) outs += s[0];
  const int64_t in = shapes.front()[1];
  cpu::PackedMatrix packed(type, outs, in, layout);
  const at::ScalarType from = source_type(type);
  constexpr int64_t kRows = 128;
  std::vector<std::byte> part(static_cast<size_t>(kRows * in) * c10::elementSize(from));
  int64_t row = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const TensorView* view, find(source, names[i], shapes[i]));
    for (int64_t r = 0; r < shapes[i][0]; r += kRows) {
      const int64_t n = std::min(kRows, shapes[i][0] - r);
      if (absl::Status s = convert(*view, r * in, n * in, from, part.data()); !s.ok()) {
        return annotate(s, names[i]);
      }
      packed.pack(row + r, n, part.data());
    }
    row += shapes[i][0];
    if (source.done) source.done(*view);
  }
  return packed;
}

}  // namespace tandem
