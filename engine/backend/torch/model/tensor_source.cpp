#include "engine/backend/torch/model/tensor_source.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Weights are streamed from memory once per batch: fewer, larger pages spare the processor
// look-ups. Only a wish, and before the pages are touched.
void prefer_huge_pages(std::byte* data, size_t bytes) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// Elements of `view` as `type`, from out[0] on.
absl::Status convert(const TensorView& view, at::ScalarType type, std::byte* out) {
  const int64_t n = view.elements();
  if (type == at::kFloat) {
    return to_float(view, 0, {reinterpret_cast<float*>(out), static_cast<size_t>(n)});
  }
  if (type == at::kDouble) {
    return to_double(view, 0, {reinterpret_cast<double*>(out), static_cast<size_t>(n)});
  }
  if (view.dtype == SafeDType::kBF16) {
    std::memcpy(out, view.data, view.bytes);
    return absl::OkStatus();
  }
  auto* to = reinterpret_cast<c10::BFloat16*>(out);
  std::vector<float> part(1 << 14);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(part.size())) {
    const auto m = static_cast<size_t>(std::min(n - i, static_cast<int64_t>(part.size())));
    TANDEM_RETURN_IF_ERROR(to_float(view, i, {part.data(), m}));
    for (size_t k = 0; k < m; ++k) to[i + static_cast<int64_t>(k)] = c10::BFloat16(part[k]);
  }
  return absl::OkStatus();
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
    const TensorView* view = source.find(names[i]);
    if (view == nullptr) return absl::NotFoundError(absl::StrCat("tensor ", names[i], ": missing"));
    if (view->shape != shapes[i]) {
      return out_of_range(absl::StrCat("shape of ", names[i]), shape_text(view->shape),
                          shape_text(shapes[i]));
    }
    if (absl::Status s = convert(*view, type, out); !s.ok()) return annotate(s, names[i]);
    out += view->elements() * static_cast<int64_t>(c10::elementSize(type));
    if (source.done) source.done(*view);
  }
  return host.to(device);
}

}  // namespace tandem
