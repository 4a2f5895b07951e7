#include "engine/base/violations.h"

#include <cstddef>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Each: field, NUL, description, NUL. Fields contain no NUL, and values are quoted.
constexpr char kPayload[] = "tandem/violations";
constexpr char kEnd = '\0';
constexpr size_t kMost = 16;  // bounds the message for long lists of invalid ids

std::string line(const Violation& v) {
  return v.field.empty() ? v.description : absl::StrCat(v.field, ": ", v.description);
}

absl::Status with_violations(std::string_view message, const std::vector<Violation>& all) {
  std::string payload;
  for (const Violation& v : all) {
    for (const std::string* part : {&v.field, &v.description}) {
      for (const char c : *part) payload.push_back(c == kEnd ? ' ' : c);
      payload.push_back(kEnd);
    }
  }
  absl::Status status =
      absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
  status.SetPayload(kPayload, absl::Cord(payload));
  return status;
}

}  // namespace

absl::Status wrong_field(absl::string_view field, absl::string_view description) {
  const Violation wrong = {std::string(field), std::string(description)};
  return with_violations(line(wrong), {wrong});
}

std::vector<Violation> violations_of(const absl::Status& status) {
  std::vector<Violation> all;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return all;
  const std::vector<std::string> parts = absl::StrSplit(std::string(*payload), kEnd);
  for (size_t i = 0; i + 1 < parts.size(); i += 2) all.push_back({parts[i], parts[i + 1]});
  return all;
}

void Violations::add(const absl::Status& status) {
  if (status.ok()) return;
  const bool of_fields = absl::IsInvalidArgument(status);
  if (!any() || (absl::IsInvalidArgument(first_) && !of_fields)) first_ = status;
  if (!of_fields) return;
  std::vector<Violation> found = violations_of(status);
  if (found.empty()) found.push_back({"", std::string(status.message())});
  for (Violation& v : found) {
    all_.size() < kMost ? all_.push_back(std::move(v)) : void(++dropped_);
  }
}

bool Violations::full() {
  if (all_.size() < kMost) return false;
  more_ = true;
  return true;
}

absl::Status Violations::status() const {
  if (!absl::IsInvalidArgument(first_) || (all_.size() == 1 && dropped_ == 0)) return first_;
  std::vector<Violation> all = all_;
  if (more_) {
    all.push_back({"", "and more fields"});
  } else if (dropped_ > 0) {
    all.push_back({"", absl::StrCat("and ", dropped_, " more fields")});
  }
  return with_violations(
      absl::StrJoin(all, "\n",
                    [](std::string* out, const Violation& v) { absl::StrAppend(out, line(v)); }),
      all);
}

}  // namespace tandem
