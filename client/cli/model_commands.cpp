// `tandem pull` and `tandem run`: models by name, without a server that runs already.
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/chat.h"
#include "client/cli/command.h"
#include "client/cli/local_server.h"
#include "client/cli/request_flags.h"
#include "engine/base/child_process.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kPullIntro[] =
    "tandem pull: fetches models from the Hugging Face hub and prints their paths.\n\n"
    "Usage: tandem pull ORG/REPO[@REVISION][:QUANT] ... [flags]\n\n"
    "  tandem pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0\n"
    "  tandem-server --model chat=$(tandem pull Qwen/Qwen2.5-0.5B-Instruct-GGUF)\n\n"
    "QUANT selects a GGUF file (default Q4_K_M). `tandem-pull --help` lists the environment\n"
    "variables: HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, ...\n\n"
    "Exit status: 0 success, 1 a model cannot be had, 2 wrong usage.\n";
constexpr char kRunIntro[] =
    "tandem run: fetches a model if necessary, serves it, and starts a conversation.\n\n"
    "Usage: tandem run MODEL [flags]\n\n"
    "  tandem run Qwen/Qwen2.5-0.5B-Instruct-GGUF\n"
    "  tandem run Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF --small auto\n"
    "  tandem run model.gguf --small small.gguf --temperature 0\n\n"
    "MODEL is a Hugging Face directory, a GGUF file, or ORG/REPO[@REVISION][:QUANT]. The server\n"
    "listens on a socket of this user only, and ends with the conversation.\n\n"
    "Exit status: 0 success, 1 the model cannot be served or the last request failed, 2 wrong\n"
    "usage.\n";

absl::StatusOr<int> run_pull(CommandLine& line) {
  bool quiet = false;
  line.flags.section("Output");
  line.flags.toggle("quiet", "print no progress", &quiet);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber, /*offline=*/true));
  if (!go) return kSuccess;
  if (line.arguments().empty()) {
    return out_of_range("argument", "none", "ORG/REPO[@REVISION][:QUANT] ...");
  }
  std::vector<std::string> args = {sibling_program("tandem-pull")};
  if (quiet) args.emplace_back("--quiet");
  args.insert(args.end(), line.arguments().begin(), line.arguments().end());
  auto child = ChildProcess::start(args, {});
  if (!child.ok()) return from_server(child.status());
  return child->wait();
}

absl::StatusOr<int> run_serve_and_chat(CommandLine& line) {
  std::optional<std::string> small, dtype, device;
  line.flags.section("Server");
  line.flags.text("small", "MODEL", "small model that drafts; auto: the measured one, if any",
                  &small);
  line.flags.text("device", "DEVICE", "cpu:0, cuda:0, ... (default cpu:0)", &device);
  line.flags.text("dtype", "TYPE", "weights: auto, fp32, bf16, int8, int4, ... (default auto)",
                  &dtype);
  RequestFlags request_flags;
  add_chat_flags(&line, &request_flags);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(/*max_arguments=*/1));
  if (!go) return kSuccess;
  if (line.arguments().empty()) {
    return out_of_range("argument", "none", "a path or ORG/REPO[:QUANT]");
  }
  std::vector<std::string> flags = {"--model=" + line.arguments()[0]};
  for (const auto& [name, value] :
       {std::pair("small", &small), std::pair("device", &device), std::pair("dtype", &dtype)}) {
    if (value->has_value()) flags.push_back(absl::StrCat("--", name, "=", **value));
  }
  std::optional<LocalServer> server;
  return chat(line, request_flags, [&]() -> absl::Status {
    auto started = LocalServer::start(flags);
    if (!started.ok()) return from_server(started.status());
    server = *std::move(started);
    line.set_server(server->address());
    return absl::OkStatus();
  });
}

}  // namespace

Command pull_command() {
  return {"pull", "fetch models from the Hugging Face hub", kPullIntro, run_pull};
}

Command serve_and_chat_command() {
  return {"run", "fetch and serve a model, and talk to it", kRunIntro, run_serve_and_chat};
}

}  // namespace tandem::cli
