#include "server/server_config.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"
#include "server/edge/memory_limit.h"
#include "server/http/cors.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

constexpr int64_t kLeastMemoryBytes = 256 << 20;
constexpr int64_t kMostMemoryBytes = int64_t{4} << 30;
constexpr int64_t kLeastTransportBytes = 1 << 24;
constexpr int64_t kMostTransportBytes = 1 << 30;

Duration from_seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

// Makes the error for a field and its value.
using MakeError = std::function<absl::Status(absl::string_view field, absl::string_view value,
                                             absl::string_view allowed)>;

absl::StatusOr<std::string> read_pem(absl::string_view field, const std::string& path,
                                     const MakeError& make_error) {
  absl::StatusOr<std::string> text = read_file(path);
  if (text.value_or("").empty()) {
    return make_error(field, quote_value(path), "a readable, non-empty file");
  }
  return text;
}

absl::Status check_openai(const ServerConfig& config) {
  if (config.openai_tls) return absl::OkStatus();
  if (!config.insecure && !is_loopback(config.openai)) {
    return out_of_range("server.openai", quote_value(config.openai),
                        "a loopback address, or server.tls, or --insecure (server.insecure) behind "
                        "a proxy with TLS");
  }
  if (!config.tls.client_ca.empty() && config.bearer_token_file.empty()) {
    return out_of_range("server.openai_tls", "false",
                        "true with server.tls.client_ca, unless server.bearer_token_file is set");
  }
  return absl::OkStatus();
}

absl::StatusOr<TlsConfig> read_tls(const TlsFiles& files, const MakeError& make_error) {
  TlsConfig out;
  TANDEM_ASSIGN_OR_RETURN(out.certificate,
                          read_pem("server.tls.certificate", files.certificate, make_error));
  TANDEM_ASSIGN_OR_RETURN(out.key, read_pem("server.tls.key", files.key, make_error));
  if (!files.client_ca.empty()) {
    TANDEM_ASSIGN_OR_RETURN(out.client_ca,
                            read_pem("server.tls.client_ca", files.client_ca, make_error));
  }
  return out;
}

absl::StatusOr<OtlpConfig> otlp_config(const ConfigFile& file) {
  const pb::Otlp& in = file.proto().server().otlp();
  OtlpConfig out;
  out.endpoint = in.endpoint();
  if (!out.endpoint.empty() && !check_endpoint("", out.endpoint).ok()) {
    return file.error("server.otlp.endpoint", quote_value(out.endpoint),
                      "HOST:PORT, http://HOST:PORT or https://HOST:PORT");
  }
  if (in.has_sample_ratio()) out.sample_ratio = in.sample_ratio();
  if (!(out.sample_ratio >= 0 && out.sample_ratio <= 1)) {
    return file.error("server.otlp.sample_ratio", absl::StrCat(out.sample_ratio), "[0, 1]");
  }
  if (in.has_service_name()) out.service_name = in.service_name();
  if (out.service_name.empty() || out.service_name.size() > 255) {
    return file.error("server.otlp.service_name", quote_value(out.service_name), "1 to 255 bytes");
  }
  return out;
}

absl::StatusOr<KvEventsConfig> kv_events_config(const ConfigFile& file) {
  const pb::KvEvents& in = file.proto().server().kv_events();
  KvEventsConfig out{in.endpoint(), in.topic().empty() ? default_kv_topic() : in.topic()};
  if (!out.endpoint.empty() && !is_kv_endpoint(out.endpoint)) {
    return file.error("server.kv_events.endpoint", quote_value(out.endpoint),
                      "tcp://HOST:PORT or ipc://PATH");
  }
  return out;
}

}  // namespace

std::string default_kv_topic() {
  char name[256] = {};
  return absl::StrCat("kv@", gethostname(name, sizeof(name) - 1) == 0 ? name : "");
}

bool is_kv_endpoint(absl::string_view endpoint) {
  if (absl::ConsumePrefix(&endpoint, "ipc://")) return !endpoint.empty();
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  return absl::ConsumePrefix(&endpoint, "tcp://") && colon > 6 &&
         absl::SimpleAtoi(endpoint.substr(endpoint.rfind(':') + 1), &port) && port >= 0 &&
         port < 65536;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::StatusOr<TlsConfig> read_tls(const TlsFiles& files) {
  return read_tls(files,
                  [](absl::string_view field, absl::string_view value, absl::string_view allowed) {
                    return out_of_range(field, value, allowed);
                  });
}

absl::Status check_exposure(const ServerConfig& config) {
  if (!config.openai.empty()) TANDEM_RETURN_IF_ERROR(check_openai(config));
  if (config.use_tls || config.insecure || is_loopback(config.listen)) return absl::OkStatus();
  return out_of_range("server.listen", quote_value(config.listen),
                      "a loopback address, or server.tls, or --insecure (server.insecure) behind a "
                      "proxy with TLS");
}

absl::Status check_address(absl::string_view field, const std::string& address) {
  if (absl::StartsWith(address, "unix:") && address.size() > 5) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return out_of_range(field, quote_value(address), "HOST:PORT with a port in [0, 65535]");
  }
  return absl::OkStatus();
}

