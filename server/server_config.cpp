#include "server/server_config.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

Duration from_seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

absl::StatusOr<std::string> read_file(const ConfigFile& file, absl::string_view field,
                                      const std::string& path) {
  const std::string resolved = file.resolve(path);
  std::ifstream in(resolved, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.str().empty()) {
    return file.error(field, quote_value(resolved), "a readable file that is not empty");
  }
  return text.str();
}

absl::StatusOr<TlsConfig> tls_from(const ConfigFile& file, const pb::Tls& in) {
  TlsConfig out;
  TANDEM_ASSIGN_OR_RETURN(out.certificate,
                          read_file(file, "server.tls.certificate", in.certificate()));
  TANDEM_ASSIGN_OR_RETURN(out.key, read_file(file, "server.tls.key", in.key()));
  if (!in.client_ca().empty()) {
    TANDEM_ASSIGN_OR_RETURN(out.client_ca, read_file(file, "server.tls.client_ca", in.client_ca()));
  }
  return out;
}

}  // namespace

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
  if (in.has_log_level()) out.log_level = in.log_level();
  if (out.log_level != "debug" && out.log_level != "info" && out.log_level != "warn" &&
      out.log_level != "error") {
    return file.error("server.log_level", quote_value(out.log_level), "debug, info, warn, error");
  }
  if (in.has_tls()) {
    out.use_tls = true;
    TANDEM_ASSIGN_OR_RETURN(out.tls, tls_from(file, in.tls()));
  }
  if (!in.bearer_token_file().empty()) {
    out.bearer_token_file = file.resolve(in.bearer_token_file());
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
  TANDEM_COUNT(max_metadata_bytes, 1 << 10, 1 << 20, out.max_metadata_bytes);
  TANDEM_COUNT(max_concurrent_streams, 1, 1 << 20, out.max_concurrent_streams);
  TANDEM_SECONDS(keepalive_seconds, 1.0, 86400.0, out.keepalive);
  TANDEM_SECONDS(keepalive_timeout_seconds, 1.0, 3600.0, out.keepalive_timeout);
  TANDEM_SECONDS(min_client_ping_seconds, 1.0, 86400.0, out.min_client_ping);
  TANDEM_SECONDS(max_connection_idle_seconds, 1.0, 2147483.0, out.max_connection_idle);
  TANDEM_SECONDS(max_connection_age_seconds, 1.0, 2147483.0, out.max_connection_age);
  TANDEM_SECONDS(handshake_timeout_seconds, 1.0, 600.0, out.handshake_timeout);
  TANDEM_COUNT(max_unread_bytes, 4 << 10, 1 << 30, out.max_unread_bytes);
  TANDEM_COUNT(max_unread_tokens, 2, 1 << 20, out.max_unread_tokens);
#undef TANDEM_COUNT
#undef TANDEM_SECONDS
  return out;
}

}  // namespace tandem
