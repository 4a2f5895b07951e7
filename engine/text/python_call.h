// Tool calls in Python's syntax, as Gemma writes them:
//
//   get_weather(city="Paris", days=2)
//   print(get_weather(city="Paris"))
//   [get_weather(city="Paris"), get_time(zone="CET")]
//
// Arguments are named literals: strings, numbers, True, False, None, lists, tuples and dicts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct PythonCall {
  std::string name;       // with dots, if it has any
  std::string arguments;  // a JSON object
};

// All calls of `code`, one per line, separated by semicolons, or in a list. nullopt: anything else.
std::optional<std::vector<PythonCall>> parse_python_calls(std::string_view code);

}  // namespace tandem
