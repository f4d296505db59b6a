// A line chart as one SVG element, for the HTML report: no script, no font, no colour of its own.
//
// Colours come from the page, so that light, dark and printed pages each look right: lines have the classes line-0,
// line-1, … in order of the series, the rest has the classes grid, axis, tick and marker.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ghostshard::accountant {

struct PlotSeries {
  std::string name;                               // for the legend
  std::vector<std::pair<double, double>> points;  // in order of x; one that is not finite or drawable leaves a gap
};

struct PlotMarker {
  double x = 0;
  double y = 0;
  std::string label;
};

struct Plot {
  std::string title;  // read out by a screen reader
  std::string x_label;
  std::string y_label;
  bool log_x = false;    // x > 0
  bool whole_x = false;  // ticks at whole numbers only
  std::vector<PlotSeries> series;
  std::optional<PlotMarker> marker;
};

// The y axis begins at 0. Texts are escaped. A plot without a drawable point is an SVG that says so.
std::string draw_svg(const Plot& plot);

// Ticks at 1, 2 or 5 times a power of ten, from 0 to the first that is >= most; four to eight of them.
std::vector<double> linear_ticks(double most, bool whole_numbers = false);

// 10⁻⁶ for -6.
std::string power_of_ten(int exponent);

// Text for HTML and SVG: & < > " ' escaped.
std::string escape_html(const std::string& text);

}  // namespace ghostshard::accountant
