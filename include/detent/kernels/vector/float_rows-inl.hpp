// SPDX-License-Identifier: BSD-3-Clause
// Rows of floats, with the sums that base/float_rows.hpp defines.

#ifndef DETENT_KERNELS_VECTOR_FLOAT_ROWS_INL_HPP
#define DETENT_KERNELS_VECTOR_FLOAT_ROWS_INL_HPP

#include <cstddef>
#include <limits>
#include <type_traits>

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
  /// The sum of the parts, in the order of detail::sum_in_parts::value(). Zeros that are added
  /// there change nothing: no part is -0.
  [[nodiscard]] HWY_INLINE double value() const noexcept {
    const hn::FixedTag<double, 4> d4;
    const hn::FixedTag<double, 2> d2;
    const auto s = quarters();  // s[k] + s[k + 4]
    const auto halves = hn::Add(s, hn::Reverse2(d4, s));
    return hn::GetLane(hn::Add(hn::LowerHalf(d2, halves), hn::UpperHalf(d2, halves)));
  }

 private:
  [[nodiscard]] HWY_INLINE hn::Vec<hn::FixedTag<double, 4>> quarters() const noexcept {
#if HWY_TARGET == HWY_AVX2
    return hn::Add(hn::Add(parts_[0], parts_[2]), hn::Add(parts_[1], parts_[3]));
#else
    const hn::FixedTag<double, 4> d4;
    const auto pairs = hn::Add(parts_[0], parts_[1]);
    return hn::Add(hn::LowerHalf(d4, pairs), hn::UpperHalf(d4, pairs));
#endif
  }

  double_vector parts_[count];
};

/// Calls group(kRows, first) for groups of kRows rows from row `first` on, where kRows is an
/// std::integral_constant. An addition takes several cycles and a row has few parts: with several
/// rows side by side there are enough sums that do not wait for each other.
template <class Group>
HWY_INLINE void for_row_groups(std::size_t rows, const Group& group) noexcept {
  constexpr std::size_t together = narrow_lanes / 2;  // as many as there are registers for
  std::size_t first = 0;
  for (; first + together <= rows; first += together) {
    group(std::integral_constant<std::size_t, together>{}, first);
  }
  for (; first < rows; ++first) {
    group(std::integral_constant<std::size_t, 1>{}, first);
  }
}

/// Calls add(row, part, values, there) for the values of kRows rows as doubles, vector by vector;
/// `there` is how many lanes of the vector are in the row, the others are 0.
template <std::size_t kRows, class Add>
HWY_INLINE void for_each_part(const float* x, std::size_t n, const Add& add) noexcept {
  constexpr std::size_t step = detail::sum_in_parts::size;
  const double_tag dd;
  const narrow_tag dn;
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    DETENT_UNROLL
    for (std::size_t row = 0; row < kRows; ++row) {
      DETENT_UNROLL
      for (std::size_t part = 0; part < vector_parts::count; ++part) {
        const float* from = x + row * n + i + part * narrow_lanes;
        add(row, part, hn::PromoteTo(dd, hn::LoadU(dn, from)), narrow_lanes);
      }
    }
  }
  // Unrolled, so that the parts stay in registers.
  DETENT_UNROLL
  for (std::size_t part = 0; part < vector_parts::count; ++part, i += narrow_lanes) {
    if (i < n) {
      const std::size_t there = n - i < narrow_lanes ? n - i : narrow_lanes;
      DETENT_UNROLL
      for (std::size_t row = 0; row < kRows; ++row) {
        add(row, part, hn::PromoteTo(dd, hn::LoadN(dn, x + row * n + i, there)), there);
      }
    }
  }
}

