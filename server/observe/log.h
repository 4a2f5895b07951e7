// Structured logs: one line per event on stderr, as text or as JSON.
//
//   log_info("request", {{"request_id", id}, {"status", "OK"}, {"seconds", 0.12}});
//   ts=2026-01-31T12:00:00.123Z level=info event=request request_id=... status=OK seconds=0.12
//   {"ts":"2026-01-31T12:00:00.123Z","level":"info","event":"request","request_id":"...",...}
//
// Values are escaped and truncated, so that client input can neither forge a line, nor change the
// text direction, nor fill a disk. Logging does not block: a thread writes, and if the log is not
// read, lines are dropped and counted. Prompts and outputs are never logged. Thread-safe.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"

namespace tandem {

struct LogField {
  static constexpr size_t kMaxValue = 256;
  static constexpr size_t kMaxMessage = 4000;  // for the server's own messages

  template <class Number>
    requires std::is_arithmetic_v<Number>
  LogField(absl::string_view k, Number v) : key(k), value(absl::StrCat(v)), number(true) {}
  LogField(absl::string_view k, absl::string_view v, size_t max = kMaxValue);

  absl::string_view key;
  std::string value;  // truncated to `max`
  bool number = false;
  bool cut = false;
};
using LogFields = std::vector<LogField>;

enum class LogFormat { kText, kJson };

// `level`: "debug", "info", "warn" or "error". Called once, before other threads log.
void set_up_log(const std::string& level, LogFormat format = LogFormat::kText);

// Waits until the log is written, at most `limit`.
void flush_log(Duration limit);

// Lines dropped because the log was not read.
int64_t log_lines_dropped();

void log_debug(absl::string_view event, const LogFields& fields = {});
void log_info(absl::string_view event, const LogFields& fields = {});
void log_warn(absl::string_view event, const LogFields& fields = {});
void log_error(absl::string_view event, const LogFields& fields = {});

// `event=... key=value ...` or `"event":"...","key":"value",...`, without time and level.
std::string log_line(LogFormat format, absl::string_view event, const LogFields& fields);

}  // namespace tandem
