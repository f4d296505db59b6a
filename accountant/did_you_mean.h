// What a word that the command line does not know was probably meant to be.
#pragma once

#include <string>
#include <vector>

namespace ghostshard::accountant {

// The name that is nearest to the word by inserted, deleted, changed and swapped letters; empty if more than a third of
// the letters would change.
std::string nearest_name(const std::string& word, const std::vector<std::string>& names);

// "; did you mean --steps?" for the option's name (without dashes) that is nearest to the word, dashes or not. If none
// is near: for the only one of which the word is a part (epsilon: target-epsilon), or that means what other programs of
// the field call by this word (lr, sigma, batch-size, max-grad-norm). Else nothing.
std::string flag_suggestion(std::string word, const std::vector<std::string>& names);
// The same for a command, without dashes.
std::string command_suggestion(const std::string& word, const std::vector<std::string>& names);

// A sentence on words that no option takes, in the order in which they were typed, with the suggestion for the first of
// them that has a dash.
std::string not_expected(const std::vector<std::string>& words, const std::vector<std::string>& names);

// What CLI11 says of a flag with too many or too few words, as a person would: "--steps is given twice: give it once".
// Other sentences as they are.
std::string plain_sentence(const std::string& of_cli11);

}  // namespace ghostshard::accountant
