// The secret of a run: 32 bytes from which every coin and every noise value follows.
//
// Subkeys are HMAC-SHA256(key, purpose ‖ run id ‖ step ‖ attempt) (RFC 2104). A step repeated after a crash gets new
// noise *and* new coins. Whoever share a key file share nothing, because each process that trains draws a run id of its
// own, whether it begins a run or resumes one: two copies of a run's folder, both resumed, would otherwise release two
// sums under one noise, and the difference of two releases would be that of the sums.
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

enum class Purpose : uint8_t {
  kCoins = 1,
  kNoise = 2,
  kCommitment = 3,
  kTag = 4,
  kCountNoise = 5,
  kBins = 6,
  kTruncation = 7
};

struct StepId {
  int64_t step = 0;     // logical step, from 0
  int64_t attempt = 0;  // > 0 if a step is repeated
};

class RunKey {
 public:
  // From the operating system's generator; std::runtime_error if it fails.
  static RunKey generate();
  // A file of exactly 32 bytes that nobody but its owner may read (mode 0600 or 0400), under a run id that is drawn
  // now: std::invalid_argument naming path, rule and value otherwise.
  static RunKey from_file(const std::filesystem::path& path);
  // The same file under an earlier run id, to recognise that run's commitment and tags. It serves no mechanism, so that
  // nothing is released twice under one run id.
  static RunKey recall(const std::filesystem::path& path, const RunId& run_id);
  // Given bytes and run id: for tests, and for runs without privacy.
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
  // HMAC of a text under a key of this purpose alone, hex: recognises the same text again and, unlike a plain hash,
  // gives nothing away without the key (a guess of the text cannot be tested).
  std::string tag_of(const std::string& text) const;
  // A key that another process can have again.
  bool comes_again() const { return origin_ == "key file"; }
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
