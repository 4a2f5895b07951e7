#include "server/options.h"

#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The flags of `options`, which outlives them.
Flags flags_of(Options* options) {
  Flags flags;
  flags.section("What to serve (one of --config and --model)");
  flags.text("config", "FILE", "deployment file (schema: proto/tandem/config/v1)",
             &options->config);
  flags.texts("model", "NAME=PATH",
              "a Hugging Face directory or a GGUF file, served as NAME; repeatable",
              &options->models.models);
  flags.add("small", "DIRECTORY", "a small model that decodes in tandem with the one of --model",
            [options](absl::string_view value) {
              options->models.small = std::string(value);
              return absl::OkStatus();
            });
  flags.add("small-masks", "DIRECTORY",
            "masks that foresee what the small model will say (tuning/bita.py),\nso that it "
            "drafts faster",
            [options](absl::string_view value) {
              options->models.small_masks = std::string(value);
              return absl::OkStatus();
            });
  flags.add("device", "DEVICE", "of the --model models: cpu:0 (default), cuda:0, ...",
            [options](absl::string_view value) {
              options->models.device = std::string(value);
              return absl::OkStatus();
            });
  flags.add(
      "dtype", "TYPE",
      "weights of the --model models: auto (default), fp32, bf16, fp16, int8, int4, fp64, stored",
      [options](absl::string_view value) {
        options->models.dtype = std::string(value);
        return absl::OkStatus();
      });
  flags.add("cpu-kernels", "WHICH",
            "of CPU devices with --model: own (default), aten (LibTorch's, a reference)",
            [options](absl::string_view value) {
              options->models.cpu_kernels = std::string(value);
              return absl::OkStatus();
            });
  flags.section("Where (port 0: a free one; these override the file)");
  flags.text("listen", "HOST:PORT", "gRPC; default 127.0.0.1:50051", &options->listen);
  flags.text("http", "HOST:PORT",
             "/metrics, /healthz, /readyz; default 127.0.0.1:9400;\n\"off\": none", &options->http);
  flags.text("openai", "HOST:PORT",
             "also OpenAI's API: /v1/chat/completions, /v1/completions,\n/v1/models; default: none",
             &options->openai);
  flags.text(
      "otlp", "HOST:PORT",
      "a collector that spans of calls are sent to (OpenTelemetry,\nOTLP over gRPC); default: "
      "none",
      &options->otlp);
  flags.text("port-file", "FILE",
             "once ready, the addresses are written here:\nlines grpc=HOST:PORT, http=HOST:PORT, "
             "openai=HOST:PORT",
             &options->port_file);
  flags.section("How");
  flags.number("grace-seconds", "SECONDS",
               "streams may finish for so long after SIGTERM; default 30", 0, 86400,
               &options->grace_seconds);
  flags.text("log-level", "LEVEL", "debug, info (default), warn, error", &options->log_level);
  flags.text("log-format", "FORMAT", "text (default), json", &options->log_format);
  flags.toggle(
      "insecure",
      "calls may come from other machines without TLS: a proxy\nin front has it, or nobody "
      "listens in",
      &options->insecure);
  flags.toggle("check",
               "say what is wrong with flags, configuration, the files that it names and the\n"
               "models' small files, and exit; reads no weights, and serves nothing",
               &options->check);
  flags.toggle("version", "print the version and exit", &options->version);
  flags.toggle("help", "print this and exit", &options->help);
  return flags;
}

}  // namespace

std::string options_help() {
  Options unused;
  return absl::StrCat(
      "tandem-server: serves language models over gRPC, and OpenAI's HTTP API with --openai.\n\n"
      "  tandem-server --config deploy/demo.textproto\n"
      "  tandem-server --model NAME=PATH [--model ...] [--device cpu:0] [--dtype fp32]\n"
      "  tandem-server --model NAME=PATH --small PATH\n"
      "  tandem-server --config FILE --check\n\n"
      "SIGTERM or SIGINT drains: running streams finish within the grace time, then exit 0.\n"
      "SIGHUP reads tokens and certificates again.\n"
      "Exit status: 0 drained, or nothing wrong; 1 cannot start, or asked twice to end;\n"
      "2 wrong command line; "
      "3 the drain did not end in its time.\n",
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
  if (options.http.has_value() && *options.http != "off") {
    TANDEM_RETURN_IF_ERROR(check_address("--http", *options.http));
  }
  return options;
}

absl::StatusOr<Configuration> configure(const Options& options) {
  Configuration out;
  if (options.config.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const ConfigFile file, ConfigFile::load(*options.config));
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
  if (options.log_level.has_value()) out.server.log_level = *options.log_level;
  if (options.log_format.has_value()) out.server.log_format = *options.log_format;
  if (options.insecure) out.server.insecure = true;
  if (options.grace_seconds.has_value()) {
    out.server.grace =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*options.grace_seconds));
  }
  TANDEM_RETURN_IF_ERROR(check_exposure(out.server));
  return out;
}

}  // namespace tandem
