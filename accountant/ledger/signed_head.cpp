#include "accountant/ledger/signed_head.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "accountant/ledger/durable_file.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Digest = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;
constexpr size_t kSignatureBytes = 64;
constexpr size_t kLongestKey = 1 << 16;

// A key with a password is refused: nobody is there to type it.
int no_password(char*, int, int, void*) { return -1; }

Key read_key(const std::filesystem::path& path, bool is_private) {
  const std::string rule = std::string("the key must be a PEM file with an Ed25519 ") +
                           (is_private ? "private" : "public") + " key" + (is_private ? " without a password" : "") +
                           ", got " + path.string();
  const std::string text = read_named("the key", path, kLongestKey);
  const std::unique_ptr<BIO, decltype(&BIO_free)> source(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())),
                                                         BIO_free);
  if (!source) throw std::runtime_error("the cryptography library has no memory left");
  Key key(is_private ? PEM_read_bio_PrivateKey(source.get(), nullptr, no_password, nullptr)
                     : PEM_read_bio_PUBKEY(source.get(), nullptr, no_password, nullptr),
          EVP_PKEY_free);
  if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_ED25519) throw std::invalid_argument(rule);
  return key;
}

std::string signed_text(const std::string& head, uint64_t releases) {
  return std::string(kSignedHeadSchema) + '\n' + head + '\n' + std::to_string(releases) + '\n';
}

const unsigned char* bytes_of(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

std::string to_hex(const std::array<unsigned char, kSignatureBytes>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::array<unsigned char, kSignatureBytes> from_hex(const std::string& hex) {
  if (hex.size() != 2 * kSignatureBytes || hex.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::invalid_argument("a signature must be 128 hexadecimal digits in lower case");
  std::array<unsigned char, kSignatureBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

json sign_head(const LedgerContents& ledger, const std::filesystem::path& private_key) {
  const Key key = read_key(private_key, true);
  const uint64_t releases = ledger.entries.size();
  const std::string text = signed_text(ledger.head, releases);
  std::array<unsigned char, kSignatureBytes> signature{};
  size_t length = signature.size();
  const Digest digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!digest || EVP_DigestSignInit(digest.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(digest.get(), signature.data(), &length, bytes_of(text), text.size()) != 1 ||
      length != signature.size())
    throw std::runtime_error("the cryptography library cannot sign with " + private_key.string());
  return {{"schema", kSignedHeadSchema},
          {"ledger_head", ledger.head},
          {"releases", releases},
          {"signature", to_hex(signature)}};
}

std::string signed_head_of(const json& signed_head, const std::filesystem::path& public_key) {
  const Key key = read_key(public_key, false);
  if (!signed_head.is_object() || signed_head.value("schema", json()) != json(kSignedHeadSchema) ||
      !signed_head.value("ledger_head", json()).is_string() ||
      !signed_head.value("releases", json()).is_number_unsigned() ||
      !signed_head.value("signature", json()).is_string())
    throw std::invalid_argument(std::string("a signed head must have schema ") + kSignedHeadSchema +
                                ", ledger_head, releases and signature");
  const auto head = signed_head.at("ledger_head").get<std::string>();
  const std::string text = signed_text(head, signed_head.at("releases").get<uint64_t>());
  const auto signature = from_hex(signed_head.at("signature").get<std::string>());
  const Digest digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!digest || EVP_DigestVerifyInit(digest.get(), nullptr, nullptr, nullptr, key.get()) != 1)
    throw std::runtime_error("the cryptography library cannot verify with " + public_key.string());
  if (EVP_DigestVerify(digest.get(), signature.data(), signature.size(), bytes_of(text), text.size()) != 1)
    throw InvalidLedger("the signature of the head is not that of the key " + public_key.string());
  return head;
}

}  // namespace ghostshard::accountant
