#include "examples/gpt2/typed_words.h"

#include <stdexcept>

#include "accountant/did_you_mean.h"

namespace ghostshard::gpt2 {

std::string suggestion_for(const CLI::ParseError& error, const std::vector<CLI::Option_group*>& groups) {
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                       dynamic_cast<const CLI::ConfigError*>(&error) != nullptr;
  if (!unknown) return "";
  const std::string sentence = error.what();  // the word is the last in it
  std::vector<std::string> names;
  for (CLI::Option_group* group : groups) {
    for (const CLI::Option* option : group->get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back(known);
    }
  }
  const size_t flag = sentence.find("--");
  const std::string word = sentence.substr(flag != std::string::npos ? flag : sentence.rfind(' ') + 1);
  return accountant::flag_suggestion(word.substr(0, word.find(' ')), names);
}

void refuse_empty_words(const CLI::App& app, const std::vector<CLI::Option_group*>& groups, int argc,
                        const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (*argv[i] != '\0') continue;
    const std::string before = i > 1 ? argv[i - 1] : "";
    const CLI::Option* option = before.starts_with("-") ? app.get_option_no_throw(before) : nullptr;
    if (option != nullptr && option->get_items_expected_max() > 0) continue;
    const bool unknown = before.starts_with("-") && option == nullptr;
    const CLI::ExtrasError error({unknown ? before : "an empty word"});
    throw std::invalid_argument(error.what() + (unknown ? suggestion_for(error, groups) : "") + " (see --help)");
  }
}

}  // namespace ghostshard::gpt2
