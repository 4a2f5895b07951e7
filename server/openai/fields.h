// The members of a JSON object, taken one by one by their names and types. What is of another type,
// comes twice, or is left over goes into `wrong` by name, never quoting texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/violations.h"
#include "server/openai/json_text.h"

namespace tandem::openai {

class Fields {
 public:
  // REQUIRES: `object` is a JSON object, and outlives this. `path` is put before the names in
  // errors: "messages[0].".
  Fields(absl::string_view object, std::string path, Violations* wrong);

  // What is missing or null is nullopt, as is what is not of the type.
  std::optional<absl::string_view> any(absl::string_view name);
  std::optional<absl::string_view> of_kind(absl::string_view name, JsonKind kind);
  std::optional<bool> boolean(absl::string_view name);
  std::optional<double> number(absl::string_view name);
  std::optional<int32_t> integer(absl::string_view name);
  std::optional<uint64_t> unsigned_integer(absl::string_view name);  // or one in a string
  std::optional<std::string> string(absl::string_view name);
  std::vector<absl::string_view> array(absl::string_view name);

  // Means nothing to this server, and may be there.
  void ignore(absl::string_view name) { any(name); }
  // May be there only as `neutral`, which is JSON without spaces ("false"), if at all.
  void only(absl::string_view name, absl::string_view neutral);
  // May not be there.
  void refuse(absl::string_view name) { only(name, ""); }
  // Members that nobody has asked for are wrong.
  void end();
  // Or they are taken as they are: `"name":value,...`.
  std::string rest();

  // "messages[0].content"
  std::string path(absl::string_view name) const;

 private:
  struct Entry {
    JsonMember member;
    bool asked = false;
  };

  const std::string path_;
  Violations& wrong_;
  std::vector<Entry> entries_;  // by name
};

// A number as errors show it: no more than one is long.
std::string shown(absl::string_view number);

}  // namespace tandem::openai
