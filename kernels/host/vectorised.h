// The inner loops that the compiler vectorises, built for several x86-64 levels; the loader chooses one.
//
// Sums are formed in float64 from float32 values (the product of two float32 is exact there), so they add only
// gamma_float64 of their length to an error bound.
#pragma once

#include <cstdint>

// One copy of the function for each level; the loader picks one. Sanitizers do not work with such functions' resolvers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(GHOSTSHARD_SANITIZED)
#define GHOSTSHARD_VECTORISED __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define GHOSTSHARD_VECTORISED
#endif

namespace ghostshard::kernels {

double sum_of_squares(const float* x, int64_t n);
double sum_of_squares(const double* x, int64_t n);

// The largest |x[j]|; 0 for none. A NaN counts more than any number.
float largest_magnitude(const float* x, int64_t n);

// out[j] += x[j], and out[j] += x[j]·y[j].
void add_to(double* out, const float* x, int64_t n);
void add_to(double* out, const double* x, int64_t n);
void add_product_to(double* out, const float* x, const float* y, int64_t n);
void add_product_to(double* out, const double* x, const double* y, int64_t n);

// out[j] += c·x[j] in the dtype of out.
void add_scaled_to(float* out, float c, const float* x, int64_t n);
void add_scaled_to(double* out, double c, const double* x, int64_t n);
// The same for four rows at once, added in their order: out is read and written a quarter as often.
void add_four_scaled_to(float* out, const float c[4], const float* const x[4], int64_t n);
void add_four_scaled_to(double* out, const double c[4], const double* const x[4], int64_t n);

// The sums that one row of a pair of Gram tiles x, y adds: the sum of products, and the two sums that bound its error.
struct RowProductSums {
  double product = 0;     // sum of x[t]·y[t]
  double x_weighted = 0;  // sum of |x[t]|·x_weight[t], not too small by more than float32 underflow
  double y_weighted = 0;  // sum of |y[t]|·y_weight[t], likewise
};
// n at most 16384: the weighted sums are float32 and enlarged by a factor that covers that many roundings.
void add_row_products(const float* x, const float* y, const float* x_weight, const float* y_weight, int64_t n,
                      double factor, RowProductSums& sums);
void add_row_products(const double* x, const double* y, const double* x_weight, const double* y_weight, int64_t n,
                      double factor, RowProductSums& sums);

}  // namespace ghostshard::kernels
