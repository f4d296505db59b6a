// The ranks' files of a checkpoint: from a model's and an optimizer's slices, and back.
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>

#include "fsdp/agree.h"
#include "fsdp/checkpoint.h"
#include "fsdp/checkpoint/files.h"
#include "fsdp/durable_file.h"
#include "fsdp/regular_file.h"
#include "fsdp/safetensors.h"

namespace ghostshard::fsdp {
namespace {

constexpr const char* kWeight = "weight";

// Which pieces: all that a rank holds, or those that it writes. Replicas hold the same elements, and so do model ranks
// if the parameter is not cut; the first of them writes.
enum class Whose { kHeld, kWritten };

using Visit = std::function<void(const std::string& kind, const FlatGroup& group, const OwnedRange& range)>;

// In the order in which a file has them. Only this function and cut() know how a layout cuts parameters.
void for_each_range(const ShardedModel& model, const OptimizerState& optimizer, Whose whose, const Visit& visit) {
  const Mesh& mesh = model.mesh();
  const auto kinds = optimizer.kinds();
  for (const auto& group : model.groups()) {
    const auto visit_all = [&](const std::string& kind) {
      for (const OwnedRange& range : group->owned()) {
        const Parameter& parameter = *group->parameters()[static_cast<size_t>(range.tensor)];
        const bool first_holder = mesh.replica() == 0 && (parameter.cut() || mesh.model_rank() == 0);
        if (whose == Whose::kWritten && !first_holder) continue;
        if (kind == kWeight || optimizer.keeps(kind, parameter)) visit(kind, *group, range);
      }
    };
    visit_all(kWeight);
    for (const std::string& kind : kinds) visit_all(kind);
  }
}

// values: of the range; kind: kWeight or the state's.
std::vector<StatePiece> cut(const std::string& kind, const FlatGroup& group, const OwnedRange& range,
                            const at::Tensor& values) {
  const Parameter& parameter = *group.parameters()[static_cast<size_t>(range.tensor)];
  std::vector<StatePiece> pieces;
  for (const ElementRun& run : parameter.whole_runs(range.first, range.count)) {
    pieces.push_back({kind, &parameter, run.whole_first, values.narrow(0, run.first - range.first, run.count)});
  }
  return pieces;
}

// In the model's own dtype; a checkpoint has float32.
at::Tensor weights_of(const FlatGroup& group, const OwnedRange& range) {
  return group.shard().narrow(0, range.shard_offset, range.count);
}

// ---------------------------------------------------------------------------------------------------------------
// Writing

nlohmann::json shapes_of(const ShardedModel& model) {
  nlohmann::json shapes = nlohmann::json::object();
  for (const auto& parameter : model.parameters()) {
    shapes[parameter->name()] = {{"shape", parameter->whole_shape()}, {"trainable", parameter->trainable()}};
  }
  return shapes;
}

std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix) { return path += suffix; }

std::vector<NamedTensor> written_tensors(const ShardedModel& model, OptimizerState& optimizer) {
  std::vector<NamedTensor> tensors;
  const auto write = [&](const StatePiece& piece) {
    tensors.push_back(
        {piece.kind + '/' + piece.parameter->name() + '@' + std::to_string(piece.first), piece.values.cpu()});
  };
  for_each_range(model, optimizer, Whose::kWritten,
                 [&](const std::string& kind, const FlatGroup& group, const OwnedRange& range) {
                   const at::Tensor values =
                       kind == kWeight ? weights_of(group, range).to(at::kFloat) : optimizer.read(kind, group, range);
                   for (const StatePiece& piece : cut(kind, group, range, values)) write(piece);
                 });
  if (model.mesh().replica() == 0 && model.mesh().model_rank() == 0) {
    for (const StatePiece& piece : optimizer.pieces()) write(piece);
  }
  return tensors;
}

// Every rank's file size and hash, in rank order. A collective.
std::vector<Checkpoint::File> exchange_files(Mesh& mesh, const Checkpoint::File& own) {
  constexpr int64_t kNumbers = 1 + 64 / 8;
  const at::Tensor mine = at::zeros({kNumbers}, at::kLong);
  mine.data_ptr<int64_t>()[0] = own.bytes;
  std::memcpy(mine.data_ptr<int64_t>() + 1, own.sha256.data(), std::min<size_t>(own.sha256.size(), 64));
  const at::Tensor all = at::empty({mesh.world_size() * kNumbers}, at::kLong);
  mesh.control().all_gather(all, mine)->wait();
  std::vector<Checkpoint::File> files;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t* words = all.const_data_ptr<int64_t>() + rank * kNumbers;
    files.push_back({.name = rank_file_name(rank, mesh.world_size()),
                     .bytes = words[0],
                     .sha256 = std::string(reinterpret_cast<const char*>(words + 1), 64)});
  }
  return files;
}

