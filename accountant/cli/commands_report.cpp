#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "accountant/cli/commands.h"
#include "accountant/cli/numbers.h"
#include "accountant/cli/run_options.h"
#include "accountant/ledger.h"
#include "accountant/ledger/durable_file.h"
#include "accountant/ledger/signed_head.h"
#include "accountant/ledger/strict_json.h"
#include "accountant/receipt.h"
#include "accountant/report.h"
#include "accountant/report_verify.h"
#include "accountant/standard_streams.h"

namespace ghostshard::accountant::cli {
namespace {

using nlohmann::json;

json read_json(const std::string& option, const std::string& path) {
  const std::string text = read_named(option, path, kLongestJsonDocument);
  try {
    if (auto content = parse_strictly(text, kLongestJsonDocument)) return *std::move(content);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(option + ' ' + path + ": " + error.what());
  }
  throw std::invalid_argument(option + " must name a JSON file, " + path + " is none");
}

constexpr const char* kSignedHead = "signed_head.json";  // beside the report

struct ReportOptions {
  std::string ledger, delta, output, facts, receipt, sign;
  std::string accountant = kDefaultAccountant;
  bool force = false, json = false;
};

json receipt_of(const LedgerContents& ledger, Delta delta, const json& report) {
  const json& claim = report.at("guarantee").at("epsilon").at("upper");
  if (!claim.is_number()) throw std::invalid_argument("--receipt needs a claim to prove, the report makes none");
  return make_receipt(ledger, delta, Epsilon(claim.get<double>()));
}

std::string proven_by(const json& receipt, const std::string& path) {
  const auto proven = receipt.at("epsilon").get<double>();
  const auto claim = receipt.at("report_epsilon").get<double>();
  return "Receipt: " + path + " proves epsilon <= " + exact(proven) +
         (proven <= claim ? ", the report's own\n" : ", which is above the report's " + exact(claim) + '\n');
}

// A run's own report holds facts that its ledger does not, such as the digest of the trained weights.
void require_nothing_there(const ReportOptions& o) {
  if (o.force) return;
  const std::filesystem::path folder(o.output);
  for (const char* name : {"privacy_report.json", o.sign.empty() ? "" : kSignedHead}) {
    std::error_code unknown;
    if (*name != '\0' && std::filesystem::exists(folder / name, unknown))
      throw std::invalid_argument("--output must not hold a " + std::string(name) + " yet, " + o.output +
                                  " does: give another folder, or --force to overwrite it");
  }
  std::error_code unknown;
  if (!o.receipt.empty() && std::filesystem::exists(o.receipt, unknown))
    throw std::invalid_argument("--receipt must be a new file, " + o.receipt +
                                " is there: give another name, or --force to overwrite it");
}

bool same_place(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code unknown;
  if (std::filesystem::equivalent(one, other, unknown)) return true;
  const auto whole = [](const std::filesystem::path& path) {  // of a file that is not there yet
    std::error_code ignored;
    return std::filesystem::weakly_canonical(path, ignored);
  };
  return whole(one) == whole(other);
}

// A ledger is the only proof of what a run spent: neither --receipt ledger.jsonl nor --force may overwrite it, nor may
// one thing that is written overwrite another.
void require_apart(const ReportOptions& o) {
  const std::filesystem::path folder(o.output);
  std::vector<std::filesystem::path> written = {folder / "privacy_report.json", folder / "privacy_report.html"};
  if (!o.sign.empty()) written.push_back(folder / kSignedHead);
  for (const auto& place : written)
    if (!o.receipt.empty() && same_place(o.receipt, place))
      throw std::invalid_argument("--receipt must be another file than what is written beside it, got " + o.receipt);
  for (const std::string& input : {o.ledger, o.facts, o.sign}) {
    if (input.empty()) continue;
    if (!o.receipt.empty() && same_place(o.receipt, input))
      throw std::invalid_argument("--receipt would overwrite " + input + ", which is read");
    for (const auto& place : written)
      if (same_place(place, input))
        throw std::invalid_argument("--output would overwrite " + input + ", which is read: give another folder");
  }
  std::error_code reason;
  if (std::filesystem::status(o.receipt, reason).type() == std::filesystem::file_type::none)
    throw std::invalid_argument("--receipt " + o.receipt + " cannot be used: " + reason.message());
  if (holds_no_file(o.receipt))
    throw std::invalid_argument("--receipt must be a file, " + o.receipt +
                                " is a folder, a device, a pipe or a socket");
}

int run_report(const ReportOptions& o) {
  require_apart(o);
  require_nothing_there(o);
  const LedgerContents ledger = open_ledger(o.ledger);
  if (ledger.dropped_partial_line) say({cut_short_note(o.ledger, ledger)});
  const std::optional<double> stated = stated_delta(ledger);
  if (o.delta.empty() && !stated) throw std::invalid_argument("--delta must be given: the ledger states none");
  const Delta delta(o.delta.empty() ? *stated : parse_number("--delta", o.delta));
  const json facts = o.facts.empty() ? json::object() : read_json("--facts", o.facts);
  const json report = build_report(ledger, delta, facts, o.accountant);
  // Whatever can fail does so before the first file is written.
  const json signed_head = o.sign.empty() ? json() : sign_head(ledger, o.sign);
  const json receipt = o.receipt.empty() ? json() : receipt_of(ledger, delta, report);
  std::error_code failed;
  std::filesystem::create_directories(o.output, failed);
  if (!std::filesystem::is_directory(o.output, failed))
    throw std::invalid_argument("--output must be a folder or a name that one can have, got " + o.output);
  write_report(o.output, report);
  const std::filesystem::path folder(o.output);
  if (!o.sign.empty()) write_json_file(folder / kSignedHead, signed_head);
  if (!o.receipt.empty()) write_json_file(o.receipt, receipt);
  if (o.json) {
    std::cout << report.dump(2) << '\n';
    return 0;
  }
  std::cout << summarize_report(report) << "Written: " << one_line((folder / "privacy_report.json").string()) << ", "
            << one_line((folder / "privacy_report.html").string())
            << (o.sign.empty() ? "" : ", " + one_line((folder / kSignedHead).string())) << '\n'
            << (o.receipt.empty() ? "" : proven_by(receipt, one_line(o.receipt)));
  return 0;
}

struct VerifyOptions {
  std::string ledger, report, head, key, signed_head;
  bool json = false;
};

const char* verdict_text(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::kAgrees:
      return "agrees";
    case Finding::Verdict::kDiffers:
      return "DIFFERS";
    case Finding::Verdict::kCannotTell:
      return "cannot tell";
  }
  return "";
}

int run_verify(const VerifyOptions& o) {
  std::optional<std::string> head;
  if (!o.head.empty()) {
    if (o.head.size() != 64 || o.head.find_first_not_of("0123456789abcdef") != std::string::npos)
      throw std::invalid_argument("--head must be 64 hexadecimal digits in lower case, got \"" + o.head + '"');
    head = o.head;
  }
  if (o.key.empty() != o.signed_head.empty())
    throw std::invalid_argument("--key and --signed-head must be given together: whose signature, and the file of it");
  const std::optional<json> report = o.report.empty() ? std::nullopt : std::optional(read_json("--report", o.report));
  std::vector<Finding> findings;
  json ledger_head;  // null if there is none
  try {
    const LedgerContents ledger = open_ledger(o.ledger);
    ledger_head = ledger.head;
    if (!o.key.empty()) {
      const std::string signed_head = signed_head_of(read_json("--signed-head", o.signed_head), o.key);
      findings.push_back({Finding::Verdict::kAgrees, "the signature of the head is that of the key " + o.key});
      if (head && *head != signed_head)
        findings.push_back({Finding::Verdict::kDiffers, "the head that was signed is another than that of --head"});
      head = signed_head;
    }
    const auto of_head = verify_head(ledger, head);
    findings.insert(findings.end(), of_head.begin(), of_head.end());
    const auto of_plan = verify_plan(ledger);
    findings.insert(findings.end(), of_plan.begin(), of_plan.end());
    if (report) {
      const auto of_report = verify_report(ledger, *report);
      findings.insert(findings.end(), of_report.begin(), of_report.end());
    }
  } catch (const InvalidLedger& error) {
    findings.push_back({Finding::Verdict::kDiffers, error.what()});
  }
  const auto differs = std::count_if(findings.begin(), findings.end(),
                                     [](const Finding& f) { return f.verdict == Finding::Verdict::kDiffers; });
  if (o.json) {
    json list = json::array();
    for (const Finding& finding : findings)
      list.push_back({{"verdict", verdict_text(finding.verdict)}, {"what", finding.what}});
    std::cout << json{{"agrees", differs == 0}, {"findings", list}, {"ledger_head", ledger_head}}.dump(2) << '\n';
  } else {
    for (const Finding& finding : findings) {
      const std::string verdict = verdict_text(finding.verdict);
      std::cout << verdict << std::string(13 - verdict.size(), ' ') << one_line(finding.what) << '\n';
    }
    std::cout << (differs == 0 ? head ? "Nothing differs." : "Nothing differs that a chain without a head shows."
                               : std::to_string(differs) + (differs == 1 ? " value differs." : " values differ."))
              << '\n';
  }
  return differs == 0 ? 0 : 1;
}

}  // namespace

