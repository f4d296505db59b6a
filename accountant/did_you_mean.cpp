#include "accountant/did_you_mean.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace ghostshard::accountant {
namespace {

// Optimal string alignment distance.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// The words of Opacus, of Transformers and of papers, and what options of ours may be called instead.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kOtherNames = {
    {{"batch-size", "expected-batch"},
     {"per-device-train-batch-size", "expected-batch"},
     {"epsilon", "target-epsilon"},
     {"gradient-accumulation-steps", "microbatch"},
     {"gradient-checkpointing", "activation-checkpointing"},
     {"lr", "learning-rate"},
     {"max-grad-norm", "clip-norm"},
     {"max-steps", "steps"},
     {"n", "steps"},
     {"num-train-epochs", "epochs"},
     {"num-epochs", "epochs"},
     {"output-dir", "output"},
     {"q", "sampling-rate"},
     {"s", "noise-multiplier"},
     {"sigma", "noise-multiplier"},
     {"sample-rate", "sampling-rate"}}};

std::string other_name(const std::string& word, const std::vector<std::string>& names) {
  for (const auto& [theirs, ours] : kOtherNames) {
    if (word == theirs && std::find(names.begin(), names.end(), ours) != names.end()) return std::string(ours);
  }
  return "";
}

// "-a-" is in "-a-b-": whole parts only.
std::string only_name_with_part(const std::string& word, const std::vector<std::string>& names) {
  const auto has = [&](const std::string& name) {
    return ("-" + name + "-").find("-" + word + "-") != std::string::npos;
  };
  if (word.empty() || std::count_if(names.begin(), names.end(), has) != 1) return "";
  return *std::find_if(names.begin(), names.end(), has);
}

}  // namespace

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  size_t least = word.size() / 3 + 1;
  std::string nearest;
  for (const std::string& name : names) {
    if (const size_t apart = distance(word, name); apart < least) {
      least = apart;
      nearest = name;
    }
  }
  return nearest;
}

std::string flag_suggestion(std::string word, const std::vector<std::string>& names) {
  word = word.substr(0, word.find('='));
  word.erase(0, std::min(word.find_first_not_of('-'), word.size()));
  std::replace(word.begin(), word.end(), '_', '-');
  std::string meant = other_name(word, names);
  if (meant.empty()) meant = nearest_name(word, names);
  if (meant.empty()) meant = only_name_with_part(word, names);
  return meant.empty() ? "" : "; did you mean --" + meant + "?";
}

std::string not_expected(const std::vector<std::string>& words, const std::vector<std::string>& names) {
  std::string sentence =
      words.size() == 1 ? "The following argument was not expected:" : "The following arguments were not expected:";
  for (const std::string& word : words) sentence += " " + word;
  const auto flag = std::find_if(words.begin(), words.end(), [](const auto& word) { return word.starts_with("-"); });
  return sentence + (flag == words.end() ? "" : flag_suggestion(*flag, names));
}

std::string command_suggestion(const std::string& word, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(word, names);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

std::string plain_sentence(const std::string& of_cli11) {
  const std::string flag = of_cli11.substr(0, of_cli11.find(':'));
  if (of_cli11.starts_with(flag + ": At Most 1 required but received ")) return flag + " is given twice: give it once";
  if (of_cli11.starts_with(flag + ": 1 required ") && of_cli11.ends_with(" missing")) return flag + " needs a value";
  return of_cli11;
}

}  // namespace ghostshard::accountant
