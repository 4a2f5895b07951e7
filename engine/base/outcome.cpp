#include "engine/base/outcome.h"

#include "engine/base/enum_names.h"

namespace tandem {
namespace {

constexpr auto kSourceNames = enum_names<Source>({
    {Source::kLarge, "large"},
    {Source::kSmall, "small"},
    {Source::kMask, "mask"},
    {Source::kEarlyHead, "early_head"},
    {Source::kNgram, "ngram"},
    {Source::kGrammar, "grammar"},
});

constexpr auto kFinishReasonNames = enum_names<FinishReason>({
    {FinishReason::kEos, "EOS"},
    {FinishReason::kStopSequence, "STOP_SEQUENCE"},
    {FinishReason::kStopToken, "STOP_TOKEN"},
    {FinishReason::kMaxTokens, "MAX_TOKENS"},
    {FinishReason::kTimeLimit, "TIME_LIMIT"},
    {FinishReason::kCancelled, "CANCELLED"},
});

}  // namespace

const char* source_name(Source s) { return kSourceNames[s].data(); }

const char* finish_reason_name(FinishReason r) { return kFinishReasonNames[r].data(); }

}  // namespace tandem
