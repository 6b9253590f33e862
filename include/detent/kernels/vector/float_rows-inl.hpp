// SPDX-License-Identifier: BSD-3-Clause
// Rows of floats, with the sums that base/float_rows.hpp defines.

#ifndef DETENT_KERNELS_VECTOR_FLOAT_ROWS_INL_HPP
#define DETENT_KERNELS_VECTOR_FLOAT_ROWS_INL_HPP

#include <cstddef>
#include <limits>

#include <detent/base/float_rows.hpp>
#include <detent/kernels/float_rows.hpp>
#include <detent/kernels/vector/float_functions-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/float_rows-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// Floats of which a vector of doubles is made.
using narrow_tag = hn::Rebind<float, double_tag>;
using narrow_vector = hn::Vec<narrow_tag>;
inline constexpr std::size_t narrow_lanes = hn::MaxLanes(double_tag{});

/// detail::sum_in_parts: part k is lane k % narrow_lanes of vector k / narrow_lanes.
class vector_parts {
 public:
  static constexpr std::size_t count = detail::sum_in_parts::size / narrow_lanes;

  HWY_INLINE vector_parts() noexcept {
    for (double_vector& v : parts_) {
      v = hn::Zero(double_tag{});
    }
  }
  HWY_INLINE void add(std::size_t part, double_vector terms) noexcept {
    parts_[part] = hn::Add(parts_[part], terms);
  }
  HWY_INLINE void add_square(std::size_t part, double_vector x) noexcept {
    parts_[part] = hn::MulAdd(x, x, parts_[part]);
  }
  [[nodiscard]] HWY_INLINE double value() const noexcept {
    const double_tag dd;
    double pairs[detail::sum_in_parts::size / 2];
    for (std::size_t k = 0; k < count / 2; ++k) {
      hn::StoreU(hn::Add(parts_[k], parts_[k + count / 2]), dd, pairs + k * narrow_lanes);
    }
    return detail::sum_of(pairs);
  }

 private:
  double_vector parts_[count];
};

/// Calls add(part, values, there) for the values of a row as doubles, vector by vector; `there` is
/// how many lanes of the vector are in the row, the others are 0.
template <class Add>
HWY_INLINE void for_each_part(const float* x, std::size_t n, const Add& add) noexcept {
  constexpr std::size_t step = detail::sum_in_parts::size;
  const double_tag dd;
  const narrow_tag dn;
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    DETENT_UNROLL
    for (std::size_t part = 0; part < vector_parts::count; ++part) {
      const float* from = x + i + part * narrow_lanes;
      add(part, hn::PromoteTo(dd, hn::LoadU(dn, from)), narrow_lanes);
    }
  }
  for (std::size_t part = 0; i < n; ++part, i += narrow_lanes) {
    const std::size_t there = n - i < narrow_lanes ? n - i : narrow_lanes;
    add(part, hn::PromoteTo(dd, hn::LoadN(dn, x + i, there)), there);
  }
}

inline double sum(const float* x, std::size_t n) noexcept {
  vector_parts parts;
  for_each_part(
      x, n, [&](std::size_t part, double_vector v, std::size_t) HWY_ATTR { parts.add(part, v); });
  return parts.value();
}

inline double square_sum(const float* x, std::size_t n, double centre) noexcept {
  const double_tag dd;
  const auto middle = hn::Set(dd, centre);
  vector_parts parts;
  for_each_part(x, n, [&](std::size_t part, double_vector v, std::size_t there) HWY_ATTR {
    const auto difference = hn::Sub(v, middle);
    parts.add_square(part, there == narrow_lanes
                               ? difference
                               : hn::IfThenElseZero(hn::FirstN(dd, there), difference));
  });
  return parts.value();
}

