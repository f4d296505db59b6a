// Which operations a forward runs: the sign that a path through a model opened, whatever opened it.
//
// A check of a model holds for what it computed then. What sends a forward another way later (a flag beside the model,
// an element of a set, an environment variable, a function of C's) need not be anywhere where a program can look. But a
// forward that computes something else runs other operations, or as many in another order. So the names of those that
// its thread dispatches are hashed, without the parts that ATen makes its own of, and a forward with a new trace is
// checked anew. The dimensions along which they go are hashed, too: a softmax over the batch is another than one over
// classes.
//
// Not seen: what changes by values alone (rows that are taken by number, a factor), since the operations are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace ghostshard::dp {

// Of the operations from begin_trace() to end_trace() on one thread. Equal ones are of the same names in the same
// order.
struct Trace {
  uint64_t whole = 0;             // of all names in their order
  std::vector<uint64_t> windows;  // of each kWindow names in a row; ascending, each once
  std::vector<uint64_t>
      operations;  // each by its name and dimensions, and what stands for those that were left out, in their order

  static constexpr int kWindow = 4;
  bool operator==(const Trace& other) const { return whole == other.whole; }
  // The name of an operation that ran more often than in the other trace; "": of none. Not those that only lay tensors
  // out (views, copies), of which rules make their own. of_units: tensors that all units share were
  // computed for each of them, by more operations of any kind, so that only one tells which the other trace has not at
  // all, nor is theirs.
  std::string more_than(const Trace& other, bool of_units) const;
};

// Gives the trace's number, which no other has. begin_trace() within a trace begins an inner one, of which the outer
// one sees nothing. Some 0.1 µs for an operation.
uint64_t begin_trace();
// Ends those within it, too, that an interrupt left open. Nothing if it is not open on this thread.
std::optional<Trace> end_trace(uint64_t number);

// Until go_on() the operations of this thread's innermost trace are left out, and this number stands for them: a
// layer's rule computes the same by other operations than the layer. 0: nothing does. Calls nest, and the outermost
// one's number counts. Without a trace both do nothing.
void leave_out(uint64_t stands_for);
void go_on();

// Traces of forwards that were checked. A model whose operations go with its data (experts, layers that are left out by
// coins, a loop over places) has many: beyond kMost of them a trace is known if all of its windows are. One that
// another begins with is known as well (a forward without labels, which forms no loss in the end).
class KnownTraces {
 public:
  static constexpr size_t kMost = 8;

  bool knows(const Trace& trace) const;
  void add(const Trace& trace);

 private:
  size_t wholes_ = 0;
  std::unordered_set<uint64_t> beginnings_, windows_;
};

}  // namespace ghostshard::dp
