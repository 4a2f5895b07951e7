#include "engine/host/methods/projector.h"

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/host/deployment.h"
#include "engine/host/models/alignment.h"

namespace tandem {
namespace {

// Checks the model, the width and the layer whose hidden states the projector takes.
std::optional<Refusal> source_misfit(const std::string& name, const AdapterShape& adapter,
                                     const LoadedModel& large) {
  const ModelShape& reader = large.encoder != nullptr ? large.encoder->shape : large.shape;
  if (adapter.source_fingerprint != reader.fingerprint) {
    return Refusal{"adapter",
                   absl::StrCat(quote_value(name), ", for rows of a model with the fingerprint ",
                                quote_value(adapter.source_fingerprint)),
                   absl::StrCat("one for model ", large.shape.name, ", which has ",
                                quote_value(reader.fingerprint))};
  }
  const bool fits = reader.encodes ? adapter.layer == reader.depth : adapter.layer <= reader.layers;
  if (adapter.source == reader.hidden_size && fits) return std::nullopt;
  return Refusal{"adapter",
                 absl::StrCat(quote_value(name), ", for rows of width ", adapter.source,
                              " after layer ", adapter.layer),
                 reader.encodes
                     ? absl::StrCat("width ", reader.hidden_size, " after layer ", reader.depth,
                                    ", the last of the encoder of model ", large.shape.name)
                     : absl::StrCat("width ", reader.hidden_size, " and at most layer ",
                                    reader.layers, " of model ", large.shape.name)};
}

// Checks how the projector pairs the tokens of the two models.
std::optional<Refusal> tokens_misfit(const std::string& name, const AdapterShape& adapter,
                                     const Deployment& d) {
  const bool shared = !adapter.foreign && !adapter.aligned;
  if (shared != d.share_tokens) {
    return Refusal{"adapter",
                   absl::StrCat(quote_value(name), ", whose tokens are ",
                                shared ? "shared" : (adapter.foreign ? "the source's" : "aligned")),
                   absl::StrCat(shared ? "source or aligned, as " : "shared, as ",
                                d.large->config.name, " and ", d.small->config.name,
                                shared ? " have different tokens" : " have the same")};
  }
  for (const LoadedModel* const model : {d.large, d.small}) {
    if (!adapter.aligned) break;
    const std::string why = why_unaligned(*model->tokenizer);
    if (why.empty()) continue;
    return Refusal{"adapter", absl::StrCat(quote_value(name), ", whose tokens are aligned"),
                   absl::StrCat("one whose tokens are the source's, as the tokenizer of ",
                                model->config.name, " has no alignment: ", why)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> projector_misfit(const std::string& name, const Deployment& d) {
  if (d.small == nullptr) {
    return Refusal{"adapter", quote_value(name), "unset without a `small` model"};
  }
  const LoadedModel &large = *d.large, &small = *d.small;
  if (small.encoder != nullptr && large.encoder == nullptr) {
    return Refusal{"adapter", quote_value(name),
                   absl::StrCat("unset, as ", small.config.name, " has an encoder and ",
                                large.config.name, " has none")};
  }
  const ModelShape& conditioned = small.encoder != nullptr ? small.encoder->shape : small.shape;
  const AdapterShape& adapter = conditioned.adapters[find_adapter(conditioned, name).index()];
  if (adapter.source == 0) {
    return Refusal{"adapter", quote_value(name), "an adapter of kind projector"};
  }
  if (auto misfit = source_misfit(name, adapter, large)) return misfit;
  return tokens_misfit(name, adapter, d);
}

}  // namespace tandem
