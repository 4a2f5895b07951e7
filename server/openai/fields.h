// Reads the members of a JSON object by name and type. Members with a wrong type, duplicates and
// unknown members are reported in `wrong` by name, without quoting texts.
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
  // REQUIRES: `object` is a JSON object and outlives this. `path` is the prefix of names in errors:
  // "messages[0].".
  Fields(absl::string_view object, std::string path, Violations* wrong);

  // Adds the members of another object.
  void absorb(absl::string_view object);

  // nullopt if the member is missing, null or of another type.
  std::optional<absl::string_view> any(absl::string_view name);
  std::optional<absl::string_view> of_kind(absl::string_view name, JsonKind kind);
  std::optional<bool> boolean(absl::string_view name);
  std::optional<double> number(absl::string_view name);
  std::optional<int32_t> integer(absl::string_view name);
  std::optional<uint64_t> unsigned_integer(absl::string_view name);  // or in a string
  std::optional<std::string> string(absl::string_view name);
  std::vector<absl::string_view> array(absl::string_view name);

  // Accepts a member without effect.
  void ignore(absl::string_view name) { any(name); }
  // Accepts a member only if it equals `neutral`, JSON without spaces ("false").
  void only(absl::string_view name, absl::string_view neutral);
  // Rejects a member.
  void refuse(absl::string_view name) { only(name, ""); }
  // Rejects all members that have not been read.
  void end();
  // Returns these instead: `"name":value,...`.
  std::string rest();

  // "messages[0].content"
  std::string path(absl::string_view name) const;

 private:
  struct Entry {
    JsonMember member;
    bool read = false;
  };

  void add_members(absl::string_view object);

  const std::string path_;
  Violations& wrong_;
  std::vector<Entry> entries_;  // by name
};

// A number for an error message, truncated to a reasonable length.
std::string shown(absl::string_view number);

}  // namespace tandem::openai
