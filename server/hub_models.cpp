#include "server/hub_models.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/child_process.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config_models.h"
#include "server/draft_pairs.h"

namespace tandem {
namespace {

constexpr char kAutoDraft[] = "auto";
constexpr size_t kMaxName = 64;  // of a model

bool good_part(absl::string_view text) {
  return !text.empty() && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("._-", absl::string_view(&c, 1));
         });
}

// "org/repo" of a hub name.
std::string repository_of(absl::string_view name) {
  return std::string(name.substr(0, name.find_first_of("@:")));
}

// tandem-pull checks the details.
bool has_hub_form(absl::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(repository_of(name), '/');
  return parts.size() == 2 && good_part(parts[0]) && good_part(parts[1]);
}

// The name that the model is served under.
std::string default_name(absl::string_view hub_name) {
  const std::string repository = repository_of(hub_name);
  if (repository.size() <= kMaxName) return repository;
  return repository.substr(repository.find('/') + 1, kMaxName);
}

}  // namespace

bool is_hub_name(const std::string& text) {
  std::error_code error;
  return has_hub_form(text) && !absl::EndsWith(text, ".gguf") &&
         !std::filesystem::exists(text, error);
}

absl::StatusOr<std::vector<std::string>> run_tandem_pull(const std::vector<std::string>& names,
                                                         bool offline) {
  std::vector<std::string> args = {sibling_program("tandem-pull")};
  args.insert(args.end(), names.begin(), names.end());
  ChildProcess::Options options;
  options.capture_output = true;
  if (offline) options.environment = {{"HF_HUB_OFFLINE", "1"}};
  auto child = ChildProcess::start(args, options);
  if (absl::IsNotFound(child.status())) {
    return absl::NotFoundError(
        absl::StrCat("models of a hub need the program tandem-pull beside tandem-server or in PATH "
                     "(scripts/build release tandem-pull): ",
                     child.status().message()));
  }
  if (!child.ok()) return child.status();
  const std::string output = child->read_output();
  const std::vector<std::string> paths = absl::StrSplit(output, '\n', absl::SkipEmpty());
  if (child->wait() != 0 || paths.size() != names.size()) {
    return absl::UnavailableError(
        absl::StrCat(absl::StrJoin(names, ", "), ": no such path, and tandem-pull failed: ",
                     offline ? "--check reads only the cache, and `tandem pull` fetches models"
                             : "its message is above"));
  }
  return paths;
}

absl::StatusOr<std::string> resolve_hub_models(const FetchModels& fetch, ModelFlags* flags) {
  std::vector<std::string> names;
  std::vector<std::string*> places;  // where the path of each name goes
  std::vector<std::string> prefixes;
  std::string large;  // the hub name of the only model
  for (std::string& flag : flags->models) {
    const size_t equals = flag.find('=');
    const std::string value = equals == std::string::npos ? flag : flag.substr(equals + 1);
    if (!is_hub_name(value)) continue;
    names.push_back(value);
    places.push_back(&flag);
    prefixes.push_back(equals == std::string::npos ? default_name(value) + "="
                                                   : flag.substr(0, equals + 1));
    if (flags->models.size() == 1) large = value;
  }
  const DraftPair* const pair = large.empty() ? nullptr : find_draft_pair(repository_of(large));
  std::string note;
  if (flags->small == kAutoDraft) {
    if (pair == nullptr) {
      return out_of_range("--small", quote_value(flags->small),
                          absl::StrCat("a path, ORG/REPO[:QUANT], or auto with one --model of: ",
                                       known_large_models()));
    }
    flags->small = draft_repository(*pair, repository_of(large));
    note = absl::StrCat("--small ", flags->small, " was chosen: ", expected_gain(*pair));
  } else if (flags->small.empty() && pair != nullptr) {
    note =
        absl::StrCat("a draft model fits: --small ", draft_repository(*pair, repository_of(large)),
                     " (or --small auto); ", expected_gain(*pair));
  }
  if (is_hub_name(flags->small)) {
    names.push_back(flags->small);
    places.push_back(&flags->small);
    prefixes.emplace_back();
  }
  if (names.empty()) return note;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, fetch(names));
  for (size_t i = 0; i < places.size(); ++i) *places[i] = prefixes[i] + paths[i];
  return note;
}

absl::Status resolve_hub_models(const FetchModels& fetch, ConfigFile* file) {
  std::vector<std::string> names;
  for (int i = 0; i < file->proto().models_size(); ++i) {
    absl::string_view name = file->proto().models(i).path();
    if (!absl::ConsumePrefix(&name, kHubScheme)) continue;
    if (!has_hub_form(name)) {
      return file->error(absl::StrCat("models[", i, "].path"), quote_value(name),
                         "hf://ORG/REPO[@REVISION][:QUANT]");
    }
    names.emplace_back(name);
  }
  if (names.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> paths, fetch(names));
  for (size_t i = 0; i < names.size(); ++i) {
    file->set_place(absl::StrCat(kHubScheme, names[i]), paths[i]);
  }
  return absl::OkStatus();
}

}  // namespace tandem
