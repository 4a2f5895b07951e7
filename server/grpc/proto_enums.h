// The engine's enumerators and those of the API, in both directions.
#pragma once

#include "engine/base/enum_names.h"
#include "engine/host/methods/fields.h"
#include "engine/host/requests/request.h"
#include "engine/sched/pass_trace.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/models.pb.h"

namespace tandem {

inline constexpr auto kProtoContracts = enum_table<Contract, v1::Contract>({
    {Contract::kAny, v1::CONTRACT_ANY},
    {Contract::kLossy, v1::CONTRACT_LOSSY},
    {Contract::kDistribution, v1::CONTRACT_DISTRIBUTION},
    {Contract::kExactUpToRounding, v1::CONTRACT_EXACT_UP_TO_ROUNDING},
    {Contract::kExact, v1::CONTRACT_EXACT},
});

inline constexpr auto kProtoFinishReasons = enum_table<FinishReason, v1::FinishReason>({
    {FinishReason::kEos, v1::FINISH_REASON_EOS},
    {FinishReason::kStopSequence, v1::FINISH_REASON_STOP_SEQUENCE},
    {FinishReason::kStopToken, v1::FINISH_REASON_STOP_TOKEN},
    {FinishReason::kMaxTokens, v1::FINISH_REASON_MAX_TOKENS},
    {FinishReason::kTimeLimit, v1::FINISH_REASON_TIME_LIMIT},
    {FinishReason::kCancelled, v1::FINISH_REASON_CANCELLED},
});

inline constexpr auto kProtoSources = enum_table<Source, v1::Source>({
    {Source::kLarge, v1::SOURCE_LARGE},
    {Source::kSmall, v1::SOURCE_SMALL},
    {Source::kMask, v1::SOURCE_MASK},
    {Source::kEarlyHead, v1::SOURCE_EARLY_HEAD},
    {Source::kNgram, v1::SOURCE_NGRAM},
    {Source::kGrammar, v1::SOURCE_GRAMMAR},
});

inline constexpr auto kProtoPassRoles = enum_table<Role, v1::PassRole>({
    {Role::kLarge, v1::PASS_ROLE_LARGE},
    {Role::kSmall, v1::PASS_ROLE_SMALL},
    {Role::kEncoder, v1::PASS_ROLE_ENCODER},
    {Role::kWorker, v1::PASS_ROLE_WORKER},
});

inline constexpr auto kProtoPassKinds = enum_table<PassKind, v1::PassKind>({
    {PassKind::kPrefill, v1::PASS_KIND_PREFILL},
    {PassKind::kDraft, v1::PASS_KIND_DRAFT},
    {PassKind::kVerify, v1::PASS_KIND_VERIFY},
    {PassKind::kDecode, v1::PASS_KIND_DECODE},
    {PassKind::kRecompute, v1::PASS_KIND_RECOMPUTE},
});

inline constexpr auto kProtoParameterTypes = enum_table<Field::Kind, v1::ParameterType>({
    {Field::Kind::kSwitch, v1::PARAMETER_TYPE_SWITCH},
    {Field::Kind::kInteger, v1::PARAMETER_TYPE_INTEGER},
    {Field::Kind::kNumber, v1::PARAMETER_TYPE_NUMBER},
    {Field::Kind::kChoice, v1::PARAMETER_TYPE_CHOICE},
    {Field::Kind::kText, v1::PARAMETER_TYPE_TEXT},
    {Field::Kind::kTexts, v1::PARAMETER_TYPE_TEXTS},
});

}  // namespace tandem
