// Exit codes: 0 done; 2 a user's mistake, named in one sentence, nothing overwritten; 3 stopped by SIGTERM or Ctrl-C
// with a checkpoint, to go on with --resume; 128 + the signal's number if it ended the program at once; 1 anything
// else, and whatever ends a run that had begun to train.
#include <c10/util/Logging.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include "accountant/standard_streams.h"
#include "examples/gpt2/commit.h"
#include "examples/gpt2/finetune.h"
#include "examples/gpt2/generate.h"
#include "fsdp/agree.h"
#include "fsdp/failure.h"
#include "fsdp/host_memory.h"

namespace {

using namespace ghostshard;

constexpr int kUserMistake = 2;
constexpr int kFailure = 1;
constexpr int kStopped = 3;

const char* variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
}

std::string rank_prefix() {
  const char* size = variable("WORLD_SIZE");
  const char* rank = variable("RANK");
  return size != nullptr && rank != nullptr && std::string(size) != "1" ? "rank " + std::string(rank) + ": " : "";
}

// One write, so that ranks that share a terminal do not mix their lines.
void say(const std::string& what, const std::string& message) {
  const std::string line = rank_prefix() + what + accountant::one_line(message) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

int fail(fsdp::Mesh* mesh, const std::string& message, int code) {
  say("error: ", message);
  if (mesh == nullptr || mesh->world_size() == 1) return code;
  // The others wait inside a collective: the announcement must reach them before this rank's connections close.
  mesh->announce_failure(message);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  std::cout.flush();
  std::_Exit(code);
}

// Every rank knows already: nothing to announce. They leave together, since one of them may serve the store.
int fail_together(fsdp::Mesh& mesh, const fsdp::AgreedFailure& failure, int code) {
  say("error: ", failure.what());
  if (mesh.world_size() == 1) return code;
  mesh.control().barrier();
  std::_Exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  // A reader of the progress that goes away (| head) must not end a run: its writes fail instead.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond its limit: the write fails, with a sentence
  // What LibTorch logs comes with the frames of its stack, and again in the exception that our sentence is made of.
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  c10::initLogging();                                         // reads it, as `import torch` does
  fsdp::reuse_host_memory();
  std::unique_ptr<fsdp::Mesh> mesh;
  std::optional<dp::StopSignal> stop;  // outlives the announcement of a failure to the other ranks
  const auto code_of = [&](bool callers_mistake) {
    return callers_mistake && !(stop && stop->graceful()) ? kUserMistake : kFailure;
  };
  try {
    accountant::open_standard_streams();
    auto options = gpt2::parse_options(argc, argv);
    if (!options) return 0;
    options->commit = gpt2::program_commit();
    if (options->generate_tokens) {
      gpt2::generate_text(*options);
      return 0;
    }
    const char* rank = variable("RANK");
    stop.emplace([](const std::string& message) { say("", message); }, rank == nullptr || std::string(rank) == "0");
    mesh = fsdp::Mesh::from_environment(std::chrono::seconds(options->timeout_seconds), options->mesh, options->device);
    mesh->watch_failures([](const std::string& message) {
      say("ending because ", message);
      std::_Exit(kFailure);
    });
    return gpt2::finetune(*options, *mesh, *stop) == gpt2::Ending::kDone ? 0 : kStopped;
  } catch (const fsdp::AgreedFailure& failure) {
    return fail_together(*mesh, failure, code_of(failure.callers_mistake()));
  } catch (const std::exception&) {
    const fsdp::Failure failure = fsdp::current_failure();
    return fail(mesh.get(), failure.sentence, code_of(failure.callers_mistake));
  }
}
