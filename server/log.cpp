#include "server/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "engine/base/quote.h"

namespace tandem {
namespace {

constexpr size_t kMaxValue = 4000;

bool plain(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return absl::ascii_isgraph(c) && c != '"' && c != '\\' && c != '=';
  });
}

void write(spdlog::level::level_enum level, absl::string_view event, const LogFields& fields) {
  if (!spdlog::default_logger_raw()->should_log(level)) return;
  // As an argument, not as the format: values may hold braces.
  spdlog::log(level, "{}", log_line(event, fields));
}

// Protobuf complains on stderr about messages that it cannot read.
void on_protobuf_log(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                     const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL) {
    log_error("protobuf", {{"message", message}});
  } else {
    log_debug("protobuf", {{"message", message}});
  }
}

void on_grpc_log(gpr_log_func_args* args) {
  const LogFields fields = {{"message", args->message}};
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    log_warn("grpc", fields);
  } else {
    log_debug("grpc", fields);
  }
}

}  // namespace

std::string log_line(absl::string_view event, const LogFields& fields) {
  std::string line = absl::StrCat("event=", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=",
                    plain(field.value) ? field.value : quote_value(field.value, kMaxValue));
  }
  return line;
}

void set_up_log(const std::string& level) {
  auto logger = spdlog::stderr_logger_mt("tandem");
  logger->set_pattern("ts=%Y-%m-%dT%H:%M:%S.%eZ level=%l %v", spdlog::pattern_time_type::utc);
  logger->set_level(level == "debug"   ? spdlog::level::debug
                    : level == "warn"  ? spdlog::level::warn
                    : level == "error" ? spdlog::level::err
                                       : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  google::protobuf::SetLogHandler(&on_protobuf_log);
  gpr_set_log_function(&on_grpc_log);
}

void log_debug(absl::string_view event, const LogFields& fields) {
  write(spdlog::level::debug, event, fields);
}
void log_info(absl::string_view event, const LogFields& fields) {
  write(spdlog::level::info, event, fields);
}
void log_warn(absl::string_view event, const LogFields& fields) {
  write(spdlog::level::warn, event, fields);
}
void log_error(absl::string_view event, const LogFields& fields) {
  write(spdlog::level::err, event, fields);
}

}  // namespace tandem