// The manifest's list of files. Throws std::runtime_error unless this rank sees every file as it was written.
nlohmann::json listed(const std::vector<Checkpoint::File>& files, const std::filesystem::path& folder) {
  nlohmann::json list = nlohmann::json::array();
  for (const Checkpoint::File& file : files) {
    std::error_code unseen;
    const auto bytes = std::filesystem::file_size(folder / file.name, unseen);
    if (unseen || static_cast<int64_t>(bytes) != file.bytes) {
      throw std::runtime_error("rank 0 does not see " + (folder / file.name).string() +
                               " as it was written: checkpoints need a folder that all ranks share");
    }
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return list;
}

// Puts a folder in the place of another, if there is one. If the process dies between the renames, both are left under
// names that nobody takes for a checkpoint.
void replace_folder(const std::filesystem::path& partial, const std::filesystem::path& final_path) {
  const std::filesystem::path replaced = with_suffix(final_path, ".partial-replaced");
  std::filesystem::remove_all(replaced);
  if (std::filesystem::exists(final_path)) rename_durably(final_path, replaced);
  rename_durably(partial, final_path);
  std::filesystem::remove_all(replaced);
}

// This rank's file of the checkpoint.
Checkpoint::File write_own_file(ShardedModel& model, OptimizerState& optimizer, const std::filesystem::path& folder) {
  const Mesh& mesh = model.mesh();
  const std::string name = rank_file_name(mesh.rank(), mesh.world_size());
  write_safetensors(folder / name, written_tensors(model, optimizer), {{"format", "pt"}});
  return {.name = name,
          .bytes = static_cast<int64_t>(std::filesystem::file_size(folder / name)),
          .sha256 = sha256_of_file(folder / name)};
}

}  // namespace

