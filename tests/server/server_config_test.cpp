#include "server/server_config.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

absl::StatusOr<ServerConfig> settings(const std::string& text) {
  const auto file = ConfigFile::parse("server { " + text + " }", "f");
  EXPECT_TRUE(file.ok()) << file.status();
  return server_config(*file);
}

TEST(ServerConfig, ReadsEveryField) {
  const auto config = settings(
      "listen: \"[::1]:5\" http: \"off\" grace_seconds: 1.5 log_level: \"debug\" "
      "bearer_token_file: \"/t\" max_receive_bytes: 1024 max_metadata_bytes: 2048 "
      "max_concurrent_streams: 3 keepalive_seconds: 4 keepalive_timeout_seconds: 5 "
      "min_client_ping_seconds: 6 max_connection_idle_seconds: 7 max_connection_age_seconds: 8 "
      "handshake_timeout_seconds: 9 max_unread_bytes: 5000 max_unread_tokens: 10 "
      "log_format: \"json\" openai: \"unix:/o\" insecure: true max_connections: 11 "
      "max_connections_per_host: 12 max_open_calls: 13 max_transport_bytes: 16777216 "
      "stuck_seconds: 14 max_send_bytes: 1025 memory_bytes: 100000000 "
      "max_connection_age_grace_seconds: 15 prefix_store_seconds: 16 "
      "kv_events { endpoint: \"tcp://*:5557\" topic: \"kv@a\" } trusted_gateways: \"gw\" "
      "trusted_gateways: \"10.0.0.7\" objectives { key: \"batch\" value: -10 } ui: false "
      "adapter_folder: \"/tmp\" administrators: \"ann\" administrators: \"ops\"");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen, "[::1]:5");
  EXPECT_EQ(config->http, "off");
  EXPECT_EQ(config->grace, std::chrono::milliseconds(1500));
  EXPECT_EQ(config->bearer_token_file, "/t");
  EXPECT_EQ(config->max_receive_bytes, 1024);
  EXPECT_EQ(config->max_metadata_bytes, 2048);
  EXPECT_EQ(config->max_concurrent_streams, 3);
  EXPECT_EQ(config->keepalive, std::chrono::seconds(4));
  EXPECT_EQ(config->keepalive_timeout, std::chrono::seconds(5));
  EXPECT_EQ(config->min_client_ping, std::chrono::seconds(6));
  EXPECT_EQ(config->max_connection_idle, std::chrono::seconds(7));
  EXPECT_EQ(config->max_connection_age, std::chrono::seconds(8));
  EXPECT_EQ(config->handshake_timeout, std::chrono::seconds(9));
  EXPECT_EQ(config->max_unread_bytes, 5000);
  EXPECT_EQ(config->max_unread_tokens, 10);
  EXPECT_EQ(config->log_format, "json");
  EXPECT_TRUE(config->insecure);
  EXPECT_EQ(config->openai, "unix:/o");
  EXPECT_FALSE(config->playground);
  EXPECT_TRUE(ServerConfig().playground);
  EXPECT_EQ(config->max_connections, 11);
  EXPECT_EQ(config->max_connections_per_host, 12);
  EXPECT_EQ(config->max_open_calls, 13);
  EXPECT_EQ(config->max_transport_bytes, 16777216);
  EXPECT_EQ(config->stuck, std::chrono::seconds(14));
  EXPECT_EQ(config->prefix_store_interval, std::chrono::seconds(16));
  EXPECT_EQ(config->kv_events.endpoint, "tcp://*:5557");
  EXPECT_EQ(config->kv_events.topic, "kv@a");
  EXPECT_EQ(config->max_send_bytes, 1025);
  EXPECT_EQ(config->memory_bytes, 100000000);
  EXPECT_EQ(config->max_connection_age_grace, std::chrono::seconds(15));
  EXPECT_EQ(config->adapter_folder, "/tmp");
  EXPECT_EQ(config->administrators, (std::set<std::string>{"ann", "ops"}));
  EXPECT_EQ(config->trusted_gateways, (std::set<std::string>{"gw", "10.0.0.7"}));
  EXPECT_EQ(config->objectives, (std::map<std::string, int>{{"batch", -10}}));
}

TEST(ServerConfig, AdaptersLieInAFolderThatExists) {
  EXPECT_EQ(settings("adapter_folder: \"/none\"").status().message(),
            "f:1: server.adapter_folder: \"/none\"; allowed: a directory that exists");
  EXPECT_EQ(settings("administrators: \"\"").status().message(),
            "f:1: server.administrators: \"\"; allowed: 1 to 255 bytes");
  EXPECT_EQ(settings("")->adapter_folder, "");
}

TEST(ServerConfig, NamesWrongGatewaysAndObjectives) {
  EXPECT_EQ(settings("trusted_gateways: \"\"").status().message(),
            "f:1: server.trusted_gateways: \"\"; allowed: 1 to 255 bytes");
  EXPECT_EQ(settings("objectives { key: \"urgent\" value: 101 }").status().message(),
            "f:1: server.objectives[\"urgent\"]: 101; allowed: a name that is not empty, and "
            "[-100, 100]");
  EXPECT_FALSE(settings("objectives { value: 1 }").ok());
}

