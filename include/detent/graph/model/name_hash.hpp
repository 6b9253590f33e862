// SPDX-License-Identifier: BSD-3-Clause
// A hash of names with a key of its own in each process, and containers of names that use it.
#ifndef DETENT_GRAPH_MODEL_NAME_HASH_HPP
#define DETENT_GRAPH_MODEL_NAME_HASH_HPP

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012, with one
/// round for each eight bytes and three at the end) of `text`. Whoever does not know the key cannot
/// find texts with equal hashes.
[[nodiscard]] inline std::uint64_t siphash(std::array<std::uint64_t, 2> key,
                                           std::string_view text) noexcept {
  std::uint64_t a = key[0] ^ 0x736f6d6570736575U;
  std::uint64_t b = key[1] ^ 0x646f72616e646f6dU;
  std::uint64_t c = key[0] ^ 0x6c7967656e657261U;
  std::uint64_t d = key[1] ^ 0x7465646279746573U;
  const auto round = [&] {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  };
  // The bytes from `at` on, the first one in the lowest bits.
  const auto word = [text](std::size_t at, std::size_t count) {
    std::uint64_t w = 0;
    for (std::size_t i = count; i-- > 0;) {
      w = w << 8U | static_cast<unsigned char>(text[at + i]);
    }
    return w;
  };
  const auto add = [&](std::uint64_t w) {
    d ^= w;
    round();
    a ^= w;
  };
  const std::size_t rest = text.size() % 8;
  const std::size_t whole = text.size() - rest;
  for (std::size_t at = 0; at < whole; at += 8) {
    add(word(at, 8));
  }
  add(word(whole, rest) | std::uint64_t{text.size() & 0xffU} << 56U);
  c ^= 0xffU;
  round();
  round();
  round();
  return a ^ b ^ c ^ d;
}

/// The key of this process.
[[nodiscard]] inline std::array<std::uint64_t, 2> name_hash_key() {
  static const std::array<std::uint64_t, 2> key = [] {
    std::random_device random;
    const auto draw = [&] { return std::uint64_t{random()} << 32U | random(); };
    const std::uint64_t first = draw();
    return std::array<std::uint64_t, 2>{first, draw()};
  }();
  return key;
}

/// The hash of names that come from files. With std::hash, whose key is known, a file of a megabyte
/// can have names that all fall into one bucket, and takes minutes to read. No result may depend on
/// the order of elements in a container with this hash: it is another one in each process.
struct name_hash {
  using is_transparent = void;
  [[nodiscard]] std::size_t operator()(std::string_view name) const {
    return static_cast<std::size_t>(siphash(name_hash_key(), name));
  }
};

/// A set of names.
using name_set = std::unordered_set<std::string, name_hash, std::equal_to<>>;
/// Values by name.
template <class T>
using name_map = std::unordered_map<std::string, T, name_hash, std::equal_to<>>;

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_NAME_HASH_HPP