inline void sums(const float* x, std::size_t rows, std::size_t n, double* sums) noexcept {
  for_row_groups(rows, [=](auto group, std::size_t first) HWY_ATTR {
    constexpr std::size_t count = decltype(group)::value;
    vector_parts parts[count];
    for_each_part<count>(x + first * n, n,
                         [&](std::size_t row, std::size_t part, double_vector v, std::size_t)
                             HWY_ATTR { parts[row].add(part, v); });
    for (std::size_t row = 0; row < count; ++row) {
      sums[first + row] = parts[row].value();
    }
  });
}

inline void square_sums(const float* x, std::size_t rows, std::size_t n, const double* centres,
                        double* sums) noexcept {
  for_row_groups(rows, [=](auto group, std::size_t first) HWY_ATTR {
    constexpr std::size_t count = decltype(group)::value;
    const double_tag dd;
    double_vector middle[count];
    for (std::size_t row = 0; row < count; ++row) {
      middle[row] = hn::Set(dd, centres[first + row]);
    }
    vector_parts parts[count];
    for_each_part<count>(
        x + first * n, n,
        [&](std::size_t row, std::size_t part, double_vector v, std::size_t there) HWY_ATTR {
          const auto difference = hn::Sub(v, middle[row]);
          parts[row].add_square(part, there == narrow_lanes
                                          ? difference
                                          : hn::IfThenElseZero(hn::FirstN(dd, there), difference));
        });
    for (std::size_t row = 0; row < count; ++row) {
      sums[first + row] = parts[row].value();
    }
  });
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
/// row and then y = result(sum, i, count) for the `count` elements from element i on. The last
/// vector has `last` lanes. load(row, i, count) loads elements of a row.
template <std::size_t kVectors, class Load, class Add, class Result>
HWY_INLINE void fold_vectors(std::size_t rows, std::size_t at, std::size_t last, float* y,
                             const Load& load, const Add& add, const Result& result) noexcept {
  const double_tag dd;
  const narrow_tag dn;
  const auto count_of = [last](std::size_t k)
                            HWY_ATTR { return k + 1 < kVectors ? narrow_lanes : last; };
  double_vector sums[kVectors];
  DETENT_UNROLL
  for (double_vector& sum : sums) {
    sum = hn::Zero(dd);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    DETENT_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      sums[k] = add(row, sums[k], hn::PromoteTo(dd, load(row, at + k * narrow_lanes, count_of(k))));
    }
  }
  DETENT_UNROLL
  for (std::size_t k = 0; k < kVectors; ++k) {
    const std::size_t i = at + k * narrow_lanes;
    hn::StoreN(hn::DemoteTo(dn, result(sums[k], i, count_of(k))), dn, y + i, count_of(k));
  }
}

/// fold_vectors() of all n elements of the rows.
template <class Load, class Add, class Result>
HWY_INLINE void fold_rows(std::size_t rows, std::size_t n, float* y, const Load& load,
                          const Add& add, const Result& result) noexcept {
  constexpr std::size_t block = 4 * narrow_lanes;
  std::size_t i = 0;
  for (; i + block <= n; i += block) {
    fold_vectors<4>(rows, i, narrow_lanes, y, load, add, result);
  }
  // What is left in one go: vectors side by side do not wait for each other's sums.
  const std::size_t rest = n - i;
  if (rest > 3 * narrow_lanes) {
    fold_vectors<4>(rows, i, rest - 3 * narrow_lanes, y, load, add, result);
  } else if (rest > 2 * narrow_lanes) {
    fold_vectors<3>(rows, i, rest - 2 * narrow_lanes, y, load, add, result);
  } else if (rest > narrow_lanes) {
    fold_vectors<2>(rows, i, rest - narrow_lanes, y, load, add, result);
  } else if (rest > 0) {
    fold_vectors<1>(rows, i, rest, y, load, add, result);
  }
}

