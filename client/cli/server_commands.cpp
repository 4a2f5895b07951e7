// `tandem models`, `tandem health` and `tandem version`.
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
    "tandem models: what the server serves: names, methods with their contracts, limits.\n\n"
    "  tandem models\n"
    "  tandem models code --format json\n";
constexpr char kHealthIntro[] =
    "tandem health: prints SERVING and ends with 0, or what else the server says and ends with "
    "1.\n\n"
    "  tandem health\n"
    "  tandem health --service tandem.v1.Generation\n"
    "  tandem health --service tandem.v1.Generation/code     the model \"code\"\n";

std::string count(double n) {
  if (n >= 1e9) return absl::StrFormat("%.1fG", n / 1e9);
  if (n >= 1e6) return absl::StrFormat("%.1fM", n / 1e6);
  if (n >= 1e3) return absl::StrFormat("%.1fk", n / 1e3);
  return absl::StrFormat("%.0f", n);
}

void print_model(const v1::Model& model) {
  std::printf("%s\n", model.name().c_str());
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
  std::printf("  limits   vocabulary %d, context %d, new tokens %d%s\n",
              model.limits().vocab_size(), model.limits().context_length(),
              model.limits().max_new_tokens(), model.has_chat_template() ? ", chat" : "");
}

}  // namespace

int models_command(const Args& args) {
  Connection connection;
  std::optional<std::string> format;
  Flags flags;
  flags.section("Printing");
  bool names = false;
  flags.text("format", "FORMAT", "text (default), json", &format);
  flags.toggle("names", "names alone, one on a line", &names);
  connection.add_to(&flags);
  const auto rest = flags.parse(args);
  if (!rest.ok()) return wrong_usage("models", rest.status());
  if (connection.help) return print_help(kModelsIntro, flags);
  if (rest->size() > 1) {
    return wrong_usage("models", out_of_range("argument", quote_value((*rest)[1]), "one name"));
  }
  const auto json = wants_json(format);
  if (!json.ok()) return wrong_usage("models", json.status());
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("models", client.status());

  if (rest->size() == 1) {
    const auto model = (*client)->model((*rest)[0]);
    if (!model.ok()) return request_failed(model.status());
    if (*json) {
      std::printf("%s\n", dump(to_json(*model)).c_str());
    } else {
      print_model(*model);
    }
    return kFine;
  }
  const auto answer = (*client)->models();
  if (!answer.ok()) return request_failed(answer.status());
  if (names) {
    for (const v1::Model& model : answer->models()) std::printf("%s\n", model.name().c_str());
    return kFine;
  }
  if (*json) {
    std::printf("%s\n", dump(to_json(*answer)).c_str());
    return kFine;
  }
  for (const v1::Model& model : answer->models()) print_model(model);
  return kFine;
}

int health_command(const Args& args) {
  Connection connection;
  std::optional<std::string> service;
  Flags flags;
  flags.section("What");
  flags.text("service", "NAME", "tandem.v1.Generation, tandem.v1.Models; default: the server",
             &service);
  connection.add_to(&flags);
  const auto rest = flags.parse(args);
  if (!rest.ok()) return wrong_usage("health", rest.status());
  if (connection.help) return print_help(kHealthIntro, flags);
  if (!rest->empty()) {
    return wrong_usage("health", out_of_range("argument", quote_value((*rest)[0]), "flags only"));
  }
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("health", client.status());
  const auto health = (*client)->health(service.value_or(""));
  if (!health.ok()) return request_failed(health.status());
  std::printf("%s\n", health->c_str());
  return *health == "SERVING" ? kFine : kFailed;
}

int version_command(const Args& /*args*/) {
  std::printf("tandem %s%s%s\n", kVersion, *kCommit ? " " : "", kCommit);
  return kFine;
}

}  // namespace tandem::cli
