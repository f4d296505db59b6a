// Exit codes: 0 done; 2 a user's mistake, said in one sentence, nothing overwritten; 1 anything else.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "examples/gpt2/finetune.h"

namespace {

using namespace ghostshard;

constexpr int kUserMistake = 2;
constexpr int kFailure = 1;

// Large activations come and go every layer. glibc would map and unmap each, paying for fresh zeroed pages; kept in
// the heap they are reused.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

// The tokenizer lives on the Python side.
void generate_from_text(int argc, char** argv) {
  const char* chosen = std::getenv("GHOSTSHARD_PYTHON");
  const std::string python = chosen != nullptr ? chosen : GHOSTSHARD_DEFAULT_PYTHON;
  std::vector<char*> arguments = {const_cast<char*>(python.c_str()), const_cast<char*>("-m"),
                                  const_cast<char*>("ghostshard.generate"), const_cast<char*>("--binary"), argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--generate") {
      arguments.push_back(const_cast<char*>("--prompt"));
    } else {
      arguments.push_back(argv[i]);
    }
  }
  arguments.push_back(nullptr);
  ::execvp(python.c_str(), arguments.data());
  throw std::invalid_argument("--generate needs Python with the ghostshard package to tokenize; " + python +
                              " could not be started (set GHOSTSHARD_PYTHON, or use --generate-tokens)");
}

std::string rank_prefix() {
  const char* size = std::getenv("WORLD_SIZE");
  const char* rank = std::getenv("RANK");
  return size != nullptr && rank != nullptr && std::string(size) != "1" ? "rank " + std::string(rank) + ": " : "";
}

int fail(fsdp::Mesh* mesh, const std::string& message, int code) {
  std::cerr << rank_prefix() << "error: " << message << std::endl;
  if (mesh != nullptr) {
    mesh->announce_failure(message);
    // Other ranks may still be inside a collective with this one: no orderly teardown waits for them.
    std::cout.flush();
    std::_Exit(code);
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  std::unique_ptr<fsdp::Mesh> mesh;
  try {
    const auto options = gpt2::parse_options(argc, argv);
    if (!options) return 0;
    if (!options->generate.empty()) generate_from_text(argc, argv);
    if (options->generating()) {
      gpt2::generate_text(*options);
      return 0;
    }
    gpt2::finetune(*options, [&]() -> fsdp::Mesh& {
      mesh = fsdp::Mesh::from_environment(std::chrono::seconds(options->timeout_seconds));
      mesh->watch_failures([](const std::string& message) {
        std::cerr << rank_prefix() << "ending because " << message << std::endl;
        std::_Exit(kFailure);
      });
      return *mesh;
    });
    return 0;
  } catch (const std::invalid_argument& error) {
    return fail(mesh.get(), error.what(), kUserMistake);
  } catch (const c10::ValueError& error) {
    return fail(mesh.get(), error.what_without_backtrace(), kUserMistake);
  } catch (const c10::Error& error) {
    return fail(mesh.get(), error.what_without_backtrace(), kFailure);
  } catch (const std::exception& error) {
    return fail(mesh.get(), error.what(), kFailure);
  }
}
