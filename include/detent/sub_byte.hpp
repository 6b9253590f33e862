// SPDX-License-Identifier: BSD-3-Clause
// Integers of 4 and 2 bits, packed into bytes as in ONNX's tensors: element i of 4-bit data is in
// byte i / 2, element i of 2-bit data in byte i / 4, and the first element of a byte is in its
// lowest bits. Signed elements are two's complement. If the last byte is not full, its high bits
// are zero.
#ifndef DETENT_SUB_BYTE_HPP
#define DETENT_SUB_BYTE_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

// int4, uint4, int2 and uint2 name element types; no objects of them exist. An unpacked element is
// a value_type.

/// Names the element type of a signed 4-bit integer, -8..7, of which a byte holds two.
struct int4 {
  /// The type of an unpacked element.
  using value_type = std::int8_t;
  static constexpr int bits = 4;           ///< Bits of an element.
  static constexpr bool is_signed = true;  ///< Whether elements are two's complement.
  static constexpr grid levels{-8, 7};     ///< All values of the type.
};
/// Names the element type of an unsigned 4-bit integer, 0..15, of which a byte holds two.
struct uint4 {
  /// The type of an unpacked element.
  using value_type = std::uint8_t;
  static constexpr int bits = 4;            ///< Bits of an element.
  static constexpr bool is_signed = false;  ///< Whether elements are two's complement.
  static constexpr grid levels{0, 15};      ///< All values of the type.
};
/// Names the element type of a signed 2-bit integer, -2..1, of which a byte holds four.
struct int2 {
  /// The type of an unpacked element.
  using value_type = std::int8_t;
  static constexpr int bits = 2;           ///< Bits of an element.
  static constexpr bool is_signed = true;  ///< Whether elements are two's complement.
  static constexpr grid levels{-2, 1};     ///< All values of the type.
};
/// Names the element type of an unsigned 2-bit integer, 0..3, of which a byte holds four.
struct uint2 {
  /// The type of an unpacked element.
  using value_type = std::uint8_t;
  static constexpr int bits = 2;            ///< Bits of an element.
  static constexpr bool is_signed = false;  ///< Whether elements are two's complement.
  static constexpr grid levels{0, 3};       ///< All values of the type.
};

/// The packed element types: int4, uint4, int2 and uint2.
template <class T>
concept packed_type = std::same_as<T, int4> || std::same_as<T, uint4> || std::same_as<T, int2> ||
    std::same_as<T, uint2>;

/// Number of elements of the packed type T in a byte.
template <packed_type T>
inline constexpr std::size_t elements_per_byte = 8 / T::bits;

/// Number of bytes that n packed elements take: n / `elements_per_byte<T>`, rounded up.
template <packed_type T>
[[nodiscard]] constexpr std::size_t packed_size(std::size_t n) noexcept {
  return n / elements_per_byte<T> + (n % elements_per_byte<T> != 0 ? 1 : 0);
}

namespace detail {

/// The low bits of `value`, shifted to slot 0, 1, ... of a byte; all other bits are zero.
template <packed_type T>
[[nodiscard]] constexpr unsigned pack_element(typename T::value_type value,
                                              std::size_t slot) noexcept {
  constexpr unsigned mask = (1U << T::bits) - 1U;
  return (static_cast<std::uint8_t>(value) & mask) << (T::bits * slot);
}

/// The element in slot 0, 1, ... of a byte.
template <packed_type T>
[[nodiscard]] constexpr typename T::value_type unpack_element(std::uint8_t byte,
                                                              std::size_t slot) noexcept {
  constexpr int mask = (1 << T::bits) - 1;
  constexpr int sign = T::is_signed ? 1 << (T::bits - 1) : 0;
  // Inverting the sign bit adds 2^(bits - 1) to a signed number.
  const int field = byte >> (T::bits * slot) & mask;
  return static_cast<typename T::value_type>((field ^ sign) - sign);
}

}  // namespace detail

/// A view of packed elements of type T, or of const T for reading. get() and set() define the
/// layout; neither checks its index. The view owns nothing.
template <class T>
requires packed_type<std::remove_const_t<T>>
class packed_span {
 public:
  /// int4, uint4, int2 or uint2.
  using element_type = std::remove_const_t<T>;
  /// The type of an unpacked element.
  using value_type = typename element_type::value_type;
  /// The type of the bytes that hold the elements; const if T is.
  using byte_type = std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>;

