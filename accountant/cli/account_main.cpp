// ghostshard-account: epsilon, delta, noise, steps and sampling rate of differentially private training, and reports
// that a third party can recompute. Exit status: 0 done; 1 the system refused, or verify found a difference; 2 bad
// input.
#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "accountant/cli/commands.h"
#include "accountant/did_you_mean.h"
#include "accountant/ledger.h"
#include "accountant/standard_streams.h"
#include "accountant/typed_value.h"

namespace {

using namespace ghostshard;

constexpr const char* kExamples = R"(Examples
  What has a run spent?
    ghostshard account epsilon --sampling-rate 256/60000 --noise-multiplier 1.1 --steps 14063 --delta 1e-5
    ghostshard account epsilon --phase 0.01:1.2:5000 --phase 0.02:0.9:1000 --delta 1e-5 --json
    ghostshard account epsilon --ledger runs/finetune-1/ledger.jsonl --delta 1e-6
    ghostshard account epsilon --phase 0.01:1.2:5000 --delta 1e-5 \
        --event '1:{"type":"laplace","noise_multiplier":2,"sampling_rate":1}'
  How much noise does a budget ask for? How many steps, which batch does it allow?
    ghostshard account noise --epsilon 3 --delta 8e-6 --sampling-rate 1024/42061 --steps 411
    ghostshard account steps --epsilon 3 --delta 8e-6 --sampling-rate 1024/42061 --noise-multiplier 1.1
    ghostshard account rate  --epsilon 3 --delta 8e-6 --noise-multiplier 1.1 --steps 411
  What does a ledger prove?
    ghostshard account report --ledger runs/finetune-1/ledger.jsonl --delta 1e-6 --output audit
    ghostshard account verify --ledger runs/finetune-1/ledger.jsonl --report runs/finetune-1/privacy_report.json
  What have all runs on a data set spent together?
    ghostshard account register budgets.jsonl

`ghostshard account COMMAND --help` explains one command. Exit status: 0 done, 1 the system refused or verify found a
difference, 2 bad input.)";

// Throws std::invalid_argument if the first argument is neither an option nor a command.
void require_command(const CLI::App& program, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::string name = argv[1];
  std::string known;
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    if (command->get_name() == name) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
    names.push_back(command->get_name());
  }
  throw std::invalid_argument("the command must be one of " + known + "; got \"" + name + '"' +
                              accountant::command_suggestion(name, names));
}

std::string sentence_of(const CLI::ParseError& error, const CLI::App& program) {
  for (const CLI::App* command : program.get_subcommands()) {
    const std::vector<std::string> extras = command->remaining();
    if (extras.empty()) continue;
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options())
      for (const std::string& known : option->get_lnames()) names.push_back(known);
    return accountant::not_expected(extras, names);
  }
  return accountant::plain_sentence(error.what());
}

// An option that is given must have a value that can be what was meant: an empty --head would check nothing.
void check_values(CLI::App& program) {
  for (CLI::App* command : program.get_subcommands(nullptr)) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_min() == 0) continue;  // switches
      option->check([type = option->get_type_name()](const std::string& value) {
        return accountant::mistake_in_value(type, value);
      });
    }
  }
}

int fail(const std::string& message, int status) {
  std::cerr << "ghostshard-account: " << accountant::one_line(message) << '\n';
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ghostshard::accountant;
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond its limit: the write fails, with a sentence
  CLI::App program{"Differential privacy accounting: certified bounds, calibration, reports."};
  program.name("ghostshard account");
  program.footer(kExamples);
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("ghostshard-account ") + kLibraryVersion);
  cli::Action action;
  cli::add_epsilon(program, action);
  cli::add_delta(program, action);
  cli::add_curve(program, action);
  cli::add_events(program, action);
  cli::add_zcdp(program, action);
  cli::add_tradeoff(program, action);
  cli::add_noise(program, action);
  cli::add_steps(program, action);
  cli::add_rate(program, action);
  cli::add_report(program, action);
  cli::add_verify(program, action);
  cli::add_register(program, action);
  check_values(program);
  try {
    open_standard_streams();
    require_command(program, argc, argv);
    program.parse(argc, argv);
    const int status = action();
    finish_standard_output();
    return status;
  } catch (const CLI::Success& asked) {  // --help, --version
    return program.exit(asked);
  } catch (const CLI::ParseError& error) {
    return fail(sentence_of(error, program) + " (--help explains)", 2);
  } catch (const std::invalid_argument& error) {
    return fail(error.what(), 2);
  } catch (const std::filesystem::filesystem_error& error) {
    const bool full = error.code() == std::errc::no_space_on_device || error.code() == std::errc::io_error;
    return fail(error.path1().string() + " cannot be used: " + error.code().message(), full ? 1 : 2);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
