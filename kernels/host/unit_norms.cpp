#include "kernels/host/unit_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/host/checks.h"
#include "kernels/host/row_products.h"
#include "kernels/host/vectorised.h"
#include "kernels/norm_parts.h"

namespace ghostshard::kernels {
namespace {

// A tile of a Gram matrix stays in the second-level cache together with its partner.
constexpr int64_t kTileRows = kOneTileRows;
constexpr int64_t kTileColumns = 512;

// Columns copied to float64 at a time; only bounds the copies.
constexpr int64_t kFloat64Columns = 4096;

template <typename Scalar>
constexpr at::ScalarType kTypeOf = std::is_same_v<Scalar, float> ? at::kFloat : at::kDouble;

// Half-open range of rows or columns.
struct Range {
  int64_t begin;
  int64_t end;
  int64_t length() const { return end - begin; }
};

// Inner products of rows, tile by tile, in Scalar arithmetic; the rows may be narrower. Those of x and y are equally
// far apart.
template <typename Scalar>
class InnerProducts {
 public:
  InnerProducts(const at::Tensor& x, const at::Tensor& y, int64_t tile_elements)
      : x_(x),
        y_(y),
        stride_(row_stride(x)),
        columns_(x.size(1)),
        terms_(row_product_terms(columns_)),
        tile_(at::empty({tile_elements}, kTypeOf<Scalar>)) {}
  explicit InnerProducts(const KnownGram& known)
      : columns_(known.columns), terms_(known.terms), known_(known.products) {}

  // Of rows with themselves, of which float32 products may be known.
  static InnerProducts of(const UnitRows& rows, int64_t tile_elements) {
    if constexpr (std::is_same_v<Scalar, float>) {
      if (rows.gram.products != nullptr) return InnerProducts(rows.gram);
    }
    return InnerProducts(rows.x, rows.x, tile_elements);
  }

  // x_rows · y_rowsᵀ, row-major; valid until the next call. Entries (s,t) with t > s + diagonal are left undefined.
  const Scalar* tile(Range x_rows, Range y_rows, int64_t diagonal) {
    if constexpr (std::is_same_v<Scalar, float>) {
      if (known_ != nullptr) return known_;  // one tile is all there is
    }
    const int64_t columns = columns_;
    if constexpr (std::is_same_v<Scalar, float>) {
      row_products(x_.const_data_ptr<float>() + x_rows.begin * stride_, x_rows.length(),
                   y_.const_data_ptr<float>() + y_rows.begin * stride_, y_rows.length(), columns, stride_, diagonal,
                   tile_.mutable_data_ptr<float>(), y_rows.length());
    } else {
      at::Tensor product =
          tile_.narrow(0, 0, x_rows.length() * y_rows.length()).view({x_rows.length(), y_rows.length()});
      if (columns == 0) product.zero_();
      for (int64_t begin = 0; begin < columns; begin += kFloat64Columns) {
        const Range some{begin, std::min(begin + kFloat64Columns, columns)};
        const at::Tensor left = block(x_, x_rows, some), right = block(y_, y_rows, some).t();
        begin == 0 ? at::mm_out(product, left, right) : at::addmm_out(product, product, left, right);
      }
    }
    return tile_.template const_data_ptr<Scalar>();
  }

  // |computed − exact| ≤ relative_error()·|x_s|·|y_t| + underflow().
  double relative_error() const {
    return std::is_same_v<Scalar, float> ? gamma_float32(terms_) : gamma_float64(columns_ + 1);
  }
  // A product or sum below the smallest normal number may be flushed to zero.
  double underflow() const {
    return 2.0 * static_cast<double>(columns_) * static_cast<double>(std::numeric_limits<Scalar>::min());
  }

 private:
  static at::Tensor block(const at::Tensor& x, Range rows, Range columns) {
    return x.slice(0, rows.begin, rows.end).slice(1, columns.begin, columns.end).to(kTypeOf<Scalar>);
  }

