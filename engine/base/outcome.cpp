#include "engine/base/outcome.h"

namespace tandem {

const char* source_name(Source s) {
  switch (s) {
    case Source::kLarge:
      return "large";
    case Source::kSmall:
      return "small";
    case Source::kMask:
      return "mask";
    case Source::kEarlyHead:
      return "early_head";
    case Source::kNgram:
      return "ngram";
  }
  return "?";
}

const char* finish_reason_name(FinishReason r) {
  switch (r) {
    case FinishReason::kEos:
      return "EOS";
    case FinishReason::kStopSequence:
      return "STOP_SEQUENCE";
    case FinishReason::kStopToken:
      return "STOP_TOKEN";
    case FinishReason::kMaxTokens:
      return "MAX_TOKENS";
    case FinishReason::kTimeLimit:
      return "TIME_LIMIT";
    case FinishReason::kCancelled:
      return "CANCELLED";
  }
  return "?";
}

}  // namespace tandem
