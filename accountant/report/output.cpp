// The report on its way out: to a terminal, to a file.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "accountant/ledger/durable_file.h"
#include "accountant/report.h"
#include "accountant/standard_streams.h"

namespace ghostshard::accountant {

using nlohmann::json;

std::string summarize_report(const json& report) {
  const json& guarantee = report.at("guarantee");
  const json& steps = report.at("population_and_steps");
  const auto shown = [](const json& value) {  // a ledger's words may be a stranger's: a terminal would obey some
    if (value.is_null()) return std::string("none found");
    return one_line(value.is_string() ? value.get<std::string>() : value.dump());
  };
  const bool applies = guarantee.at("applies") == json(true);
  const json& epsilon = guarantee.at(applies ? "epsilon" : "epsilon_if_it_applied");
  std::ostringstream text;
  text << shown(guarantee.at("statement")) << '\n';
  text << "  accountant       " << shown(guarantee.at("accountant"));
  if (epsilon.at("upper").is_null())
    text << ", which found no finite epsilon\n";
  else
    text << (applies ? ", epsilon in [" : ", had it all been as accounted: epsilon in [") << shown(epsilon.at("lower"))
         << ", " << shown(epsilon.at("upper")) << "]\n";
  text << "  delta            " << shown(guarantee.at("delta"));
  if (guarantee.at("delta_below_one_over_units") == json(false)) text << " (not below 1/units: too large to mean much)";
  text << '\n';
  text << "  unit, adjacency  " << shown(guarantee.at("unit")) << ", " << shown(guarantee.at("adjacency")) << '\n';
  text << "  steps            " << steps.at("steps_executed") << " executed, "
       << (steps.at("steps_planned").is_number() ? shown(steps.at("steps_planned")) + " planned"
                                                 : "none stated as planned")
       << ", " << steps.at("releases_charged") << " releases charged (" << steps.at("releases_of_later_attempts")
       << " of later attempts)\n";
  if (const json& resumed = report.at("provenance").at("resumptions_in_ledger"); resumed.at("seen") != json(0)) {
    text << "  resumed          ";
    for (const json& at : resumed.at("at"))
      text << (at == resumed.at("at").front() ? "" : ", ") << "at step " << at.at("step")
           << (at.at("new_key") == json(true) ? " under a new key" : "")
           << (at.at("steps_charged_again") == json(true) ? ", charged again" : "");
    text << '\n';
  }
  const json& sampler = report.at("sampler");
  text << "  sampler          assumed " << shown(sampler.at("assumed")) << ", executed "
       << shown(sampler.contains("executed") ? sampler.at("executed") : sampler.at("stated")) << '\n';
  if (const json& tuning = report.at("tuning"); tuning.contains("budget_register")) {
    const json& all = tuning.at("budget_register");
    text << "  all runs         " << shown(all.at("runs_on_this_data"))
         << " on this data in the register: epsilon <= " << shown(all.at("epsilon_of_all_runs_at_most")) << " at delta "
         << shown(all.at("delta")) << ", limit " << shown(all.at("limit")) << '\n';
  }
  text << "  ledger head      " << shown(report.at("provenance").at("ledger_head")) << '\n';
  int64_t open = 0;
  std::string broken;
  for (const json& assumption : report.at("assumptions")) {
    open += assumption.at("checked") == json(false) ? 1 : 0;
    if (assumption.value("holds", true) == false)
      broken += "  DOES NOT HOLD    " + shown(assumption.at("assumption")) + '\n';
  }
  text << broken << "  assumptions      " << open << " that no program can check, listed in the report\n";
  text << "  not promised     " << shown(report.at("not_promised").at("list").at(0)) << '\n';
  return text.str();
}

bool holds_no_file(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown);
}

void write_text_file(const std::filesystem::path& named, const std::string& text) {
  if (holds_no_file(named))
    throw std::invalid_argument("the output " + named.string() +
                                " must be a regular file, or none yet: it is a folder, a device, a pipe or a socket");
  const std::filesystem::path path = std::filesystem::weakly_canonical(named);  // a link stays a link
  std::filesystem::path partial = path;
  partial += ".partial." + std::to_string(::getpid());
  try {
    const OwnedDescriptor descriptor = open_file(partial, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(descriptor.get(), text, partial);
    sync_file(descriptor.get(), partial);
    if (::rename(partial.c_str(), path.c_str()) != 0) throw_system_error("rename a finished file to", path);
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
  sync_parent_directory(path);
}

void write_json_file(const std::filesystem::path& path, const json& content) {
  write_text_file(path, exact_json_text(content, path.string(), 2) + '\n');
}

void write_report(const std::filesystem::path& folder, const json& report) {
  write_json_file(folder / "privacy_report.json", report);
  write_text_file(folder / "privacy_report.html", render_report_html(report));
}

}  // namespace ghostshard::accountant