  /// An empty view.
  constexpr packed_span() = default;
  /// A view of `size` elements in `packed_size<element_type>(size)` bytes. Throws shape_mismatch if
  /// there are more or fewer bytes, and invalid_argument if `size` is not 0 and the data is null.
  packed_span(std::span<byte_type> bytes, std::size_t size) : data_(bytes.data()), size_(size) {
    require(bytes.size() == size_bytes(), error_kind::shape_mismatch, "packed_span: ", bytes.size(),
            " bytes for ", size, " elements of ", element_type::bits, " bits, which take ",
            size_bytes());
    require(size == 0 || data_ != nullptr, error_kind::invalid_argument,
            "packed_span: null data with size ", size);
  }
  /// Converts a view of mutable elements to a view of const ones.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<element_type, U>) constexpr packed_span(
      const packed_span<U>& other) noexcept  // NOLINT(google-explicit-constructor)
      : data_(other.data()), size_(other.size()) {}

  /// The first byte.
  [[nodiscard]] constexpr byte_type* data() const noexcept { return data_; }
  /// Number of elements.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  /// Number of bytes.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept {
    return packed_size<element_type>(size_);
  }

  /// Reads element i, which is in byte i / elements_per_byte and begins there at bit
  /// bits * (i % elements_per_byte).
  [[nodiscard]] constexpr value_type get(std::size_t i) const noexcept {
    return detail::unpack_element<element_type>(data_[i / per_byte], i % per_byte);
  }
  /// Writes element i and leaves its neighbours in the byte as they are. A value outside of the
  /// type's levels is reduced to its low bits, as ONNX's Cast does: 8 written to an int4 reads as
  /// -8. Not thread-safe for elements that share a byte.
  constexpr void set(std::size_t i, value_type value) const noexcept requires(!std::is_const_v<T>) {
    constexpr auto ones = static_cast<value_type>(-1);
    const std::size_t slot = i % per_byte;
    const unsigned others = data_[i / per_byte] & ~detail::pack_element<element_type>(ones, slot);
    data_[i / per_byte] =
        static_cast<std::uint8_t>(others | detail::pack_element<element_type>(value, slot));
  }

 private:
  static constexpr std::size_t per_byte = elements_per_byte<element_type>;

  byte_type* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Packs values[i] into element i, as packed.set(i, values[i]) does; a value outside of the type's
/// levels is reduced to its low bits. Bits after the last element become zero. The values and the
/// packed bytes must not overlap. Throws shape_mismatch if the sizes differ and invalid_argument if
/// data is null; nothing is written then.
template <packed_type T>
void pack(std::span<const typename T::value_type> values, packed_span<T> packed) {
  require(values.size() == packed.size(), error_kind::shape_mismatch, "pack: input has ",
          values.size(), " elements, output ", packed.size());
  require(values.empty() || values.data() != nullptr, error_kind::invalid_argument,
          "pack: null data with size ", values.size());
  constexpr std::size_t per_byte = elements_per_byte<T>;
  const typename T::value_type* from = values.data();
  std::uint8_t* to = packed.data();
  const std::size_t whole_bytes = values.size() / per_byte;
  for (std::size_t i = 0; i < whole_bytes; ++i) {
    unsigned byte = 0;
    for (std::size_t slot = 0; slot < per_byte; ++slot) {
      byte |= detail::pack_element<T>(from[i * per_byte + slot], slot);
    }
    to[i] = static_cast<std::uint8_t>(byte);
  }
  const std::size_t rest = values.size() % per_byte;
  if (rest != 0) {
    to[whole_bytes] = 0;
  }
  for (std::size_t i = values.size() - rest; i < values.size(); ++i) {
    packed.set(i, from[i]);
  }
}

/// Unpacks element i into values[i], as packed.get(i) reads it. Bits after the last element are
/// ignored. The packed bytes and the values must not overlap. Throws shape_mismatch if the sizes
/// differ and invalid_argument if data is null; nothing is written then.
template <class T>
void unpack(packed_span<T> packed, std::span<typename packed_span<T>::value_type> values) {
  using element_type = typename packed_span<T>::element_type;
  require(packed.size() == values.size(), error_kind::shape_mismatch, "unpack: input has ",
          packed.size(), " elements, output ", values.size());
  require(values.empty() || values.data() != nullptr, error_kind::invalid_argument,
          "unpack: null data with size ", values.size());
  constexpr std::size_t per_byte = elements_per_byte<element_type>;
  const std::uint8_t* from = packed.data();
  typename element_type::value_type* to = values.data();
  const std::size_t whole_bytes = values.size() / per_byte;
  for (std::size_t i = 0; i < whole_bytes; ++i) {
    for (std::size_t slot = 0; slot < per_byte; ++slot) {
      to[i * per_byte + slot] = detail::unpack_element<element_type>(from[i], slot);
    }
  }
  for (std::size_t i = whole_bytes * per_byte; i < values.size(); ++i) {
    to[i] = packed.get(i);
  }
}

DETENT_NAMESPACE_END

#endif  // DETENT_SUB_BYTE_HPP
