#include "client/cli/load_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::cli {
namespace {

// The size and margins of a chart, in pixels.
constexpr double kWidth = 560, kHeight = 300, kLeft = 60, kRight = 16, kTop = 28, kBottom = 44;
constexpr std::array kColours = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0",
                                 "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5"};

constexpr char kStyle[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1320px;padding:0 1em;"
    "color:#222;background:#fff}"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin:1.5em 0 .5em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "th,td{padding:.25em .6em;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left}"
    ".charts{display:flex;flex-wrap:wrap;gap:1.5em}figure{margin:0}"
    "figcaption{font-weight:600}svg{display:block}svg text{font:12px system-ui,sans-serif;"
    "fill:#555}.grid{stroke:#e5e5e5}.line{fill:none;stroke-width:2}";

std::string number(double value) { return absl::StrFormat("%.6g", value); }

double largest(const Chart& chart, bool of_x) {
  double most = 0;
  for (const Chart::Line& line : chart.lines) {
    for (const auto& [x, y] : line.points) most = std::max(most, of_x ? x : y);
  }
  return most;
}

std::string label_of(const Level& level) { return absl::StrCat(level.load, " ", level.offered); }

// The distribution of a latency at each level of load.
Chart curve_of(const char* title, const std::vector<Level>& levels, Spread Level::* spread) {
  Chart out{title, "percentile", "ms", {}};
  for (const Level& level : levels) {
    Chart::Line line{label_of(level), {}};
    const std::vector<double>& curve = (level.*spread).curve;
    for (size_t p = 0; p < curve.size(); ++p) {
      line.points.emplace_back(static_cast<double>(p), 1e3 * curve[p]);
    }
    out.lines.push_back(std::move(line));
  }
  return out;
}

// A value of each level over the offered load.
template <class Value>
Chart::Line over_load(const char* name, const std::vector<Level>& levels, Value value) {
  Chart::Line line{name, {}};
  for (const Level& level : levels) line.points.emplace_back(level.offered, value(level));
  std::sort(line.points.begin(), line.points.end());
  return line;
}

Chart latency_over_load(const char* title, const std::vector<Level>& levels,
                        Spread Level::* spread) {
  const std::string x =
      levels.front().load == "rate" ? "requests per second" : "concurrent requests";
  return {title,
          x,
          "ms",
          {over_load("p50", levels, [=](const Level& l) { return 1e3 * (l.*spread).p50; }),
           over_load("p95", levels, [=](const Level& l) { return 1e3 * (l.*spread).p95; }),
           over_load("p99", levels, [=](const Level& l) { return 1e3 * (l.*spread).p99; })}};
}

std::vector<Chart> charts_of(const std::vector<Level>& levels, const Limits& limits) {
  std::vector<Chart> out;
  if (levels.size() > 1) {
    const std::string x =
        levels.front().load == "rate" ? "requests per second" : "concurrent requests";
    out.push_back(
        {"Throughput", x, "tokens per second", {over_load("generated", levels, [](const Level& l) {
           return l.tokens_per_second;
         })}});
    out.push_back(
        {"Successful requests",
         x,
         "requests per second",
         {over_load("all", levels, [](const Level& l) { return l.requests_per_second; })}});
    if (limits.any()) {
      out.back().lines.push_back(
          over_load("within the limits", levels, [](const Level& l) { return l.goodput; }));
    }
    out.push_back(latency_over_load("Time to first token", levels, &Level::first));
    out.push_back(latency_over_load("Inter-token latency", levels, &Level::between));
  }
  out.push_back(curve_of("Time to first token, distribution", levels, &Level::first));
  out.push_back(curve_of("Inter-token latency, distribution", levels, &Level::between));
  out.push_back(curve_of("Request latency, distribution", levels, &Level::whole));
  return out;
}

std::string table_of(const std::vector<Level>& levels, const Limits& limits) {
  std::string out =
      "<table><tr><th>load</th><th>done</th><th>failed</th><th>requests/s</th><th>tokens/s</th>"
      "<th>first token p50 ms</th><th>p95</th><th>p99</th>"
      "<th>inter-token p50 ms</th><th>p95</th><th>p99</th>"
      "<th>request p50 ms</th><th>p99</th>";
  absl::StrAppend(&out, limits.any() ? "<th>goodput/s</th><th>within</th>" : "", "</tr>\n");
  for (const Level& level : levels) {
    absl::StrAppendFormat(&out, "<tr><td>%s</td><td>%d</td><td>%d</td><td>%.2f</td><td>%.1f</td>",
                          label_of(level), level.done, level.sent - level.done,
                          level.requests_per_second, level.tokens_per_second);
    for (const double value :
         {level.first.p50, level.first.p95, level.first.p99, level.between.p50, level.between.p95,
          level.between.p99, level.whole.p50, level.whole.p99}) {
      absl::StrAppendFormat(&out, "<td>%.1f</td>", 1e3 * value);
    }
    if (limits.any()) {
      absl::StrAppendFormat(&out, "<td>%.2f</td><td>%.0f %%</td>", level.goodput,
                            100 * level.within);
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

std::string escape_html(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::vector<double> ticks(double most, int count) {
  if (most <= 0) return {0, 1};
  const double rough = most / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (nice * power >= rough * (1 - 1e-9)) {
      step = nice * power;
      break;
    }
  }
  std::vector<double> out = {0};
  while (out.back() < most * (1 - 1e-9)) out.push_back(step * static_cast<double>(out.size()));
  return out;
}

std::string svg(const Chart& chart) {
  const bool any = std::any_of(chart.lines.begin(), chart.lines.end(),
                               [](const Chart::Line& line) { return !line.points.empty(); });
  if (!any) return "";
  const std::vector<double> x_ticks = ticks(largest(chart, true));
  const std::vector<double> y_ticks = ticks(largest(chart, false));
  const auto at_x = [&](double x) {
    return kLeft + (kWidth - kLeft - kRight) * x / x_ticks.back();
  };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * y / y_ticks.back();
  };
  std::string out = absl::StrFormat(
      "<svg width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", kWidth,
      kHeight + 18, kWidth, kHeight + 18);
  for (const double tick : x_ticks) {
    absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                          at_x(tick), kHeight - kBottom + 18, number(tick));
  }
  for (const double tick : y_ticks) {
    absl::StrAppendFormat(&out,
                          "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft, kWidth - kRight, at_y(tick), at_y(tick), kLeft - 6, at_y(tick) + 4,
                          number(tick));
  }
  absl::StrAppendFormat(&out,
                        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>"
                        "<text x=\"4\" y=\"10\">%s</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - kBottom + 36, escape_html(chart.x),
                        escape_html(chart.y));
  double legend = kLeft;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const Chart::Line& line = chart.lines[i];
    const char* const colour = kColours[i % kColours.size()];
    absl::StrAppendFormat(&out, "<polyline class=\"line\" stroke=\"%s\" points=\"", colour);
    for (const auto& [x, y] : line.points) {
      absl::StrAppendFormat(&out, "%.1f,%.1f ", at_x(x), at_y(y));
    }
    out += "\"/>\n";
    // Marks the points if there are few.
    for (size_t p = 0; p < line.points.size() && line.points.size() <= 20; ++p) {
      absl::StrAppendFormat(&out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>",
                            at_x(line.points[p].first), at_y(line.points[p].second), colour);
    }
    absl::StrAppendFormat(&out,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          legend, kHeight, colour, legend + 14, kHeight + 10,
                          escape_html(line.name));
    legend += 26 + 7.0 * static_cast<double>(line.name.size());
  }
  return out + "</svg>\n";
}

std::string report_page(const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<Level>& levels, const Limits& limits) {
  std::string out = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tandem bench</title>"
      "<meta name=\"viewport\" content=\"width=device-width\"><style>",
      kStyle, "</style></head><body>\n<h1>tandem bench</h1>\n<table>\n");
  for (const auto& [name, value] : facts) {
    absl::StrAppend(&out, "<tr><td>", escape_html(name), "</td><td>", escape_html(value),
                    "</td></tr>\n");
  }
  absl::StrAppend(
      &out, "</table>\n<h2>Figures</h2>\n", table_of(levels, limits),
      "<p>Latencies count from the scheduled arrival. Inter-token latency: the time between "
      "two messages, divided among the tokens of the second.</p>\n"
      "<h2>Curves</h2>\n<div class=\"charts\">\n");
  for (const Chart& chart : charts_of(levels, limits)) {
    const std::string drawn = svg(chart);
    if (drawn.empty()) continue;
    absl::StrAppend(&out, "<figure><figcaption>", escape_html(chart.title), "</figcaption>", drawn,
                    "</figure>\n");
  }
  return out + "</div>\n</body></html>\n";
}

}  // namespace tandem::cli
