// Drawn in a box of 430 x 310 units with text of 13.5: at the width of a phone (about 330 pixels) it is still readable,
// and two charts side by side on a desk's screen have nearly the size of the text around them.
#include "accountant/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "accountant/plain_number.h"

namespace ghostshard::accountant {
namespace {

constexpr double kWidth = 430, kHeight = 310;
constexpr double kLeft = 58, kRight = 410, kTop = 42, kBottom = 254;
constexpr double kLetter = 7.3;      // about the width of one
constexpr double kWideLetter = 9.2;  // on a phone, where style.css enlarges the words

std::string fixed(double value, int digits) { return plain_number(value, std::chars_format::fixed, digits); }

std::string coordinate(double value) { return fixed(value, 1); }

// 0.002, 15, 2.5, 20,000, 1e6: as few characters as say it.
std::string tick_text(double value) {
  constexpr auto kGeneral = std::chars_format::general;
  if (value < 1000 || value != std::floor(value)) return plain_number(value, kGeneral, 4);
  if (value >= 1e6) {
    const double millions = value / 1e6;
    return millions >= 1e6 ? plain_number(value, kGeneral, 3) : plain_number(millions, kGeneral, 6) + " M";
  }
  const std::string digits = fixed(value, 0);
  std::string grouped(digits, 0, digits.size() - 3);
  grouped += ',';
  return grouped.append(digits, digits.size() - 3);
}

// Of UTF-8 text.
size_t letters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

struct Tick {
  double value;
  std::string text;
};

// The mapping from data to the drawing.
struct Frame {
  bool log_x;
  double x_low, x_high, y_high;

  double x(double value) const {
    const double low = log_x ? std::log10(x_low) : x_low;
    const double high = log_x ? std::log10(x_high) : x_high;
    return kLeft + (kRight - kLeft) * ((log_x ? std::log10(value) : value) - low) / (high - low);
  }
  double y(double value) const { return kBottom - (kBottom - kTop) * value / y_high; }
};

bool drawable(const Plot& plot, const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second) && point.second >= 0 &&
         (!plot.log_x || point.first > 0);
}

std::vector<Tick> x_ticks(const Plot& plot, const Frame& frame) {
  std::vector<Tick> ticks;
  if (!plot.log_x) {
    for (const double value : linear_ticks(frame.x_high, plot.whole_x))
      if (value <= frame.x_high) ticks.push_back({value, tick_text(value)});
    return ticks;
  }
  const int low = static_cast<int>(std::ceil(std::log10(frame.x_low) - 1e-9));
  const int high = static_cast<int>(std::floor(std::log10(frame.x_high) + 1e-9));
  const int every = std::max(1, (high - low + 6) / 7);
  for (int exponent = high; exponent >= low; exponent -= every)
    ticks.push_back({std::pow(10.0, exponent), power_of_ten(exponent)});
  return ticks;
}

void draw_axes(std::ostream& out, const Plot& plot, const Frame& frame, const std::vector<double>& y_ticks) {
  out << "<g class=\"grid\">";
  for (const double value : y_ticks)
    out << "<line x1=\"" << kLeft << "\" x2=\"" << kRight << "\" y1=\"" << coordinate(frame.y(value)) << "\" y2=\""
        << coordinate(frame.y(value)) << "\"/>";
  out << "</g><g class=\"tick\">";
  for (const double value : y_ticks)
    out << "<text x=\"" << kLeft - 8 << "\" y=\"" << coordinate(frame.y(value) + 4.5) << "\" text-anchor=\"end\">"
        << tick_text(value) << "</text>";
  for (const Tick& tick : x_ticks(plot, frame)) {
    const std::string x = coordinate(frame.x(tick.value));
    out << "<line x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << kBottom << "\" y2=\"" << kBottom + 5 << "\"/>"
        << "<text x=\"" << x << "\" y=\"" << kBottom + 20 << "\" text-anchor=\"middle\">" << tick.text << "</text>";
  }
  out << "</g><line class=\"axis\" x1=\"" << kLeft << "\" x2=\"" << kRight << "\" y1=\"" << kBottom << "\" y2=\""
      << kBottom << "\"/>";
  out << "<text class=\"name\" x=\"" << (kLeft + kRight) / 2 << "\" y=\"" << kHeight - 14
      << "\" text-anchor=\"middle\">" << escape_html(plot.x_label) << "</text>";
  const double middle = (kTop + kBottom) / 2;
  out << "<text class=\"name\" x=\"14\" y=\"" << middle << "\" text-anchor=\"middle\" transform=\"rotate(-90 14 "
      << middle << ")\">" << escape_html(plot.y_label) << "</text>";
}

void draw_lines(std::ostream& out, const Plot& plot, const Frame& frame) {
  // The first series is the claim, a whole and wide line: the others' dashes lie on it, so that one of the same values
  // shows.
  for (size_t i = 0; i < plot.series.size(); ++i) {
    out << "<path class=\"line line-" << i << "\" d=\"";
    bool pen_down = false;
    for (const auto& point : plot.series[i].points) {
      if (!drawable(plot, point)) {
        pen_down = false;
        continue;
      }
      out << (pen_down ? 'L' : 'M') << coordinate(frame.x(point.first)) << ' ' << coordinate(frame.y(point.second));
      pen_down = true;
    }
    out << "\"/>";
  }
}

void draw_legend(std::ostream& out, const Plot& plot) {
  if (plot.series.size() < 2) return;
  double x = kLeft;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    out << "<path class=\"line line-" << i << "\" d=\"M" << coordinate(x) << " 18h24\"/><text class=\"name\" x=\""
        << coordinate(x + 30) << "\" y=\"22.5\">" << escape_html(plot.series[i].name) << "</text>";
    x += 30 + kWideLetter * static_cast<double>(letters(plot.series[i].name)) + 22;
  }
}

