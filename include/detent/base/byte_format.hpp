// SPDX-License-Identifier: BSD-3-Clause
// The envelope of everything that the library saves as bytes: little-endian on every machine, with
// a version and a checksum.
//
//   offset 0    8 bytes   "detent" and two characters that say what is saved
//          8    u32       version of the content's layout
//          12   u32       0
//          16   u64       size of the content in bytes
//          24             the content
//          24 + size      u64: FNV-1a (64 bits) of all bytes before
//
// FNV-1a changes with every single byte, wherever it is. It protects from damage, not from malice:
// readers must check the content that they read besides.
#ifndef DETENT_BASE_BYTE_FORMAT_HPP
#define DETENT_BASE_BYTE_FORMAT_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The kind of an envelope's content.
struct byte_format {
  std::string_view name;  // eight characters
  std::uint32_t version;  // of the content's layout
};

/// FNV-1a of 64 bits.
[[nodiscard]] inline std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::byte b : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001B3U;
  }
  return hash;
}

/// Whether bytes begin with the name of a format. Only byte_reader checks the rest of the envelope.
[[nodiscard]] inline bool begins_with(std::span<const std::byte> bytes,
                                      const byte_format& format) noexcept {
  return bytes.size() >= format.name.size() &&
         std::memcmp(bytes.data(), format.name.data(), format.name.size()) == 0;
}

/// The unsigned integer type of the size of T.
template <class T>
using bits_of = std::conditional_t<
    sizeof(T) == 1, std::uint8_t,
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

/// Bytes before the content.
inline constexpr std::size_t envelope_header = 24;

/// Writes an envelope whose content is numbers and arrays, one after the other without padding.
class byte_writer {
 public:
  explicit byte_writer(const byte_format& format) {
    for (const char c : format.name) {
      put(c);
    }
    put(format.version);
    put(std::uint32_t{0});
    put(std::uint64_t{0});  // the size, which finish() fills in
  }

  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) {
    const auto bits = std::bit_cast<bits_of<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(bits >> (8 * i) & 0xFFU));
    }
  }
  template <class T>
  void put_array(std::span<const T> values) {
    if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
      const auto bytes = std::as_bytes(values);
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    } else {
      for (const T value : values) {
        put(value);
      }
    }
  }

  /// Fills in the size, appends the checksum, and returns the whole envelope.
  [[nodiscard]] std::vector<std::byte> finish() && {
    const std::uint64_t size = bytes_.size() - envelope_header;
    for (std::size_t i = 0; i < sizeof size; ++i) {
      bytes_[16 + i] = static_cast<std::byte>(size >> (8 * i) & 0xFFU);
    }
    put(checksum(bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads an envelope that byte_writer wrote. Anything that does not fit throws bad_file; an unknown
/// version throws unsupported. `where` begins every message and must outlive the reader.
class byte_reader {
 public:
  byte_reader(std::span<const std::byte> bytes, const byte_format& format, const char* where)
      : rest_(bytes), where_(where) {
    const std::size_t given = bytes.size();
    require(given >= envelope_header, error_kind::bad_file, where, ": ", given,
            " bytes are too few for saved data");
    for (const char c : format.name) {
      require(get<char>() == c, error_kind::bad_file, where,
              ": these are not saved data of the kind ", format.name);
    }
    const auto version = get<std::uint32_t>();
    require(version == format.version, error_kind::unsupported, where, ": version ", version,
            " of the layout, this release reads ", format.version);
    require(get<std::uint32_t>() == 0, error_kind::bad_file, where, ": the header is damaged");
    const auto size = get<std::uint64_t>();
    require(size == given - envelope_header - sizeof(std::uint64_t) &&
                given >= envelope_header + sizeof(std::uint64_t),
            error_kind::bad_file, where, ": ", given, " bytes for a content of ", size);
    const auto content = bytes.first(envelope_header + static_cast<std::size_t>(size));
    rest_ = bytes.last(sizeof(std::uint64_t));
    require(get<std::uint64_t>() == checksum(content), error_kind::bad_file, where,
            ": the checksum is wrong");
    rest_ = content.subspan(envelope_header);
  }

  template <class T>
  [[nodiscard]] T get() {
    require(rest_.size() >= sizeof(T), error_kind::bad_file, where_, ": ends early");
    bits_of<T> bits = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bits = static_cast<bits_of<T>>(
          bits | static_cast<bits_of<T>>(static_cast<bits_of<T>>(rest_[i]) << (8 * i)));
    }
    rest_ = rest_.subspan(sizeof(T));
    return std::bit_cast<T>(bits);
  }
  /// Reads a size or a count. Throws bad_file if it is above `largest`.
  [[nodiscard]] std::size_t get_size(std::uint64_t largest) {
    const auto size = get<std::uint64_t>();
    require(size <= largest, error_kind::bad_file, where_, ": the size ", size, " is larger than ",
            largest);
    return static_cast<std::size_t>(size);
  }
  /// Reads `count` values into a vector. Throws bad_file, before it allocates, if fewer are left.
  template <class Vector>
  void get_array(std::size_t count, Vector& values) {
    using T = typename Vector::value_type;
    require(count <= rest_.size() / sizeof(T), error_kind::bad_file, where_, ": ends early");
    values.resize(count);
    if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
      if (count != 0) {
        std::memcpy(values.data(), rest_.data(), count * sizeof(T));
      }
      rest_ = rest_.subspan(count * sizeof(T));
    } else {
      for (T& value : values) {
        value = get<T>();
      }
    }
  }
  /// Bytes of the content that are not read yet.
  [[nodiscard]] std::size_t rest() const noexcept { return rest_.size(); }
  /// Throws bad_file unless the whole content has been read.
  void require_end() const {
    require(rest_.empty(), error_kind::bad_file, where_, ": ", rest_.size(), " bytes too many");
  }

 private:
  std::span<const std::byte> rest_;
  const char* where_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_BYTE_FORMAT_HPP
