// The constraint of a request, compiled for the tokens of the model that writes.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar_constraint.h"
#include "engine/host/deployment.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"

namespace tandem {

// Of a request with this constraint; null without one. Takes milliseconds. Errors: INVALID_ARGUMENT
// naming the kind of constraint; FAILED_PRECONDITION if the model has no end-of-text token.
absl::StatusOr<std::shared_ptr<GrammarConstraint>> resolve_constraint(
    const Deployment& deployment, const LoadedModel& writer, const GenerateRequest& request,
    const std::optional<GrammarSpec>& spec);

// Adds it to the processors of one choice.
void constrain(std::shared_ptr<TokenConstraint> constraint, SequenceSpec* spec);

}  // namespace tandem
