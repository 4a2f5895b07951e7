// The cost of converting a token to text, off the loop: decoding and matching of stop strings.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/sample_text.h"
#include "engine/base/check.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/stream_decoder.h"

namespace tandem {
namespace {

void token_to_text(benchmark::State& state) {
  const auto tokenizer = Tokenizer::load(bench::kModel);
  TANDEM_CHECK(tokenizer.ok());
  const auto tokens = (*tokenizer)->encode(bench::kText, false);
  TANDEM_CHECK(tokens.ok());
  const auto stops = static_cast<size_t>(state.range(0));
  std::vector<std::string> strings;
  for (size_t i = 0; i < stops; ++i) strings.push_back("never " + std::to_string(i));
  StreamDecoder decoder(*tokenizer, true);
  StopMatcher matcher(strings, false);
  std::string text, released;
  int64_t n = 0;
  for (auto _ : state) {
    for (const Token token : *tokens) {
      text.clear();
      decoder.push(token, text);
      if (stops > 0) {
        released.clear();
        benchmark::DoNotOptimize(matcher.push(text, released));
      }
      benchmark::DoNotOptimize(text.data());
    }
    n += static_cast<int64_t>(tokens->size());
  }
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(n), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(token_to_text)->ArgName("stop_strings")->Arg(0)->Arg(4);

}  // namespace
}  // namespace tandem
