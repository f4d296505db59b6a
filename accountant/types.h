// Privacy numbers as checked types: NaN cannot enter, and one cannot be passed where another is meant.
#pragma once

#include <compare>
#include <stdexcept>
#include <string>

namespace ghostshard::accountant {

namespace detail {
[[noreturn]] void throw_out_of_range(const char* name, const char* rule, double value);
}

// Each type is constructed explicitly from a double, and value() reads it. The constructor throws std::invalid_argument
// ("epsilon must be finite and >= 0, got nan") unless the type's rule below holds. Conditions name the allowed values,
// so NaN fails them.
#define GHOSTSHARD_CHECKED_TYPE(Type, name, condition, rule)       \
  class Type {                                                     \
   public:                                                         \
    explicit Type(double v) : value_(v) {                          \
      if (!(condition)) detail::throw_out_of_range(name, rule, v); \
    }                                                              \
    double value() const { return value_; }                        \
    friend auto operator<=>(const Type&, const Type&) = default;   \
                                                                   \
   private:                                                        \
    double value_;                                                 \
  }

inline constexpr double kLargest = 1.7976931348623157e308;
GHOSTSHARD_CHECKED_TYPE(Epsilon, "epsilon", v >= 0 && v <= kLargest, "must be finite and >= 0");
GHOSTSHARD_CHECKED_TYPE(Delta, "delta", v > 0 && v < 1, "must lie strictly between 0 and 1");
GHOSTSHARD_CHECKED_TYPE(NoiseMultiplier, "noise multiplier", v > 0 && v <= kLargest, "must be finite and > 0");
GHOSTSHARD_CHECKED_TYPE(SamplingRate, "sampling rate", v > 0 && v <= 1, "must be > 0 and <= 1");
// Sums and their noise are float32 numbers, also times a noise multiplier and a number of texts.
GHOSTSHARD_CHECKED_TYPE(ClipNorm, "clip norm", v >= 1e-30 && v <= 1e30, "must lie between 1e-30 and 1e30");
GHOSTSHARD_CHECKED_TYPE(NoiseParameter, "noise parameter", v > 0 && v <= kLargest, "must be finite and > 0");
GHOSTSHARD_CHECKED_TYPE(Probability, "probability", v >= 0 && v <= 1, "must lie between 0 and 1");
GHOSTSHARD_CHECKED_TYPE(RepeatShape, "shape", v > -1 && v <= 1e6, "must be > -1 and <= 1e6");
GHOSTSHARD_CHECKED_TYPE(RepeatGamma, "gamma", v > 0 && v < 1, "must lie strictly between 0 and 1");
GHOSTSHARD_CHECKED_TYPE(RepeatMean, "mean", v > 0 && v <= 1e9, "must be > 0 and <= 1e9");
GHOSTSHARD_CHECKED_TYPE(Rho, "rho or xi", v >= 0 && v <= kLargest, "must be finite and >= 0");
#undef GHOSTSHARD_CHECKED_TYPE

}  // namespace ghostshard::accountant