void add_report(CLI::App& program, Action& action) {
  auto o = std::make_shared<ReportOptions>();
  CLI::App* command = program.add_subcommand("report", "Rebuilds the privacy report, JSON and HTML, from a ledger.");
  command->footer(
      "Example:\n  ghostshard account report --ledger runs/finetune-1/ledger.jsonl --delta 1e-6 --output audit\n"
      "With a proof for those who trust neither this program nor its author, and a signature (openssl genpkey "
      "-algorithm\n"
      "ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem):\n"
      "  ghostshard account report --ledger ledger.jsonl --delta 1e-6 --output audit --receipt audit/receipt.json "
      "--sign key.pem\n"
      "  ghostshard-check-receipt --receipt audit/receipt.json --ledger ledger.jsonl --report "
      "audit/privacy_report.json");
  command->add_option("--ledger", o->ledger, "the run's ledger.jsonl")->required();
  command->add_option("-d,--delta", o->delta, "the ledger's own if not given");
  command->add_option("-o,--output", o->output, "the folder for privacy_report.json and privacy_report.html")
      ->required();
  command->add_option("--receipt", o->receipt,
                      "also write a certificate of the report's epsilon, which ghostshard-check-receipt checks without "
                      "this program");
  command->add_option("--sign", o->sign,
                      "also sign the ledger's head with this Ed25519 private key (PEM), into signed_head.json beside "
                      "the report");
  command->add_option("--facts", o->facts, "a JSON file with facts about the run that are not in the ledger");
  command->add_option("--accountant", o->accountant, "contour, prv or rdp: whose number is claimed")
      ->capture_default_str();
  command->add_flag("--force", o->force, "overwrite a report, signed head or receipt that is there");
  command->add_flag("--json", o->json, "print the report in place of a summary");
  on_chosen<ReportOptions>(*command, action, o, run_report);
}