  at::Tensor x_;
  at::Tensor y_;
  int64_t stride_ = 0;
  int64_t columns_;
  int64_t terms_;  // of float32
  at::Tensor tile_;
  const float* known_ = nullptr;
};

constexpr int64_t kWholeTile = int64_t{1} << 40;  // a diagonal beyond every tile

template <typename Scalar>
std::vector<Scalar> rounded_up(std::span<const double> norms) {
  std::vector<Scalar> out(norms.size());
  for (size_t t = 0; t < norms.size(); ++t) {
    out[t] = static_cast<Scalar>(norms[t]);
    if (out[t] < norms[t]) {
      out[t] = std::nextafter(out[t], std::numeric_limits<Scalar>::infinity());
    }
  }
  return out;
}

double sum_of(std::span<const double> norms) {
  double sum = 0;
  for (const double norm : norms) {
    sum += norm;
  }
  return sum * (1 + gamma_float64(static_cast<int64_t>(norms.size()) + 2));
}

double sum_of_products(std::span<const double> x, std::span<const double> y) {
  double sum = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    sum += x[t] * y[t];
  }
  return sum * (1 + gamma_float64(static_cast<int64_t>(x.size()) + 2));
}

double square(double x) { return x * x; }

template <typename Scalar>
BoundedSum gram_product_sum_in(const UnitRows& a, const UnitRows& g) {
  const auto rows = static_cast<int64_t>(a.norms.size());
  const int64_t tile_elements = std::min(rows, kTileRows) * std::min(rows, kTileColumns);
  auto a_products = InnerProducts<Scalar>::of(a, tile_elements);
  auto g_products = InnerProducts<Scalar>::of(g, tile_elements);
  const std::vector<Scalar> a_norms = rounded_up<Scalar>(a.norms);
  const std::vector<Scalar> g_norms = rounded_up<Scalar>(g.norms);

  const double a_error = a_products.relative_error(), g_error = g_products.relative_error();
  RowProductSums total;
  for (int64_t top = 0; top < rows; top += kTileRows) {
    // Relative to the norm, the error grows about as the number of rows. If the first rows show that float32 will not
    // be certain enough, the rest is not computed; a wrong guess only costs time.
    const double growth = static_cast<double>(rows) / static_cast<double>(kTileRows);
    if (std::is_same_v<Scalar, float> && top == kTileRows &&
        (g_error * total.x_weighted + a_error * total.y_weighted) * growth > 2 * kCertainRatio * total.product) {
      return {.value = total.product, .error = std::numeric_limits<double>::infinity()};
    }
    const Range tile_rows{top, std::min(top + kTileRows, rows)};
    // Both Grams are symmetric: entries left of the diagonal count twice, entries right of it not at all.
    for (int64_t left = 0; left < tile_rows.end; left += kTileColumns) {
      const Range columns{left, std::min(left + kTileColumns, tile_rows.end)};
      const int64_t diagonal = top - left;
      const Scalar* a_tile = a_products.tile(tile_rows, columns, diagonal);
      const Scalar* g_tile = g_products.tile(tile_rows, columns, diagonal);
      const int64_t width = columns.length();
      for (int64_t s = 0; s < tile_rows.length(); ++s) {
        RowProductSums row;
        const Scalar* a_row = a_tile + s * width;
        const Scalar* g_row = g_tile + s * width;
        const int64_t twice = std::clamp<int64_t>(s + diagonal, 0, width);
        const int64_t once = std::clamp<int64_t>(width - twice, 0, 1);  // the diagonal's own entry
        // An entry of a's Gram errs in proportion to a's norms and is multiplied by g's entry; and the other way round.
        add_row_products(a_row, g_row, g_norms.data() + left, a_norms.data() + left, twice, 2.0, row);
        add_row_products(a_row + twice, g_row + twice, g_norms.data() + left + twice, a_norms.data() + left + twice,
                         once, 1.0, row);
        total.product += row.product;
        total.x_weighted += row.x_weighted * g.norms[static_cast<size_t>(top + s)];
        total.y_weighted += row.y_weighted * a.norms[static_cast<size_t>(top + s)];
      }
    }
  }

  // With A, G the exact Grams, A~, G~ the computed ones and dA, dG their errors, A~G~ − AG = A~dG + G~dA − dA dG.
  const double mass = sum_of_products(a.norms, g.norms);
  const double tiny = std::numeric_limits<Scalar>::min();
  const double count = static_cast<double>(rows);
  const double a_sum = sum_of(a.norms), g_sum = sum_of(g.norms);
  const double underflow = 2 * (a_products.underflow() * square(g_sum) + g_products.underflow() * square(a_sum) +
                                tiny * count * (a_sum + g_sum));
  // The sums of absolute products are at most (1 + error)·mass² each, and their own roundings gamma_float64.
  const double sums = gamma_float64(rows * rows + 8) * (1 + a_error) * (1 + g_error) * square(mass);
  return {.value = total.product,
          .error = (g_error * total.x_weighted + a_error * total.y_weighted + a_error * g_error * square(mass) + sums) *
                       (1 + gamma_float64(2 * rows + 16)) +
                   underflow};
}

template <typename Scalar, typename Value>
BoundedSum gathered_product_sum_in(const at::Tensor& ids, const UnitRows& e, const UnitRows& h, const at::Tensor& b) {
  const int64_t e_rows = e.x.size(0), h_rows = h.x.size(0);
  const int64_t tile_elements = std::min(e_rows, kTileRows) * std::min(h_rows, kTileColumns);
  InnerProducts<Scalar> products(e.x, h.x, tile_elements);
  const std::vector<Scalar> h_norms = rounded_up<Scalar>(h.norms);
  std::vector<Scalar> gathered(static_cast<size_t>(tile_elements));
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const Value* logits = b.const_data_ptr<Value>();
  const int64_t stride = row_stride(b);

  double value = 0, weighted = 0;
  Scalar largest = 0;  // of |m_st|
  for (int64_t top = 0; top < e_rows; top += kTileRows) {
    const Range tile_rows{top, std::min(top + kTileRows, e_rows)};
    for (int64_t left = 0; left < h_rows; left += kTileColumns) {
      const Range columns{left, std::min(left + kTileColumns, h_rows)};
      const int64_t width = columns.length();
      // Row by row of b, because its rows are far apart in memory.
      for (int64_t t = 0; t < width; ++t) {
        const Value* row = logits + (left + t) * stride;
        for (int64_t s = 0; s < tile_rows.length(); ++s) {
          const auto m = static_cast<Scalar>(row[id[top + s]]);
          gathered[static_cast<size_t>(s * width + t)] = m;
          largest = std::max(largest, std::abs(m));
        }
      }
      const Scalar* tile = products.tile(tile_rows, columns, kWholeTile);
      for (int64_t s = 0; s < tile_rows.length(); ++s) {
        RowProductSums row;
        add_row_products(gathered.data() + s * width, tile + s * width, h_norms.data() + left, h_norms.data() + left,
                         width, 1.0, row);
        value += row.product;
        weighted += row.x_weighted * e.norms[static_cast<size_t>(top + s)];  // sum of |m_st|·|h_t|·|e_s|
      }
    }
  }
  const double error = products.relative_error();
  const double count = static_cast<double>(e_rows) * static_cast<double>(h_rows);
  const double tiny = std::numeric_limits<Scalar>::min();
  const double sums = gamma_float64(e_rows * h_rows + 8) * (1 + error) * weighted;
  return {.value = value,
          .error = (error * weighted + sums) * (1 + gamma_float64(2 * e_rows + 16)) +
                   count * static_cast<double>(largest) * products.underflow() + 2 * tiny * count * sum_of(e.norms)};
}

}  // namespace