void draw_marker(std::ostream& out, const Plot& plot, const Frame& frame) {
  if (!plot.marker || !drawable(plot, {plot.marker->x, plot.marker->y})) return;
  const double x = frame.x(plot.marker->x), y = frame.y(plot.marker->y);
  // The first series is the lowest where there are several. The label goes where that one leaves room: beside a falling
  // line to the left and below, beside a rising one to the left and above; where the left is too narrow, opposite.
  const auto& points = plot.series.front().points;
  const bool rising = !points.empty() && points.back().second > points.front().second;
  const double width = kLetter * static_cast<double>(letters(plot.marker->label)) + 12;
  const bool to_the_left = x - width > kLeft;
  const bool above = rising == to_the_left;
  const double text_y = above ? std::max(y - 11, kTop - 6) : std::min(y + 22, kBottom - 8);
  out << "<line class=\"marker-line\" x1=\"" << coordinate(x) << "\" x2=\"" << coordinate(x) << "\" y1=\""
      << coordinate(y) << "\" y2=\"" << kBottom << "\"/><circle class=\"marker\" cx=\"" << coordinate(x) << "\" cy=\""
      << coordinate(y) << "\" r=\"5\"/><text class=\"marker-text\" x=\"" << coordinate(to_the_left ? x - 7 : x + 9)
      << "\" y=\"" << coordinate(text_y) << "\" text-anchor=\"" << (to_the_left ? "end" : "start") << "\">"
      << escape_html(plot.marker->label) << "</text>";
}

}  // namespace

std::vector<double> linear_ticks(double most, bool whole_numbers) {
  if (!(most > 0)) most = 1;
  double step = std::pow(10.0, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (most / (factor * step) > 6) continue;
    step *= factor;
    break;
  }
  if (whole_numbers) step = std::max(1.0, step);
  const double last = std::ceil(most / step - 1e-9);
  std::vector<double> ticks;
  for (double i = 0; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string power_of_ten(int exponent) {
  static const char* const kSuperscripts[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = exponent < 0 ? "10⁻" : "10";
  for (const char digit : std::to_string(std::abs(exponent))) text += kSuperscripts[digit - '0'];
  return text;
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string draw_svg(const Plot& plot) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Frame frame{plot.log_x, kInfinity, -kInfinity, 0};
  for (const PlotSeries& series : plot.series)
    for (const auto& point : series.points)
      if (drawable(plot, point)) {
        frame.x_low = std::min(frame.x_low, point.first);
        frame.x_high = std::max(frame.x_high, point.first);
        frame.y_high = std::max(frame.y_high, point.second);
      }
  std::ostringstream out;
  out << "<svg class=\"plot\" viewBox=\"0 0 " << kWidth << ' ' << kHeight << "\" role=\"img\" aria-label=\""
      << escape_html(plot.title) << "\">";
  if (!(frame.x_low <= frame.x_high)) {
    out << "<text class=\"name\" x=\"" << kWidth / 2 << "\" y=\"" << kHeight / 2
        << "\" text-anchor=\"middle\">nothing finite to draw</text></svg>";
    return out.str();
  }
  const std::vector<double> y_ticks = linear_ticks(frame.y_high);
  frame.y_high = y_ticks.back();
  if (!plot.log_x) {
    frame.x_low = 0;
    if (!(frame.x_high > 0)) frame.x_high = 1;
  } else if (frame.x_low == frame.x_high) {
    frame.x_low /= 10;
    frame.x_high *= 10;
  }
  draw_axes(out, plot, frame, y_ticks);
  draw_lines(out, plot, frame);
  draw_legend(out, plot);
  draw_marker(out, plot, frame);
  out << "</svg>";
  return out.str();
}

}  // namespace ghostshard::accountant
