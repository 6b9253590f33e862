// SPDX-License-Identifier: BSD-3-Clause
// Maxima: the largest of several rows, a few vectors of columns at a time.

#ifndef DETENT_KERNELS_VECTOR_MAXIMA_INL_HPP
#define DETENT_KERNELS_VECTOR_MAXIMA_INL_HPP

#include <cstddef>
#include <type_traits>

#include <detent/kernels/maxima.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/maxima-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// reference::larger. Of two operands, x86's maximum returns the second one if either is NaN or if
/// both are zeros.
template <class V>
HWY_INLINE V larger(V best, V x) noexcept {
  const V chosen = hn::Max(x, best);
  if constexpr (std::is_same_v<hn::TFromV<V>, float>) {
    return hn::IfThenElse(hn::IsNaN(x), x, chosen);
  } else {
    return chosen;
  }
}

/// The largest of all rows in kVectors vectors of columns from `column` on, for pixel p.
template <std::size_t kVectors, class D, class T>
HWY_INLINE void max_of_vectors(D d, const max_of_rows_args<T>& a, std::size_t p,
                               std::size_t column) noexcept {
  const std::size_t width = hn::Lanes(d);
  const std::size_t offset = p * a.step + column;
  hn::Vec<D> best[kVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    best[v] = hn::LoadU(d, a.rows[0] + offset + v * width);
  }
  for (std::size_t r = 1; r < a.row_count; ++r) {
    const T* row = a.rows[r] + offset;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      best[v] = larger(best[v], hn::LoadU(d, row + v * width));
    }
  }
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    hn::StoreU(best[v], d, a.out + p * a.columns + column + v * width);
  }
}

template <class T>
void max_of_rows(const max_of_rows_args<T>& a) noexcept {
  const hn::ScalableTag<T> d;
  constexpr std::size_t width = hn::MaxLanes(hn::ScalableTag<T>{});
  // Fewer columns than a vector has, then half as many, and single ones.
  constexpr std::size_t few = 32 / sizeof(T) < width ? 32 / sizeof(T) : 16 / sizeof(T);
  for (std::size_t p = 0; p < a.pixels; ++p) {
    std::size_t column = 0;
    for (; column + 4 * width <= a.columns; column += 4 * width) {
      max_of_vectors<4>(d, a, p, column);
    }
    for (; column + width <= a.columns; column += width) {
      max_of_vectors<1>(d, a, p, column);
    }
    for (; column + few <= a.columns; column += few) {
      max_of_vectors<1>(hn::FixedTag<T, few>{}, a, p, column);
    }
    for (; column + few / 2 <= a.columns; column += few / 2) {
      max_of_vectors<1>(hn::FixedTag<T, few / 2>{}, a, p, column);
    }
    for (; column < a.columns; ++column) {
      max_of_vectors<1>(hn::FixedTag<T, 1>{}, a, p, column);
    }
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
