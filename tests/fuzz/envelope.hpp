// SPDX-License-Identifier: BSD-3-Clause
// Damages saved bytes so that the damage gets past the checksum of their envelope.
#ifndef DETENT_TESTS_FUZZ_ENVELOPE_HPP
#define DETENT_TESTS_FUZZ_ENVELOPE_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/byte_format.hpp>

#include "fuzz_target.hpp"

namespace fuzz {

/// Replaces the size and the checksum of an envelope by what they must be.
inline void mend_envelope(std::vector<std::byte>& bytes) {
  constexpr std::size_t sum = sizeof(std::uint64_t);
  if (bytes.size() < detent::detail::envelope_header + sum) {
    return;
  }
  const auto put = [&](std::size_t at, std::uint64_t value) {
    for (std::size_t i = 0; i < sum; ++i) {
      bytes[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
    }
  };
  put(16, bytes.size() - detent::detail::envelope_header - sum);
  put(bytes.size() - sum, detent::detail::checksum(std::span(bytes).first(bytes.size() - sum)));
}

/// Replaces, flips, removes and inserts up to `most` bytes, half of them near the beginning. In one
/// of eight cases the checksum is left wrong.
inline void damage(std::vector<std::byte>& bytes, numbers& in, std::size_t most) {
  const std::size_t changes = in.below(most + 1);
  const bool is_mended = in.get<std::uint8_t>() % 8 != 0;
  for (std::size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const std::uint8_t kind = in.get<std::uint8_t>();
    const std::size_t near = bytes.size() < 64 ? bytes.size() : 64;
    const std::size_t at = in.below((kind & 0x80U) != 0 ? near : bytes.size());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (kind % 4) {
      case 0:
        *place = in.get<std::byte>();
        break;
      case 1:
        *place ^= static_cast<std::byte>(1U << in.below(8));
        break;
      case 2:
        bytes.erase(place);
        break;
      default:
        bytes.insert(place, in.get<std::byte>());
    }
  }
  if (is_mended) {
    mend_envelope(bytes);
  }
}

}  // namespace fuzz

#endif  // DETENT_TESTS_FUZZ_ENVELOPE_HPP
