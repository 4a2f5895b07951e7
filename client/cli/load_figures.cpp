#include "client/cli/load_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {
namespace {

bool is_within(const Sample& sample, const Limits& limits) {
  if (!sample.error.empty()) return false;
  const auto first = sample.first();
  if (limits.first_seconds && !(first && seconds(*first) <= *limits.first_seconds)) return false;
  if (limits.whole_seconds && seconds(sample.end - sample.due) > *limits.whole_seconds)
    return false;
  if (limits.between_seconds) {
    const std::vector<double> gaps = sample.between();
    const double sum = std::accumulate(gaps.begin(), gaps.end(), 0.0);
    if (sum > *limits.between_seconds * static_cast<double>(gaps.size())) return false;
  }
  return true;
}

Json to_json(const Spread& spread) {
  return {{"count", spread.count}, {"mean", spread.mean},  {"p50", spread.p50},
          {"p90", spread.p90},     {"p95", spread.p95},    {"p99", spread.p99},
          {"max", spread.most},    {"curve", spread.curve}};
}

}  // namespace

int Sample::tokens() const {
  return std::accumulate(messages.begin(), messages.end(), 0,
                         [](int n, const Message& m) { return n + m.tokens; });
}

std::optional<Duration> Sample::first() const {
  if (messages.empty()) return std::nullopt;
  return messages.front().at - due;
}

std::vector<double> Sample::between() const {
  std::vector<double> out;
  for (size_t i = 1; i < messages.size(); ++i) {
    const int n = messages[i].tokens;
    const double each = seconds(messages[i].at - messages[i - 1].at) / n;
    out.insert(out.end(), static_cast<size_t>(n), each);
  }
  return out;
}

double percentile(const std::vector<double>& sorted, double p) {
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Spread spread_of(std::vector<double> values) {
  Spread out;
  out.count = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  for (int p = 0; p <= 100; ++p) out.curve.push_back(percentile(values, p));
  out.p50 = out.curve[50];
  out.p90 = out.curve[90];
  out.p95 = out.curve[95];
  out.p99 = out.curve[99];
  out.most = values.back();
  return out;
}

Level level_of(std::string load, double offered, const std::vector<Sample>& samples,
               const Limits& limits) {
  Level out;
  out.load = std::move(load);
  out.offered = offered;
  out.sent = samples.size();
  std::vector<double> first, between, whole;
  Duration begin = Duration::max(), end{0};
  int64_t tokens = 0, prompt_tokens = 0;
  size_t good = 0;
  for (const Sample& sample : samples) {
    begin = std::min(begin, sample.due);
    end = std::max(end, sample.end);
    tokens += sample.tokens();
    prompt_tokens += sample.prompt_tokens;
    if (!sample.error.empty()) {
      ++out.errors[sample.error];
      continue;
    }
    ++out.done;
    good += is_within(sample, limits) ? 1 : 0;
    whole.push_back(seconds(sample.end - sample.due));
    if (const auto at = sample.first()) first.push_back(seconds(*at));
    const std::vector<double> gaps = sample.between();
    between.insert(between.end(), gaps.begin(), gaps.end());
  }
  if (samples.empty() || end <= begin) return out;
  out.seconds = seconds(end - begin);
  out.requests_per_second = static_cast<double>(out.done) / out.seconds;
  out.tokens_per_second = static_cast<double>(tokens) / out.seconds;
  out.prompt_tokens_per_second = static_cast<double>(prompt_tokens) / out.seconds;
  out.goodput = static_cast<double>(good) / out.seconds;
  out.within = static_cast<double>(good) / static_cast<double>(out.sent);
  out.first = spread_of(std::move(first));
  out.between = spread_of(std::move(between));
  out.whole = spread_of(std::move(whole));
  return out;
}

Json to_json(const Level& level) {
  Json errors = Json::object();
  for (const auto& [status, count] : level.errors) errors[status] = count;
  return {{"load", level.load},
          {"offered", level.offered},
          {"seconds", level.seconds},
          {"sent", level.sent},
          {"done", level.done},
          {"errors", std::move(errors)},
          {"requests_per_second", level.requests_per_second},
          {"tokens_per_second", level.tokens_per_second},
          {"prompt_tokens_per_second", level.prompt_tokens_per_second},
          {"goodput", level.goodput},
          {"within_limits", level.within},
          {"time_to_first_token_seconds", to_json(level.first)},
          {"between_tokens_seconds", to_json(level.between)},
          {"request_seconds", to_json(level.whole)}};
}

std::string load_table(const std::vector<Level>& levels, const Limits& limits) {
  std::string out =
      absl::StrFormat("%-16s %6s %6s %8s %9s  %-23s %-23s %-23s%s\n", "load", "done", "failed",
                      "req/s", "tokens/s", "first token ms 50/95/99", "inter-token ms 50/95/99",
                      "request ms 50/95/99", limits.any() ? " goodput" : "");
  const auto three = [](const Spread& s) {
    return s.count == 0
               ? std::string("-")
               : absl::StrFormat("%.1f / %.1f / %.1f", 1e3 * s.p50, 1e3 * s.p95, 1e3 * s.p99);
  };
  for (const Level& level : levels) {
    absl::StrAppendFormat(&out, "%-16s %6d %6d %8.2f %9.1f  %-23s %-23s %-23s",
                          absl::StrCat(level.load, " ", level.offered), level.done,
                          level.sent - level.done, level.requests_per_second,
                          level.tokens_per_second, three(level.first), three(level.between),
                          three(level.whole));
    if (limits.any()) {
      absl::StrAppendFormat(&out, " %.2f/s (%.0f %%)", level.goodput, 100 * level.within);
    }
    const size_t last = out.find_last_not_of(' ');
    out.resize(last + 1);
    out += "\n";
  }
  return out;
}

}  // namespace tandem::cli
