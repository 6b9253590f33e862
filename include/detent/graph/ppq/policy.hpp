// SPDX-License-Identifier: BSD-3-Clause
// How PPQ describes a quantizer: a mask of properties, a rounding rule, whether it is written out.
#ifndef DETENT_GRAPH_PPQ_POLICY_HPP
#define DETENT_GRAPH_PPQ_POLICY_HPP

#include <cstdint>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/reference.hpp>
#include <detent/rounding.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

namespace detail {
using detent::require;
}  // namespace detail

/// The bits of a quantization_policy, with PPQ's values.
struct quantization_property {
  static constexpr std::uint32_t per_tensor = 0x01;
  static constexpr std::uint32_t per_channel = 0x02;
  static constexpr std::uint32_t linear = 0x04;
  static constexpr std::uint32_t floating = 0x08;
  static constexpr std::uint32_t symmetrical = 0x10;
  static constexpr std::uint32_t asymmetrical = 0x20;
  static constexpr std::uint32_t power_of_2 = 0x40;
  static constexpr std::uint32_t dynamic = 0x80;
};

/// One of the 18 sets of properties that PPQ accepts:
///
///   linear    one of symmetrical and asymmetrical, one of per_tensor and per_channel, and with or
///             without power_of_2 and dynamic
///   floating  symmetrical, power_of_2, and one of per_tensor and per_channel
///
/// Source: PPQ 0.6.6, QuantizationPolicy.
class quantization_policy {
 public:
  /// Linear, symmetrical, per tensor.
  constexpr quantization_policy() noexcept = default;
  /// Throws invalid_argument, with the mask, for any other set.
  constexpr explicit quantization_policy(std::uint32_t properties) : properties_(properties) {
    if (!is_accepted(properties)) {
      raise(error_kind::invalid_argument, "detent: quantization_policy: " + describe(properties) +
                                              " is not a set of properties that PPQ accepts");
    }
  }

  [[nodiscard]] static constexpr bool is_accepted(std::uint32_t properties) noexcept {
    using p = quantization_property;
    const auto has = [properties](std::uint32_t bit) { return (properties & bit) != 0; };
    const bool known = properties <= 0xFFU;
    const bool granularity = has(p::per_tensor) != has(p::per_channel);
    const bool symmetry = has(p::symmetrical) != has(p::asymmetrical);
    const bool kind = has(p::linear) != has(p::floating);
    const bool float_rules =
        !has(p::floating) || (has(p::symmetrical) && has(p::power_of_2) && !has(p::dynamic));
    return known && granularity && symmetry && kind && float_rules;
  }

  [[nodiscard]] constexpr bool has(std::uint32_t property) const noexcept {
    return (properties_ & property) == property;
  }
  [[nodiscard]] constexpr std::uint32_t properties() const noexcept { return properties_; }
  [[nodiscard]] constexpr bool is_symmetrical() const noexcept {
    return has(quantization_property::symmetrical);
  }
  [[nodiscard]] constexpr bool is_per_channel() const noexcept {
    return has(quantization_property::per_channel);
  }
  /// The same for the whole tensor.
  [[nodiscard]] constexpr quantization_policy per_tensor() const {
    return quantization_policy((properties_ & ~quantization_property::per_channel) |
                               quantization_property::per_tensor);
  }
  /// The same without DYNAMIC.
  [[nodiscard]] constexpr quantization_policy fixed_range() const {
    return quantization_policy(properties_ & ~quantization_property::dynamic);
  }
  friend constexpr bool operator==(quantization_policy, quantization_policy) = default;

  /// "PER_TENSOR | LINEAR | SYMMETRICAL", for messages.
  [[nodiscard]] static std::string describe(std::uint32_t properties) {
    static constexpr const char* names[] = {"PER_TENSOR",  "PER_CHANNEL",  "LINEAR",     "FLOATING",
                                            "SYMMETRICAL", "ASYMMETRICAL", "POWER_OF_2", "DYNAMIC"};
    std::string text;
    for (std::uint32_t i = 0; i < 8; ++i) {
      if ((properties >> i & 1U) != 0) {
        text.append(text.empty() ? "" : " | ").append(names[i]);
      }
    }
    if (properties > 0xFFU || text.empty()) {
      text.append(text.empty() ? "" : " | ").append(std::to_string(properties & ~0xFFU));
    }
    return text;
  }

 private:
  std::uint32_t properties_ = quantization_property::per_tensor | quantization_property::linear |
                              quantization_property::symmetrical;
};

/// PPQ's rounding policies, with its values; see detent/rounding.hpp for their ties.
enum class rounding_policy : std::uint8_t {
  half_even = 0,
  half_up = 1,
  half_down = 2,
  half_towards_zero = 3,
  half_far_from_zero = 4,
  to_near_int = 5,  // what PPQ's scalars do by that name: half_far_from_zero
  up = 6,
  down = 7,
};

/// Calls f with the quantize_policy of a rounding policy.
template <class Function>
decltype(auto) with_rounding(rounding_policy r, const Function& f) {
  switch (r) {
    case rounding_policy::half_up:
      return f(quantize_policy<rounding::half_up>{});
    case rounding_policy::half_down:
      return f(quantize_policy<rounding::half_down>{});
    case rounding_policy::half_towards_zero:
      return f(quantize_policy<rounding::half_toward_zero>{});
    case rounding_policy::half_far_from_zero:
    case rounding_policy::to_near_int:
      return f(quantize_policy<rounding::half_away_from_zero>{});
    case rounding_policy::up:
      return f(quantize_policy<rounding::up>{});
    case rounding_policy::down:
      return f(quantize_policy<rounding::down>{});
    case rounding_policy::half_even:
      break;
  }
  return f(quantize_policy<>{});
}

/// Whether a configuration is written into exported models.
enum class visibility_policy : std::uint8_t {
  force_export,        // whatever its state, if it has parameters
  export_when_active,  // if it is active or baked
  internal,            // never
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_POLICY_HPP
