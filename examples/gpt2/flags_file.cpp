#include "examples/gpt2/flags_file.h"

#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ghostshard::gpt2 {
namespace {

// Where the line's comment begins, or its end. Throws if a # stands in quotes.
size_t end_of_entry(const std::string& line, int number) {
  char quote = '\0';
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '#' && quote != '\0')
      throw std::invalid_argument("--config must hold no # within quotes, line " + std::to_string(number) +
                                  " does: it would begin a comment; give that flag on the command line");
    if (line[i] == '#') return i;
    if (quote != '\0') {
      if (line[i] == quote && line[i - 1] != '\\') quote = '\0';
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    }
  }
  return line.size();
}

void refuse_what_is_read_otherwise(std::istream& text) {
  int number = 0, list = 0;  // list: the line where an open one began
  for (std::string line; std::getline(text, line);) {
    ++number;
    line.erase(end_of_entry(line, number));
    CLI::detail::trim(line);
    const size_t equals = line.find('=');
    if (list > 0 && equals != std::string::npos) break;
    if (list == 0 && equals != std::string::npos && CLI::detail::trim_copy(line.substr(equals + 1)).starts_with("["))
      list = number;
    if (list > 0 && line.ends_with("]")) list = 0;
  }
  if (list > 0)
    throw std::invalid_argument("--config must close each list with ], that of line " + std::to_string(list) +
                                " is open where another entry or the end follows");
}

}  // namespace

std::vector<CLI::ConfigItem> FlagsFile::from_config(std::istream& input) const {
  std::stringstream text;
  text << input.rdbuf();
  std::istringstream looked_at(text.str());
  refuse_what_is_read_otherwise(looked_at);
  std::vector<CLI::ConfigItem> items = ConfigBase::from_config(text);
  std::set<std::string> names;
  for (const CLI::ConfigItem& item : items) {
    const std::string name = item.fullname();  // quoted only if it is a flag's: the file may be one of private texts
    if (app_.get_option_no_throw("--" + name) != nullptr && !names.insert(name).second)
      throw std::invalid_argument("--config gives --" + name + " twice: give it once (several values of it as a list)");
  }
  return items;
}

}  // namespace ghostshard::gpt2
