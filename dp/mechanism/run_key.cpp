#include "dp/mechanism/run_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <stdexcept>
#include <system_error>

#include "fsdp/hexadecimal.h"

namespace ghostshard::dp {
namespace {

void fill_random(uint8_t* out, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(out + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw std::runtime_error("the operating system's random generator failed: " +
                               std::generic_category().message(errno));
    done += static_cast<size_t>(got);
  }
}

void put_little_endian(uint8_t* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

kernels::ChaChaKey hmac(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  kernels::ChaChaKey tag{};
  unsigned int length = 0;
  const auto* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(), tag.data(), &length);
  if (made == nullptr || length != tag.size()) throw std::runtime_error("HMAC-SHA256 failed");
  return tag;
}

}  // namespace

RunId run_id_from_hex(const std::string& text) {
  RunId id{};
  if (text.size() != 2 * id.size() || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw std::invalid_argument("a run id must be 32 hexadecimal digits, got \"" + text + '"');
  }
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

RunKey RunKey::generate() {
  RunKey run;
  fill_random(run.key_.data(), run.key_.size());
  fill_random(run.run_id_.data(), run.run_id_.size());
  run.origin_ = "operating system";
  return run;
}

RunKey RunKey::from_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    throw std::invalid_argument("noise key file " + path.string() +
                                " cannot be read: " + std::generic_category().message(errno));
  struct stat status {};
  std::array<uint8_t, 33> bytes{};  // one more than allowed, to notice longer files
  const bool known = ::fstat(descriptor, &status) == 0;
  const ssize_t got = known ? ::read(descriptor, bytes.data(), bytes.size()) : -1;
  ::close(descriptor);
  if (!known || !S_ISREG(status.st_mode))
    throw std::invalid_argument("noise key file " + path.string() + " must be a regular file");
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", status.st_mode & 07777U);
    throw std::invalid_argument("noise key file " + path.string() +
                                " must be readable by its owner alone (mode 0600), has mode " + mode);
  }
  if (got != 32) {
    throw std::invalid_argument("noise key file " + path.string() + " must hold exactly 32 bytes, has " +
                                std::to_string(status.st_size));
  }
  RunKey run;
  std::memcpy(run.key_.data(), bytes.data(), run.key_.size());
  OPENSSL_cleanse(bytes.data(), bytes.size());
  fill_random(run.run_id_.data(), run.run_id_.size());
  run.origin_ = "key file";
  return run;
}

RunKey RunKey::recall(const std::filesystem::path& path, const RunId& run_id) {
  RunKey run = from_file(path);
  run.run_id_ = run_id;
  run.claimed_ = true;
  return run;
}

RunKey RunKey::from_bytes(const std::array<uint8_t, 32>& key, const RunId& run_id) {
  RunKey run;
  run.key_ = key;
  run.run_id_ = run_id;
  run.origin_ = "given bytes";
  return run;
}

void RunKey::share(fsdp::Mesh& mesh) {
  if (mesh.world_size() == 1) return;
  const at::Tensor wire = at::zeros({48 / 8}, at::kLong);
  auto* bytes = reinterpret_cast<uint8_t*>(wire.data_ptr<int64_t>());
  if (mesh.rank() == 0) {
    std::memcpy(bytes, key_.data(), 32);
    std::memcpy(bytes + 32, run_id_.data(), 16);
  }
  mesh.control().broadcast(wire, 0);
  std::memcpy(key_.data(), bytes, 32);
  std::memcpy(run_id_.data(), bytes + 32, 16);
  OPENSSL_cleanse(bytes, 48);
}

void RunKey::renew(const std::array<uint8_t, 32>& key) {
  key_ = key;
  origin_ = "given generator";
}

void RunKey::claim_for_mechanism() const {
  if (claimed_) {
    throw std::logic_error("a run key serves one mechanism, and none under an earlier run id: noise would repeat");
  }
  claimed_ = true;
}

kernels::ChaChaKey RunKey::derive(Purpose purpose, const StepId& step) const {
  if (!(step.step >= 0 && step.attempt >= 0)) {
    throw std::invalid_argument("step and attempt must be >= 0, got " + std::to_string(step.step) + " and " +
                                std::to_string(step.attempt));
  }
  std::array<uint8_t, 1 + 16 + 8 + 8> message{};
  message[0] = static_cast<uint8_t>(purpose);
  std::memcpy(message.data() + 1, run_id_.data(), run_id_.size());
  put_little_endian(message.data() + 17, static_cast<uint64_t>(step.step));
  put_little_endian(message.data() + 25, static_cast<uint64_t>(step.attempt));
  return hmac(key_, message);
}

std::string RunKey::run_id_hex() const { return fsdp::hexadecimal(run_id_); }

std::string RunKey::commitment() const { return fsdp::hexadecimal(derive(Purpose::kCommitment, {})); }

std::string RunKey::tag_of(const std::string& text) const {
  kernels::ChaChaKey subkey = derive(Purpose::kTag, {});
  const kernels::ChaChaKey tag = hmac(subkey, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  OPENSSL_cleanse(subkey.data(), subkey.size());
  return fsdp::hexadecimal(tag);
}

nlohmann::json RunKey::public_facts() const {
  nlohmann::json facts = {{"origin", origin_}};
  if (comes_again()) facts["commitment"] = commitment();
  return facts;
}

RunKey::~RunKey() { OPENSSL_cleanse(key_.data(), key_.size()); }

RunKey::RunKey(RunKey&& other) noexcept
    : key_(other.key_), run_id_(other.run_id_), origin_(std::move(other.origin_)), claimed_(other.claimed_) {
  OPENSSL_cleanse(other.key_.data(), other.key_.size());
}

}  // namespace ghostshard::dp
