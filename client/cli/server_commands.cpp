// `tandem models`, `tandem adapters`, `tandem deployments`, `tandem health` and `tandem version`.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/version.h"

namespace tandem::cli {
namespace {

constexpr char kModelsIntro[] =
    "tandem models: lists the models of the server, with their decoding methods and limits.\n\n"
    "Usage: tandem models [NAME] [flags]\n\n"
    "  tandem models\n"
    "  tandem models code --format json\n";
constexpr char kAdaptersIntro[] =
    "tandem adapters: loads and unloads LoRA adapters while the server runs.\n\n"
    "Usage: tandem adapters load NAME PATH [flags]\n"
    "       tandem adapters unload NAME [flags]\n\n"
    "  tandem adapters load sql sql-v2         (below server.adapter_folder)\n"
    "  tandem adapters unload sql\n";
constexpr char kDeploymentsIntro[] =
    "tandem deployments: loads, replaces, unloads and lists deployments while the server runs.\n\n"
    "Usage: tandem deployments load FILE [flags]\n"
    "       tandem deployments replace FILE [flags]\n"
    "       tandem deployments unload NAME [flags]\n"
    "       tandem deployments list [flags]\n\n"
    "FILE has `models` and one of `deployments`, as in a deployment file; -: standard input. Paths "
    "in\n"
    "it are below server.model_folder of the server.\n\n"
    "  tandem deployments load code.textproto\n"
    "  tandem deployments unload code --drain-seconds 60\n";
constexpr char kHealthIntro[] =
    "tandem health: prints the health status of the server, of a service or of a model.\n\n"
    "Usage: tandem health [flags]\n\n"
    "  tandem health\n"
    "  tandem health --service tandem.v1.Generation\n"
    "  tandem health --service tandem.v1.Generation/code     (the model \"code\")\n\n"
    "Exit status: 0 SERVING, 1 any other status or no answer, 2 wrong usage.\n";
constexpr char kVersionIntro[] = "tandem version: prints the version of this program.\n";

std::string count(double n) {
  if (n >= 1e9) return absl::StrFormat("%.1fG", n / 1e9);
  if (n >= 1e6) return absl::StrFormat("%.1fM", n / 1e6);
  if (n >= 1e3) return absl::StrFormat("%.1fk", n / 1e3);
  return absl::StrFormat("%.0f", n);
}

void print_model(const v1::Model& model) {
  write_out(model.name() + "\n");
  for (const v1::OfferedMethod& method : model.methods()) {
    std::printf("  method   %-15s greedy %s, sampled %s%s\n", method_text(method.method()).c_str(),
                contract_text(method.greedy_contract()).c_str(),
                contract_text(method.sampled_contract()).c_str(),
                method.method() == model.default_method() ? " (default)" : "");
    for (const v1::Parameter& p : method.parameters()) {
      std::printf("             %-22s %-8s %-12s %s\n", p.name().c_str(),
                  p.default_value().empty() ? "unset" : p.default_value().c_str(),
                  p.allowed().c_str(), p.meaning().c_str());
    }
  }
  for (const v1::LoadedModel& part : model.components()) {
    std::printf("  %-8s %-15s %s, %s, %d layers, %s parameters, %s on %s%s\n", part.role().c_str(),
                part.name().c_str(), part.architecture().c_str(), part.dtype().c_str(),
                part.layer_count(), count(static_cast<double>(part.parameter_count())).c_str(),
                (count(static_cast<double>(part.weight_bytes())) + "B").c_str(),
                part.device().c_str(), part.device_lost() ? " (lost)" : "");
  }
  for (const v1::Adapter& adapter : model.adapters()) {
    std::printf("  adapter  %-15s rank %d, %s\n", adapter.name().c_str(), adapter.rank(),
                (count(static_cast<double>(adapter.weight_bytes())) + "B").c_str());
  }
  std::printf("  limits   vocabulary %d, context %d, new tokens %d%s\n",
              model.limits().vocab_size(), model.limits().context_length(),
              model.limits().max_new_tokens(), model.has_chat_template() ? ", chat" : "");
}

absl::StatusOr<int> run_models(CommandLine& line) {
  bool names = false;
  line.flags.section("Output");
  line.add_format();
  line.flags.toggle("names", "print only the names, one per line", &names);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(/*max_arguments=*/1));
  if (!go) return kSuccess;
  TANDEM_RETURN_IF_ERROR(line.connect());