/// The first `count` of the elements that are kStep apart, the others are 0. Reads nothing behind
/// the last of them.
template <std::size_t kStep>
[[nodiscard]] HWY_INLINE narrow_vector load_each(const float* from, std::size_t count) noexcept {
  static_assert(kStep == 1 || kStep == 2);
  const narrow_tag dn;
  if constexpr (kStep == 1) {
    return count == narrow_lanes ? hn::LoadU(dn, from) : hn::LoadN(dn, from, count);
  } else {
    const std::size_t all = 2 * count - 1;
    if (all < narrow_lanes) {
      const auto low = hn::LoadN(dn, from, all);
      return hn::ConcatEven(dn, hn::Zero(dn), low);
    }
    const auto high = hn::LoadN(dn, from + narrow_lanes, all - narrow_lanes);
    return hn::ConcatEven(dn, high, hn::LoadU(dn, from));
  }
}

inline void mean_of_rows(const float* const* rows, std::size_t count, double divisor, std::size_t n,
                         float* y) noexcept {
  const auto factor = hn::Set(double_tag{}, 1.0 / divisor);
  fold_rows(
      count, n, y,
      [rows](std::size_t row, std::size_t i, std::size_t there)
          HWY_ATTR { return load_each<1>(rows[row] + i, there); },
      [](std::size_t, double_vector sum, double_vector v) HWY_ATTR { return hn::Add(sum, v); },
      [&](double_vector sum, std::size_t, std::size_t) HWY_ATTR { return hn::Mul(sum, factor); });
}

template <std::size_t kStep>
HWY_INLINE void means_of_windows_apart(const float* const* taps, std::size_t count,
                                       std::size_t line_step, std::size_t lines, std::size_t n,
                                       const double* factors, float* y) noexcept {
  for (std::size_t line = 0; line < lines; ++line) {
    const std::size_t first = line * line_step;
    fold_rows(
        count, n, y + line * n,
        [=](std::size_t tap, std::size_t i, std::size_t there)
            HWY_ATTR { return load_each<kStep>(taps[tap] + first + i * kStep, there); },
        [](std::size_t, double_vector sum, double_vector v) HWY_ATTR { return hn::Add(sum, v); },
        [=](double_vector sum, std::size_t i, std::size_t there) HWY_ATTR {
          return hn::Mul(sum, hn::LoadN(double_tag{}, factors + line * n + i, there));
        });
  }
}

inline void means_of_windows(const float* const* taps, std::size_t count, std::size_t step,
                             std::size_t line_step, std::size_t lines, std::size_t n,
                             const double* factors, float* y) noexcept {
  if (step == 1) {
    means_of_windows_apart<1>(taps, count, line_step, lines, n, factors, y);
  } else {
    means_of_windows_apart<2>(taps, count, line_step, lines, n, factors, y);
  }
}

inline void blend_rows(const float* x, const std::size_t* indices, const float* weights,
                       std::size_t count, std::size_t n, float* y) noexcept {
  fold_rows(
      count, n, y,
      [=](std::size_t row, std::size_t i, std::size_t there)
          HWY_ATTR { return load_each<1>(x + indices[row] * n + i, there); },
      [weights](std::size_t row, double_vector sum, double_vector v) HWY_ATTR {
        return hn::MulAdd(hn::Set(double_tag{}, static_cast<double>(weights[row])), v, sum);
      },
      [](double_vector sum, std::size_t, std::size_t) HWY_ATTR { return sum; });
}

