// The command line of tandem-server, and the configuration from it and the deployment file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/config.h"
#include "engine/host/config/config.h"
#include "server/hub_models.h"
#include "server/server_config.h"

namespace tandem {

struct Options {
  std::optional<std::string> config;
  ModelFlags models;
  std::string draft_note;  // of resolve_hub_models(), for the log
  FetchModels fetch;       // for models of a hub in the file; null: there are none
  std::optional<std::string> listen;
  std::optional<std::string> http;
  std::optional<std::string> openai;
  std::optional<std::string> otlp;
  std::optional<std::string> kv_events, kv_events_topic;
  std::optional<std::string> port_file;
  std::optional<std::string> prefix_store;
  std::optional<std::string> adapter_folder;
  std::optional<double> grace_seconds;
  std::optional<std::string> log_level;
  std::optional<std::string> log_format;
  bool insecure = false;
  bool no_ui = false;
  bool help = false;
  bool version = false;
  bool check = false;
  bool stop_with_stdin = false;
  // DeviceConfig::cpu_target of all devices: TANDEM_CPU_TARGET of the environment (main.cpp).
  std::string cpu_target;
};

// `args` without the program's name. INVALID_ARGUMENT names the flag, its value and the allowed
// values.
absl::StatusOr<Options> parse_options(const std::vector<std::string>& args);
std::string options_help();

struct Configuration {
  EngineConfig engine;
  ServerConfig server;
};
// The models of the file or of the flags, with the other flags as overrides.
absl::StatusOr<Configuration> configure(const Options& options);

}  // namespace tandem
