#include "examples/gpt2/optimizer_groups.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "accountant/did_you_mean.h"
#include "fsdp/regular_file.h"

namespace ghostshard::gpt2 {
namespace {

using nlohmann::json;

std::string article_and_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "the text ";
    case toml::node_type::integer:
      return "the whole number ";
    case toml::node_type::floating_point:
      return "the number ";
    case toml::node_type::boolean:
      return "";
    default:
      return "a date or a time";
  }
}

// "the text \"fast\"", "a table".
std::string shown(const toml::node& node) {
  std::string text = article_and_type(node);
  if (const auto* value = node.as_string()) text += json(value->get()).dump();
  if (const auto* value = node.as_integer()) text += std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) text += json(value->get()).dump();
  if (const auto* value = node.as_boolean()) text += value->get() ? "true" : "false";
  return text;
}

// A key of a group, and its value.
struct Entry {
  std::string key;
  const toml::node* node;
  const ValueNames* names;

  [[noreturn]] void must_be(const std::string& rule, const toml::node& found) const {
    throw std::invalid_argument(names->at(key) + " must be " + rule + ", got " + shown(found));
  }
  std::string text() const {
    const auto* value = node->as_string();
    if (value == nullptr || value->get().empty()) must_be("a text", *node);
    return value->get();
  }
  double number(const toml::node& found, const char* rule) const {
    const auto value = found.value<double>();
    if (!value || !found.is_number()) must_be(rule, found);
    return *value;
  }
  double number() const { return number(*node, "a number"); }
  double positive() const {
    const double value = number();
    if (!(value > 0 && std::isfinite(value))) must_be("finite and > 0", *node);
    return value;
  }
  int64_t whole_number() const {
    const auto* value = node->as_integer();
    if (value == nullptr) must_be("a whole number", *node);
    return value->get();
  }
  bool yes() const {
    const auto* value = node->as_boolean();
    if (value == nullptr) must_be("true or false", *node);
    return value->get();
  }
  std::vector<double> two_numbers() const {
    const toml::array* list = node->as_array();
    if (list == nullptr || list->size() != 2) must_be("two numbers in a list", *node);
    return {number((*list)[0], "two numbers in a list"), number((*list)[1], "two numbers in a list")};
  }
  // One or more: a text, or a list of them.
  std::vector<std::string> texts() const {
    const char* rule = "a glob over names of parameters, or a list of them";
    const toml::array* list = node->as_array();
    if (list == nullptr && !node->is_string()) must_be(rule, *node);
    if (list == nullptr) return {text()};
    if (list->empty()) throw std::invalid_argument(names->at(key) + " must be " + rule + ", got an empty list");
    std::vector<std::string> all;
    for (const toml::node& one : *list) {
      const auto* value = one.as_string();
      if (value == nullptr || value->get().empty()) must_be(rule, one);
      all.push_back(value->get());
    }
    return all;
  }
};

// Takes the value and says it in one spelling.
using Take = json (*)(OptimizerGroup& group, const Entry& entry, const Options& run);

json take_optimizer(OptimizerGroup& group, const Entry& entry, const Options& run) {
  const std::string name = entry.text();
  const auto known = optimizer_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::string all;
    for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
    const std::string near = accountant::nearest_name(name, known);
    throw std::invalid_argument(group.names.at("optimizer") + " must be one of " + all + ", got " + json(name).dump() +
                                (near.empty() ? "" : "; did you mean " + near + "?"));
  }
  group.names_optimizer = true;
  if (name != run.optimizer.name) group.optimizer = {.name = name, .weight_decay = run.optimizer.weight_decay};
  return name;
}

json take_rate(OptimizerGroup& group, const Entry& entry, const Options& run) {
  const double rate = entry.positive();
  group.rate = rate / run.learning_rate;
  return rate;
}

