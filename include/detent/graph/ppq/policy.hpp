// SPDX-License-Identifier: BSD-3-Clause
// PPQ's description of a quantizer: a mask of properties, a rounding rule, and whether the
// quantizer is written into exported models.
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
  /// One scale and zero point serve the whole tensor.
  static constexpr std::uint32_t per_tensor = 0x01;
  /// Each index along the channel axis has its own scale and zero point.
  static constexpr std::uint32_t per_channel = 0x02;
  /// Values become integers by a scale and a zero point.
  static constexpr std::uint32_t linear = 0x04;
  /// Values become floating-point numbers of a small format.
  static constexpr std::uint32_t floating = 0x08;
  /// The zero point is fixed by the grid (0 on signed grids).
  static constexpr std::uint32_t symmetrical = 0x10;
  /// The zero point follows from the range.
  static constexpr std::uint32_t asymmetrical = 0x20;
  /// Scales are powers of two.
  static constexpr std::uint32_t power_of_2 = 0x40;
  /// Scale and zero point are found anew in each run of the model, from the tensor itself.
  static constexpr std::uint32_t dynamic = 0x80;
};

/// A set of quantization_property bits: one of the 18 sets that PPQ accepts.
///
///   linear    with one of symmetrical and asymmetrical, one of per_tensor and per_channel, and
///             with or without power_of_2 and dynamic
///   floating  with symmetrical, power_of_2, and one of per_tensor and per_channel
///
/// Source: PPQ 0.6.6, QuantizationPolicy.
class quantization_policy {
 public:
  /// Makes the policy of linear, symmetrical and per_tensor.
  constexpr quantization_policy() noexcept = default;
  /// Makes the policy of these bits. Throws invalid_argument, naming the bits, unless
  /// is_accepted(properties).
  constexpr explicit quantization_policy(std::uint32_t properties) : properties_(properties) {
    if (!is_accepted(properties)) {
      raise(error_kind::invalid_argument, "detent: quantization_policy: " + describe(properties) +
                                              " is not a set of properties that PPQ accepts");
    }
  }

  /// Whether the bits are one of the 18 sets that PPQ accepts.
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

  /// Whether the policy has all bits of `property`.
  [[nodiscard]] constexpr bool has(std::uint32_t property) const noexcept {
    return (properties_ & property) == property;
  }
  /// The bits of the policy.
  [[nodiscard]] constexpr std::uint32_t properties() const noexcept { return properties_; }
  /// Whether the policy is symmetrical, not asymmetrical.
  [[nodiscard]] constexpr bool is_symmetrical() const noexcept {
    return has(quantization_property::symmetrical);
  }
  /// Whether the policy is per channel, not per tensor.
  [[nodiscard]] constexpr bool is_per_channel() const noexcept {
    return has(quantization_property::per_channel);
  }
  /// This policy with per_tensor instead of per_channel.
  [[nodiscard]] constexpr quantization_policy per_tensor() const {
    return quantization_policy((properties_ & ~quantization_property::per_channel) |
                               quantization_property::per_tensor);
  }
  /// This policy without the property dynamic.
  [[nodiscard]] constexpr quantization_policy fixed_range() const {
    return quantization_policy(properties_ & ~quantization_property::dynamic);
  }
  /// Whether two policies have the same properties.
  friend constexpr bool operator==(quantization_policy, quantization_policy) = default;

  /// The names of the bits as in "PER_TENSOR | LINEAR | SYMMETRICAL", for messages. Bits that are
  /// no properties follow as a number.
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

/// PPQ's rounding policies, with its values: how a real number of steps becomes an integer.
enum class rounding_policy : std::uint8_t {
  half_even = 0,           ///< To the nearest integer, ties to the even one.
  half_up = 1,             ///< To the nearest integer, ties toward +infinity.
  half_down = 2,           ///< To the nearest integer, ties toward -infinity.
  half_towards_zero = 3,   ///< To the nearest integer, ties toward zero.
  half_far_from_zero = 4,  ///< To the nearest integer, ties away from zero.
  /// To the nearest integer, ties away from zero: what PPQ does to scalars by that name.
  to_near_int = 5,
  up = 6,    ///< To the next integer toward +infinity.
  down = 7,  ///< To the next integer toward -infinity.
};

/// Calls f with the detent::quantize_policy that rounds as a rounding policy says, and returns what
/// f returns. The type of the argument of f depends on `r`.
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

/// PPQ's rule for whether a configuration is written into exported models.
enum class visibility_policy : std::uint8_t {
  force_export,        ///< It is written whatever its state, if it has parameters.
  export_when_active,  ///< It is written if it is active or baked.
  internal,            ///< It is never written.
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_POLICY_HPP
