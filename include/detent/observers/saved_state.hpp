// SPDX-License-Identifier: BSD-3-Clause
// Helpers with which observers save and load their state: flags, enumerators, schemes, lists and
// ranges. Reading throws bad_file for a value that is out of its domain.
#ifndef DETENT_OBSERVERS_SAVED_STATE_HPP
#define DETENT_OBSERVERS_SAVED_STATE_HPP

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Throws bad_file, naming what is wrong with the state, unless it is possible.
inline void require_state(bool possible, const char* where, const char* what) {
  require(possible, error_kind::bad_file, where, ": the saved state is impossible: ", what);
}

/// Appends a flag or an enumerator as u8.
template <class Enum>
void put_choice(byte_writer& out, Enum value) {
  out.put(static_cast<std::uint8_t>(value));
}
/// Reads a flag or an enumerator that put_choice() appended; it must be one of 0..last.
template <class Enum>
[[nodiscard]] Enum get_choice(byte_reader& in, Enum last, const char* where) {
  const auto value = in.get<std::uint8_t>();
  require(value <= static_cast<std::uint8_t>(last), error_kind::bad_file, where,
          ": the saved choice ", value, " is not one of 0..", static_cast<std::uint8_t>(last));
  return static_cast<Enum>(value);
}

/// Appends a scheme: i32 qmin, i32 qmax, u8 symmetric.
inline void put_scheme(byte_writer& out, quant_scheme scheme) {
  out.put(scheme.levels.qmin);
  out.put(scheme.levels.qmax);
  put_choice(out, scheme.symmetric);
}
/// Reads a scheme that put_scheme() appended. It does not check the grid.
[[nodiscard]] inline quant_scheme get_scheme(byte_reader& in, const char* where) {
  quant_scheme scheme;
  scheme.levels.qmin = in.get<std::int32_t>();
  scheme.levels.qmax = in.get<std::int32_t>();
  scheme.symmetric = get_choice(in, true, where);
  return scheme;
}

/// Appends a list: u64 size, and the values.
template <class T>
void put_list(byte_writer& out, const std::vector<T>& values) {
  out.put(static_cast<std::uint64_t>(values.size()));
  out.put_array(std::span<const T>(values));
}
/// Reads a list of at most `largest` values that put_list() appended.
template <class T>
[[nodiscard]] std::vector<T> get_list(byte_reader& in, std::uint64_t largest) {
  std::vector<T> values;
  in.get_array(in.get_size(largest), values);
  return values;
}
/// Reads a list of at most `largest` values, all of which must be finite.
template <std::floating_point T>
[[nodiscard]] std::vector<T> get_finite_list(byte_reader& in, std::uint64_t largest,
                                             const char* where) {
  const auto values = get_list<T>(in, largest);
  require_state(std::all_of(values.begin(), values.end(), [](T x) { return std::isfinite(x); }),
                where, "a value is not finite");
  return values;
}

/// Appends a range: f32 lower, f32 upper.
inline void put_range(byte_writer& out, value_range range) {
  out.put(range.lower);
  out.put(range.upper);
}
/// Reads a range that put_range() appended, whose ends must be finite. It does not check their
/// order.
[[nodiscard]] inline value_range get_finite_range(byte_reader& in, const char* where) {
  const auto lower = in.get<float>();
  const auto upper = in.get<float>();
  require_state(std::isfinite(lower) && std::isfinite(upper), where, "a range is not finite");
  return {lower, upper};
}

/// Whether the sum of the counts is at most `most`; safe from overflow.
[[nodiscard]] inline bool are_within(std::span<const std::uint64_t> counts,
                                     std::uint64_t most) noexcept {
  for (const std::uint64_t count : counts) {
    if (count > most) {
      return false;
    }
    most -= count;
  }
  return true;
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_SAVED_STATE_HPP
