// Folder and file names of checkpoints, and the hashes of their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ghostshard::fsdp {

inline constexpr const char* kManifestName = "checkpoint.json";
inline constexpr uint64_t kMostBytesOfManifest = uint64_t{1} << 30;  // it lists every parameter and every rank's file

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);  // …/step-000000000040
std::string rank_file_name(int64_t rank, int64_t world_size);  // "rank-00000-of-00002.safetensors"

// SHA-256 of a file's bytes, lower-case hexadecimal. Throws what RegularFile throws if the file cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace ghostshard::fsdp