/// The sum of e^(x[i] - largest), in parts. The powers are stored to y if it is not null, which may
/// be x.
///
/// A vector of floats is widened in memory: that takes half the instructions of widening the halves
/// of a register.
[[nodiscard]] HWY_INLINE double sum_of_exponentials(const float* x, std::size_t n,
                                                    float_vector largest, float* y) noexcept {
  const double_tag dd;
  const float_tag df;
  const narrow_tag dn;
  // Vectors of a step of the sum, and those whose exponentials are computed side by side: as many
  // as there are registers for.
  constexpr std::size_t per_step = detail::sum_in_parts::size / lanes;
  constexpr std::size_t together = lanes == panel_columns ? 4 : 2;
  static_assert(together % per_step == 0);
  alignas(64) float local[together * lanes];
  vector_parts parts;
  const auto add = [&](std::size_t vector, const float* e) HWY_ATTR {
    parts.add(2 * vector, hn::PromoteTo(dd, hn::LoadU(dn, e)));
    parts.add(2 * vector + 1, hn::PromoteTo(dd, hn::LoadU(dn, e + narrow_lanes)));
  };
  std::size_t i = 0;
  for (; i + together * lanes <= n; i += together * lanes) {
    float_vector e[together];
    DETENT_UNROLL
    for (std::size_t vector = 0; vector < together; ++vector) {
      e[vector] = hn::Sub(hn::LoadU(df, x + i + vector * lanes), largest);
    }
    exp_of_negatives(e);
    float* const to = y == nullptr ? local : y + i;
    DETENT_UNROLL
    for (std::size_t vector = 0; vector < together; ++vector) {
      hn::StoreU(e[vector], df, to + vector * lanes);
    }
#if defined(__GNUC__)
    __asm__("" : : "r"(to) : "memory");  // compilers would take the values from the registers
#endif
    DETENT_UNROLL
    for (std::size_t vector = 0; vector < together; ++vector) {
      add(vector % per_step, to + vector * lanes);
    }
  }
  for (std::size_t vector = 0; i < n; ++vector, i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    const auto e = exp_of_negative(hn::Sub(hn::LoadN(df, x + i, count), largest));
    if (y != nullptr) {
      hn::StoreN(e, df, y + i, count);
    }
    hn::StoreU(hn::IfThenElseZero(hn::FirstN(df, count), e), df, local);
    add(vector % per_step, local);
  }
  return parts.value();
}

/// Finds the largest number and the sum of exponentials of each row, whose powers are stored to y
/// if it is not null, and then calls finish(row, largest, sum). Some rows go through each step
/// together: a short row would wait for its own results most of the time. Longer ones would leave
/// the cache between the steps.
template <class Finish>
HWY_INLINE void for_each_softmax(const float* x, std::size_t rows, std::size_t n, float* y,
                                 const Finish& finish) noexcept {
  const float_tag df;
  constexpr std::size_t together = 4;
  constexpr std::size_t longest_short = 1024;
  float largest[together];
  double sums[together];
  std::size_t count = 0;
  for (std::size_t first = 0; first < rows; first += count) {
    count = n > longest_short ? 1 : rows - first < together ? rows - first : together;
    for (std::size_t k = 0; k < count; ++k) {
      largest[k] = largest_number_of_row(x + (first + k) * n, n);
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t at = (first + k) * n;
      sums[k] =
          sum_of_exponentials(x + at, n, hn::Set(df, largest[k]), y == nullptr ? nullptr : y + at);
    }
    for (std::size_t k = 0; k < count; ++k) {
      finish(first + k, hn::Set(df, largest[k]), sums[k]);
    }
  }
}

inline void softmax(const float* x, std::size_t rows, std::size_t n, float* y) noexcept {
  for_each_softmax(x, rows, n, y, [=](std::size_t row, float_vector, double sum) HWY_ATTR {
    const auto factor = hn::Set(float_tag{}, static_cast<float>(1.0 / sum));
    map(y + row * n, n, y + row * n, [&](float_vector e) HWY_ATTR { return hn::Mul(e, factor); });
  });
}

inline void log_softmax(const float* x, std::size_t rows, std::size_t n, float* y) noexcept {
  const auto finish = [=](std::size_t row, float_vector largest, double sum) HWY_ATTR {
    const auto log_sum = hn::Set(float_tag{}, static_cast<float>(detail::portable_log(sum)));
    map(x + row * n, n, y + row * n,
        [&](float_vector v) HWY_ATTR { return hn::Sub(hn::Sub(v, largest), log_sum); });
  };
  for_each_softmax(x, rows, n, nullptr, finish);
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