/// Calls visit(k, values) for the values of a row, vector by vector, whose last one is filled with
/// `rest`. k counts from 0 to 3 and over again, so that four results are computed side by side.
template <class Visit>
HWY_INLINE void for_each_vector(const float* x, std::size_t n, float rest,
                                const Visit& visit) noexcept {
  const float_tag df;
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    DETENT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
      visit(k, hn::LoadU(df, x + i + k * lanes));
    }
  }
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    visit(0, hn::LoadNOr(hn::Set(df, rest), df, x + i, count));
  }
}

/// detail::largest_number_of_row().
[[nodiscard]] HWY_INLINE float largest_number_of_row(const float* x, std::size_t n) noexcept {
  constexpr float least = -std::numeric_limits<float>::infinity();
  const float_tag df;
  const auto start = hn::Set(df, least);
  float_vector largest[4] = {start, start, start, start};
  // Max returns the second operand if either is NaN: NaN is passed over.
  for_each_vector(x, n, least, [&](std::size_t k, float_vector v) HWY_ATTR {
    largest[k] = hn::Max(v, largest[k]);
  });
  return hn::ReduceMax(df,
                       hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3])));
}

/// A vector whose best lane is the best value of a row: `better` is a maximum or a minimum, which
/// returns its second operand if either is NaN. All lanes are NaN if there is a NaN.
template <class Better>
[[nodiscard]] HWY_INLINE float_vector best_of_row(const float* x, std::size_t n, float start,
                                                  const Better& better) noexcept {
  const float_tag df;
  const auto first = hn::Set(df, start);
  float_vector best[4] = {first, first, first, first};
  float_vector nan[4] = {first, first, first, first};
  for_each_vector(x, n, start, [&](std::size_t k, float_vector v) HWY_ATTR {
    best[k] = better(v, best[k]);
    nan[k] = unless_nan(v, nan[k]);
  });
  const auto found = better(better(best[0], best[1]), better(best[2], best[3]));
  // A sum of infinities of one sign is no NaN.
  const auto sum = hn::Add(hn::Add(nan[0], nan[1]), hn::Add(nan[2], nan[3]));
  const bool has_nan = !hn::AllTrue(df, hn::Eq(sum, sum));
  return has_nan ? hn::Set(df, std::numeric_limits<float>::quiet_NaN()) : found;
}

inline float largest(const float* x, std::size_t n) noexcept {
  const auto better = [](float_vector a, float_vector b) HWY_ATTR { return hn::Max(a, b); };
  const auto best = best_of_row(x, n, -std::numeric_limits<float>::infinity(), better);
  return hn::ReduceMax(float_tag{}, best) + 0.0F;
}

inline float smallest(const float* x, std::size_t n) noexcept {
  const auto better = [](float_vector a, float_vector b) HWY_ATTR { return hn::Min(a, b); };
  const auto best = best_of_row(x, n, std::numeric_limits<float>::infinity(), better);
  return hn::ReduceMin(float_tag{}, best) + 0.0F;
}

inline void add_row(const float* x, std::size_t n, double* sums) noexcept {
  const double_tag dd;
  const narrow_tag dn;
  std::size_t i = 0;
  for (; i + narrow_lanes <= n; i += narrow_lanes) {
    const auto terms = hn::PromoteTo(dd, hn::LoadU(dn, x + i));
    hn::StoreU(hn::Add(hn::LoadU(dd, sums + i), terms), dd, sums + i);
  }
  for (; i < n; ++i) {
    sums[i] += static_cast<double>(x[i]);
  }
}

