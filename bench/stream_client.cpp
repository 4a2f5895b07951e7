// A client with little work of its own, for measurements of a server on the same machine.
//
//   bench_client --server 127.0.0.1:50051 --model code-large
//
// Each input line holds a number of new tokens and prompts of token ids: "64;1,2,3;4,5,6". All
// prompts are decoded at once as separate streams, greedily and past any end of text, without the
// prefix cache. The output line holds the seconds from the first call to the last end and the new
// tokens of each prompt: "0.125;7,8;9,10", or "error: ...". bench/peers/engines.py runs it.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "engine/base/flags.h"

namespace tandem {
namespace {

struct Stream {
  v1::GenerateRequest request;
  std::vector<int32_t> tokens;
  absl::Status status;

  void run(Client& client) {
    int32_t completion = -1, cached = -1;
    status = client.generate(request, [&](const v1::GenerateResponse& event) {
      for (const v1::Token& token : event.chunk().tokens()) tokens.push_back(token.id());
      if (event.has_finished()) {
        completion = event.finished().usage().completion_tokens();
        cached = event.finished().usage().cached_tokens();
      }
      return true;
    });
    if (status.ok() && (completion != request.max_new_tokens() || cached != 0)) {
      status = absl::InternalError(
          absl::StrCat("completion_tokens: ", completion, ", cached_tokens: ", cached));
    }
  }
};

// One line of input.
absl::StatusOr<std::vector<Stream>> read(const std::string& model, const std::string& line) {
  const std::vector<std::string> parts = absl::StrSplit(line, ';');
  int32_t new_tokens = 0;
  if (!absl::SimpleAtoi(parts[0], &new_tokens) || parts.size() < 2) {
    return absl::InvalidArgumentError("line: not \"NEW_TOKENS;ID,ID,...;...\"");
  }
  std::vector<Stream> streams(parts.size() - 1);
  for (size_t i = 0; i < streams.size(); ++i) {
    v1::GenerateRequest& r = streams[i].request;
    r.set_model(model);
    r.mutable_autoregressive();
    r.set_temperature(0);
    r.set_ignore_eos(true);
    r.set_return_tokens(true);
    r.set_max_new_tokens(new_tokens);
    for (const auto& text : absl::StrSplit(parts[i + 1], ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(text, &id)) return absl::InvalidArgumentError("line: a token id");
      r.mutable_token_ids()->add_ids(id);
    }
  }
  return streams;
}

absl::StatusOr<std::string> answer(Client& client, const std::string& model,
                                   const std::string& line) {
  absl::StatusOr<std::vector<Stream>> streams = read(model, line);
  if (!streams.ok()) return streams.status();
  std::latch ready(static_cast<std::ptrdiff_t>(streams->size()) + 1);
  std::vector<std::jthread> threads;
  for (Stream& stream : *streams) {
    threads.emplace_back([&] {
      ready.arrive_and_wait();
      stream.run(client);
    });
  }
  ready.arrive_and_wait();
  const auto start = std::chrono::steady_clock::now();
  threads.clear();  // joins them
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::string text = absl::StrCat(seconds.count());
  for (const Stream& stream : *streams) {
    if (!stream.status.ok()) return stream.status;
    absl::StrAppend(&text, ";", absl::StrJoin(stream.tokens, ","));
  }
  return text;
}

int run(const std::vector<std::string>& args) {
  ClientOptions options;
  std::optional<std::string> server, model;
  bool help = false;
  Flags flags;
  flags.text("server", "ADDRESS", "where the server listens (127.0.0.1:50051)", &server);
  flags.text("model", "NAME", "required", &model);
  flags.toggle("help", "this text", &help);
  const auto rest = flags.parse(args);
  if (!rest.ok() || !rest->empty() || !model || help) {
    const std::string error = rest.ok() ? "" : std::string(rest.status().message()) + "\n";
    std::fprintf(stderr, "%s%s", error.c_str(), flags.help().c_str());
    return help ? 0 : 2;
  }
  options.server = server.value_or(options.server);
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", std::string(client.status().message()).c_str());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<std::string> said = answer(**client, *model, line);
    std::cout << (said.ok() ? *said : absl::StrCat("error: ", said.status().ToString()))
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run({argv + 1, argv + argc}); }