void write_checkpoint(ShardedModel& model, OptimizerState& optimizer, const std::filesystem::path& folder, int64_t step,
                      const nlohmann::json& about) {
  if (!(step >= 0)) throw std::invalid_argument("a checkpoint's step must be >= 0, got " + std::to_string(step));
  Mesh& mesh = model.mesh();
  const bool first_rank = mesh.rank() == 0;
  const std::filesystem::path final_path = checkpoint_path(folder, step);
  const std::filesystem::path partial = with_suffix(final_path, ".partial");
  try {
    agree(mesh, [&] {
      if (!first_rank) return;
      std::filesystem::remove_all(partial);
      std::filesystem::create_directories(partial);
    });
    Checkpoint::File own;
    agree(mesh, [&] { own = write_own_file(model, optimizer, partial); });
    const auto files = exchange_files(mesh, own);
    agree(mesh, [&] {
      if (!first_rank) return;
      const nlohmann::json manifest = {
          {"schema", kCheckpointSchema},
          {"step", step},
          {"world_size", mesh.world_size()},
          {"optimizer", {{"rule", optimizer.rule()}, {"steps", optimizer.steps()}}},
          {"parameters", shapes_of(model)},
          {"files", listed(files, partial)},
          {"about", about},
      };
      write_durably(partial / kManifestName, manifest.dump(2) + '\n');
      replace_folder(partial, final_path);
    });
  } catch (const AgreedFailure&) {
    std::error_code ignored;
    if (first_rank) std::filesystem::remove_all(partial, ignored);
    throw;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Loading

namespace {

// The parts of one whole tensor, from all files.
struct Part {
  int64_t first;
  at::Tensor values;
};
using Parts = std::map<std::string, std::vector<Part>>;  // by "KIND/PARAMETER"

std::string key_of(const std::string& kind, const Parameter& parameter) { return kind + '/' + parameter.name(); }

Parts open_parts(const Checkpoint& checkpoint) {
  Parts parts;
  for (const Checkpoint::File& listed : checkpoint.files) {
    const SafetensorsFile file(checkpoint.path / listed.name);
    for (const std::string& name : file.names()) {
      const size_t at = name.rfind('@');
      int64_t first = -1;
      if (at != std::string::npos) std::from_chars(name.data() + at + 1, name.data() + name.size(), first);
      at::Tensor values = file.tensor(name);
      if (!(first >= 0 && values.dim() == 1 && values.scalar_type() == at::kFloat)) {
        throw std::invalid_argument((checkpoint.path / listed.name).string() + ": tensor '" + name +
                                    "' must be flat float32 elements named KIND/PARAMETER@FIRST");
      }
      parts[name.substr(0, at)].push_back({first, std::move(values)});
    }
  }
  return parts;
}

// Of weights and of states, by the element or not.
std::vector<StateRow> all_rows(const ShardedModel& model, const OptimizerState& optimizer) {
  std::vector<StateRow> rows = optimizer.rows();
  std::vector<std::string> kinds = optimizer.kinds();
  kinds.emplace_back(kWeight);
  for (const auto& parameter : model.parameters()) {
    for (const std::string& kind : kinds) {
      if (kind != kWeight && !optimizer.keeps(kind, *parameter)) continue;
      rows.push_back({kind, parameter.get(), parameter->whole_numel()});
    }
  }
  return rows;
}

// Every element of every tensor exactly once, and nothing else.
void check_complete(Parts& parts, const Checkpoint& checkpoint, const ShardedModel& model, OptimizerState& optimizer) {
  const auto reject = [&](const std::string& rule) {
    throw std::invalid_argument("checkpoint " + checkpoint.path.string() + ": " + rule);
  };
  if (checkpoint.optimizer != optimizer.rule()) {
    reject("the optimizer must be the one it was taken with, " + checkpoint.optimizer + ", is " + optimizer.rule());
  }
  const nlohmann::json manifest =
      nlohmann::json::parse(read_text(checkpoint.path / kManifestName, kMostBytesOfManifest), nullptr, false);
  if (!manifest.is_object() || manifest.value("parameters", nlohmann::json()) != shapes_of(model)) {
    reject("the model must have the parameters, shapes and frozen parts it was taken with");
  }
  const std::vector<StateRow> rows = all_rows(model, optimizer);
  for (const StateRow& row : rows) {
    auto& found = parts[key_of(row.kind, *row.parameter)];
    std::sort(found.begin(), found.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
    int64_t next = 0;
    for (const Part& part : found) {
      if (part.first != next) break;
      next += part.values.numel();
    }
    int64_t total = 0;
    for (const Part& part : found) total += part.values.numel();
    if (next != row.numbers || total != row.numbers) {
      reject("every element of " + key_of(row.kind, *row.parameter) + " must be there exactly once");
    }
  }
  if (parts.size() != rows.size()) reject("its optimizer's options must be those of this run: it holds other tensors");
}

// parts: in rising order.
void copy_overlaps(const StatePiece& piece, const std::vector<Part>& parts) {
  const int64_t end = piece.first + piece.values.numel();
  auto from_part = std::upper_bound(parts.begin(), parts.end(), piece.first,
                                    [](int64_t first, const Part& part) { return first < part.first; });
  if (from_part != parts.begin()) --from_part;
  for (; from_part != parts.end() && from_part->first < end; ++from_part) {
    const Part& part = *from_part;
    const int64_t from = std::max(piece.first, part.first);
    const int64_t to = std::min(end, part.first + part.values.numel());
    if (from >= to) continue;
    piece.values.narrow(0, from - piece.first, to - from).copy_(part.values.narrow(0, from - part.first, to - from));
  }
}

}  // namespace

void load_checkpoint(ShardedModel& model, OptimizerState& optimizer, const Checkpoint& checkpoint) {
  Mesh& mesh = model.mesh();
  model.wait_for_gathers();
  agree(mesh, [&] {
    for (size_t i = static_cast<size_t>(mesh.rank()); i < checkpoint.files.size();
         i += static_cast<size_t>(mesh.world_size())) {
      const Checkpoint::File& file = checkpoint.files[i];
      const std::filesystem::path path = checkpoint.path / file.name;
      if (!std::filesystem::is_regular_file(path)) {
        throw std::invalid_argument(path.string() + ": the checkpoint's file must be there, and seen by all ranks");
      }
      if (const std::string hash = sha256_of_file(path); hash != file.sha256) {
        throw std::invalid_argument(path.string() + " is damaged: its SHA-256 must be " + file.sha256 + ", is " + hash);
      }
    }
  });
  agree(mesh, [&] {
    const at::NoGradGuard no_grad;
    Parts parts = open_parts(checkpoint);
    check_complete(parts, checkpoint, model, optimizer);
    for_each_range(
        model, optimizer, Whose::kHeld, [&](const std::string& kind, const FlatGroup& group, const OwnedRange& range) {
          const bool weight = kind == kWeight;
          const at::Tensor values = weight ? weights_of(group, range) : at::empty({range.count}, at::dtype(at::kFloat));
          for (const StatePiece& piece : cut(kind, group, range, values)) {
            copy_overlaps(piece, parts.at(key_of(kind, *piece.parameter)));
          }
          if (!weight) optimizer.write(kind, group, range, values);
        });
    for (const StatePiece& piece : optimizer.pieces()) {
      copy_overlaps(piece, parts.at(key_of(piece.kind, *piece.parameter)));
    }
    optimizer.set_steps(checkpoint.optimizer_steps);
  });
  model.weights_changed();
}

}  // namespace ghostshard::fsdp
