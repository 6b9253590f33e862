// SPDX-License-Identifier: BSD-3-Clause
// A hash that tells models and samples apart.
#ifndef DETENT_GRAPH_MODEL_FINGERPRINT_HPP
#define DETENT_GRAPH_MODEL_FINGERPRINT_HPP

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// FNV-1a (64 bits) of what is added, in its order. It tells apart what differs by accident, such
/// as the files of two runs; whoever wants two things with the same hash can make them. The same
/// on every machine. Not thread-safe.
class fingerprint {
 public:
  /// Adds bytes and their number.
  void add(std::string_view bytes) noexcept {
    for (const char c : bytes) {
      hash_ = (hash_ ^ static_cast<std::uint8_t>(c)) * prime;
    }
    hash_ = (hash_ ^ bytes.size()) * prime;
  }
  /// Adds a number: its bits, least significant byte first.
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(T value) noexcept {
    std::array<char, sizeof(T)> bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
    if constexpr (std::endian::native == std::endian::big) {
      for (std::size_t i = 0; i < sizeof(T) / 2; ++i) {
        std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
      }
    }
    add(std::string_view(bytes.data(), bytes.size()));
  }
  /// Adds the type, the shape and the elements of a tensor.
  void add(const tensor& t) {
    add(name(t.type()));
    add(to_string(t.dims()));
    if (t.has_data()) {
      add(std::string_view{reinterpret_cast<const char*>(t.raw()), t.bytes()});
    }
    for (const std::string& s : t.strings()) {
      add(s);
    }
  }
  /// Adds tensors with their names.
  void add(const std::map<std::string, tensor>& tensors) {
    for (const auto& [key, t] : tensors) {
      add(key);
      add(t);
    }
  }
  /// Adds all of a graph that its results depend on: nodes, constants, sub-graphs, and the names of
  /// its inputs and outputs. Descriptions and other unread_fields do not count.
  void add(const graph_body& g) {
    for (const auto* values : {&g.inputs, &g.outputs}) {
      for (const value_info& v : *values) {
        add(v.name);
      }
      add(values->size());
    }
    add(g.initializers);
    for (const node& n : g.nodes) {
      add(n);
    }
  }
  /// Adds a node: its operator, the names of its values, and its attributes.
  void add(const node& n) {
    add(n.domain);
    add(n.op_type);
    for (const auto* names : {&n.inputs, &n.outputs}) {
      for (const std::string& value : *names) {
        add(value);
      }
      add(names->size());
    }
    for (const auto& [key, a] : n.attributes) {
      add(key);
      add(a);
    }
  }

  /// The hash of all that was added.
  [[nodiscard]] std::uint64_t value() const noexcept { return hash_; }
  /// The hash as 16 hexadecimal digits.
  [[nodiscard]] std::string text() const {
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) {
      digits += "0123456789abcdef"[hash_ >> shift & 0xFU];
    }
    return digits;
  }

 private:
  static constexpr std::uint64_t prime = 0x100000001B3U;

  void add(const attribute& a) {
    add(static_cast<std::int32_t>(a.kind));
    add(a.f);
    add(a.i);
    add(a.s);
    add(a.t);
    for (const float f : a.floats) {
      add(f);
    }
    for (const std::int64_t i : a.ints) {
      add(i);
    }
    for (const std::string& s : a.strings) {
      add(s);
    }
    if (a.g) {
      add(*a.g);
    }
    for (const auto& one : a.graphs) {
      add(*one);
    }
  }

  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_FINGERPRINT_HPP
