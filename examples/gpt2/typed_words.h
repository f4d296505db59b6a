// Words of the command line that no option takes: which one was meant, and those on which CLI11 would not end.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ghostshard::gpt2 {

// "; did you mean --steps?" if the error is about an unknown word of the command line that is nearly the name of an
// option of these groups; else nothing.
std::string suggestion_for(const CLI::ParseError& error, const std::vector<CLI::Option_group*>& groups);

// What is wrong with the file of flags. An entry is quoted only if it is nearly the name of an option: the file may be
// one of private texts, given by mistake.
std::string mistake_in_file(const std::string& file, const CLI::ConfigError& error,
                            const std::vector<CLI::Option_group*>& groups);

// Throws std::invalid_argument if a word is empty and is not the value of an option: CLI11 2.1 may read such a word
// again and again. Call it before app.parse().
void refuse_empty_words(const CLI::App& app, const std::vector<CLI::Option_group*>& groups, int argc,
                        const char* const* argv);

}  // namespace ghostshard::gpt2
