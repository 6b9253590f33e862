// SPDX-License-Identifier: BSD-3-Clause
// Half-quadratic quantization, step by step what portable/half_quadratic.hpp does.

#ifndef DETENT_KERNELS_VECTOR_HALF_QUADRATIC_INL_HPP
#define DETENT_KERNELS_VECTOR_HALF_QUADRATIC_INL_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/kernels/half_quadratic.hpp>
#include <detent/kernels/vector/exponentials-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/half_quadratic-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// The four sums of half_quadratic_sums. Part k is lane k % step_lanes of vector k / step_lanes.
class half_quadratic_parts {
 public:
  static constexpr std::size_t step_lanes = hn::MaxLanes(double_tag{});
  static constexpr std::size_t vectors = 8 / step_lanes;

  HWY_INLINE explicit half_quadratic_parts(const half_quadratic_args& group) noexcept
      : zero_point_(hn::Set(double_tag{}, group.zero_point)),
        qmin_(hn::Set(double_tag{}, group.qmin)),
        qmax_(hn::Set(double_tag{}, group.qmax)),
        exponent_(hn::Set(double_tag{}, group.exponent)),
        shrinkage_(hn::Set(double_tag{}, group.shrinkage)) {
    const auto zero = hn::Zero(double_tag{});
    for (std::size_t v = 0; v < vectors; ++v) {
      objective_[v] = magnitudes_[v] = distances_[v] = shrunk_[v] = zero;
    }
  }

  [[nodiscard]] HWY_INLINE double_vector nearest_codes(double_vector places) const noexcept {
    return hn::Round(hn::Min(hn::Max(hn::Add(places, zero_point_), qmin_), qmax_));
  }
  /// Adds the terms of kCount vectors of weights to each sum: vector i to the parts of vector
  /// i % vectors. Of a single vector that is not whole, `count` lanes are added.
  template <std::size_t kCount, bool kWhole = true>
  HWY_INLINE void add(const double_vector (&places)[kCount], const double_vector (&codes)[kCount],
                      std::size_t first = 0, std::size_t count = step_lanes) noexcept {
    const double_tag dd;
    const auto normal = hn::Set(dd, (std::numeric_limits<double>::min)());
    double_vector t[kCount];
    double_vector powers[kCount];
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      t[v] = hn::Sub(places[v], hn::Sub(codes[v], zero_point_));
      const auto magnitude = hn::Abs(t[v]);
      powers[v] = hn::IfThenElse(hn::Lt(magnitude, normal), hn::Set(dd, 1.0), magnitude);
    }
    log_of(powers);
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      powers[v] = product(exponent_, powers[v]);
    }
    exp_of(powers);
    const auto added = [&](double_vector sum, double_vector term) HWY_ATTR {
      if constexpr (kWhole) {
        return hn::Add(sum, term);
      } else {
        return hn::Add(sum, hn::IfThenElseZero(hn::FirstN(dd, count), term));
      }
    };
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      const std::size_t part = (first + v) % vectors;
      const auto magnitude = hn::Abs(t[v]);
      const auto left = hn::Sub(magnitude, product(shrinkage_, powers[v]));
      const auto shrunk = hn::IfThenElseZero(hn::Gt(left, hn::Zero(dd)), hn::CopySign(left, t[v]));
      objective_[part] = added(objective_[part], product(powers[v], magnitude));
      magnitudes_[part] = added(magnitudes_[part], magnitude);
      distances_[part] = added(distances_[part], hn::Sub(codes[v], places[v]));
      shrunk_[part] = added(shrunk_[part], shrunk);
    }
  }

  [[nodiscard]] HWY_INLINE half_quadratic_sums sums() const noexcept {
    return {sum_of(objective_), sum_of(magnitudes_), sum_of(distances_), sum_of(shrunk_)};
  }

 private:
  [[nodiscard]] static HWY_INLINE double sum_of(const double_vector (&parts)[vectors]) noexcept {
    double all[8];
    for (std::size_t v = 0; v < vectors; ++v) {
      hn::StoreU(parts[v], double_tag{}, all + v * step_lanes);
    }
    return detail::sum_of(std::span<const double>(all));
  }

  double_vector zero_point_, qmin_, qmax_, exponent_, shrinkage_;
  double_vector objective_[vectors];
  double_vector magnitudes_[vectors];
  double_vector distances_[vectors];
  double_vector shrunk_[vectors];
};

/// `count` codes from memory, or the nearest ones of `places`.
HWY_INLINE double_vector half_quadratic_codes(const half_quadratic_args& group,
                                              const half_quadratic_parts& parts,
                                              double_vector places, std::size_t first,
                                              std::size_t count) noexcept {
  if (group.codes == nullptr) {
    return parts.nearest_codes(places);
  }
  const double_tag dd;
  const hn::Rebind<std::int8_t, double_tag> bytes;
  const hn::Rebind<std::int32_t, double_tag> integers;
  std::int8_t codes[half_quadratic_parts::step_lanes] = {};
  std::memcpy(codes, group.codes + first, count);
  return hn::PromoteTo(dd, hn::PromoteTo(integers, hn::LoadU(bytes, codes)));
}

inline void half_quadratic_round(const half_quadratic_args& group, std::int8_t* codes) noexcept {
  constexpr std::size_t step = half_quadratic_parts::step_lanes;
  const hn::Rebind<std::int8_t, double_tag> bytes;
  const hn::Rebind<std::int32_t, double_tag> integers;
  const half_quadratic_parts parts(group);
  for (std::size_t i = 0; i < group.n; i += step) {
    const std::size_t count = group.n - i < step ? group.n - i : step;
    const auto nearest = parts.nearest_codes(hn::LoadN(double_tag{}, group.places + i, count));
    std::int8_t some[step];
    hn::StoreU(hn::DemoteTo(bytes, hn::DemoteTo(integers, nearest)), bytes, some);
    std::memcpy(codes + i, some, count);
  }
}

/// Adds the terms of the weights from i on, kCount vectors at a time, as long as there are so many.
/// kCount is a multiple of the vectors that eight parts take. Returns where it stopped.
template <std::size_t kCount>
HWY_INLINE std::size_t add_half_quadratic(const half_quadratic_args& group, std::size_t i,
                                          half_quadratic_parts& parts) noexcept {
  constexpr std::size_t step = half_quadratic_parts::step_lanes;
  for (; i + kCount * step <= group.n; i += kCount * step) {
    double_vector places[kCount];
    double_vector codes[kCount];
    DETENT_UNROLL for (std::size_t v = 0; v < kCount; ++v) {
      const std::size_t first = i + v * step;
      places[v] = hn::LoadU(double_tag{}, group.places + first);
      codes[v] = half_quadratic_codes(group, parts, places[v], first, step);
    }
    parts.add(places, codes);
  }
  return i;
}

inline half_quadratic_sums half_quadratic_sum(const half_quadratic_args& group) noexcept {
  constexpr std::size_t step = half_quadratic_parts::step_lanes;
  half_quadratic_parts parts(group);
  std::size_t i = add_half_quadratic<8>(group, 0, parts);
  i = add_half_quadratic<4>(group, i, parts);
  for (std::size_t part = 0; i < group.n; i += step, ++part) {
    const std::size_t count = group.n - i < step ? group.n - i : step;
    const double_vector places[1] = {hn::LoadN(double_tag{}, group.places + i, count)};
    const double_vector codes[1] = {half_quadratic_codes(group, parts, places[0], i, count)};
    parts.template add<1, false>(places, codes, part, count);
  }
  return parts.sums();
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
