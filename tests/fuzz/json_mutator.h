// Mutations of JSON that leave it JSON: libFuzzer's own seldom do, and the readers behind the
// parser would see little. One input in four still gets libFuzzer's.
//
// Include it in one file of a program whose input is JSON, up to a NUL byte where others follow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tandem::fuzz {

using Json = nlohmann::ordered_json;

// Every value, parents first.
inline void collect(Json& value, std::vector<Json*>* all) {
  all->push_back(&value);
  if (!value.is_structured() || all->size() > 5000) return;
  for (auto& child : value) collect(child, all);
}

inline Json edge_value(std::mt19937& random) {
  const Json some[] = {nullptr,
                       true,
                       0,
                       1,
                       -1,
                       3.5,
                       1e300,
                       -0.0,
                       4294967295U,
                       INT64_MIN,
                       UINT64_MAX,
                       "",
                       "a",
                       "\xEF\xBF\xBD",
                       "</s>",
                       Json::array(),
                       Json::object(),
                       2,
                       255,
                       256};
  return some[random() % std::size(some)];
}

inline void mutate(Json& root, std::mt19937& random) {
  std::vector<Json*> all;
  collect(root, &all);
  const auto any = [&]() -> Json& { return *all[random() % all.size()]; };
  Json& value = any();
  switch (random() % 6) {
    case 0:
      value = edge_value(random);
      break;
    case 1: {  // what stands elsewhere, here too
      Json copy = any();
      value = std::move(copy);
      break;
    }
    case 2:
      if (value.is_number()) {
        value = value.get<double>() * (random() % 2 ? -1 : 2) + static_cast<double>(random() % 3);
      } else if (value.is_string()) {
        std::string text = value.get<std::string>();
        const size_t at = random() % (text.size() + 1);
        value = random() % 2 ? text.substr(0, at) : text + text;
      }
      break;
    case 3:  // without one of its children
      if (value.is_structured() && !value.empty()) {
        value.erase(std::next(value.begin(), static_cast<ptrdiff_t>(random() % value.size())));
      }
      break;
    case 4:  // with one child more
      if (value.is_array()) value.push_back(random() % 2 ? edge_value(random) : Json(any()));
      if (value.is_object()) {
        std::vector<std::string> keys;
        for (const Json* other : all) {
          if (!other->is_object()) continue;
          for (const auto& [key, child] : other->items()) keys.push_back(key);
        }
        const std::string key = keys.empty() ? "a" : keys[random() % keys.size()];
        value[key] = random() % 2 ? edge_value(random) : Json(any());
      }
      break;
    default:  // in another order
      if (value.is_array()) std::reverse(value.begin(), value.end());
  }
}

}  // namespace tandem::fuzz

extern "C" inline __attribute__((used)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                                                       size_t max_size,
                                                                       unsigned int seed) {
  using tandem::fuzz::Json;
  std::mt19937 random(seed);
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const std::string text = input.substr(0, end);
  // Copying a value recurses.
  const bool deep = std::count(text.begin(), text.end(), '[') > 4000 ||
                    std::count(text.begin(), text.end(), '{') > 4000;
  Json json = Json::parse(deep ? "" : text, nullptr, false);
  if (json.is_discarded() || random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (unsigned n = 1 + random() % 3; n > 0; --n) tandem::fuzz::mutate(json, random);
  const std::string output =
      json.dump(-1, ' ', false, Json::error_handler_t::replace) + input.substr(end);
  if (output.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, output.data(), output.size());
  return output.size();
}
