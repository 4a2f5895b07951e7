#include "server/observe/log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "server/edge/log_queue.h"
#include "server/edge/log_value.h"

namespace tandem {
namespace {

// About 30,000 unread lines.
constexpr size_t kMaxWaiting = 8 << 20;

// The client of the line that this thread is writing. spdlog has no place for it.
thread_local absl::string_view line_client;

// Passes formatted lines to a LogQueue. spdlog's asynchronous logger limits messages, not bytes,
// and its thread blocks in write(2) if the log is not read.
class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LogFormat format)
      : format_(format),
        queue_(STDERR_FILENO, kMaxWaiting, [this](int64_t dropped) { return note(dropped); }) {
    const char* const pattern = format == LogFormat::kText
                                    ? "ts=%Y-%m-%dT%H:%M:%S.%eZ level=%N %v"
                                    : R"({"ts":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%N",%v})";
    auto formatter =
        std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc, "");
    formatter->add_flag<LevelName>('N').set_pattern(pattern);
    note_formatter_ = formatter->clone();
    set_formatter(std::move(formatter));
  }

  LogFormat format() const { return format_; }
  LogQueue& queue() { return queue_; }

 private:
  // "warn", where spdlog says "warning".
  class LevelName final : public spdlog::custom_flag_formatter {
   public:
    void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
                spdlog::memory_buf_t& out) override {
      const spdlog::string_view_t name = message.level == spdlog::level::warn
                                             ? "warn"
                                             : spdlog::level::to_string_view(message.level);
      out.append(name.begin(), name.end());
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
      return std::make_unique<LevelName>();
    }
  };

  static std::string formatted(spdlog::formatter& formatter,
                               const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter.format(message, line);
    return fmt::to_string(line);
  }

  void sink_it_(const spdlog::details::log_msg& message) override {
    queue_.write(formatted(*formatter_, message),
                 {std::string(line_client), message.level >= spdlog::level::warn});
  }
  void flush_() override {}

  std::string note(int64_t dropped) {
    const std::string text = log_line(format_, "log_dropped", {{"lines", dropped}});
    return formatted(*note_formatter_, {"", spdlog::level::warn, text});
  }

  const LogFormat format_;
  std::unique_ptr<spdlog::formatter> note_formatter_;  // used by the queue's thread only
  LogQueue queue_;
};

struct Log {
  std::shared_ptr<QueueSink> sink;
  spdlog::logger logger{"tandem", sink};
};

// Null before set_up_log(). Never destroyed: threads of libraries log until the process ends.
Log* the_log = nullptr;

void write(spdlog::level::level_enum level, absl::string_view event, const LogFields& fields) {
  if (the_log == nullptr || !the_log->logger.should_log(level)) return;
  const auto client = std::ranges::find(fields, "client", &LogField::key);
  line_client = client == fields.end() ? absl::string_view() : client->value;
  the_log->logger.log(level, log_line(the_log->sink->format(), event, fields));
}

// Protobuf's default handler writes to stderr.
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
  // Truncate at a character boundary.
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
  the_log = new Log{std::make_shared<QueueSink>(format)};
  the_log->logger.set_level(level == "debug"   ? spdlog::level::debug
                            : level == "warn"  ? spdlog::level::warn
                            : level == "error" ? spdlog::level::err
                                               : spdlog::level::info);
  google::protobuf::SetLogHandler(&on_protobuf_log);
  gpr_set_log_function(&on_grpc_log);
}

void flush_log(Duration limit) {
  if (the_log != nullptr) the_log->sink->queue().flush(limit);
}

int64_t log_lines_dropped() { return the_log == nullptr ? 0 : the_log->sink->queue().dropped(); }

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
