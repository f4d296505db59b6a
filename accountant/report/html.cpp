// The report as a page. The order is that of a reader's questions: what is promised, what does that mean, what is not
// promised, how does it come about, on what does it rest, everything else.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "accountant/plain_number.h"
#include "accountant/report.h"
#include "accountant/report/parts.h"
#include "accountant/report/style.h"
#include "accountant/report/svg_plot.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using report_parts::kNotStated;
using report_parts::rounded_up;
using report_parts::small_number;

// Names as a reader knows them.
const char* accountant_title(const std::string& name) {
  if (name == "contour") return "Contour";
  if (name == "prv") return "PRV";
  if (name == "rdp") return "RDP";
  return "other";
}

std::string words_of(std::string name) {  // "units_per_person" as "units per person"
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// A bound, rounded up so that the text is true.
std::string epsilon_text(const json& value) { return value.is_number() ? rounded_up(value.get<double>()) : "none"; }

// The lower end, rounded down.
std::string lower_text(const json& value) {
  if (!value.is_number()) return "none";
  return plain_number(std::floor(value.get<double>() * 1e4) / 1e4, std::chars_format::fixed, 4);
}

std::string percent(double share) {  // as given
  return plain_number(share * 100, std::chars_format::general, 6) + " %";
}
std::string percent_up(double share) { return rounded_up(share * 100, share < 0.01 ? 2 : 1) + " %"; }

std::string delta_text(const json& guarantee) { return small_number(guarantee.at("delta").get<double>()); }

// Any value of the report as HTML.
std::string shown(const json& value) {
  if (value.is_string() && value == kNotStated) return "<span class=\"unstated\">not stated by the run</span>";
  if (value.is_string()) return escape_html(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "not known";
  if (value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number(); })) {
    std::string list;
    for (const json& item : value) list += (list.empty() ? "" : ", ") + item.dump();
    return list.empty() ? "none" : list;
  }
  if (value.is_array()) {
    if (value.empty()) return "none";
    std::string list = "<ul>";
    for (const json& item : value) list += "<li>" + shown(item) + "</li>";
    return list + "</ul>";
  }
  if (value.is_object()) {
    const bool many = value.size() > 3;
    std::string list;
    for (const auto& [key, item] : value.items()) {
      if (item.is_null()) continue;
      const std::string entry = escape_html(words_of(key)) + ": " + shown(item);
      list += many ? "<li>" + entry + "</li>" : (list.empty() ? "" : "; ") + entry;
    }
    return many ? "<ul>" + list + "</ul>" : list;
  }
  return escape_html(value.dump());
}

std::string hash(const json& value) { return "<code>" + escape_html(value.get<std::string>()) + "</code>"; }

// ---------------------------------------------------------------------------------------------------------------
// The claim

void write_claim(std::ostream& out, const json& report) {
  const json& guarantee = report.at("guarantee");
  const bool applies = guarantee.at("applies");
  const std::string unit = escape_html(guarantee.at("unit").get<std::string>());
  out << "<section class=\"claim" << (applies ? "" : " void") << "\"><h2>"
      << (applies ? "What is guaranteed" : "No guarantee is claimed") << "</h2>";
  if (applies) {
    out << "<div class=\"numbers\"><div class=\"number\"><b>ε ≤ " << epsilon_text(guarantee.at("epsilon").at("upper"))
        << "</b><span>privacy loss, upper bound</span></div><div class=\"number\"><b>δ = " << delta_text(guarantee)
        << "</b><span>added to every probability</span></div>"
        << "<div class=\"number\"><b>one " << unit << "</b><span>is what is protected ("
        << escape_html(guarantee.at("adjacency").get<std::string>()) << ")</span></div></div>";
    for (const json& sentence : report.at("in_plain_words")) out << "<p>" << shown(sentence) << "</p>";
  } else {
    out << "<ul class=\"marked\">";
    for (const json& reason : guarantee.at("reasons")) out << "<li class=\"fails\">" << shown(reason) << "</li>";
    out << "</ul><p>Had everything been as accounted, ε would be at most "
        << epsilon_text(guarantee.at("epsilon_if_it_applied").at("upper")) << " at δ = " << delta_text(guarantee)
        << ". It was not: do not quote this number.</p>";
  }
  if (guarantee.at("delta_below_one_over_units") == json(false))
    out << "<p class=\"note bad\">δ is not below 1 / (number of units): publishing one " << unit
        << " whole would be allowed. Choose a smaller δ.</p>";
  if (report.at("released_outputs").value("nonprivate_metrics", json()) == json(true))
    out << "<p class=\"note bad\">Numbers computed from private data without noise were shown as well. Whoever saw "
           "them "
           "has no guarantee.</p>";
  if (report.at("provenance").at("ledger_partial_line_dropped") == json(true))
    out << "<p class=\"note\">The ledger's last line was cut short, as by a crash. Its release had not been permitted "
           "yet and is not counted.</p>";
  out << "<p class=\"formal\">" << shown(guarantee.at("statement")) << "</p></section>";
}

