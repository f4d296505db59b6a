// The privacy report: what is guaranteed, for what, under which assumptions, built from the ledger.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"

namespace ghostshard::accountant {

inline constexpr const char* kReportSchema = "ghostshard.privacy_report/1";

// facts: what the run knows and the ledger does not (claim boundary, released outputs, public data, tuning, noise
// source, …), merged into the report's sections. Every one of the 16 items of the checklist appears; what is neither
// in the ledger nor in facts is stated as "not stated by the run". epsilon is recomputed from the ledger's entries.
nlohmann::json build_report(const LedgerContents& ledger, Delta delta, const nlohmann::json& facts,
                            const std::string& accountant = "rdp");

// A dozen lines for a terminal: the guarantee in one plain sentence, what it covers, what it does not.
std::string summarize_report(const nlohmann::json& report);

// Atomic write (partial file, fsync, rename). Throws std::runtime_error with path and reason.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& json);

}  // namespace ghostshard::accountant
