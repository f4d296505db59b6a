#include "dp/recording/operations.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace ghostshard::dp {
namespace {

uint64_t mixed(uint64_t seed, uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL + seed;  // splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

const std::unordered_set<std::string> kLaysOut{
    "aten::view",       "aten::reshape",   "aten::flatten",   "aten::unflatten",
    "aten::detach",     "aten::alias",     "aten::clone",     "aten::contiguous",
    "aten::to",         "aten::copy_",     "aten::unsqueeze", "aten::squeeze",
    "aten::expand",     "aten::expand_as", "aten::slice",     "aten::select",
    "aten::transpose",  "aten::permute",   "aten::t",         "aten::movedim",
    "aten::as_strided", "aten::empty",     "aten::view_as",   "aten::resolve_conj",
    "aten::resolve_neg"};
const std::unordered_set<std::string> kOfUnits{
    "aten::add",         "aten::add_",  "aten::sub",    "aten::mul",
    "aten::mul_",        "aten::div",   "aten::matmul", "aten::bmm",
    "aten::cat",         "aten::stack", "aten::where",  "aten::index",
    "aten::arange",      "aten::sum",   "aten::repeat", "aten::repeat_interleave",
    "aten::index_select"};

// Names of operations by their numbers.
class Names {
 public:
  void note(uint64_t number, std::string_view name) {
    const std::scoped_lock lock(mutex_);
    names_.try_emplace(number, name);
  }
  std::string name_of(uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto found = names_.find(number);
    return found == names_.end() ? "" : found->second /* a layer */;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::string> names_;
};

Names& known_names() {
  static Names known;
  return known;
}

class Building {
 public:
  void add(uint64_t operation) {
    operations_.push_back(operation);
    whole_ = mixed(whole_, operation);
    last_[added_++ % Trace::kWindow] = operation;
    if (added_ < Trace::kWindow) return;
    uint64_t window = 0;
    for (int i = 0; i < Trace::kWindow; ++i) window = mixed(window, last_[(added_ + i) % Trace::kWindow]);
    windows_.push_back(window);
  }

  Trace done() && {
    if (windows_.empty()) windows_.push_back(whole_);
    std::ranges::sort(windows_);
    windows_.erase(std::ranges::unique(windows_).begin(), windows_.end());
    return {.whole = whole_, .windows = std::move(windows_), .operations = std::move(operations_)};
  }

  int left_out = 0;     // calls of leave_out() that are open
  uint64_t number = 0;  // of the trace

 private:
  uint64_t whole_ = 0;
  size_t added_ = 0;
  std::array<uint64_t, Trace::kWindow> last_{};
  std::vector<uint64_t> windows_, operations_;
};

struct OfThread {
  std::vector<Building> open;
  int within = 0;  // operations under way of which no parts are noted
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

OfThread& of_thread() {
  thread_local OfThread found;
  return found;
}

bool travels(std::string_view name) {
  return name.starts_with("c10d") || name.starts_with("_c10d") || name.starts_with("fsdp::");
}

// A program's own operator, or function with a gradient of its own, may be written in Python, and go other ways itself.
bool is_whole(std::string_view name) { return name.starts_with("aten::") || travels(name); }

struct Known {
  uint64_t name = 0;
  std::vector<size_t> dimensions;  // the arguments that say along which it goes
};

// What is known of operations, by their names' addresses and how many arguments they have.
class Operations {
 public:
  const Known& of(const at::RecordFunction& operation, size_t arguments) {
    const auto [found, is_new] = known_.try_emplace({operation.name(), arguments});
    if (is_new) found->second = {std::hash<std::string_view>()(operation.name()), read(operation, arguments)};
    return found->second;
  }

 private:
  struct Hash {
    size_t operator()(const std::pair<const void*, size_t>& key) const {
      return mixed(std::hash<const void*>()(key.first), key.second);
    }
  };

  static std::vector<size_t> read(const at::RecordFunction& operation, size_t arguments) {
    static const std::unordered_set<std::string> kNames{"dim", "dims", "dim0", "dim1", "axis", "axes", "start_dim"};
    std::vector<size_t> found;
    const auto schema = operation.operator_schema();
    if (!schema.has_value()) return found;
    for (size_t i = 0; i < std::min(arguments, schema->arguments().size()); ++i)
      if (kNames.contains(schema->arguments()[i].name())) found.push_back(i);
    return found;
  }

  std::unordered_map<std::pair<const void*, size_t>, Known, Hash> known_;
};

// By its name, and the dimensions along which it goes.
uint64_t number_of(const at::RecordFunction& operation) {
  thread_local Operations operations;
  thread_local std::unordered_set<uint64_t> noted;
  const auto inputs = operation.inputs();
  const Known& known = operations.of(operation, inputs.size());
  uint64_t number = known.name;
  for (const size_t i : known.dimensions) {
    const at::IValue& along = inputs[i];
    if (along.isInt()) number = mixed(number, static_cast<uint64_t>(along.toInt()));
    if (!along.isIntList()) continue;
    for (const int64_t each : along.toIntList()) number = mixed(number, static_cast<uint64_t>(each));
  }
  if (noted.insert(number).second) known_names().note(number, operation.name());
  return number;
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& operation) {
  auto& thread = of_thread();
  const std::string_view name = operation.name();
  const bool noted = thread.within == 0 && !thread.open.empty() && thread.open.back().left_out == 0;
  if (is_whole(name)) ++thread.within;
  // What ranks send each other goes with what they hold of the weights already, not with what is computed.
  if (noted && !travels(name)) thread.open.back().add(number_of(operation));
  return nullptr;
}

void ends(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
  if (is_whole(operation.name())) --of_thread().within;
}

}  // namespace

std::string Trace::more_than(const Trace& other, bool of_units) const {
  std::unordered_map<uint64_t, int64_t> left;
  for (const uint64_t each : other.operations) ++left[each];
  for (const uint64_t each : operations) {
    if (of_units ? left.contains(each) : --left[each] >= 0) continue;
    const std::string name = known_names().name_of(each);
    if (!name.empty() && !kLaysOut.contains(name) && !(of_units && kOfUnits.contains(name))) return name;
  }
  return "";
}

uint64_t begin_trace() {
  static std::atomic<uint64_t> begun = 0;
  auto& thread = of_thread();
  if (thread.open.empty()) {
    thread.within = 0;
    thread.handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begins, &ends).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  return thread.open.emplace_back().number = ++begun;
}

std::optional<Trace> end_trace(uint64_t number) {
  auto& thread = of_thread();
  const auto found = std::ranges::find(thread.open, number, &Building::number);
  if (found == thread.open.end()) return std::nullopt;
  Trace trace = std::move(*found).done();
  thread.open.erase(found, thread.open.end());
  if (thread.open.empty()) at::removeCallback(thread.handle);
  return trace;
}

void leave_out(uint64_t stands_for) {
  auto& thread = of_thread();
  if (thread.open.empty()) return;
  if (thread.open.back().left_out++ == 0 && stands_for != 0) thread.open.back().add(stands_for);
}

void go_on() {
  auto& thread = of_thread();
  if (!thread.open.empty() && thread.open.back().left_out > 0) --thread.open.back().left_out;
}

bool KnownTraces::knows(const Trace& trace) const {
  if (beginnings_.contains(trace.whole)) return true;
  return wholes_ >= kMost && std::ranges::all_of(trace.windows, [&](uint64_t each) { return windows_.contains(each); });
}

void KnownTraces::add(const Trace& trace) {
  windows_.insert(trace.windows.begin(), trace.windows.end());
  if (wholes_ >= kMost || beginnings_.contains(trace.whole)) return;
  ++wholes_;
  uint64_t whole = 0;
  beginnings_.insert(trace.whole);  // of no operation at all, too
  for (const uint64_t each : trace.operations) beginnings_.insert(whole = mixed(whole, each));
}

}  // namespace ghostshard::dp