  if (!line.arguments().empty()) {
    TANDEM_ASSIGN_OR_RETURN(const v1::Model model,
                            from_server(line.client().model(line.arguments()[0])));
    if (line.json()) {
      write_out(dump(to_json(model)) + "\n");
    } else {
      print_model(model);
    }
    return kSuccess;
  }
  TANDEM_ASSIGN_OR_RETURN(const v1::ListModelsResponse served, from_server(line.client().models()));
  if (line.json() && !names) {
    write_out(dump(to_json(served)) + "\n");
    return kSuccess;
  }
  for (const v1::Model& model : served.models()) {
    if (names) {
      write_out(model.name() + "\n");
    } else {
      print_model(model);
    }
  }
  return kSuccess;
}

absl::StatusOr<int> run_adapters(CommandLine& line) {
  std::optional<std::string> model;
  bool replace = false;
  line.flags.section("Adapter");
  line.flags.text("model", "NAME", "deployment (default the only one)", &model);
  line.flags.toggle("replace", "load: replace an adapter of this name", &replace);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(/*max_arguments=*/3));
  if (!go) return kSuccess;
  const Args& words = line.arguments();
  const bool load = !words.empty() && words[0] == "load";
  if (!load && (words.empty() || words[0] != "unload")) {
    return out_of_range("argument 1", words.empty() ? "none" : quote_value(words[0]),
                        "load, unload");
  }
  if (words.size() != (load ? 3U : 2U)) {
    return out_of_range("arguments", words.size(), load ? "load NAME PATH" : "unload NAME");
  }
  TANDEM_RETURN_IF_ERROR(line.connect());
  if (!load) {
    v1::UnloadAdapterRequest request;
    request.set_model(model.value_or(""));
    request.set_adapter(words[1]);
    TANDEM_RETURN_IF_ERROR(from_server(line.client().unload_adapter(request)));
    return kSuccess;
  }
  v1::LoadAdapterRequest request;
  request.set_model(model.value_or(""));
  request.set_adapter(words[1]);
  request.set_path(words[2]);
  request.set_replace(replace);
  TANDEM_RETURN_IF_ERROR(from_server(line.client().load_adapter(request)));
  return kSuccess;
}

void print_deployment(const v1::ServedDeployment& deployment) {
  int64_t bytes = 0;
  for (const v1::LoadedModel& part : deployment.model().components()) bytes += part.weight_bytes();
  const char* const state = deployment.draining()           ? "draining"
                            : deployment.model().unloaded() ? "unloaded"
                                                            : "serving";
  std::printf("%-20s %-8s %lld open, %s of weights\n", deployment.model().name().c_str(), state,
              static_cast<long long>(deployment.open_requests()),
              (count(static_cast<double>(bytes)) + "B").c_str());
}

absl::StatusOr<int> run_deployments(CommandLine& line) {
  std::optional<double> drain;
  line.flags.section("Deployment");
  line.add_format("list: text or json (default text)");
  line.flags.number("drain-seconds", "SECONDS",
                    "unload: time for accepted requests (default no limit)", 0, 86400, &drain);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(/*max_arguments=*/2));
  if (!go) return kSuccess;
  const Args& words = line.arguments();
  const std::string verb = words.empty() ? "" : words[0];
  const bool list = verb == "list";
  if (!list && verb != "load" && verb != "replace" && verb != "unload") {
    return out_of_range("argument 1", words.empty() ? "none" : quote_value(verb),
                        "load, replace, unload, list");
  }
  if (words.size() != (list ? 1U : 2U)) {
    return out_of_range("arguments", words.size(),
                        list ? "list" : verb + (verb == "unload" ? " NAME" : " FILE"));
  }
  std::string text;
  if (verb == "load" || verb == "replace") {
    TANDEM_ASSIGN_OR_RETURN(text, read_input(words[1]));
  }
  TANDEM_RETURN_IF_ERROR(line.connect());
  if (verb == "load") {
    v1::LoadDeploymentRequest request;
    request.set_configuration(text);
    TANDEM_RETURN_IF_ERROR(from_server(line.client().load_deployment(request)));
  } else if (verb == "replace") {
    v1::ReplaceDeploymentRequest request;
    request.set_configuration(text);
    TANDEM_RETURN_IF_ERROR(from_server(line.client().replace_deployment(request)));
  } else if (verb == "unload") {
    v1::UnloadDeploymentRequest request;
    request.set_model(words[1]);
    if (drain) request.set_drain_seconds(*drain);
    TANDEM_RETURN_IF_ERROR(from_server(line.client().unload_deployment(request)));
  } else {
    TANDEM_ASSIGN_OR_RETURN(const v1::ListDeploymentsResponse all,
                            from_server(line.client().deployments()));
    if (line.json()) {
      write_out(dump(to_json(all)) + "\n");
    } else {
      for (const v1::ServedDeployment& deployment : all.deployments()) print_deployment(deployment);
    }
  }
  return kSuccess;
}

absl::StatusOr<int> run_health(CommandLine& line) {
  std::optional<std::string> service;
  line.flags.section("Request");
  line.flags.text("service", "NAME", "service or model to check (default the whole server)",
                  &service);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse());
  if (!go) return kSuccess;
  TANDEM_RETURN_IF_ERROR(line.connect());
  TANDEM_ASSIGN_OR_RETURN(const std::string health,
                          from_server(line.client().health(service.value_or(""))));
  write_out(health + "\n");
  return health == "SERVING" ? kSuccess : kFailed;
}

absl::StatusOr<int> run_version(CommandLine& line) {
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber, /*offline=*/true));
  if (go) std::printf("tandem %s%s%s\n", kVersion, *kCommit ? " " : "", kCommit);
  return kSuccess;
}

}  // namespace

Command models_command() {
  return {"models", "list the models of the server", kModelsIntro, run_models};
}

Command adapters_command() {
  return {"adapters", "load and unload LoRA adapters", kAdaptersIntro, run_adapters};
}

Command deployments_command() {
  return {"deployments", "load, replace, unload and list deployments", kDeploymentsIntro,
          run_deployments};
}

Command health_command() {
  return {"health", "print the health status of the server", kHealthIntro, run_health};
}

Command version_command() {
  return {"version", "print the version of this program", kVersionIntro, run_version};
}

}  // namespace tandem::cli
