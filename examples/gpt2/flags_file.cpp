#include "examples/gpt2/flags_file.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ghostshard::gpt2 {
namespace {

[[noreturn]] void refuse(const std::string& rule, int line) {
  throw std::invalid_argument("--config must " + rule + ", line " + std::to_string(line) + " does not");
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

class Reader {
 public:
  explicit Reader(std::string text) : text_(std::move(text)) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
  }

  bool at_end() const { return at_ == text_.size(); }
  int line() const { return line_; }
  bool at_line_end() const { return at_end() || text_[at_] == '\n'; }
  bool at(std::string_view signs) const { return !at_end() && signs.find(text_[at_]) != std::string_view::npos; }

  char take() {
    if (text_[at_] == '\n') ++line_;
    return text_[at_++];
  }
  void skip_spaces() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  void skip_line() {
    while (!at_line_end()) ++at_;
    if (!at_end()) take();
  }
  // Spaces, ends of lines and comments, as within a list.
  void skip_gaps() {
    while (true) {
      skip_spaces();
      if (at("#")) {
        skip_line();
      } else if (at("\n")) {
        take();
      } else {
        return;
      }
    }
  }
  // The rest of the line as far as the first of these signs.
  std::string until(std::string_view signs) {
    const size_t begin = at_;
    while (!at_line_end() && !at(signs)) ++at_;
    return trimmed(std::string_view(text_).substr(begin, at_ - begin));
  }

  std::string quoted() {
    const char quote = take();
    std::string value;
    while (!at_line_end() && text_[at_] != quote) value += quote == '"' && text_[at_] == '\\' ? escaped() : take();
    if (at_line_end()) refuse("close each quote in its line", line_);
    take();
    return value;
  }

  std::vector<std::string> list() {
    const int began = line_;
    const auto unless = [&](bool holds) {
      if (holds) return;
      throw std::invalid_argument("--config must close each list with ], that of line " + std::to_string(began) +
                                  " is open where another entry or the end follows");
    };
    std::vector<std::string> items;
    take();
    for (skip_gaps(); !at("]"); skip_gaps()) {
      unless(!at_end());
      const bool plain = !at("\"'");
      items.push_back(plain ? until(",]#") : quoted());
      unless(!plain || items.back().find('=') == std::string::npos);
      skip_gaps();
      unless(at(",]"));
      if (at(",")) take();
    }
    take();
    return items;
  }

  // A text without quotes: to the end of its line or to a comment.
  std::string bare() {
    const std::string all = until("#");
    const bool glued = at("#") && !all.empty() && !is_space(text_[at_ - 1]);
    if (glued || (at("#") && std::count(all.begin(), all.end(), '"') % 2 != 0) || all.find(" ;") != std::string::npos)
      refuse("have quotes around a value that holds # or ;, and a space before a comment", line_);
    return all;
  }

 private:
  char escaped() {
    take();
    if (at("\"\\")) return take();
    if (at("nt")) return take() == 'n' ? '\n' : '\t';
    refuse(R"(have no backslash in double quotes but \\, \", \n and \t (single quotes take it as it is))", line_);
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(trimmed(std::string_view(text).substr(begin, comma - begin)));
    begin = comma + 1;
  }
  return parts;
}

// Behind the =. several: of a flag that takes several values.
std::vector<std::string> values_of_entry(Reader& in, bool several) {
  in.skip_spaces();
  const int line = in.line();
  std::vector<std::string> values;
  if (in.at("[")) {
    values = in.list();
  } else if (in.at("\"'")) {
    values.push_back(in.quoted());
    for (in.skip_spaces(); in.at(","); in.skip_spaces()) {
      in.take();
      in.skip_spaces();
      if (!in.at("\"'")) refuse("have quotes around each of several values, or around none", line);
      values.push_back(in.quoted());
    }
  } else {
    const std::string all = in.bare();
    values = several ? split_at_commas(all) : std::vector{all};
    const bool apart = several && std::any_of(values.begin(), values.end(), [](const std::string& one) {
                         return one.find_first_of(" \t") != std::string::npos;
                       });
    if (apart) refuse("have commas between the values of a flag", line);
  }
  in.skip_spaces();
  if (!in.at_line_end() && !in.at("#")) refuse("have nothing but a comment behind a value in quotes or a list", line);
  return values;
}

}  // namespace

std::vector<CLI::ConfigItem> FlagsFile::from_config(std::istream& input) const {
  Reader in(std::string(std::istreambuf_iterator<char>(input), {}));
  std::vector<CLI::ConfigItem> entries;
  std::set<const CLI::Option*> given;
  for (; !in.at_end(); in.skip_line()) {
    in.skip_spaces();
    if (in.at_line_end() || in.at("#;")) continue;
    const int line = in.line();
    CLI::ConfigItem item;
    item.name = in.at("\"'") ? in.quoted() : in.until("=#");
    in.skip_spaces();
    if (item.name == "[default]" && !in.at("=")) continue;
    if (item.name.starts_with('-') || item.name.starts_with('+'))  // two of these mean something to CLI11
      refuse("hold flags without the dashes", line);
    // Its name is quoted only if it is a flag's: the file may be one of private texts.
    const CLI::Option* option = app_.get_option_no_throw("--" + item.name);
    if (in.at("=")) {
      in.take();
      item.inputs = values_of_entry(in, option != nullptr && option->get_items_expected_max() > 1);
    } else {
      item.inputs = {"true"};
    }
    if (option != nullptr && !given.insert(option).second)
      throw std::invalid_argument("--config gives --" + item.name +
                                  " twice: give it once (several values of it as a list)");
    if (option != nullptr && item.inputs.size() > 1 && option->get_items_expected_max() <= 1)
      refuse("give --" + item.name + " one value", line);
    entries.push_back(std::move(item));
  }
  return entries;
}

}  // namespace ghostshard::gpt2
