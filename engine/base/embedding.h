// How a model embeds a text.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tandem {

// The rows whose states after the last norm are averaged.
enum class Pooling : uint8_t {
  kLast,   // the last one
  kMean,   // all
  kFirst,  // the first one: the CLS token
};

struct EmbeddingSettings {
  Pooling pooling = Pooling::kLast;
  bool normalize = true;                       // to length 1
  std::map<std::string, std::string> prompts;  // named prefixes of texts
  std::string default_prompt;                  // a name; empty: none
};

}  // namespace tandem
