// The server's configuration: addresses, authentication, limits. Plain validated values from the
// `server` section of the deployment file (proto/tandem/config/v1 has the ranges), overridden by
// flags.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/host/config/config_file.h"
#include "server/edge/tls_context.h"

namespace tandem {

struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string client_ca;  // empty: none
};

// Errors name the field and the file.
absl::StatusOr<TlsConfig> read_tls(const TlsFiles& files);

struct OtlpConfig {
  std::string endpoint;  // empty: none
  double sample_ratio = 1;
  std::string service_name = "tandem";
};

struct KvEventsConfig {
  std::string endpoint;  // empty: none
  std::string topic;     // without the deployment's name
};

struct ServerConfig {
  std::string listen = "127.0.0.1:50051";
  std::string http = "127.0.0.1:9400";    // "off": none
  std::string openai;                     // empty: off
  std::vector<std::string> cors_origins;  // of pages that may call it; "*": all
  bool openai_metrics = true;             // it serves /metrics too
  bool playground = true;                 // it serves the web page of this build
  OtlpConfig otlp;
  KvEventsConfig kv_events;
  Duration grace = std::chrono::seconds(30);
  std::string log_level = "info";
  std::string log_format = "text";

  bool use_tls = false;
  bool openai_tls = false;  // also on the port of the HTTP API
  TlsConfig tls;
  TlsFiles tls_files;             // the paths of `tls`
  bool insecure = false;          // allows plaintext from other machines
  std::string bearer_token_file;  // empty: no tokens
  std::set<std::string>
      trusted_gateways;                   // clients whose gateway headers count (gateway_headers.h)
  std::map<std::string, int> objectives;  // priorities, by the name that a gateway sends
  std::string adapter_folder;             // of LoRA adapters that clients may load; empty: off
  std::string model_folder;               // of models, likewise
  std::set<std::string> administrators;   // clients that may, where clients have names

  int max_receive_bytes = 4 << 20;
  int max_send_bytes = 4 << 20;  // of a response that is not streamed
  int max_metadata_bytes = 8 << 10;
  int max_concurrent_streams = 1024;  // per connection
  Duration keepalive = std::chrono::seconds(60);
  Duration keepalive_timeout = std::chrono::seconds(20);
  Duration min_client_ping = std::chrono::seconds(10);
  Duration max_connection_idle = std::chrono::seconds(3600);
  Duration max_connection_age = std::chrono::seconds(450);
  Duration max_connection_age_grace = std::chrono::seconds(3600);
  Duration handshake_timeout = std::chrono::seconds(20);
  // A stream with more unread output is paused.
  int64_t max_unread_bytes = 64 << 10;
  int64_t max_unread_tokens = 256;
  int max_connections = 2048;
  int max_connections_per_host = 256;
  int max_open_calls = 4096;
  int64_t memory_bytes = 1 << 30;                       // all memory that clients cause
  int64_t max_transport_bytes = 1 << 28;                // the part that gRPC counts
  Duration stalled_stream = std::chrono::seconds(600);  // limits.stalled_stream_seconds
  Duration stuck = std::chrono::seconds(120);
  Duration prefix_store_interval = std::chrono::seconds(300);
};

// The `server` section of `file`; reads the files that it names.
absl::StatusOr<ServerConfig> server_config(const ConfigFile& file);

// "HOST:PORT" with a port in [0, 65535], or "unix:PATH"; the error names what is allowed.
absl::Status check_address(absl::string_view field, const std::string& address);

// The same with an optional "http://" or "https://" prefix.
absl::Status check_endpoint(absl::string_view field, const std::string& endpoint);

// INVALID_ARGUMENT if other machines could call without TLS and `insecure` is not set, or could
// call the HTTP API without the credentials that gRPC requires.
absl::Status check_exposure(const ServerConfig& config);

// The default of ServerConfig::memory_bytes on a machine with `available` bytes; 0: unknown.
int64_t default_memory_bytes(int64_t available);

// TOPIC of KV events: "kv@" and the host name.
std::string default_kv_topic();
// Whether it has a form that KV events accept.
bool is_kv_endpoint(absl::string_view endpoint);

bool is_folder(const std::string& path);  // that exists

// Whether `address` is reachable from this machine only.
bool is_loopback(const std::string& address);

}  // namespace tandem
