#include "examples/gpt2/typed_words.h"

#include <stdexcept>

#include "accountant/did_you_mean.h"
#include "accountant/typed_value.h"

namespace ghostshard::gpt2 {

namespace {

std::vector<std::string> names_of(const std::vector<CLI::Option_group*>& groups) {
  std::vector<std::string> names;
  for (CLI::Option_group* group : groups) {
    for (const CLI::Option* option : group->get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back(known);
    }
  }
  return names;
}

}  // namespace

void check_values(CLI::App& app, const std::vector<CLI::Option_group*>& groups) {
  std::vector<CLI::App*> parts(groups.begin(), groups.end());
  parts.push_back(&app);
  for (CLI::App* part : parts) {
    for (CLI::Option* option : part->get_options()) {
      if (option->get_items_expected_min() == 0) continue;  // switches
      option->check([type = option->get_type_name()](const std::string& value) {
        return accountant::mistake_in_value(type, value);
      });
    }
  }
}

std::map<std::string, std::string> values_of(const std::vector<CLI::Option_group*>& groups) {
  std::map<std::string, std::string> values;
  for (const auto* group : groups) {
    for (const auto* option : group->get_options()) {
      std::string& value = values[option->get_single_name()];
      if (option->count() == 0) value = option->get_default_str();
      for (const std::string& word : option->results()) value += (value.empty() ? "" : "\n") + word;
    }
  }
  return values;
}

std::string mistake_in_words(const CLI::ParseError& error, const CLI::App& app,
                             const std::vector<CLI::Option_group*>& groups) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return accountant::plain_sentence(error.what());
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  const std::string sentence = accountant::not_expected(words, names_of(groups));
  const CLI::Option* plan = app.get_option_no_throw("--explain-plan");  // the one switch that may have a value
  const bool apart = plan != nullptr && plan->count() > 0 && words == std::vector<std::string>{"all"};
  return sentence + (apart ? "; did you mean --explain-plan=all?" : "");
}

std::string mistake_in_file(const std::string& file, const CLI::ConfigError& error,
                            const std::vector<CLI::Option_group*>& groups) {
  const std::string sentence = error.what();  // CLI11 says the entry's name last
  const std::string entry = sentence.substr(sentence.rfind(' ') + 1);
  const std::string near = accountant::nearest_name(entry, names_of(groups));
  return "--config " + file + " must hold flags of this program without the dashes, as TOML or INI; " +
         (near.empty() ? "one of its entries is none" : entry + " is none, did you mean " + near + "?");
}

void refuse_empty_words(const CLI::App& app, const std::vector<CLI::Option_group*>& groups, int argc,
                        const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (*argv[i] != '\0') continue;
    const std::string before = i > 1 ? argv[i - 1] : "";
    const CLI::Option* option = before.starts_with("-") ? app.get_option_no_throw(before) : nullptr;
    if (option != nullptr && option->get_items_expected_max() > 0) continue;
    const bool unknown = before.starts_with("-") && option == nullptr;
    throw std::invalid_argument(accountant::not_expected({unknown ? before : "an empty word"}, names_of(groups)) +
                                " (see --help)");
  }
}

}  // namespace ghostshard::gpt2
