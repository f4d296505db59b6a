// The key of a register of budgets, and one change of the register under its lock.
#pragma once

#include <filesystem>
#include <string>

#include "accountant/budget_register/records.h"
#include "accountant/ledger/durable_file.h"

namespace ghostshard::accountant {

// FILE.key. Its lock (flock) is the register's.
std::filesystem::path key_path(const std::filesystem::path& file);

// 32 bytes. Made, with the register's header, if neither file is there. Throws as BudgetRegister::open does.
std::string register_key(const std::filesystem::path& file, Adjacency adjacency);

// Holds the lock from begin to end, with the register as it then is.
class RegisterTransaction {
 public:
  // seen: the hash of a line that must be there, none if it is empty; becomes that of the last line.
  RegisterTransaction(const std::filesystem::path& file, std::string& seen);
  const BudgetRecords& records() const { return records_; }
  // The register as it would be with this line. Throws std::invalid_argument with the rule that the line breaks.
  BudgetRecords with(nlohmann::json line) const;
  // Durable when it returns.
  void append(nlohmann::json line);

 private:
  std::filesystem::path file_;
  std::string& seen_;
  OwnedDescriptor lock_, descriptor_;
  BudgetRecords records_;
};

}  // namespace ghostshard::accountant
