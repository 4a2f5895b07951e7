// Collects all invalid fields of a request, so that one response reports them together.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct Violation {
  std::string field;        // its path: "temperature", "chat.messages[1].role"
  std::string description;  // "200; allowed: [0, 100]"
  friend bool operator==(const Violation&, const Violation&) = default;
};

// The violations in an INVALID_ARGUMENT from out_of_range or Violations. Empty for other statuses.
std::vector<Violation> violations_of(const absl::Status& status);

class Violations {
 public:
  // Adds the violations in `status`; none if it is OK. The first error of another code is returned
  // by status(), without the others.
  void add(const absl::Status& status);

  bool any() const { return !first_.ok(); }

  // Whether as many violations are kept as fit into a response. The caller stops: it neither looks
  // for more nor builds them, so a hostile request costs no more than its reading.
  bool full();

  // OK; the status of a single violation; or INVALID_ARGUMENT with a line for each.
  absl::Status status() const;

 private:
  absl::Status first_;
  std::vector<Violation> all_;
  int dropped_ = 0;    // beyond kMost
  bool more_ = false;  // a caller stopped at kMost
};

}  // namespace tandem
