// How a model embeds a text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tandem {

// The rows whose states after the last norm are averaged.
enum class Pooling : uint8_t {
  kLast,   // the last one
  kMean,   // all
  kFirst,  // the first one: the CLS token
};

inline constexpr int64_t kMaxDenseWidth = 1 << 20;  // of DenseLayer::in and out

// y = activation(W x + b)
struct DenseLayer {
  int in = 0;
  int out = 0;
  std::vector<float> weight;  // [out, in]
  std::vector<float> bias;    // [out]; empty: none
  bool tanh = false;          // else the identity

  std::vector<double> of(const std::vector<double>& x) const;
};

struct EmbeddingSettings {
  Pooling pooling = Pooling::kLast;
  std::vector<DenseLayer> dense;               // applied to the pooled state, in order
  bool normalize = true;                       // to length 1
  std::map<std::string, std::string> prompts;  // named prefixes of texts
  std::string default_prompt;                  // a name; empty: none

  // Of an embedding.
  int width(int hidden_size) const { return dense.empty() ? hidden_size : dense.back().out; }
};

}  // namespace tandem