std::vector<double> row_norms_rounded_up(const at::Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1), stride = row_stride(x);
  std::vector<double> norms(static_cast<size_t>(rows));
  const double round_up = 1 + gamma_float64(columns + 4);
  const auto fill = [&](const auto* data) {
    for (int64_t t = 0; t < rows; ++t) {
      norms[static_cast<size_t>(t)] = std::sqrt(sum_of_squares(data + t * stride, columns)) * round_up;
    }
  };
  if (x.scalar_type() == at::kFloat) {
    fill(x.const_data_ptr<float>());
  } else {
    fill(x.const_data_ptr<double>());
  }
  return norms;
}

MeasuredRows::MeasuredRows(const at::Tensor& x, bool with_gram) : x_(x) {
  const int64_t rows = x.size(0);
  if (!with_gram || x.scalar_type() != at::kFloat || rows == 0 || rows > kTileRows) {
    norms_ = row_norms_rounded_up(x);
    return;
  }
  whole_.emplace(rows).add(x);
  norms_ = whole_->norms();
}

void RowsInPieces::add(const at::Tensor& columns) {
  const int64_t some = columns.size(1);
  const bool first = gram_ == nullptr;
  if (first) {
    squares_.resize(static_cast<size_t>(rows_));
    gram_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows_ * rows_));
  }
  row_products_and_squares(columns.const_data_ptr<float>(), rows_, some, row_stride(columns), gram_.get(),
                           squares_.data(), /*adds=*/!first);
  columns_ += some;
  // The sum over pieces of |x_s|·|x_t| is at most that of whole rows, so that one factor bounds all pieces' errors.
  const int64_t again = chunks_of(some);  // roundings of what was there before
  terms_ = std::max(terms_ + again, row_product_terms(some));
  square_terms_ = std::max(square_terms_ + again, square_terms(some));
}

std::vector<double> RowsInPieces::norms() const {
  std::vector<double> norms = squares_;
  const double round_up = 1 + gamma_float64(square_terms_ + 4);
  for (double& norm : norms) norm = std::sqrt(norm) * round_up;
  return norms;
}

BoundedSum gram_product_sum(const UnitRows& a, const UnitRows& g, at::ScalarType arithmetic) {
  return arithmetic == at::kFloat ? gram_product_sum_in<float>(a, g) : gram_product_sum_in<double>(a, g);
}

BoundedSum gathered_product_sum(const at::Tensor& ids, const UnitRows& e, const UnitRows& h, const at::Tensor& b,
                                at::ScalarType arithmetic) {
  if (b.scalar_type() == at::kDouble) {
    return gathered_product_sum_in<double, double>(ids, e, h, b);
  }
  return arithmetic == at::kFloat ? gathered_product_sum_in<float, float>(ids, e, h, b)
                                  : gathered_product_sum_in<double, float>(ids, e, h, b);
}

}  // namespace ghostshard::kernels
