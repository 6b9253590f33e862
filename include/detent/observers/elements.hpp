// SPDX-License-Identifier: BSD-3-Clause
// Observation of elements of the caller's own types, at any strides, through a function in
// registers.
#ifndef DETENT_OBSERVERS_ELEMENTS_HPP
#define DETENT_OBSERVERS_ELEMENTS_HPP

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include <detent/base/rows.hpp>
#include <detent/error.hpp>
#include <detent/simd.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The value as a float: by a function to_float() that belongs to its type, else by static_cast.
template <class T>
[[nodiscard]] float real_value(const T& value) {
  if constexpr (requires {
                  { to_float(value) } -> std::same_as<float>;
                }) {
    return to_float(value);
  } else {
    return static_cast<float>(value);
  }
}

}  // namespace detail

/// Shows an observer the values f(x) of a tensor of any element type and strides, without a copy of
/// the tensor: elements are converted to float, a few thousand at a time, and go through f in
/// registers.
///
/// An element is converted by a function to_float() of its type that is found by its arguments (the
/// library's float16, bfloat16 and float8 have one), else by static_cast<float>. f takes an
/// xsimd::batch<float, Arch> (a float without xsimd) and returns one; it is called for whole
/// registers, whose last lanes may be padding. So an observer sees what a fused activation makes of
/// a tensor that is never stored.
///
/// The observer is any object with observe(std::span<const float>), and gets the values in
/// row-major order in several batches; use it for observers whose result does not depend on how
/// data is divided into batches. Throws invalid_argument for null data, and what the observer
/// throws. As thread-safe as the observer.
///
/// @code{.cpp}
/// #include <detent/observers/elements.hpp>
/// #include <detent/observers/min_max.hpp>
///
/// // The range of max(x, 0) of every second value.
/// void observe(detent::min_max_observer& observer, const double* x, std::size_t n) {
///   const std::size_t shape[] = {n / 2};
///   const std::ptrdiff_t strides[] = {2};
///   detent::observe_elements(observer, detent::tensor_view<const double>(x, shape, strides),
///                            [](auto v) { return detent::simd::max(v, decltype(v)(0.0F)); });
/// }
/// @endcode
template <class Arch = simd::default_arch, class Observer, class T, class F>
void observe_elements(Observer& observer, tensor_view<T> x, const F& f) {
  require(x.size() == 0 || x.data != nullptr, error_kind::invalid_argument,
          "observe_elements: null data with size ", x.size());
  if (x.size() == 0) {
    return;
  }
  constexpr std::size_t size = simd::lane_count<float, Arch>;
  constexpr std::size_t block = 4096;
  static_assert(block % size == 0);
  std::array<float, block> values{};
  std::size_t filled = 0;
  const auto flush = [&] {
    for (std::size_t i = 0; i < filled; i += size) {
      simd::store<Arch>(f(simd::load<Arch>(values.data() + i)), values.data() + i);
    }
    observer.observe(std::span<const float>(values.data(), filled));
    filled = 0;
  };
  const tensor_view<T> lines = detail::merge_dimensions(x);
  detail::for_each_row(
      lines, [&](T* row, std::size_t n, std::ptrdiff_t stride, const auto& /*index*/) {
        for (std::size_t first = 0; first < n;) {
          const std::size_t count = (std::min)(block - filled, n - first);
          for (std::size_t i = 0; i < count; ++i) {
            values[filled + i] =
                detail::real_value(row[static_cast<std::ptrdiff_t>(first + i) * stride]);
          }
          filled += count;
          first += count;
          if (filled == block) {
            flush();
          }
        }
      });
  if (filled != 0) {
    flush();
  }
}

/// Shows an observer the values of a tensor of any element type and strides, converted to float:
/// observe_elements() without a function.
template <class Observer, class T>
void observe_elements(Observer& observer, tensor_view<T> x) {
  observe_elements(observer, x, [](const auto& v) { return v; });
}

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_ELEMENTS_HPP
