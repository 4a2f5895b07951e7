// The constraint on an answer: the client's, or that of its tools. It begins behind the reasoning.
#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/host/requests/answer_format.h"
#include "engine/host/requests/request.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// nullopt: none. `answer`: of the same request. Errors: FAILED_PRECONDITION if tools must be called
// and the model's format of calls is unknown; INVALID_ARGUMENT without such tools, or together with
// another constraint.
absl::StatusOr<std::optional<GrammarSpec>> answer_constraint(
    const AnswerFormat& format, const std::optional<AnswerPlan>& answer,
    const GenerateRequest& request, const Tokenizer& tokenizer);

// The status of compiling a constraint that answer_constraint() has made of others, with the field
// of the request that is at fault: a tool's schema, or the client's constraint. `compile`: the
// status of another constraint.
absl::Status at_fault(const absl::Status& refused, const GenerateRequest& request,
                      absl::FunctionRef<absl::Status(const GrammarSpec&)> compile);

}  // namespace tandem
