#include "dp/run/agreement.h"

#include <cstring>
#include <map>
#include <set>
#include <stdexcept>

#include "fsdp/agree.h"

namespace ghostshard::dp {
namespace {

using Values = std::map<std::string, std::string>;

Values values_of(const std::vector<Part>& parts) {
  Values values;
  for (const Part& part : parts) {
    if (!values.emplace(part.name, part.value).second) {
      throw std::invalid_argument("a part must be named once, got \"" + part.name + "\" twice");
    }
  }
  return values;
}

// The texts of all ranks, on every rank. A collective.
std::vector<std::string> gather_texts(fsdp::Mesh& mesh, const std::string& text) {
  const at::Tensor longest = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  mesh.control().all_reduce_max(longest);
  const int64_t words = 1 + (longest.item<int64_t>() + 7) / 8;
  const at::Tensor mine = at::zeros({words}, at::kLong);
  auto* own = mine.data_ptr<int64_t>();
  own[0] = static_cast<int64_t>(text.size());
  std::memcpy(own + 1, text.data(), text.size());
  const at::Tensor all = at::empty({mesh.world_size() * words}, at::kLong);
  mesh.control().all_gather(all, mine)->wait();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t* of_rank = all.const_data_ptr<int64_t>() + rank * words;
    texts.emplace_back(reinterpret_cast<const char*>(of_rank + 1), static_cast<size_t>(of_rank[0]));
  }
  return texts;
}

std::set<std::string> names_that_differ(const Values& one, const Values& other) {
  std::set<std::string> names;
  for (const auto& [name, value] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second != value) names.insert(name);
  }
  for (const auto& [name, value] : other) {
    if (!one.contains(name)) names.insert(name);
  }
  return names;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

bool is_digest(const std::string& value) { return value.starts_with("sha256:"); }

[[noreturn]] void refuse_change(const std::string& name, const std::string& begun, const std::string& now) {
  const auto shown = [](const std::string& value) { return value.empty() ? "not given" : value; };
  std::string sentence = name + " must be what the run began with";
  if (!is_digest(begun) && !is_digest(now)) sentence += " (" + shown(begun) + "), is " + shown(now);
  throw std::invalid_argument(sentence);
}

}  // namespace

void agree_on(fsdp::Mesh& mesh, const std::vector<Part>& parts) {
  const Values mine = values_of(parts);
  if (mesh.world_size() == 1) return;
  const std::vector<std::string> texts = gather_texts(mesh, nlohmann::json(mine).dump());
  std::map<std::string, std::vector<int64_t>> differing;
  const auto first = nlohmann::json::parse(texts.front()).get<Values>();
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = nlohmann::json::parse(texts[rank]).get<Values>();
    for (const std::string& name : names_that_differ(first, other)) {
      differing[name].push_back(static_cast<int64_t>(rank));
    }
  }
  if (differing.empty()) return;
  std::string sentence = "all ranks must be alike; other than on rank 0: ";
  bool begun = false;
  for (const auto& [name, ranks] : differing) {
    sentence += (begun ? "; " : "") + name + " on " + ranks_text(ranks);
    begun = true;
  }
  throw fsdp::AgreedFailure(sentence, /*callers_mistake=*/true);
}

nlohmann::json binding_header(const std::vector<Part>& parts, const RunKey& key) {
  nlohmann::json header = {{"run", nlohmann::json::object()}, {"run_in_secret", nlohmann::json::object()}};
  for (const Part& part : parts) {
    if (part.binds == Part::Binds::kRun) header["run"][part.name] = part.value;
    if (part.binds == Part::Binds::kRunInSecret && key.comes_again()) {
      header["run_in_secret"][part.name] = key.tag_of(part.value);
    }
  }
  return header;
}

void check_binding(const nlohmann::json& header, const std::vector<Part>& parts, const RunKey* key) {
  const auto binding = header.find("binding");
  if (binding == header.end() || !binding->contains("run") || !binding->contains("run_in_secret")) {
    throw std::invalid_argument(
        "the ledger's header must say what binds the run: an older version began it, so that it cannot be proven to be "
        "the same");
  }
  const auto begun = binding->at("run").get<Values>();
  const auto secret = binding->at("run_in_secret").get<Values>();
  Values now, tags;
  for (const Part& part : parts) {
    if (part.binds == Part::Binds::kRun) now[part.name] = part.value;
    if (part.binds == Part::Binds::kRunInSecret && key != nullptr && !secret.empty()) {
      tags[part.name] = key->tag_of(part.value);
    }
  }
  const auto value_in = [](const Values& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  };
  for (const std::string& name : names_that_differ(begun, now)) {
    if (value_in(begun, name) != value_in(now, name)) refuse_change(name, value_in(begun, name), value_in(now, name));
  }
  if (key == nullptr || secret.empty()) return;
  for (const std::string& name : names_that_differ(secret, tags)) {
    throw std::invalid_argument(name + " must be what the run began with");
  }
}

}  // namespace ghostshard::dp
