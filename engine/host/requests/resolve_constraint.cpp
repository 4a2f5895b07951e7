#include "engine/host/requests/resolve_constraint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/grammar/grammars.h"

namespace tandem {

absl::StatusOr<std::shared_ptr<GrammarConstraint>> resolve_constraint(
    const Deployment& deployment, const LoadedModel& writer, const GenerateRequest& request) {
  if (!request.constraint) return nullptr;
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
  return deployment.grammars->constraint(request.client, writer.tokenizer, ends,
                                         *request.constraint);
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
