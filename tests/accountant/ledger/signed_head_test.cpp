#include "accountant/ledger/signed_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ghostshard::accountant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

class SignedHead : public testing::Test {
 protected:
  SignedHead() {
    make_keys("ED25519", "ours");
    make_keys("ED25519", "theirs");
    LedgerWriter writer = LedgerWriter::create(path_, {{"adjacency", "zero-out"}});
    for (int64_t step = 0; step < 3; ++step)
      writer.append(step, 0, PoissonGaussianEvent{SamplingRate(0.01), NoiseMultiplier(1.5)});
    ledger_ = read_ledger(path_);
  }
  std::filesystem::path key(const std::string& name) const { return temporary_.path() / name; }
  // NAME.private and NAME.public; the private one under a password if there is one.
  void make_keys(const char* kind, const std::string& name, const char* password = nullptr) const {
    EVP_PKEY* pair = EVP_PKEY_Q_keygen(nullptr, nullptr, kind);
    ASSERT_NE(pair, nullptr);
    BIO* out = BIO_new_file(key(name + ".private").c_str(), "w");
    const int length = password == nullptr ? 0 : static_cast<int>(std::string(password).size());
    ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(out, pair, password == nullptr ? nullptr : EVP_aes_256_cbc(), password,
                                            length, nullptr, nullptr),
              1);
    BIO_free(out);
    out = BIO_new_file(key(name + ".public").c_str(), "w");
    ASSERT_EQ(PEM_write_bio_PUBKEY(out, pair), 1);
    BIO_free(out);
    EVP_PKEY_free(pair);
  }

  const tests::TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_.path() / "ledger.jsonl";
  LedgerContents ledger_;
};

TEST_F(SignedHead, IsReadBackWithThePublicKey) {
  const json head = sign_head(ledger_, key("ours.private"));
  EXPECT_EQ(signed_head_of(head, key("ours.public")), ledger_.head);
  EXPECT_EQ(head.at("releases"), 3);
  EXPECT_EQ(head, sign_head(ledger_, key("ours.private")));  // Ed25519 draws nothing
}

TEST_F(SignedHead, OfAnotherKeyIsRefused) {
  const json head = sign_head(ledger_, key("theirs.private"));
  EXPECT_THAT([&] { (void)signed_head_of(head, key("ours.public")); },
              ThrowsMessage<InvalidLedger>(HasSubstr("is not that of the key")));
}

TEST_F(SignedHead, NoFieldOfItCanBeChanged) {
  const json head = sign_head(ledger_, key("ours.private"));
  json other_head = head;
  other_head["ledger_head"] = ledger_.header_hash;
  json fewer = head;
  fewer["releases"] = 2U;
  json bit = head;
  std::string text = bit.at("signature").get<std::string>();
  text[17] = text[17] == '0' ? '1' : '0';
  bit["signature"] = text;
  for (const json& forged : {other_head, fewer, bit})
    EXPECT_THROW((void)signed_head_of(forged, key("ours.public")), InvalidLedger) << forged;
}

TEST_F(SignedHead, WithoutItsFieldsIsRefused) {
  const json head = sign_head(ledger_, key("ours.private"));
  for (const char* field : {"schema", "ledger_head", "releases", "signature"}) {
    for (const json& value : {json(), json(-1), json("zz"), json::array(), json::object()}) {
      json changed = head;
      changed[field] = value;
      EXPECT_THROW((void)signed_head_of(changed, key("ours.public")), std::invalid_argument) << changed;
    }
    json less = head;
    less.erase(field);
    EXPECT_THROW((void)signed_head_of(less, key("ours.public")), std::invalid_argument) << field;
  }
  EXPECT_THROW((void)signed_head_of(json::array(), key("ours.public")), std::invalid_argument);
}

TEST_F(SignedHead, KeysOfOtherKindsAreRefused) {
  make_keys("X25519", "exchange");
  make_keys("ED25519", "locked", "password");
  std::ofstream(key("text.private")) << "no key\n";
  for (const char* name : {"exchange.private", "locked.private", "text.private", "ours.public"})
    EXPECT_THAT([&] { (void)sign_head(ledger_, key(name)); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("Ed25519 private key without a password")))
        << name;
  EXPECT_THAT([&] { (void)sign_head(ledger_, key("missing")); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("must name a file that can be read")));
  const json head = sign_head(ledger_, key("ours.private"));
  for (const char* name : {"exchange.public", "ours.private", "text.private", "missing"})
    EXPECT_THROW((void)signed_head_of(head, key(name)), std::invalid_argument) << name;
}

}  // namespace
}  // namespace ghostshard::accountant
