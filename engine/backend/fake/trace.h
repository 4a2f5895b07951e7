// A trace of when the batches of a fake model end, to measure the latency of tokens to a client.
//
// Batches are numbered from 0. All answers of a batch are the token 32 + number % 95, so a client
// can tell the batch of a token. A file has a line "NUMBER NANOSECONDS" for each batch, on
// CLOCK_MONOTONIC, which all processes of a machine share. Unambiguous if no token is delayed by 95
// batches or more.
//
// begin() and done() may run on two different threads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {

class BatchTrace {
 public:
  static constexpr Token kFirst = 32;  // printable, so that text has a character for each token
  static constexpr Token kTokens = 95;

  // A new file; INVALID_ARGUMENT when it cannot be written.
  static absl::StatusOr<std::unique_ptr<BatchTrace>> open(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (!file) return out_of_range("trace_file", quote_value(path), "a file that can be written");
    return std::unique_ptr<BatchTrace>(new BatchTrace(file));
  }
  static Token token(int64_t number) { return kFirst + static_cast<Token>(number % kTokens); }

  ~BatchTrace() { std::fclose(file_); }
  BatchTrace(const BatchTrace&) = delete;
  BatchTrace& operator=(const BatchTrace&) = delete;

  int64_t begin() { return next_++; }  // the next batch's number
  void done(int64_t number, TimePoint when) {
    std::fprintf(file_, "%lld %lld\n", static_cast<long long>(number),
                 static_cast<long long>(when.time_since_epoch().count()));
  }

 private:
  explicit BatchTrace(std::FILE* file) : file_(file) {}

  std::FILE* const file_;
  int64_t next_ = 0;
};

}  // namespace tandem
