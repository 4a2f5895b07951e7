#include "engine/host/requests/resolve_constraint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/status.h"
#include "engine/grammar/grammars.h"

namespace tandem {
namespace {

// "json_schema: not JSON" as an error of the field json_schema.
absl::Status of_field(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(status.message(), absl::MaxSplits(": ", 1));
  return wrong_field(parts.first, parts.second);
}

}  // namespace

absl::StatusOr<std::shared_ptr<GrammarConstraint>> resolve_constraint(
    const Deployment& deployment, const LoadedModel& writer, const GenerateRequest& request,
    const std::optional<GrammarSpec>& spec) {
  if (!spec) return nullptr;
  if (request.stopping.ignore_eos) {
    return out_of_range("ignore_eos", "true", "false with a constraint");
  }
  std::vector<Token> ends;
  for (const Token end : writer.eos) {
    if (end < writer.tokenizer->vocab_size()) ends.push_back(end);
  }
  if (deployment.grammars == nullptr || ends.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "constraint: model \"", deployment.name, "\" has no end-of-text token; offered: unset"));
  }
  auto constraint = deployment.grammars->constraint(request.client, writer.tokenizer, ends, *spec);
  if (!constraint.ok()) return of_field(constraint.status());
  return constraint;
}

void constrain(std::shared_ptr<TokenConstraint> constraint, SequenceSpec* spec) {
  auto processors = std::make_shared<Processors>();
  if (spec->warp.processors) {
    *processors = *spec->warp.processors;
  } else {
    processors->prompt_tokens = static_cast<int>(spec->prompt.size());
  }
  processors->constraint = std::move(constraint);
  spec->warp.processors = std::move(processors);
}

}  // namespace tandem
