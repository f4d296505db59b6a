#include "dp/run/digest.h"

#include <openssl/evp.h>

#include <array>
#include <span>
#include <stdexcept>
#include <vector>

#include "fsdp/hexadecimal.h"
#include "fsdp/regular_file.h"

namespace ghostshard::dp {

struct Digest::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

namespace {

void check(bool fine) {
  if (!fine) throw std::runtime_error("SHA-256 failed");
}

}  // namespace

Digest::Digest() : state_(std::make_unique<State>()) {
  check(state_->context && EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1);
}

Digest::~Digest() = default;

void Digest::add(const void* bytes, size_t count) { check(EVP_DigestUpdate(state_->context.get(), bytes, count) == 1); }

void Digest::add(std::string_view text) {
  const std::string length = std::to_string(text.size()) + ':';
  add(length.data(), length.size());
  add(text.data(), text.size());
}

void Digest::add_file(const std::filesystem::path& path) {
  fsdp::RegularFile file(path);
  const std::string length = std::to_string(file.bytes()) + ':';
  add(length.data(), length.size());
  std::vector<char> buffer(1 << 20);
  while (const size_t got = file.read(buffer)) add(buffer.data(), got);
}

std::string Digest::text() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int length = 0;
  check(EVP_DigestFinal_ex(state_->context.get(), bytes.data(), &length) == 1);
  return "sha256:" + fsdp::hexadecimal(std::span(bytes).first(length));
}

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.text();
}

std::string digest_of_file(const std::filesystem::path& path) {
  Digest digest;
  digest.add_file(path);
  return digest.text();
}

std::string digest_of_weights(fsdp::ShardedModel& model) {
  Digest digest;
  for (const auto& parameter : model.parameters()) {
    digest.add(parameter->name());
    for (const int64_t extent : parameter->whole_shape()) digest.add(std::to_string(extent));
    const at::Tensor whole = model.whole_parameter(*parameter).contiguous();
    digest.add(whole.const_data_ptr(), whole.nbytes());
  }
  return digest.text();
}

}  // namespace ghostshard::dp
