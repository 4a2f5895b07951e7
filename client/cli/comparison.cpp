#include "client/cli/comparison.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"

namespace tandem::cli {
namespace {

constexpr size_t kColumns = 10;
using Row = std::array<std::string, kColumns>;

double speed_up(const Compared& one, const Compared& first) {
  const double of_first = decode_rate(first.answer.first().finished);
  return of_first > 0 ? decode_rate(one.answer.first().finished) / of_first : 0;
}

bool same(const Compared& one, const Compared& first) {
  return pieces_of(one.answer) == pieces_of(first.answer);
}

Row row_of(const Compared& one, const Compared& first) {
  const v1::Finished& finished = one.answer.first().finished;
  const v1::MethodStats& stats = finished.stats();
  const double rate = decode_rate(finished);
  return {
      one.method,
      contract_text(one.answer.started().contract()),
      absl::StrCat(finished.usage().completion_tokens()),
      absl::StrCat(stats.large_passes()),
      absl::StrCat(stats.small_passes()),
      absl::StrFormat("%.2f", stats.tokens_per_pass()),
      absl::StrFormat("%.3f s", stats.time_to_first_token_seconds()),
      rate > 0 ? absl::StrFormat("%.1f", rate) : "-",
      rate > 0 && speed_up(one, first) > 0 ? absl::StrFormat("%.2f", speed_up(one, first)) : "-",
      finish_reason_text(finished.finish_reason())};
}

// The first method that succeeded; null if none did.
const Compared* baseline_of(const std::vector<Compared>& all) {
  const auto found =
      std::find_if(all.begin(), all.end(), [](const Compared& one) { return one.status.ok(); });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> pieces_of(const Answer& answer) {
  std::vector<std::string> out;
  for (const v1::Token& token : answer.first().tokens) {
    out.push_back(token.has_text() ? token.text() : absl::StrCat(token.id(), " "));
  }
  return out;
}

std::string comparison_table(const std::vector<Compared>& all) {
  const Compared* const baseline = baseline_of(all);
  std::vector<Row> rows = {{"method", "contract", "tokens", "large passes", "small passes",
                            "tokens/pass", "first token", "decode tok/s", "speed-up",
                            "finish reason"}};
  for (const Compared& one : all) {
    rows.push_back(one.status.ok() ? row_of(one, *baseline)
                                   : Row{one.method, status_name(one.status.code())});
  }
  std::array<size_t, kColumns> widths = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < kColumns; ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&out, line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  return out;
}

Json comparison_json(const std::vector<Compared>& all) {
  Json out;
  const Compared* const baseline = baseline_of(all);
  out["prompt_tokens"] = baseline == nullptr ? 0 : baseline->answer.started().prompt_tokens();
  out["answers"] = Json::array();
  for (const Compared& one : all) {
    Json answer;
    answer["requested_method"] = one.method;
    if (one.status.ok()) {
      answer["same"] = same(one, *baseline);
      answer["speed_up"] = speed_up(one, *baseline);
      answer.update(one.answer.json());
    } else {
      answer["error"] = {{"status", status_name(one.status.code())},
                         {"message", std::string(one.status.message())}};
    }
    out["answers"].push_back(std::move(answer));
  }
  return out;
}

}  // namespace tandem::cli