void write_limits(std::ostream& out, const json& report) {
  out << "<section><h2>What is not covered</h2><ul class=\"marked\">";
  const json& boundary = report.at("claim_boundary");
  if (const auto found = boundary.find("not_covered"); found != boundary.end() && found->is_array())
    for (const json& item : *found) out << "<li class=\"no\">" << shown(item) << "</li>";
  else if (found != boundary.end() && *found != kNotStated)
    out << "<li class=\"no\">" << shown(*found) << "</li>";
  for (const json& item : report.at("not_promised").at("list")) out << "<li class=\"no\">" << shown(item) << "</li>";
  out << "</ul></section>";
}

// ---------------------------------------------------------------------------------------------------------------
// Charts

std::pair<double, double> point(const json& x, const json& y) {
  return {x.get<double>(), y.is_number() ? y.get<double>() : NAN};
}

// A delta beyond it means nothing that anybody would want to promise.
constexpr double kLargestDrawn = 0.011;

void write_charts(std::ostream& out, const json& report) {
  const json& guarantee = report.at("guarantee");
  const json& bounds =
      guarantee.contains("epsilon_if_it_applied") ? guarantee.at("epsilon_if_it_applied") : guarantee.at("epsilon");
  const std::string delta = delta_text(guarantee);

  Plot steps{.title = "Epsilon after each release", .x_label = "releases charged", .y_label = "ε at δ = " + delta};
  steps.whole_x = true;
  PlotSeries spent{.name = "ε", .points = {}};
  for (const json& at : report.at("spending").at("points"))
    spent.points.push_back(point(at.at("releases"), at.at("epsilon")));
  if (bounds.at("upper").is_number())
    steps.marker = PlotMarker{spent.points.back().first, bounds.at("upper").get<double>(),
                              "ε ≤ " + epsilon_text(bounds.at("upper"))};
  steps.series.push_back(std::move(spent));

  Plot curve{.title = "Epsilon for every delta", .x_label = "δ (logarithmic)", .y_label = "ε", .log_x = true};
  const std::string chosen = guarantee.at("accountant");
  PlotSeries claim{.name = accountant_title(chosen), .points = {}};
  for (const json& at : report.at("privacy_curve").at("points"))
    if (at.at("delta").get<double>() <= kLargestDrawn)
      claim.points.push_back(point(at.at("delta"), at.at("epsilon").at("upper")));
  curve.series.push_back(std::move(claim));
  for (const char* name : {"rdp", "prv", "contour"}) {
    const json& other = report.at("accountants").at(name);
    if (name == chosen || !other.contains("curve")) continue;
    PlotSeries series{.name = accountant_title(name), .points = {}};
    for (const json& at : other.at("curve"))
      if (at.at("delta").get<double>() <= kLargestDrawn) series.points.push_back(point(at.at("delta"), at.at("upper")));
    curve.series.push_back(std::move(series));
  }
  if (bounds.at("upper").is_number())
    curve.marker = PlotMarker{guarantee.at("delta").get<double>(), bounds.at("upper").get<double>(),
                              "ε ≤ " + epsilon_text(bounds.at("upper")) + " at δ = " + delta};

  out << "<div class=\"two\"><section><h2>Privacy loss over the run</h2><figure>" << draw_svg(steps)
      << "<figcaption>Each release adds to ε. Steps repeated after a crash are counted again.</figcaption></figure>"
         "</section><section><h2>Privacy loss for every δ</h2><figure>"
      << draw_svg(curve)
      << "<figcaption>One run, one mechanism: every point of the curve holds at the same time. Accountants differ in "
         "how "
         "tight their bound is, never in what ran.</figcaption></figure></section></div>";
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

void write_tables(std::ostream& out, const json& report) {
  const json& guarantee = report.at("guarantee");
  const std::string chosen = guarantee.at("accountant");
  out << "<div class=\"two\"><section><h2>The same run under each accountant</h2><div class=\"scroll\"><table><tr>"
         "<th>accountant</th><th class=\"n\">ε at least</th><th class=\"n\">estimate</th><th class=\"n\">ε at "
         "most</th></tr>";
  for (const char* name : {"contour", "prv", "rdp"}) {
    const json& other = report.at("accountants").at(name);
    out << "<tr" << (name == chosen ? " class=\"chosen\"" : "") << "><td>" << accountant_title(name)
        << (name == chosen ? " (the claim)" : "") << "</td>";
    if (other.contains("refused")) {
      out << "<td colspan=\"3\">cannot bound this run</td></tr>";
      continue;
    }
    const json& epsilon = other.at("epsilon");
    out << "<td class=\"n\">" << lower_text(epsilon.at("lower")) << "</td><td class=\"n\">"
        << epsilon_text(epsilon.at("estimate")) << "</td><td class=\"n\">" << epsilon_text(epsilon.at("upper"))
        << "</td></tr>";
  }
  out << "</table></div><p class=\"formal\">All at δ = " << delta_text(guarantee)
      << ". “At most” is proven for each of them; the smallest is the best known bound, RDP is the one most "
         "earlier papers report.</p></section><section><h2>What a membership test can achieve</h2>"
         "<div class=\"scroll\"><table><tr><th>false alarms allowed</th><th class=\"n\">recognised at most</th>"
         "<th class=\"n\">by guessing</th></tr>";
  for (const json& rate : report.at("privacy_curve").at("membership_test_bounds")) {
    const double allowed = rate.at("false_positive_rate");
    out << "<tr><td>" << percent(allowed) << "</td><td class=\"n\">"
        << percent_up(rate.at("true_positive_rate_at_most").get<double>()) << "</td><td class=\"n\">"
        << percent(allowed) << "</td></tr>";
  }
  const json& gdp = report.at("privacy_curve").at("gaussian_dp");
  out << "</table></div><p class=\"formal\">For whoever tests whether one given "
      << escape_html(guarantee.at("unit").get<std::string>()) << " was in the data.";
  if (gdp.at("mu").is_number())
    out << " The whole curve as one number: μ-GDP with μ ≤ " << epsilon_text(gdp.at("mu")) << " (for every δ from "
        << small_number(gdp.at("holds_for_delta_from").get<double>()) << " on).";
  out << "</p></section></div>";
}

void write_assumptions(std::ostream& out, const json& report) {
  std::string checked, trusted;
  for (const json& assumption : report.at("assumptions")) {
    const bool was_checked = assumption.at("checked");
    const bool fails = was_checked && assumption.at("holds") == json(false);
    (was_checked ? checked : trusted) += std::string("<li class=\"") +
                                         (!was_checked ? "trusted"
                                          : fails      ? "fails"
                                                       : "holds") +
                                         "\">" + shown(assumption.at("assumption")) +
                                         (fails ? " <b>This does not hold.</b>" : "") + "</li>";
  }
  out << "<section><h2>What it rests on</h2><h3>Checked by code against the ledger</h3><ul class=\"marked\">" << checked
      << "</ul><h3>Not checkable by code: to be trusted, or audited</h3><ul class=\"marked\">" << trusted
      << "</ul></section>";
}

// ---------------------------------------------------------------------------------------------------------------
// Everything else

void write_details(std::ostream& out, const json& report) {
  struct Part {
    const char* section;
    const char* title;
  };
  static constexpr Part kParts[] = {{"unit_of_privacy", "Unit of privacy"},
                                    {"adjacency", "Neighbouring data sets"},
                                    {"trust_model", "Who is trusted"},
                                    {"claim_boundary", "What the claim covers"},
                                    {"released_outputs", "What was released"},
                                    {"sampler", "Sampling"},
                                    {"population_and_steps", "Population and steps"},
                                    {"mechanism", "Mechanism"},
                                    {"noise_source", "Noise"},
                                    {"tuning", "Other runs on the same data"},
                                    {"empirical_audit", "Empirical audit"},
                                    {"further_facts", "Further statements of the run"}};
  out << "<section><h2>Everything else a reader may ask</h2>";
  for (const Part& part : kParts) {
    if (!report.contains(part.section)) continue;
    out << "<h3>" << part.title << "</h3><dl>";
    for (const auto& [key, value] : report.at(part.section).items()) {
      if (std::string(part.section) == "claim_boundary" && key == "not_covered") continue;  // shown above
      if (value.is_null()) continue;
      out << "<dt>" << escape_html(words_of(key)) << "</dt><dd>" << shown(value) << "</dd>";
    }
    out << "</dl>";
  }
  out << "</section>";
}

void write_provenance(std::ostream& out, const json& report) {
  const json& provenance = report.at("provenance");
  out << "<section><h2>Where this comes from, and how to check it</h2><dl>";
  for (const auto& [key, value] : provenance.items()) {
    if (key == "ledger_header") continue;
    const bool is_hash = value.is_string() && value.get<std::string>().size() >= 64 &&
                         value.get<std::string>().find(' ') == std::string::npos;
    out << "<dt>" << escape_html(words_of(key)) << "</dt><dd>" << (is_hash ? hash(value) : shown(value)) << "</dd>";
  }
  out << "<dt>accountant</dt><dd>" << shown(report.at("guarantee").at("accountant")) << ": "
      << shown(report.at("guarantee").at("accountant_detail"))
      << "</dd></dl><p>Recompute every number from the ledger:</p>"
      << "<pre><code>ghostshard account verify --ledger ledger.jsonl --report privacy_report.json --head "
      << escape_html(provenance.at("ledger_head").get<std::string>()) << "</code></pre></section>";
}

}  // namespace

std::string render_report_html(const json& report) {
  if (!report.is_object() || report.value("schema", json()) != json(kReportSchema))
    throw std::invalid_argument(std::string("a report must have the schema ") + kReportSchema);
  try {
    const std::string run = shown(report.at("provenance").at("run_id"));
    std::ostringstream out;
    out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
           "<title>Privacy report</title>\n<style>"
        << kReportStyle << "</style>\n</head>\n<body>\n<main>\n<header><h1>Privacy report</h1><p>Run " << run
        << "</p></header>\n";
    write_claim(out, report);
    write_limits(out, report);
    write_charts(out, report);
    write_tables(out, report);
    write_assumptions(out, report);
    write_details(out, report);
    write_provenance(out, report);
    out << "\n<footer>Made by GhostShard " << shown(report.at("provenance").at("library_version_of_report"))
        << " from the run's ledger. This page loads nothing and runs no script; privacy_report.json beside it holds "
           "every number.</footer>\n</main>\n</body>\n</html>\n";
    return out.str();
  } catch (const json::exception& error) {
    throw std::invalid_argument(std::string("the report is not complete: ") + error.what());
  }
}

}  // namespace ghostshard::accountant
