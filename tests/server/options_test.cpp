#include "server/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

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
  EXPECT_EQ(plain->engine.prefix_store, "");
  EXPECT_EQ(configure(*parse_options({"--config", path, "--prefix-store=kv"}))->engine.prefix_store,
            "kv");
  EXPECT_EQ(plain->server.adapter_folder, "");
  EXPECT_EQ(configure(*parse_options({"--config", path, "--adapter-folder", dir.path()}))
                ->server.adapter_folder,
            dir.path());
  EXPECT_EQ(
      configure(*parse_options({"--config", path, "--adapter-folder=/none"})).status().message(),
      "--adapter-folder: \"/none\"; allowed: a directory that exists");
  EXPECT_EQ(plain->server.kv_events.endpoint, "");
  EXPECT_EQ(plain->server.kv_events.topic.substr(0, 3), "kv@");
  const auto events = configure(*parse_options(
      {"--config", path, "--kv-events=tcp://*:5557", "--kv-events-topic=kv@10.0.0.7"}));
  EXPECT_EQ(events->server.kv_events.endpoint, "tcp://*:5557");
  EXPECT_EQ(events->server.kv_events.topic, "kv@10.0.0.7");
  EXPECT_EQ(parse_options({"--config", path, "--kv-events=5557"}).status().message(),
            "--kv-events: \"5557\"; allowed: tcp://HOST:PORT or ipc://PATH");
  const auto over = configure(*parse_options(
      {"--config", path, "--listen=127.0.0.1:2", "--http=off", "--grace-seconds=0.5"}));
  EXPECT_EQ(over->server.listen, "127.0.0.1:2");
  EXPECT_EQ(over->server.http, "off");
  EXPECT_EQ(over->server.grace, std::chrono::milliseconds(500));
  EXPECT_EQ(over->server.log_level, "warn");
  EXPECT_TRUE(over->server.playground);
  EXPECT_FALSE(configure(*parse_options({"--config", path, "--no-ui"}))->server.playground);
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
                           "--log-format", "--insecure", "--version", "--openai", "--no-ui"}) {
    EXPECT_NE(options_help().find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace tandem
