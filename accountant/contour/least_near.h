// A search for a shift of the line (contour_moments.h): every shift gives a bound, so that nothing of it is part of a
// proof.
#pragma once

#include <cstddef>

namespace ghostshard::accountant {

struct Least {
  size_t place;
  double value;
};

// The least of value(0), …, value(count - 1) if these fall, then rise; otherwise one of the lesser. From `start` by
// strides that double as long as they lead down, and are halved from there on.
template <class Value>
Least least_near(size_t start, size_t count, const Value& value) {
  Least best{start, value(start)};
  const auto step = [&](bool up, size_t stride) {
    const size_t most = up ? count - 1 - best.place : best.place;
    if (stride > most) return false;
    const size_t next = up ? best.place + stride : best.place - stride;
    const double there = value(next);
    if (!(there < best.value)) return false;
    best = {next, there};
    return true;
  };
  const bool up = step(true, 1);
  if (!up && !step(false, 1)) return best;
  size_t stride = 2;
  while (step(up, stride)) stride *= 2;
  while ((stride /= 2) > 0)
    if (!step(up, stride)) step(!up, stride);
  return best;
}

}  // namespace ghostshard::accountant
