// A real server in this process: the engine with fake models, on loopback ports of its own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/client.h"
#include "engine/host/config/config.h"
#include "engine/host/engine.h"
#include "server/observe/log.h"
#include "server/server.h"

namespace tandem {

// `fake` answers at once; `slow` takes 5 ms a token; `pair` has a small model that seldom agrees.
inline constexpr char kModels[] = R"(
    models { name: "fake" fake { max_positions: 16384 } }
    models { name: "slow" fake { pass_seconds: 0.005 } }
    models { name: "little" fake { max_positions: 16384 seed: 2 } }
    deployments { name: "fake" large: "fake" }
    deployments { name: "slow" large: "slow" small: "fake" }
    deployments { name: "pair" large: "fake" small: "little" }
)";

// Waits for what another thread is about to make true.
template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// The log is set up once in a process.
inline void quiet_log() {
  static const bool quiet = (set_up_log("error"), true);
  (void)quiet;
}

struct Harness {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Server> server;  // goes first
  std::unique_ptr<Client> client;

  // `settings`: fields of the configuration's `server`; `more`: further text of the configuration.
  // `change`: what no file can say.
  explicit Harness(const std::string& settings = "", bool attach = true,
                   const std::string& more = "",
                   const std::function<void(EngineConfig*)>& change = {}) {
    quiet_log();
    const auto file = ConfigFile::parse(
        std::string(kModels) + "server { listen: \"127.0.0.1:0\" http: \"127.0.0.1:0\" " +
            settings + "}" + more,
        "harness");
    EXPECT_TRUE(file.ok()) << file.status();
    auto config = server_config(*file);
    EXPECT_TRUE(config.ok()) << config.status();
    auto started = Server::start(*std::move(config));
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    EngineConfig of_engine = engine_config(*file).value();
    if (change) change(&of_engine);
    auto created = Engine::create(std::move(of_engine), {}, server->memory());
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
    if (attach) server->attach(engine.get());
    client = connect({});
  }

  std::unique_ptr<Client> connect(ClientOptions options) const {
    options.server = server->grpc_address();
    return *Client::connect(std::move(options));
  }
};

inline v1::GenerateRequest ask(const std::string& model, const std::string& prompt, int tokens) {
  v1::GenerateRequest request;
  request.set_model(model);
  request.set_text(prompt);
  request.set_max_new_tokens(tokens);
  request.set_ignore_eos(true);
  request.set_return_tokens(true);
  return request;
}

// Everything that a stream said.
struct Stream {
  absl::Status status;
  std::vector<v1::GenerateResponse> events;
  std::string text;
  std::vector<int> ids;
  v1::Started started;
  v1::Finished finished;

  void add(const v1::GenerateResponse& event) {
    events.push_back(event);
    if (event.has_started()) started = event.started();
    if (event.has_finished()) finished = event.finished();
    if (event.has_chunk()) text += event.chunk().text();
    for (const v1::Token& token : event.chunk().tokens()) ids.push_back(token.id());
  }
};

inline Stream stream(Client& client, const v1::GenerateRequest& request) {
  Stream out;
  out.status = client.generate(request, [&](const v1::GenerateResponse& event) {
    out.add(event);
    return true;
  });
  return out;
}

}  // namespace tandem
