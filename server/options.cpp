#include "server/options.h"

#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "server/http/playground.h"

namespace tandem {
namespace {

// A flag that sets a text.
void add_text(Flags* flags, const char* name, const char* value, const char* help,
              std::string* to) {
  flags->add(name, value, help, [to](absl::string_view text) {
    *to = std::string(text);
    return absl::OkStatus();
  });
}

// The flags of `options`, which outlives them.
Flags flags_of(Options* options) {
  Flags flags;
  ModelFlags* const models = &options->models;
  flags.section("Models (one of --config and --model)");
  flags.text("config", "FILE", "deployment file (schema: proto/tandem/config/v1)",
             &options->config);
  flags.texts("model", "[NAME=]MODEL",
              "serve a Hugging Face directory, a GGUF file, or ORG/REPO[:QUANT] of\n"
              "the Hugging Face hub, which is fetched (tandem-pull --help); repeatable",
              &models->models);
  add_text(&flags, "small", "MODEL",
           "small model that drafts for the model of --model; auto: the measured\n"
           "one for an ORG/REPO that docs/draft_models.md lists",
           &models->small);
  add_text(&flags, "small-masks", "DIRECTORY",
           "trained mask tokens of the small model (tuning/bita.py)", &models->small_masks);
  add_text(&flags, "small-dtype", "TYPE",
           "weights of the small model, as of --dtype; q4_0 drafts faster\n(default: --dtype)",
           &models->small_dtype);
  flags.texts("adapter", "[NAME=]PATH",
              "LoRA adapter of --model, which requests name: a PEFT folder or a GGUF\n"
              "file; repeatable",
              &models->adapters);
  add_text(&flags, "device", "DEVICE", "device of --model: cpu:0, cuda:0, ... (default cpu:0)",
           &models->device);
  add_text(
      &flags, "dtype", "TYPE",
      "weights of --model: auto, fp32, bf16, fp16, fp8 (CUDA), int8,\nint4, q4_0, fp64, stored "
      "(default auto)",
      &models->dtype);
  add_text(&flags, "cpu-kernels", "KERNELS",
           "CPU kernels of --model: own, aten (LibTorch's; default own)", &models->cpu_kernels);
  flags.section("Addresses (override the file; port 0: any free port)");
  flags.text("listen", "HOST:PORT", "gRPC (default 127.0.0.1:50051)", &options->listen);
  flags.text("http", "HOST:PORT", "/metrics, /healthz, /readyz; off (default 127.0.0.1:9400)",
             &options->http);
  flags.text("openai", "HOST:PORT", "OpenAI-compatible HTTP API (default off)", &options->openai);
  flags.text("otlp", "HOST:PORT", "OpenTelemetry collector for spans, OTLP over gRPC (default off)",
             &options->otlp);
  flags.text("kv-events", "ENDPOINT",
             "publish messages about the prefix cache, such as tcp://*:5557\n(default off)",
             &options->kv_events);
  flags.text("kv-events-topic", "TOPIC", "their topic is TOPIC@DEPLOYMENT (default kv@HOSTNAME)",
             &options->kv_events_topic);
  flags.text("port-file", "FILE", "write the bound addresses to FILE once ready",
             &options->port_file);
  flags.section("Operation (override the file)");
  flags.number("grace-seconds", "SECONDS", "time for streams to finish after SIGTERM (default 30)",
               0, 86400, &options->grace_seconds);
  flags.text("prefix-store", "FOLDER",
             "save KV pages of common prompts in FOLDER, and start with them (default none)",
             &options->prefix_store);
  flags.text("adapter-folder", "FOLDER",
             "let clients load LoRA adapters that lie below FOLDER (default off)",
             &options->adapter_folder);
  flags.text("log-level", "LEVEL", "debug, info, warn, error (default info)", &options->log_level);
  flags.text("log-format", "FORMAT", "text, json (default text)", &options->log_format);
  flags.toggle("stop-with-stdin",
               "stop as after SIGTERM when standard input ends, for programs that own the\nserver",
               &options->stop_with_stdin);
  flags.toggle("no-ui",
               playground_files().empty()
                   ? "no effect: this build has no playground, as Node.js was missing"
                   : "do not serve the playground at / of the HTTP API",
               &options->no_ui);
  flags.toggle("insecure", "allow calls from other machines without TLS", &options->insecure);
  flags.section("Other");
  flags.toggle("check", "check flags, configuration and files, then exit; reads no weights",
               &options->check);
  flags.toggle("version", "print the version and exit", &options->version);
  flags.toggle("help", "print this help and exit", &options->help);
  return flags;
}

}  // namespace

std::string options_help() {
  Options unused;
  return absl::StrCat(
      "tandem-server: serves language models over gRPC, and over HTTP with --openai.\n\n"
      "Usage: tandem-server --model [NAME=]MODEL [flags]\n"
      "       tandem-server --config FILE [flags]\n\n"
      "  tandem-server --model chat=model.gguf --small small.gguf --openai 127.0.0.1:8000\n"
      "  tandem-server --model Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF --small auto\n"
      "  tandem-server --model code=models/code-large --device cpu:0 --dtype fp32\n"
      "  tandem-server --config deploy/demo.textproto --check\n\n"
      "Signals: SIGTERM and SIGINT drain: running streams may finish within the grace time.\n"
      "SIGHUP reads tokens and certificates again.\n\n"
      "Exit status: 0 drained, or --check found no error; 1 cannot start, or a second signal;\n"
      "2 wrong command line; 3 the drain exceeded its time.\n",
      flags_of(&unused).help());
}

absl::StatusOr<Options> parse_options(const std::vector<std::string>& args) {
  Options options;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> rest, flags_of(&options).parse(args));
  if (options.help || options.version) return options;
  if (!rest.empty()) return out_of_range("argument", quote_value(rest[0]), "flags only");
  if (options.config.has_value() == !options.models.models.empty()) {
    return out_of_range("--config and --model", options.config.has_value() ? "both" : "none",
                        "one of them");
  }
  if (options.config.has_value() && !options.models.small.empty()) {
    return out_of_range("--small", quote_value(options.models.small), "with --model only");
  }
  if (options.config.has_value() && !options.models.small_masks.empty()) {
    return out_of_range("--small-masks", quote_value(options.models.small_masks),
                        "with --model and --small only");
  }
  if (options.config.has_value() && !options.models.adapters.empty()) {
    return out_of_range("--adapter", quote_value(options.models.adapters[0]), "with --model only");
  }
  if (options.log_level.has_value() && *options.log_level != "debug" &&
      *options.log_level != "info" && *options.log_level != "warn" &&
      *options.log_level != "error") {
    return out_of_range("--log-level", quote_value(*options.log_level), "debug, info, warn, error");
  }
  if (options.log_format.has_value() && *options.log_format != "text" &&
      *options.log_format != "json") {
    return out_of_range("--log-format", quote_value(*options.log_format), "text, json");
  }
  if (options.listen.has_value()) {
    TANDEM_RETURN_IF_ERROR(check_address("--listen", *options.listen));
  }
  if (options.openai.has_value()) {
    TANDEM_RETURN_IF_ERROR(check_address("--openai", *options.openai));
  }
  if (options.otlp.has_value()) {
    TANDEM_RETURN_IF_ERROR(check_endpoint("--otlp", *options.otlp));
  }
  if (options.kv_events.has_value() && !is_kv_endpoint(*options.kv_events)) {
    return out_of_range("--kv-events", quote_value(*options.kv_events),
                        "tcp://HOST:PORT or ipc://PATH");
  }
  if (options.http.has_value() && *options.http != "off") {
    TANDEM_RETURN_IF_ERROR(check_address("--http", *options.http));
  }
  return options;
}