// "optimizer" first: it decides what the others begin with.
const std::vector<std::pair<std::string, Take>>& keys() {
  static const std::vector<std::pair<std::string, Take>> all = {
      {"optimizer", take_optimizer},
      {"name", [](OptimizerGroup&, const Entry& e, const Options&) -> json { return e.text(); }},
      {"match", [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return g.match = e.texts(); }},
      {"learning-rate", take_rate},
      {"learning-rate-factor",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return g.rate = e.positive(); }},
      {"weight-decay",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return g.optimizer.weight_decay = e.number(); }},
      {"momentum",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return *(g.optimizer.momentum = e.number()); }},
      {"betas",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json {
         return *(g.optimizer.betas = e.two_numbers());
       }},
      {"epsilon",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return *(g.optimizer.epsilon = e.number()); }},
      {"muon-heads",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return g.optimizer.muon_heads = e.yes(); }},
      {"muon-noise",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json { return *(g.optimizer.muon_noise = e.text()); }},
      {"tile-side",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json {
         return *(g.optimizer.tile_side = e.whole_number());
       }},
      {"refresh-every",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json {
         return *(g.optimizer.refresh_every = e.whole_number());
       }},
      {"factor-decay",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json {
         return *(g.optimizer.factor_decay = e.number());
       }},
      {"second-moment-floor",
       [](OptimizerGroup& g, const Entry& e, const Options&) -> json {
         return *(g.optimizer.second_moment_floor = e.number());
       }},
  };
  return all;
}

int64_t line_of(const toml::node& node) { return static_cast<int64_t>(node.source().begin.line); }

void refuse_unknown(const toml::table& table, const OptimizerGroup& group) {
  std::vector<std::string> known;
  for (const auto& [name, take] : keys()) known.push_back(name);
  for (const auto& [key, node] : table) {
    const std::string word(key.str());
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    const std::string near = accountant::nearest_name(word, known);
    throw std::invalid_argument(group.names.at(word) + " is no key of a group" +
                                (near.empty() ? "" : "; did you mean " + near + "?"));
  }
}

OptimizerGroup group_from(const toml::table& table, size_t number, const std::string& file, const Options& run) {
  OptimizerGroup group{.match = {}, .optimizer = run.optimizer, .names = {}, .said = json::object()};
  group.names = {.file = file, .group = "number " + std::to_string(number), .lines = {}};
  for (const auto& [key, node] : table) group.names.lines[std::string(key.str())] = line_of(node);
  for (const char* needed : {"name", "match"}) group.names.lines.try_emplace(needed, line_of(table));
  const auto* name = table.get("name");
  if (name == nullptr) throw std::invalid_argument(group.names.at("name") + " must be given");
  group.names.group = Entry{"name", name, &group.names}.text();
  refuse_unknown(table, group);
  if (!table.contains("match")) throw std::invalid_argument(group.names.at("match") + " must be given");
  if (table.contains("learning-rate") && table.contains("learning-rate-factor")) {
    throw std::invalid_argument(group.names.at("learning-rate") + " and learning-rate-factor exclude each other");
  }
  for (const auto& [key, take] : keys()) {
    const toml::node* node = table.get(key);
    if (node != nullptr) group.said[key] = take(group, {key, node, &group.names}, run);
  }
  return group;
}

toml::table parsed(const std::string& file) {
  try {
    return toml::parse(std::string_view(fsdp::read_text(file)));
  } catch (const toml::parse_error& error) {
    throw std::invalid_argument("--optimizer-groups must name a TOML file, " + file + ":" +
                                std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  }
}

}  // namespace

std::vector<OptimizerGroup> read_optimizer_groups(const std::filesystem::path& path, const Options& run) {
  const std::string file = path.string();
  const toml::table content = parsed(file);
  for (const auto& [key, node] : content) {
    if (key.str() == "group") continue;
    // Quoted only if it is nearly the one: the file may be one of private texts, given by mistake.
    const std::string word(key.str());
    const bool near = !accountant::nearest_name(word, {"group"}).empty();
    throw std::invalid_argument(file + ":" + std::to_string(line_of(node)) +
                                ": a file of groups holds [[group]] tables alone, got " +
                                (near ? "the key " + json(word).dump() : "another key"));
  }
  const toml::array* tables = content["group"].as_array();
  if (tables == nullptr || tables->empty() || !tables->is_homogeneous(toml::node_type::table)) {
    throw std::invalid_argument(file + ": a file of groups must hold one [[group]] table or more");
  }
  std::vector<OptimizerGroup> groups;
  for (const toml::node& table : *tables) {
    groups.push_back(group_from(*table.as_table(), groups.size() + 1, file, run));
    const ValueNames& now = groups.back().names;
    for (size_t before = 0; before + 1 < groups.size(); ++before) {
      if (groups[before].names.group != now.group) continue;
      throw std::invalid_argument(now.at("name") + " is taken by group number " + std::to_string(before + 1));
    }
  }
  return groups;
}

}  // namespace ghostshard::gpt2
