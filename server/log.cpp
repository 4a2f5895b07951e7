#include "server/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "server/edge/log_queue.h"
#include "server/edge/log_value.h"

namespace tandem {
namespace {

// About 30,000 lines that wait for their reader.
constexpr size_t kMaxWaiting = 8 << 20;

enum class Level { kDebug, kInfo, kWarn, kError };

const char* level_name(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarn:
      return "warn";
    case Level::kError:
      return "error";
  }
  return "";
}

struct Log {
  Level least = Level::kInfo;
  LogFormat format = LogFormat::kText;
  std::unique_ptr<LogQueue> queue;  // null before set_up_log()
};

// Never destroyed: threads of libraries log until the process ends.
Log& the_log() {
  static Log* const log = new Log();
  return *log;
}

std::string timestamp() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc = {};
  gmtime_r(&now.tv_sec, &utc);
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(now.tv_nsec / 1'000'000));
  return text;
}

std::string whole_line(Level level, absl::string_view event, const LogFields& fields) {
  const LogFormat format = the_log().format;
  const std::string line = log_line(format, event, fields);
  if (format == LogFormat::kText) {
    return absl::StrCat("ts=", timestamp(), " level=", level_name(level), " ", line);
  }
  return absl::StrCat(R"({"ts":")", timestamp(), R"(","level":")", level_name(level), R"(",)", line,
                      "}");
}

void write(Level level, absl::string_view event, const LogFields& fields) {
  Log& log = the_log();
  if (level < log.least || log.queue == nullptr) return;
  log.queue->write(whole_line(level, event, fields));
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

LogField::LogField(absl::string_view k, absl::string_view v, size_t max)
    : key(k), value(v.substr(0, max)), cut(v.size() > max) {
  // Not in the middle of a character.
  while (cut && !value.empty() && (static_cast<unsigned char>(v[value.size()]) & 0xC0) == 0x80) {
    value.pop_back();
  }
}

std::string log_line(LogFormat format, absl::string_view event, const LogFields& fields) {
  const bool json = format == LogFormat::kJson;
  std::string line =
      json ? absl::StrCat(R"("event":)", log_quoted(event, false)) : absl::StrCat("event=", event);
  for (const LogField& field : fields) {
    if (json) {
      const bool bare = field.number && is_json_number(field.value);
      absl::StrAppend(&line, ",\"", field.key,
                      "\":", bare ? field.value : log_quoted(field.value, field.cut));
    } else {
      absl::StrAppend(&line, " ", field.key, "=", log_text(field.value, field.cut));
    }
  }
  return line;
}

void set_up_log(const std::string& level, LogFormat format) {
  Log& log = the_log();
  log.least = level == "debug"   ? Level::kDebug
              : level == "warn"  ? Level::kWarn
              : level == "error" ? Level::kError
                                 : Level::kInfo;
  log.format = format;
  log.queue = std::make_unique<LogQueue>(STDERR_FILENO, kMaxWaiting, [](int64_t dropped) {
    return whole_line(Level::kWarn, "log_dropped", {{"lines", dropped}});
  });
  google::protobuf::SetLogHandler(&on_protobuf_log);
  gpr_set_log_function(&on_grpc_log);
}

void flush_log(Duration limit) {
  if (LogQueue* const queue = the_log().queue.get()) queue->flush(limit);
}

int64_t log_lines_dropped() {
  const LogQueue* const queue = the_log().queue.get();
  return queue == nullptr ? 0 : queue->dropped();
}

void log_debug(absl::string_view event, const LogFields& fields) {
  write(Level::kDebug, event, fields);
}
void log_info(absl::string_view event, const LogFields& fields) {
  write(Level::kInfo, event, fields);
}
void log_warn(absl::string_view event, const LogFields& fields) {
  write(Level::kWarn, event, fields);
}
void log_error(absl::string_view event, const LogFields& fields) {
  write(Level::kError, event, fields);
}

}  // namespace tandem
