// Folder and file names of checkpoints, durable writing, hashes. Internal to this folder.
#pragma once

#include <filesystem>
#include <string>

namespace ghostshard::fsdp {

inline constexpr const char* kManifestName = "checkpoint.json";

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);  // …/step-000000000040
std::string rank_file_name(int64_t rank, int64_t world_size);  // "rank-00000-of-00002.safetensors"

// Both throw std::runtime_error naming the path and the system's reason.
void write_durably(const std::filesystem::path& path, const std::string& text);
void sync_folder(const std::filesystem::path& path);
// SHA-256 of a file's bytes, lower-case hex. std::runtime_error if it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace ghostshard::fsdp
