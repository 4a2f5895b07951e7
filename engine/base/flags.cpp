#include "engine/base/flags.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/base/status.h"
#include "engine/base/suggest.h"

namespace tandem {

void Flags::add(std::string name, std::string value_name, std::string help, Setter set) {
  flags_.push_back(
      {std::move(name), std::move(value_name), std::move(help), false, std::move(set)});
}

void Flags::add_switch(std::string name, std::string help, std::function<void(bool)> set) {
  const std::string flag = "--" + name;
  Setter parse = [flag, set = std::move(set)](absl::string_view value) {
    bool on = false;
    if (!absl::SimpleAtob(value, &on)) return out_of_range(flag, value, "true, false");
    set(on);
    return absl::OkStatus();
  };
  flags_.push_back({std::move(name), "", std::move(help), true, std::move(parse)});
}

void Flags::text(std::string name, std::string value_name, std::string help,
                 std::optional<std::string>* to) {
  add(std::move(name), std::move(value_name), std::move(help), [to](absl::string_view value) {
    *to = std::string(value);
    return absl::OkStatus();
  });
}

void Flags::texts(std::string name, std::string value_name, std::string help,
                  std::vector<std::string>* to) {
  add(std::move(name), std::move(value_name), std::move(help), [to](absl::string_view value) {
    to->emplace_back(value);
    return absl::OkStatus();
  });
}

void Flags::number(std::string name, std::string value_name, std::string help, double min,
                   double max, std::optional<double>* to) {
  const std::string flag = "--" + name;
  add(std::move(name), std::move(value_name), std::move(help),
      [flag, min, max, to](absl::string_view value) {
        double number = 0;
        // Written so that NaN fails too.
        if (!absl::SimpleAtod(value, &number) || !(number >= min && number <= max)) {
          return out_of_range(flag, value, absl::StrCat("a number in [", min, ", ", max, "]"));
        }
        *to = number;
        return absl::OkStatus();
      });
}

void Flags::toggle(std::string name, std::string help, bool* to) {
  add_switch(std::move(name), std::move(help), [to](bool on) { *to = on; });
}

void Flags::section(std::string title) { flags_.push_back({"", "", std::move(title), false, {}}); }

const Flags::Flag* Flags::find(absl::string_view name) const {
  for (const Flag& flag : flags_) {
    if (!flag.name.empty() && flag.name == name) return &flag;
  }
  return nullptr;
}

void Flags::also_known(std::string usual, std::string ours) {
  usual_[std::move(usual)] = std::move(ours);
}

absl::Status Flags::unknown(const std::string& name) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (!flag.name.empty() && !flag.help.empty()) names.push_back(flag.name);
  }
  const auto usual = usual_.find(absl::StrReplaceAll(name, {{"_", "-"}}));
  const std::string meant = usual != usual_.end() ? usual->second : nearest(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": no such flag; ",
                   meant.empty() ? "see --help" : absl::StrCat("did you mean --", meant, "?")));
}

absl::StatusOr<std::vector<std::string>> Flags::parse(const std::vector<std::string>& args) const {
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      rest.insert(rest.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (arg.size() < 3 || arg.compare(0, 2, "--") != 0) {
      rest.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name =
        arg.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    const Flag* flag = find(name);
    if (flag == nullptr) return unknown(name);
    std::string value;
    if (equals != std::string::npos) {
      value = arg.substr(equals + 1);
    } else if (flag->is_switch) {
      value = "true";
    } else if (i + 1 < args.size()) {
      value = args[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": needs a value: ", flag->value_name));
    }
    TANDEM_RETURN_IF_ERROR(flag->set(value));
  }
  return rest;
}

std::string Flags::help() const {
  constexpr size_t kColumn = 30;
  std::string out;
  for (const Flag& flag : flags_) {
    if (flag.name.empty()) {
      absl::StrAppend(&out, "\n", flag.help, ":\n");
      continue;
    }
    if (flag.help.empty()) continue;
    std::string left = absl::StrCat("  --", flag.name);
    if (!flag.value_name.empty()) absl::StrAppend(&left, " ", flag.value_name);
    bool first = true;
    for (absl::string_view line : absl::StrSplit(flag.help, '\n')) {
      if (first && left.size() + 2 <= kColumn) {
        absl::StrAppend(&out, left, std::string(kColumn - left.size(), ' '), line, "\n");
      } else {
        if (first) absl::StrAppend(&out, left, "\n");
        absl::StrAppend(&out, std::string(kColumn, ' '), line, "\n");
      }
      first = false;
    }
  }
  return out;
}

}  // namespace tandem