/// Folds kVectors vectors of each row, from element `at` on: sum = add(row, sum, values) for each
/// row and then y = result(sum). The last vector has `last` lanes. row_of(k) is where row k begins.
template <std::size_t kVectors, class RowOf, class Add, class Result>
HWY_INLINE void fold_vectors(std::size_t rows, std::size_t at, std::size_t last, float* y,
                             const RowOf& row_of, const Add& add, const Result& result) noexcept {
  const double_tag dd;
  const narrow_tag dn;
  double_vector sums[kVectors];
  DETENT_UNROLL
  for (double_vector& sum : sums) {
    sum = hn::Zero(dd);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const float* from = row_of(row) + at;
    DETENT_UNROLL
    for (std::size_t k = 0; k + 1 < kVectors; ++k) {
      sums[k] = add(row, sums[k], hn::PromoteTo(dd, hn::LoadU(dn, from + k * narrow_lanes)));
    }
    const auto end = hn::LoadN(dn, from + (kVectors - 1) * narrow_lanes, last);
    sums[kVectors - 1] = add(row, sums[kVectors - 1], hn::PromoteTo(dd, end));
  }
  DETENT_UNROLL
  for (std::size_t k = 0; k < kVectors; ++k) {
    hn::StoreN(hn::DemoteTo(dn, result(sums[k])), dn, y + at + k * narrow_lanes,
               k + 1 < kVectors ? narrow_lanes : last);
  }
}

/// fold_vectors() of all n elements of the rows.
template <class RowOf, class Add, class Result>
HWY_INLINE void fold_rows(std::size_t rows, std::size_t n, float* y, const RowOf& row_of,
                          const Add& add, const Result& result) noexcept {
  constexpr std::size_t block = 4 * narrow_lanes;
  std::size_t i = 0;
  for (; i + block <= n; i += block) {
    fold_vectors<4>(rows, i, narrow_lanes, y, row_of, add, result);
  }
  for (; i < n; i += narrow_lanes) {
    const std::size_t last = n - i < narrow_lanes ? n - i : narrow_lanes;
    fold_vectors<1>(rows, i, last, y, row_of, add, result);
  }
}

inline void mean_of_rows(const float* const* rows, std::size_t count, double divisor, std::size_t n,
                         float* y) noexcept {
  const auto divisors = hn::Set(double_tag{}, divisor);
  fold_rows(
      count, n, y, [rows](std::size_t row) HWY_ATTR { return rows[row]; },
      [](std::size_t, double_vector sum, double_vector v) HWY_ATTR { return hn::Add(sum, v); },
      [&](double_vector sum) HWY_ATTR { return hn::Div(sum, divisors); });
}

inline void blend_rows(const float* x, const std::size_t* indices, const float* weights,
                       std::size_t count, std::size_t n, float* y) noexcept {
  fold_rows(
      count, n, y, [=](std::size_t row) HWY_ATTR { return x + indices[row] * n; },
      [weights](std::size_t row, double_vector sum, double_vector v) HWY_ATTR {
        return hn::MulAdd(hn::Set(double_tag{}, static_cast<double>(weights[row])), v, sum);
      },
      [](double_vector sum) HWY_ATTR { return sum; });
}

/// The sum of e^(x[i] - largest), in parts. Calls keep(i, powers, count) for each vector of them,
/// of which `count` are in the row.
template <class Keep>
[[nodiscard]] HWY_INLINE double sum_of_exponentials(const float* x, std::size_t n,
                                                    float_vector largest,
                                                    const Keep& keep) noexcept {
  const double_tag dd;
  const float_tag df;
  const narrow_tag dn;
  constexpr std::size_t per_step = detail::sum_in_parts::size / lanes;
  vector_parts parts;
  const auto add = [&](std::size_t vector, float_vector e) HWY_ATTR {
    parts.add(2 * vector, hn::PromoteTo(dd, hn::LowerHalf(dn, e)));
    parts.add(2 * vector + 1, hn::PromoteTo(dd, hn::UpperHalf(dn, e)));
  };
  std::size_t i = 0;
  for (; i + per_step * lanes <= n; i += per_step * lanes) {
    DETENT_UNROLL
    for (std::size_t vector = 0; vector < per_step; ++vector) {
      const std::size_t at = i + vector * lanes;
      const auto e = exp_of_negative(hn::Sub(hn::LoadU(df, x + at), largest));
      keep(at, e, lanes);
      add(vector, e);
    }
  }
  for (std::size_t vector = 0; i < n; ++vector, i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    const auto e = exp_of_negative(hn::Sub(hn::LoadN(df, x + i, count), largest));
    keep(i, e, count);
    add(vector, hn::IfThenElseZero(hn::FirstN(df, count), e));
  }
  return parts.value();
}