void add_verify(CLI::App& program, Action& action) {
  auto o = std::make_shared<VerifyOptions>();
  CLI::App* command = program.add_subcommand("verify", "Checks a ledger's hash chain and recomputes a report from it.");
  command->footer(
      "Exit status 1 if something differs, a line breaks a rule of the header, or the ledger's chain is broken. A "
      "chain\n"
      "alone shows a line that was changed, moved, inserted or taken out before the last one, unless all lines after "
      "it\n"
      "were written anew. Another last line, and lines missing at the end, show only against a head kept elsewhere or "
      "a\n"
      "signed one. Examples:\n"
      "  ghostshard account verify --ledger ledger.jsonl --report privacy_report.json --head 6f1d…\n"
      "  ghostshard account verify --ledger ledger.jsonl --signed-head signed_head.json --key public.pem");
  command->add_option("--ledger", o->ledger, "the run's ledger.jsonl")->required();
  command->add_option("--report", o->report, "a privacy_report.json to recompute");
  command->add_option("--signed-head", o->signed_head, "signed_head.json, as `report --sign` wrote it; needs --key");
  command->add_option("--key", o->key, "the signer's Ed25519 public key (PEM), from a source that you trust");
  command->add_option("--head", o->head, "the ledger's head, from a checkpoint or a published report");
  command->add_flag("--json", o->json, "print one JSON object");
  on_chosen<VerifyOptions>(*command, action, o, run_verify);
}

}  // namespace ghostshard::accountant::cli
