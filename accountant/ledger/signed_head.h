// A ledger's head, signed: whoever has the public key sees that lines are missing at the end, without another copy of
// the head. Ed25519 (RFC 8032) by OpenSSL; keys are PEM files, as `openssl genpkey -algorithm ed25519` writes them.
//
//   {"schema":"ghostshard.signed_head/1","ledger_head":"6f…","releases":14063,"signature":"…"}
//
// What is signed is the text "ghostshard.signed_head/1\n<ledger_head>\n<releases>\n".
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

#include "accountant/ledger.h"

namespace ghostshard::accountant {

inline constexpr const char* kSignedHeadSchema = "ghostshard.signed_head/1";

// Throws std::invalid_argument unless `private_key` names a PEM file with an Ed25519 private key without a password.
nlohmann::json sign_head(const LedgerContents& ledger, const std::filesystem::path& private_key);

// The head that the owner of the key signed. Throws std::invalid_argument unless `public_key` names a PEM file with an
// Ed25519 public key and `signed_head` has the fields above; throws InvalidLedger if the signature is not that key's.
std::string signed_head_of(const nlohmann::json& signed_head, const std::filesystem::path& public_key);

}  // namespace ghostshard::accountant