TEST(ServerConfig, MemoryOfCalls) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(default_memory_bytes(0), 1024 * kMiB);
  EXPECT_EQ(default_memory_bytes(100 * kMiB), 256 * kMiB);
  EXPECT_EQ(default_memory_bytes(2048 * kMiB), 512 * kMiB);
  EXPECT_EQ(default_memory_bytes(int64_t{1} << 40), 4096 * kMiB);
  const auto transport = [](const char* text) {
    const auto config = settings(text);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->max_transport_bytes;
  };
  EXPECT_EQ(transport("memory_bytes: 33554432"), 16 * kMiB);
  EXPECT_EQ(transport("memory_bytes: 1073741824"), 256 * kMiB);
  EXPECT_EQ(transport("memory_bytes: 17179869184"), 1024 * kMiB);
  EXPECT_EQ(transport("memory_bytes: 1073741824 max_transport_bytes: 536870912"), 512 * kMiB);
}

TEST(ServerConfig, TheTimeOfUnreadAnswersIsThatOfStreams) {
  const auto stalled = [](const std::string& limits) {
    return server_config(*ConfigFile::parse("limits { " + limits + " }", "f"))->stalled_stream;
  };
  EXPECT_EQ(stalled(""), std::chrono::seconds(600));
  EXPECT_EQ(stalled("stalled_stream_seconds: 1.5"), std::chrono::milliseconds(1500));
}

TEST(ServerConfig, Errors) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"listen: \"nowhere\"",
       "f:1: server.listen: \"nowhere\"; allowed: HOST:PORT with a port in [0, 65535]"},
      {"http: \"unix:/x\"",
       "f:1: server.http: \"unix:/x\"; allowed: HOST:PORT with a port in [0, 65535], or \"off\""},
      {"openai: \"off\"",
       "f:1: server.openai: \"off\"; allowed: HOST:PORT with a port in [0, 65535]"},
      {"grace_seconds: nan", "f:1: server.grace_seconds: nan; allowed: [0, 86400]"},
      {"max_receive_bytes: 1", "f:1: server.max_receive_bytes: 1; allowed: [1024, 1073741824]"},
      {"memory_bytes: 1", "f:1: server.memory_bytes: 1; allowed: [33554432, 1099511627776]"},
      {"memory_bytes: 67108864 max_transport_bytes: 33554433",
       "f:1: server.max_transport_bytes: 33554433; allowed: [16777216, 33554432]"},
      {"kv_events { endpoint: \"host:1\" }",
       "f:1: server.kv_events.endpoint: \"host:1\"; allowed: tcp://HOST:PORT or ipc://PATH"},
      {"prefix_store_seconds: 0", "f:1: server.prefix_store_seconds: 0; allowed: [1, 86400]"},
      {"log_level: \"all\"", "f:1: server.log_level: \"all\"; allowed: debug, info, warn, error"},
      {"openai_tls: true",
       "f:1: server.openai_tls: true; allowed: false or unset, or with server.tls"},
      {"tls { certificate: \"/nonexistent\" }",
       "f:1: server.tls.certificate: \"/nonexistent\"; allowed: a readable, non-empty file"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(std::string(settings(c.text).status().message()), c.message);
  }
}

// Plaintext calls from other machines must be allowed explicitly.
TEST(ServerConfig, Exposure) {
  ServerConfig config;
  config.listen = "0.0.0.0:50051";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.listen: \"0.0.0.0:50051\"; allowed: a loopback address, or server.tls, "
            "or --insecure (server.insecure) behind a proxy with TLS");
  config.insecure = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.insecure = false;
  config.use_tls = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.use_tls = false;
  config.listen = "127.0.0.1:50051";
  EXPECT_TRUE(check_exposure(config).ok());
}

// With `openai_tls`, the HTTP API has the certificates of the gRPC API.
TEST(ServerConfig, ExposureOfTheOpenAiApi) {
  ServerConfig config;
  config.use_tls = true;
  config.openai = "127.0.0.1:8000";
  EXPECT_TRUE(check_exposure(config).ok());
  config.openai = "0.0.0.0:8000";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.openai: \"0.0.0.0:8000\"; allowed: a loopback address, or server.tls, or "
            "--insecure (server.insecure) behind a proxy with TLS");
  config.insecure = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.tls.client_ca = "a certificate";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.openai_tls: false; allowed: true with server.tls.client_ca, unless "
            "server.bearer_token_file is set");
  config.bearer_token_file = "tokens";
  EXPECT_TRUE(check_exposure(config).ok());
  config.bearer_token_file = "";
  config.insecure = false;
  config.openai_tls = true;
  EXPECT_TRUE(check_exposure(config).ok());
}

TEST(ServerConfig, Loopback) {
  for (const char* yes : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/x"}) {
    EXPECT_TRUE(is_loopback(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"}) {
    EXPECT_FALSE(is_loopback(no)) << no;
  }
}

}  // namespace
}  // namespace tandem
