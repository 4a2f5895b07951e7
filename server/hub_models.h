// Models named as ORG/REPO[@REVISION][:QUANT] of a Hugging Face hub, in --model and --small, and
// with hf:// in deployment files. The program tandem-pull fetches them (client/pull); the server
// has no network client.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/host/config/config.h"
#include "engine/host/config/config_file.h"

namespace tandem {

// Whether `text` has the form of a model name of a hub and is not a path that exists.
bool is_hub_name(const std::string& text);

// Paths of models, by their names. Errors were printed in detail.
using FetchModels =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::vector<std::string>& names)>;

// Runs tandem-pull. offline: takes only models in the cache.
absl::StatusOr<std::vector<std::string>> run_tandem_pull(const std::vector<std::string>& names,
                                                         bool offline);

// Replaces names of a hub in `flags` by paths, and --small auto by the draft model that
// draft_pairs.h has for the large one. A model without NAME= gets the name of its repository.
// Returns a note for the log, or "": which draft model fits a large one without --small.
// INVALID_ARGUMENT: no draft model is known. Errors of `fetch` are returned.
absl::StatusOr<std::string> resolve_hub_models(const FetchModels& fetch, ModelFlags* flags);

// Sets the places of the models in `file` whose paths begin with hf://. INVALID_ARGUMENT: the rest
// is no name. Errors of `fetch` are returned.
absl::Status resolve_hub_models(const FetchModels& fetch, ConfigFile* file);

}  // namespace tandem