inline void softmax(const float* x, std::size_t n, float* y) noexcept {
  const float_tag df;
  const auto largest = hn::Set(df, largest_number_of_row(x, n));
  const double sum = sum_of_exponentials(
      x, n, largest, [&](std::size_t i, float_vector e, std::size_t count) HWY_ATTR {
        if (count == lanes) {
          hn::StoreU(e, df, y + i);
        } else {
          hn::StoreN(e, df, y + i, count);
        }
      });
  const auto factor = hn::Set(df, static_cast<float>(1.0 / sum));
  map(y, n, y, [&](float_vector e) HWY_ATTR { return hn::Mul(e, factor); });
}

inline void log_softmax(const float* x, std::size_t n, float* y) noexcept {
  const float_tag df;
  const auto largest = hn::Set(df, largest_number_of_row(x, n));
  const double sum =
      sum_of_exponentials(x, n, largest, [](std::size_t, float_vector, std::size_t) HWY_ATTR {});
  const auto log_sum = hn::Set(df, static_cast<float>(detail::portable_log(sum)));
  map(x, n, y, [&](float_vector v) HWY_ATTR { return hn::Sub(hn::Sub(v, largest), log_sum); });
}

inline void standardize(const float* x, std::size_t n, double centre, double factor,
                        const float* scale, const float* bias, float* y) noexcept {
  const double_tag dd;
  const narrow_tag dn;
  const auto middle = hn::Set(dd, centre);
  const auto factors = hn::Set(dd, factor);
  const auto standardized = [&](narrow_vector v) HWY_ATTR {
    return hn::DemoteTo(dn, hn::Mul(hn::Sub(hn::PromoteTo(dd, v), middle), factors));
  };
  // Calls map(load, store), which handle a vector of the row, for all of them.
  const auto for_each = [&](const auto& result) HWY_ATTR {
    std::size_t i = 0;
    for (; i + narrow_lanes <= n; i += narrow_lanes) {
      const auto load = [&](const float* from) HWY_ATTR { return hn::LoadU(dn, from + i); };
      hn::StoreU(result(load), dn, y + i);
    }
    if (i < n) {
      const auto load = [&](const float* from) HWY_ATTR { return hn::LoadN(dn, from + i, n - i); };
      hn::StoreN(result(load), dn, y + i, n - i);
    }
  };
  if (scale == nullptr) {
    for_each([&](const auto& load) HWY_ATTR { return standardized(load(x)); });
  } else if (bias == nullptr) {
    for_each([&](const auto& load)
                 HWY_ATTR { return hn::Mul(standardized(load(x)), load(scale)); });
  } else {
    for_each([&](const auto& load)
                 HWY_ATTR { return hn::MulAdd(standardized(load(x)), load(scale), load(bias)); });
  }
}

inline void map_by_line(const float* x, std::size_t n, double factor, double offset,
                        float* y) noexcept {
  const double_tag dd;
  const narrow_tag dn;
  const auto factors = hn::Set(dd, factor);
  const auto offsets = hn::Set(dd, offset);
  const auto line = [&](narrow_vector v) HWY_ATTR {
    return hn::DemoteTo(dn, hn::MulAdd(hn::PromoteTo(dd, v), factors, offsets));
  };
  std::size_t i = 0;
  for (; i + narrow_lanes <= n; i += narrow_lanes) {
    hn::StoreU(line(hn::LoadU(dn, x + i)), dn, y + i);
  }
  if (i < n) {
    hn::StoreN(line(hn::LoadN(dn, x + i, n - i)), dn, y + i, n - i);
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif
