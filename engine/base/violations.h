// The fields of a request that are wrong: all of them at once, so that nobody has to send it again
// to hear of the next one.
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

// Of an INVALID_ARGUMENT that out_of_range or Violations made. Empty for other statuses.
std::vector<Violation> violations_of(const absl::Status& status);

class Violations {
 public:
  // What is wrong by `status`; nothing when it is OK. A first error of another kind than
  // INVALID_ARGUMENT is what status() then returns, alone.
  void add(const absl::Status& status);

  bool any() const { return !first_.ok(); }

  // OK; the status of the one thing that is wrong; or INVALID_ARGUMENT with a line for each.
  absl::Status status() const;

 private:
  absl::Status first_;
  std::vector<Violation> all_;
  int dropped_ = 0;  // beyond kMost
};

}  // namespace tandem
