// What stands on the command line: values as text, and words that no option takes.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace ghostshard::gpt2 {

// Every value is checked as accountant/typed_value.h says: CLI11 would read 010 as 8 and a number that does not fit as
// one that does, and an empty text as nothing given. Call it before app.parse().
void check_values(CLI::App& app, const std::vector<CLI::Option_group*>& groups);

// Every option's value as text, defaults too.
std::map<std::string, std::string> values_of(const std::vector<CLI::Option_group*>& groups);

// What is wrong with the command line, with the option of these groups that an unknown word was probably meant to be.
std::string mistake_in_words(const CLI::ParseError& error, const CLI::App& app,
                             const std::vector<CLI::Option_group*>& groups);

// What is wrong with the file of flags. An entry is quoted only if it is nearly the name of an option: the file may be
// one of private texts, given by mistake.
std::string mistake_in_file(const std::string& file, const CLI::ConfigError& error,
                            const std::vector<CLI::Option_group*>& groups);

// Throws std::invalid_argument if a word is empty and is not the value of an option: CLI11 2.1 may read such a word
// again and again. Call it before app.parse().
void refuse_empty_words(const CLI::App& app, const std::vector<CLI::Option_group*>& groups, int argc,
                        const char* const* argv);

}  // namespace ghostshard::gpt2
