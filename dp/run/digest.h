// SHA-256 over what is too long to compare or to write down: files, weights.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "fsdp/sharded_model.h"

namespace ghostshard::dp {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(const void* bytes, size_t count);
  // The text with its length before it, so that {"ab", "c"} and {"a", "bc"} differ.
  void add(std::string_view text);
  // A file's bytes with their number before them. Throws what fsdp::RegularFile throws if it cannot be read.
  void add_file(const std::filesystem::path& path);
  // "sha256:" and 64 hexadecimal digits. Once, as the last call.
  std::string text();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::string_view text);
std::string digest_of_file(const std::filesystem::path& path);
// Names, shapes and float32 values of all parameters: the same for every number of ranks and every mesh. A collective;
// gathers one parameter at a time.
std::string digest_of_weights(fsdp::ShardedModel& model);

}  // namespace ghostshard::dp
