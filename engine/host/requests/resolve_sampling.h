// Sampling parameters of a request, with the model's defaults for those that it leaves unset.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/violations.h"
#include "engine/host/models/loaded_model.h"
#include "engine/host/requests/request.h"
#include "engine/sampling/params.h"
#include "engine/sched/spec.h"

namespace tandem {

// The model whose tokens the answer consists of.
struct Writer {
  const LoadedModel& model;
  int vocab_size;  // ids that may be drawn
};

absl::StatusOr<SamplingParams> resolve_params(const Writer& writer, const SamplingFields& fields);

// Null if they change nothing.
absl::StatusOr<std::shared_ptr<const Processors>> resolve_processors(
    const Writer& writer, const SamplingParams& params, const StopRules& stops,
    int64_t prompt_tokens, const std::optional<int64_t>& min_new_tokens);

std::vector<Token> resolve_stop_tokens(const std::vector<int64_t>& ids, int vocab_size,
                                       Violations* wrong);

}  // namespace tandem
