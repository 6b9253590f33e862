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

[[nodiscard]] HWY_INLINE float largest_of_row(const float* x, std::size_t n) noexcept {
  const float_tag df;
  const auto least = hn::Set(df, -std::numeric_limits<float>::infinity());
  float_vector largest[2] = {least, least};
  std::size_t i = 0;
  // Max returns the second operand if either is NaN: NaN is passed over.
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    largest[0] = hn::Max(hn::LoadU(df, x + i), largest[0]);
    largest[1] = hn::Max(hn::LoadU(df, x + i + lanes), largest[1]);
  }
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    largest[0] = hn::Max(hn::LoadNOr(least, df, x + i, count), largest[0]);
  }
  return hn::ReduceMax(df, hn::Max(largest[0], largest[1]));
}

inline void softmax(const float* x, std::size_t n, float* y) noexcept {
  const double_tag dd;
  const float_tag df;
  const narrow_tag dn;
  constexpr std::size_t per_step = detail::sum_in_parts::size / lanes;
  const auto largest = hn::Set(df, largest_of_row(x, n));
  vector_parts parts;
  const auto add = [&](std::size_t vector, float_vector e) HWY_ATTR {
    parts.add(2 * vector, hn::PromoteTo(dd, hn::LowerHalf(dn, e)));
    parts.add(2 * vector + 1, hn::PromoteTo(dd, hn::UpperHalf(dn, e)));
  };
  std::size_t i = 0;
  for (; i + per_step * lanes <= n; i += per_step * lanes) {
    for (std::size_t vector = 0; vector < per_step; ++vector) {
      const float* from = x + i + vector * lanes;
      const auto e = exp_of_negative(hn::Sub(hn::LoadU(df, from), largest));
      hn::StoreU(e, df, y + i + vector * lanes);
      add(vector, e);
    }
  }
  for (std::size_t vector = 0; i < n; ++vector, i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    const auto e = exp_of_negative(hn::Sub(hn::LoadN(df, x + i, count), largest));
    hn::StoreN(e, df, y + i, count);
    add(vector, hn::IfThenElseZero(hn::FirstN(df, count), e));
  }
  const auto factor = hn::Set(df, static_cast<float>(1.0 / parts.value()));
  map(y, n, y, [&](float_vector e) HWY_ATTR { return hn::Mul(e, factor); });
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
