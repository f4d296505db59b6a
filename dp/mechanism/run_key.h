// The secret of a run: 32 bytes from which every coin and every noise value follows.
//
// Subkeys are HMAC-SHA256(key, purpose ‖ run id ‖ step ‖ attempt) (RFC 2104). A step repeated after a crash gets new
// noise *and* new coins. Two runs that share a key file share nothing, because each draws its own run id.
// All ranks hold the key (central model: ranks are trusted). It is never written anywhere and is wiped on destruction.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "fsdp/mesh.h"
#include "kernels/gaussian.h"

namespace ghostshard::dp {

using RunId = std::array<uint8_t, 16>;  // public; stands in the ledger

// From its 32 hexadecimal digits; std::invalid_argument for anything else.
RunId run_id_from_hex(const std::string& text);

enum class Purpose : uint8_t { kCoins = 1, kNoise = 2, kCommitment = 3, kFileTag = 4 };

struct StepId {
  int64_t step = 0;     // logical step, from 0
  int64_t attempt = 0;  // > 0 if a step is repeated
};

class RunKey {
 public:
  // From the operating system's generator; std::runtime_error if it fails.
  static RunKey generate();
  // A file of exactly 32 bytes that nobody but its owner may read (mode 0600 or 0400): std::invalid_argument naming
  // path, rule and value otherwise. run_id: that of a run to resume; without it, a new one is drawn.
  static RunKey from_file(const std::filesystem::path& path, const std::optional<RunId>& run_id = std::nullopt);
  // Given bytes and run id: for tests and for resuming.
  static RunKey from_bytes(const std::array<uint8_t, 32>& key, const RunId& run_id);

  // Rank 0's key and run id on every rank. A collective.
  void share(fsdp::Mesh& mesh);

  // Another secret under the same run id, for a mechanism whose noise comes from the caller's generator.
  void renew(const std::array<uint8_t, 32>& key);

  // A key serves one mechanism: a second one would repeat the first one's noise on other sums, and the difference of
  // two releases would show them. std::logic_error on the second call.
  void claim_for_mechanism() const;

  kernels::ChaChaKey derive(Purpose purpose, const StepId& step) const;
  const RunId& run_id() const { return run_id_; }
  std::string run_id_hex() const;
  // HMAC of the run id under the key, hex: recognises the same key again. May be public if the key has 256 random bits:
  // it is one more output of the function from which every coin and noise value comes, for a purpose of its own.
  std::string commitment() const;
  // HMAC of a file's bytes under a key of this purpose alone, hex: recognises the same file again and, unlike a plain
  // hash, gives nothing away without the key (a guess of the file cannot be tested). std::runtime_error if it cannot be
  // read.
  std::string tag_of_file(const std::filesystem::path& path) const;
  // "origin" and, for a key that can come again, "commitment": for the ledger.
  nlohmann::json public_facts() const;
  // "operating system" or "key file": for the report.
  const std::string& origin() const { return origin_; }

  ~RunKey();
  RunKey(RunKey&& other) noexcept;
  RunKey& operator=(RunKey&&) = delete;
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

 private:
  RunKey() = default;
  std::array<uint8_t, 32> key_{};
  RunId run_id_{};
  std::string origin_;
  mutable bool claimed_ = false;
};

}  // namespace ghostshard::dp
