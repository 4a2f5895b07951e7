// The small parts of the server that need no engine: status, credentials, options, settings, logs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>

#include "engine/base/violations.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/auth.h"
#include "server/call_info.h"
#include "server/edge/status_text.h"
#include "server/grpc_status.h"
#include "server/log.h"
#include "server/openai_call.h"
#include "server/options.h"
#include "server/response_to_proto.h"
#include "server/server_config.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

TEST(GrpcStatus, KeepsCodeAndMessage) {
  const auto status = to_grpc(absl::NotFoundError("model: \"x\""), "req-1");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "model: \"x\"");
  EXPECT_TRUE(to_grpc(absl::OkStatus(), "").ok());
}

TEST(GrpcStatus, FaultsStayInside) {
  for (const auto& fault : {absl::InternalError("secret"), absl::UnknownError("secret"),
                            absl::DataLossError("secret")}) {
    EXPECT_TRUE(is_fault(fault));
    const auto status = to_grpc(fault, "req-1");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_EQ(status.error_message(), "internal error; request id req-1");
  }
}

google::rpc::Status details_of(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

// The first detail of this type; an empty one where there is none.
template <class Detail>
Detail detail_of(const grpc::Status& status) {
  Detail detail;
  const google::rpc::Status all = details_of(status);
  for (const auto& any : all.details()) {
    if (any.UnpackTo(&detail)) break;
  }
  return detail;
}

TEST(GrpcStatus, LongMessagesAreCut) {
  const auto status = to_grpc(absl::InvalidArgumentError(std::string(1099, 'x') + "ééé"), "");
  EXPECT_EQ(status.error_message(), std::string(1099, 'x') + "...");
}

// gRPC takes 8 KiB of trailers: the message percent-encoded, the details in base64.
TEST(GrpcStatus, TheLongestErrorFitsItsTrailers) {
  Violations wrong;
  for (int i = 0; i < 100; ++i) {
    std::string value;
    for (int c = 0; c < i * 4; ++c) value += "é";
    wrong.add(out_of_range("stop_sequences[5]", value, "x"));
  }
  const auto status = to_grpc(wrong.status(), std::string(128, 'r'));
  const auto& bad = detail_of<google::rpc::BadRequest>(status);
  EXPECT_GT(bad.field_violations_size(), 5);
  const size_t bytes =
      status.error_message().size() * 3 + (status.error_details().size() + 2) / 3 * 4;
  EXPECT_LT(bytes, 8192 - 256);
}

TEST(GrpcStatus, EveryErrorSaysWhyInAFormForPrograms) {
  const auto info = [](const absl::Status& status) {
    return detail_of<google::rpc::ErrorInfo>(to_grpc(status, "req-1"));
  };
  const auto full = info(with_reason(absl::ResourceExhaustedError("queue full"), "QUEUE_FULL"));
  EXPECT_EQ(full.reason(), "QUEUE_FULL");
  EXPECT_EQ(full.domain(), "tandem");
  EXPECT_EQ(full.metadata().at("request_id"), "req-1");
  EXPECT_EQ(info(out_of_range("n", 0, "1")).reason(), "INVALID_FIELD");
  EXPECT_EQ(info(absl::DeadlineExceededError("late")).reason(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(info(with_reason(absl::InternalError("secret"), "SECRET")).reason(), "INTERNAL");
  EXPECT_EQ(to_grpc(absl::OkStatus(), "").error_details(), "");
}

TEST(GrpcStatus, WrongFieldsAreListed) {
  Violations wrong;
  wrong.add(out_of_range("top_p", 0, "(0, 1]"));
  wrong.add(out_of_range("beam.width", 99, "[1, 16]"));
  const auto status = to_grpc(wrong.status(), "");
  EXPECT_EQ(status.error_message(), "top_p: 0; allowed: (0, 1]\nbeam.width: 99; allowed: [1, 16]");
  const auto bad = detail_of<google::rpc::BadRequest>(status);
  ASSERT_EQ(bad.field_violations_size(), 2);
  EXPECT_EQ(bad.field_violations(0).field(), "top_p");
  EXPECT_EQ(bad.field_violations(0).description(), "0; allowed: (0, 1]");
  EXPECT_EQ(bad.field_violations(1).field(), "beam.width");
  EXPECT_EQ(details_of(to_grpc(absl::NotFoundError("x"), "")).details_size(), 1);
}

TEST(GrpcStatus, RetryHint) {
  absl::Status full = absl::ResourceExhaustedError("queue full");
  full.SetPayload(kRetryPayload, absl::Cord("2500"));
  const auto wait = detail_of<google::rpc::RetryInfo>(to_grpc(full, "")).retry_delay();
  EXPECT_EQ(wait.seconds(), 2);
  EXPECT_EQ(wait.nanos(), 500'000'000);
  full.SetPayload(kRetryPayload, absl::Cord("soon"));
  EXPECT_EQ(detail_of<google::rpc::RetryInfo>(to_grpc(full, "")).retry_delay().seconds(), 1);
}

TEST(Authenticator, Tokens) {
  const auto auth =
      Authenticator::parse("# people\nann 0123456789abcdef\n\n  fedcba9876543210xyz  \n", "tokens");
  ASSERT_TRUE(auth.ok()) << auth.status();
  EXPECT_EQ(*auth->check("Bearer 0123456789abcdef"), "ann");
  EXPECT_EQ(*auth->check("bearer fedcba9876543210xyz"), "token-4");
  EXPECT_EQ(auth->check("").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(auth->check("Basic 0123456789abcdef").status().code(),
            absl::StatusCode::kUnauthenticated);
  for (const char* wrong : {"Bearer 0123456789abcdee", "Bearer 0123456789abcdef0",
                            "Bearer 0123456789abcde", "Bearer ", "Bearer ann"}) {
    EXPECT_EQ(auth->check(wrong).status().code(), absl::StatusCode::kPermissionDenied) << wrong;
  }
}

TEST(Authenticator, BadFilesAreRefusedWithoutQuotingSecrets) {
  EXPECT_EQ(std::string(Authenticator::parse("ann tooshort", "f").status().message()),
            "f:1: allowed: NAME TOKEN or TOKEN, with a token of at least 16 characters");
  EXPECT_FALSE(Authenticator::parse("a b 0123456789abcdef", "f").ok());
  EXPECT_FALSE(Authenticator::parse("# none\n", "f").ok());
  EXPECT_FALSE(Authenticator::load("/nonexistent").ok());
}

TEST(Authenticator, OneHostIsOneClient) {
  EXPECT_EQ(host_of_peer("ipv4:10.0.0.7:41234"), "10.0.0.7");
  EXPECT_EQ(host_of_peer("ipv6:%5B2001:db8::1%5D:5000"), "2001:db8::/64");
  EXPECT_EQ(host_of_peer("unix:/tmp/x"), "unix:/tmp/x");
}

TEST(Log, OneLineAsText) {
  EXPECT_EQ(log_line(LogFormat::kText, "e",
                     {{"a", 1}, {"b", "x y"}, {"c", "l\nevent=forged"}, {"d", ""}, {"f", 0.5}}),
            "event=e a=1 b=\"x y\" c=\"l\\nevent=forged\" d=\"\" f=0.5");
}

TEST(Log, OneLineAsJson) {
  EXPECT_EQ(log_line(LogFormat::kJson, "e",
                     {{"a", 1}, {"b", "x"}, {"c", "\"\n\u2028"}, {"d", std::nan("")}}),
            R"("event":"e","a":1,"b":"x","c":"\"\n\u2028","d":"nan")");
}

// However long: a model's name of 4 MB once made a line of 4 MB.
TEST(Log, ValuesAreCut) {
  const std::string line = log_line(LogFormat::kText, "e", {{"model", std::string(5000, 'x')}});
  EXPECT_EQ(line, "event=e model=\"" + std::string(LogField::kMaxValue, 'x') + "...\"");
  EXPECT_EQ(log_line(LogFormat::kText, "e", {{"m", "a\u20ac", 2}}), "event=e m=\"a...\"");
}

TEST(CallInfo, RequestIdsDiffer) {
  const std::string a = make_request_id(), b = make_request_id();
  EXPECT_EQ(a.size(), 20u);
  EXPECT_NE(a, b);
}

TEST(CallInfo, TellsDeadlinesFromCancels) {
  CallInfo info;
  EXPECT_EQ(classify_cancellation(absl::CancelledError(), info).code(),
            absl::StatusCode::kCancelled);
  info.deadline = TimePoint::min();
  EXPECT_EQ(classify_cancellation(absl::CancelledError(), info).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(classify_cancellation(absl::InternalError(""), info).code(),
            absl::StatusCode::kInternal);
}

TEST(Utf8, IsMadeValid) {
  EXPECT_EQ(to_valid_utf8("aé"), "aé");
  EXPECT_EQ(to_valid_utf8("a\xff"), "a\xEF\xBF\xBD");
  EXPECT_EQ(to_valid_utf8("\xc3"), "\xEF\xBF\xBD");
}

std::string option_error(const std::vector<std::string>& args) {
  const auto options = parse_options(args);
  return options.ok() ? "no error" : std::string(options.status().message());
}

TEST(Options, Errors) {
  EXPECT_EQ(option_error({}), "--config and --model: none; allowed: one of them");
  EXPECT_EQ(option_error({"--config=a", "--model=b=c"}),
            "--config and --model: both; allowed: one of them");
  EXPECT_EQ(option_error({"--config=a", "b"}), "argument: \"b\"; allowed: flags only");
  EXPECT_EQ(option_error({"--config=a", "--listen=here"}),
            "--listen: \"here\"; allowed: HOST:PORT with a port in [0, 65535]");
  EXPECT_EQ(option_error({"--config=a", "--http=h:65536"}),
            "--http: \"h:65536\"; allowed: HOST:PORT with a port in [0, 65535]");
  EXPECT_EQ(option_error({"--config=a", "--grace-seconds=-1"}),
            "--grace-seconds: -1; allowed: a number in [0, 86400]");
  EXPECT_EQ(option_error({"--config=a", "--log-level=loud"}),
            "--log-level: \"loud\"; allowed: debug, info, warn, error");
  EXPECT_EQ(option_error({"--config=a", "--log-format=xml"}),
            "--log-format: \"xml\"; allowed: text, json");
  EXPECT_EQ(option_error({"--help"}), "no error");
  EXPECT_EQ(option_error({"--version"}), "no error");
}

TEST(Options, FlagsOverrideTheFile) {
  const test::TempDir dir;
  const std::string path =
      dir.write("options.textproto",
                "models { name: \"m\" fake {} }\n"
                "server { listen: \"127.0.0.1:1\" grace_seconds: 5 log_level: \"warn\" }");
  const auto plain = configure(*parse_options({"--config", path}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->server.listen, "127.0.0.1:1");
  EXPECT_EQ(plain->server.grace, std::chrono::seconds(5));
  const auto over = configure(*parse_options(
      {"--config", path, "--listen=127.0.0.1:2", "--http=off", "--grace-seconds=0.5"}));
  EXPECT_EQ(over->server.listen, "127.0.0.1:2");
  EXPECT_EQ(over->server.http, "off");
  EXPECT_EQ(over->server.grace, std::chrono::milliseconds(500));
  EXPECT_EQ(over->server.log_level, "warn");
  EXPECT_EQ(over->engine.models[0].name, "m");
  ASSERT_FALSE(plain->engine.devices.empty());
  EXPECT_EQ(plain->engine.devices[0].cpu_target, "");
  Options with_target = *parse_options({"--config", path});
  with_target.cpu_target = "AVX2";
  EXPECT_EQ(configure(with_target)->engine.devices[0].cpu_target, "AVX2");
}

TEST(Options, HelpNamesEveryFlag) {
  for (const char* flag : {"--config", "--model", "--device", "--dtype", "--cpu-kernels",
                           "--listen", "--http", "--port-file", "--grace-seconds", "--log-level",
                           "--log-format", "--insecure", "--version", "--openai"}) {
    EXPECT_NE(options_help().find(flag), std::string::npos) << flag;
  }
}

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
      "stuck_seconds: 14 max_send_bytes: 1025");
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
  EXPECT_EQ(config->max_connections, 11);
  EXPECT_EQ(config->max_connections_per_host, 12);
  EXPECT_EQ(config->max_open_calls, 13);
  EXPECT_EQ(config->max_transport_bytes, 16777216);
  EXPECT_EQ(config->stuck, std::chrono::seconds(14));
  EXPECT_EQ(config->max_send_bytes, 1025);
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
      {"log_level: \"all\"", "f:1: server.log_level: \"all\"; allowed: debug, info, warn, error"},
      {"tls { certificate: \"/nonexistent\" }",
       "f:1: server.tls.certificate: \"/nonexistent\"; allowed: a readable file that is not "
       "empty"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(std::string(settings(c.text).status().message()), c.message);
  }
}

// Calls from other machines in the clear need somebody to say so.
TEST(ServerConfig, Exposure) {
  ServerConfig config;
  config.listen = "0.0.0.0:50051";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.listen: \"0.0.0.0:50051\"; allowed: an address of this machine alone, or "
            "server.tls, or --insecure (server.insecure) where a proxy in front has TLS");
  config.insecure = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.insecure = false;
  config.use_tls = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.use_tls = false;
  config.listen = "127.0.0.1:50051";
  EXPECT_TRUE(check_exposure(config).ok());
}

// The OpenAI door has neither TLS nor client certificates, whatever gRPC has.
TEST(ServerConfig, ExposureOfTheOpenAiApi) {
  ServerConfig config;
  config.use_tls = true;
  config.openai = "127.0.0.1:8000";
  EXPECT_TRUE(check_exposure(config).ok());
  config.openai = "0.0.0.0:8000";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.openai: \"0.0.0.0:8000\"; allowed: an address of this machine alone, or "
            "--insecure (server.insecure) where a proxy in front has TLS");
  config.insecure = true;
  EXPECT_TRUE(check_exposure(config).ok());
  config.tls.client_ca = "a certificate";
  EXPECT_EQ(std::string(check_exposure(config).message()),
            "server.openai: \"0.0.0.0:8000\"; allowed: unset with server.tls.client_ca, unless "
            "server.bearer_token_file says who may call there");
  config.bearer_token_file = "tokens";
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

// Joined items count what they counted apart: else a stream's unread bytes would never come back.
TEST(OpenAiItem, BytesOfJoinedItemsAreTheirSum) {
  OpenAiItem all;
  all.text = "a";
  int64_t bytes = all.bytes();
  for (int i = 0; i < 300; ++i) {
    OpenAiItem later;
    later.text = "bc";
    later.token_bytes = i % 3;
    bytes += later.bytes();
    all.append(later);
  }
  EXPECT_EQ(all.bytes(), bytes);
}

}  // namespace
}  // namespace tandem