absl::StatusOr<Configuration> configure(const Options& options) {
  Configuration out;
  if (options.config.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(ConfigFile file, ConfigFile::load(*options.config));
    if (options.fetch) TANDEM_RETURN_IF_ERROR(resolve_hub_models(options.fetch, &file));
    TANDEM_ASSIGN_OR_RETURN(out.engine, engine_config(file));
    TANDEM_ASSIGN_OR_RETURN(out.server, server_config(file));
  } else {
    TANDEM_ASSIGN_OR_RETURN(out.engine, from_models(options.models));
  }
  for (DeviceConfig& device : out.engine.devices) device.cpu_target = options.cpu_target;
  if (options.listen.has_value()) out.server.listen = *options.listen;
  if (options.http.has_value()) out.server.http = *options.http;
  if (options.openai.has_value()) out.server.openai = *options.openai;
  if (options.otlp.has_value()) out.server.otlp.endpoint = *options.otlp;
  KvEventsConfig& events = out.server.kv_events;
  if (options.kv_events.has_value()) events.endpoint = *options.kv_events;
  if (options.kv_events_topic.has_value()) events.topic = *options.kv_events_topic;
  if (events.topic.empty()) events.topic = default_kv_topic();
  if (options.prefix_store.has_value()) out.engine.prefix_store = *options.prefix_store;
  if (options.adapter_folder.has_value()) {
    out.server.adapter_folder = *options.adapter_folder;
    if (!is_folder(out.server.adapter_folder)) {
      return out_of_range("--adapter-folder", quote_value(out.server.adapter_folder),
                          "a directory that exists");
    }
  }
  if (options.log_level.has_value()) out.server.log_level = *options.log_level;
  if (options.log_format.has_value()) out.server.log_format = *options.log_format;
  if (options.insecure) out.server.insecure = true;
  if (options.no_ui) out.server.playground = false;
  if (options.grace_seconds.has_value()) {
    out.server.grace =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*options.grace_seconds));
  }
  TANDEM_RETURN_IF_ERROR(check_exposure(out.server));
  return out;
}

}  // namespace tandem
