#include "engine/backend/torch/weights/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// "a, b, c and 4 more"
std::string first_few(const std::vector<std::string>& all) {
  constexpr size_t kFew = 5;
  const size_t n = std::min(all.size(), kFew);
  std::string text = absl::StrJoin(all.begin(), all.begin() + static_cast<ptrdiff_t>(n), ", ");
  if (all.size() > n) absl::StrAppend(&text, " and ", all.size() - n, " more");
  return text;
}

}  // namespace

const TensorView* TensorMap::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string> TensorMap::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

std::string mismatch(const TensorView& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape != shape) {
    return absl::StrCat("shape ", shape_text(tensor.shape), ", expected ", shape_text(shape));
  }
  if (tensor.block == nullptr && !is_floating(tensor.dtype)) {
    return absl::StrCat("dtype ", safe_dtype_name(tensor.dtype), ", expected ", kFloatingTypes);
  }
  return "";
}

absl::Status check_finite(const TensorView& tensor, const std::string& field) {
  std::vector<float> part(std::min<size_t>(4096, static_cast<size_t>(tensor.elements())));
  for (int64_t i = 0; i < tensor.elements(); i += static_cast<int64_t>(part.size())) {
    part.resize(std::min(part.size(), static_cast<size_t>(tensor.elements() - i)));
    TANDEM_RETURN_IF_ERROR(to_float(tensor, i, part));
    for (size_t j = 0; j < part.size(); ++j) {
      if (std::isfinite(part[j])) continue;
      return out_of_range(absl::StrCat(field, "[", i + static_cast<int64_t>(j), "]"), part[j],
                          "finite numbers");
    }
  }
  return absl::OkStatus();
}

absl::Status check_tensors(const TensorSource& source, const std::vector<TensorSpec>& specs,
                           const std::function<bool(const std::string&)>& may_ignore) {
  std::vector<std::string> missing, wrong, unexpected;
  std::set<std::string> wanted;
  for (const TensorSpec& spec : specs) {
    wanted.insert(spec.name);
    const TensorView* tensor = source.find(spec.name);
    if (tensor == nullptr) {
      missing.push_back(absl::StrCat(quote_value(spec.name), " ", shape_text(spec.shape)));
    } else if (const std::string what = mismatch(*tensor, spec.shape); !what.empty()) {
      wrong.push_back(absl::StrCat(quote_value(spec.name), " (", what, ")"));
    }
  }
  for (const std::string& name : source.names()) {
    if (!wanted.contains(name) && !may_ignore(name)) {
      unexpected.push_back(
          absl::StrCat(quote_value(name), " ", shape_text(source.find(name)->shape)));
    }
  }
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("missing tensors: " + first_few(missing));
  if (!wrong.empty()) problems.push_back("tensors that do not fit: " + first_few(wrong));
  if (!unexpected.empty()) problems.push_back("unexpected tensors: " + first_few(unexpected));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source.where(), ": ", absl::StrJoin(problems, "; ")));
}

}  // namespace tandem
