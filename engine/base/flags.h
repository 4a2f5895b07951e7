// Command line flags: "--name VALUE" or "--name=VALUE", switches ("--name", "--name=false"), and a
// help text from the same table.
//
// A flag may appear several times; its setter sees every value. Errors are INVALID_ARGUMENT and
// name the flag, the value and what is allowed.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

class Flags {
 public:
  using Setter = std::function<absl::Status(absl::string_view value)>;

  // `name` without dashes; `value_name` names the value in the help. Empty `help`: not listed.
  void add(std::string name, std::string value_name, std::string help, Setter set);
  void add_switch(std::string name, std::string help, std::function<void(bool)> set);

  // Common cases of add().
  void text(std::string name, std::string value_name, std::string help,
            std::optional<std::string>* to);
  void texts(std::string name, std::string value_name, std::string help,
             std::vector<std::string>* to);
  void number(std::string name, std::string value_name, std::string help, double min, double max,
              std::optional<double>* to);
  void toggle(std::string name, std::string help, bool* to);

  // The error for `usual`, the name in other programs, suggests `ours`.
  void also_known(std::string usual, std::string ours);

  // A heading in the help for the flags that follow.
  void section(std::string title);

  // Positional arguments, in order, including everything after "--".
  absl::StatusOr<std::vector<std::string>> parse(const std::vector<std::string>& args) const;

  std::string help() const;

 private:
  struct Flag {
    std::string name;  // empty: a heading, in `help`
    std::string value_name;
    std::string help;
    bool is_switch = false;
    Setter set;
  };
  const Flag* find(absl::string_view name) const;
  absl::Status unknown(const std::string& name) const;

  std::vector<Flag> flags_;
  std::map<std::string, std::string> usual_;
};

}  // namespace tandem