absl::Status check_endpoint(absl::string_view field, const std::string& endpoint) {
  absl::string_view address = endpoint;
  if (!absl::ConsumePrefix(&address, "http://")) absl::ConsumePrefix(&address, "https://");
  absl::ConsumeSuffix(&address, "/");
  if (!absl::StrContains(address, '/') && !absl::StartsWith(address, "unix:") &&
      check_address(field, std::string(address)).ok()) {
    return absl::OkStatus();
  }
  return out_of_range(field, quote_value(endpoint),
                      "HOST:PORT with a port in [0, 65535], http://HOST:PORT or https://HOST:PORT");
}

int64_t default_memory_bytes(int64_t available) {
  if (available <= 0) return ServerConfig().memory_bytes;
  return std::clamp(available / 4, kLeastMemoryBytes, kMostMemoryBytes);
}

bool is_loopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

absl::StatusOr<ServerConfig> server_config(const ConfigFile& file) {
  const pb::Server& in = file.proto().server();
  ServerConfig out;

  if (in.has_listen()) out.listen = in.listen();
  if (!check_address("", out.listen).ok()) {
    return file.error("server.listen", quote_value(out.listen),
                      "HOST:PORT with a port in [0, 65535]");
  }
  if (in.has_http()) out.http = in.http();
  if (out.http != "off" &&
      (!check_address("", out.http).ok() || absl::StartsWith(out.http, "unix:"))) {
    return file.error("server.http", quote_value(out.http),
                      "HOST:PORT with a port in [0, 65535], or \"off\"");
  }
  out.openai = in.openai();
  if (!out.openai.empty() && !check_address("", out.openai).ok()) {
    return file.error("server.openai", quote_value(out.openai),
                      "HOST:PORT with a port in [0, 65535]");
  }
  for (const std::string& origin : in.cors_origins()) {
    if (!is_origin(origin)) {
      return file.error("server.cors_origins", quote_value(origin),
                        "http://HOST, https://HOST, with or without :PORT, or *");
    }
    out.cors_origins.push_back(origin);
  }
  if (in.has_openai_metrics()) out.openai_metrics = in.openai_metrics();
  if (in.has_ui()) out.playground = in.ui();
  TANDEM_ASSIGN_OR_RETURN(out.otlp, otlp_config(file));
  TANDEM_ASSIGN_OR_RETURN(out.kv_events, kv_events_config(file));
  if (in.has_log_level()) out.log_level = in.log_level();
  if (out.log_level != "debug" && out.log_level != "info" && out.log_level != "warn" &&
      out.log_level != "error") {
    return file.error("server.log_level", quote_value(out.log_level), "debug, info, warn, error");
  }
  if (in.has_log_format()) out.log_format = in.log_format();
  if (out.log_format != "text" && out.log_format != "json") {
    return file.error("server.log_format", quote_value(out.log_format), "text, json");
  }
  out.insecure = in.insecure();
  if (in.has_tls()) {
    out.use_tls = true;
    out.tls_files = {file.resolve(in.tls().certificate()), file.resolve(in.tls().key()),
                     in.tls().client_ca().empty() ? "" : file.resolve(in.tls().client_ca())};
    TANDEM_ASSIGN_OR_RETURN(
        out.tls, read_tls(out.tls_files, [&file](absl::string_view field, absl::string_view value,
                                                 absl::string_view allowed) {
          return file.error(field, value, allowed);
        }));
  }
  out.openai_tls = in.has_openai_tls() ? in.openai_tls() : out.use_tls;
  if (out.openai_tls && !out.use_tls) {
    return file.error("server.openai_tls", "true", "false or unset, or with server.tls");
  }
  if (!in.bearer_token_file().empty()) {
    out.bearer_token_file = file.resolve(in.bearer_token_file());
  }

  for (const std::string& gateway : in.trusted_gateways()) {
    if (gateway.empty() || gateway.size() > 255) {
      return file.error("server.trusted_gateways", quote_value(gateway), "1 to 255 bytes");
    }
    out.trusted_gateways.insert(gateway);
  }
  if (!in.adapter_folder().empty()) {
    out.adapter_folder = file.resolve(in.adapter_folder());
    if (!is_folder(out.adapter_folder)) {
      return file.error("server.adapter_folder", quote_value(out.adapter_folder),
                        "a directory that exists");
    }
  }
  if (!in.model_folder().empty()) {
    out.model_folder = file.resolve(in.model_folder());
    if (!is_folder(out.model_folder)) {
      return file.error("server.model_folder", quote_value(out.model_folder),
                        "a directory that exists");
    }
  }
  for (const std::string& name : in.administrators()) {
    if (name.empty() || name.size() > 255) {
      return file.error("server.administrators", quote_value(name), "1 to 255 bytes");
    }
    out.administrators.insert(name);
  }
  for (const auto& [objective, priority] : in.objectives()) {
    if (objective.empty() || priority < -100 || priority > 100) {
      return file.error(absl::StrCat("server.objectives[", quote_value(objective), "]"),
                        absl::StrCat(priority), "a name that is not empty, and [-100, 100]");
    }
    out.objectives[objective] = priority;
  }

  const auto check = [&](absl::string_view name, auto value, auto min, auto max) {
    if (value >= min && value <= max) return absl::OkStatus();  // false for NaN
    return file.error(absl::StrCat("server.", name), absl::StrCat(value),
                      absl::StrCat("[", min, ", ", max, "]"));
  };
#define TANDEM_SECONDS(field, min, max, to)                      \
  if (in.has_##field()) {                                        \
    TANDEM_RETURN_IF_ERROR(check(#field, in.field(), min, max)); \
    (to) = from_seconds(in.field());                             \
  }
#define TANDEM_COUNT(field, min, max, to)                        \
  if (in.has_##field()) {                                        \
    TANDEM_RETURN_IF_ERROR(check(#field, in.field(), min, max)); \
    (to) = in.field();                                           \
  }
  TANDEM_SECONDS(grace_seconds, 0.0, 86400.0, out.grace);
  TANDEM_COUNT(max_receive_bytes, 1 << 10, 1 << 30, out.max_receive_bytes);
  TANDEM_COUNT(max_send_bytes, 1 << 10, std::numeric_limits<int32_t>::max(), out.max_send_bytes);
  TANDEM_COUNT(max_metadata_bytes, 1 << 10, 1 << 20, out.max_metadata_bytes);
  TANDEM_COUNT(max_concurrent_streams, 1, 1 << 20, out.max_concurrent_streams);
  TANDEM_SECONDS(keepalive_seconds, 1.0, 86400.0, out.keepalive);
  TANDEM_SECONDS(keepalive_timeout_seconds, 1.0, 3600.0, out.keepalive_timeout);
  TANDEM_SECONDS(min_client_ping_seconds, 1.0, 86400.0, out.min_client_ping);
  TANDEM_SECONDS(max_connection_idle_seconds, 1.0, 2147483.0, out.max_connection_idle);
  TANDEM_SECONDS(max_connection_age_seconds, 1.0, 2147483.0, out.max_connection_age);
  TANDEM_SECONDS(max_connection_age_grace_seconds, 1.0, 2147483.0, out.max_connection_age_grace);
  TANDEM_SECONDS(handshake_timeout_seconds, 1.0, 600.0, out.handshake_timeout);
  TANDEM_COUNT(max_unread_bytes, 4 << 10, 1 << 30, out.max_unread_bytes);
  TANDEM_COUNT(max_unread_tokens, 2, 1 << 20, out.max_unread_tokens);
  TANDEM_COUNT(max_connections, 1, 1 << 20, out.max_connections);
  TANDEM_COUNT(max_connections_per_host, 1, 1 << 20, out.max_connections_per_host);
  TANDEM_COUNT(max_open_calls, 1, 1 << 20, out.max_open_calls);
  out.memory_bytes = default_memory_bytes(available_memory());
  TANDEM_COUNT(memory_bytes, int64_t{1} << 25, int64_t{1} << 40, out.memory_bytes);
  out.max_transport_bytes =
      std::clamp(out.memory_bytes / 4, kLeastTransportBytes, kMostTransportBytes);
  TANDEM_COUNT(max_transport_bytes, kLeastTransportBytes, out.memory_bytes / 2,
               out.max_transport_bytes);
  TANDEM_SECONDS(stuck_seconds, 1.0, 86400.0, out.stuck);
  TANDEM_SECONDS(prefix_store_seconds, 1.0, 86400.0, out.prefix_store_interval);
  // The engine's configuration reports a value out of range.
  const pb::Limits& limits = file.proto().limits();
  if (const double stalled = limits.stalled_stream_seconds(); stalled > 0 && stalled <= 86400) {
    out.stalled_stream = from_seconds(stalled);
  }
#undef TANDEM_COUNT
#undef TANDEM_SECONDS
  return out;
}

}  // namespace tandem
