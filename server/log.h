// Structured logs: one line per event, `key=value` pairs, written to stderr by spdlog.
//
//   log_info("request", {{"request_id", id}, {"status", "OK"}, {"seconds", 0.12}});
//   ts=2026-01-31T12:00:00.123Z level=info event=request request_id=... status=OK seconds=0.12
//
// Values are quoted where they need it, so that nothing that a client sent can forge a line.
// Prompts and outputs are never logged. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct LogField {
  LogField(absl::string_view k, const absl::AlphaNum& v) : key(k), value(v.Piece()) {}
  absl::string_view key;
  std::string value;
};
using LogFields = std::vector<LogField>;

// "debug", "info", "warn" or "error". Called once, before other threads log.
void set_up_log(const std::string& level);

void log_debug(absl::string_view event, const LogFields& fields = {});
void log_info(absl::string_view event, const LogFields& fields = {});
void log_warn(absl::string_view event, const LogFields& fields = {});
void log_error(absl::string_view event, const LogFields& fields = {});

// "event=... key=value ...", as logged.
std::string log_line(absl::string_view event, const LogFields& fields);

}  // namespace tandem
