// The page of `tandem bench --html`: charts and tables, self-contained, without scripts. Pure
// functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/cli/load_figures.h"

namespace tandem::cli {

struct Chart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;
  };
  std::string title, x, y;
  std::vector<Line> lines;
};
// An SVG chart with axes from 0, round ticks and a legend. Empty if no line has a point.
std::string svg(const Chart& chart);

// Ascending, from 0 to `most` or just above it, at most `count` steps of 1, 2 or 5 times a power of
// ten. REQUIRES: most >= 0, finite.
std::vector<double> ticks(double most, int count = 5);

// `facts`: names and values of the test's settings.
std::string report_page(const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<Level>& levels, const Limits& limits);

// Escapes text for elements and attributes.
std::string escape_html(const std::string& text);

}  // namespace tandem::cli
