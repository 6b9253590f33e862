// SPDX-License-Identifier: BSD-3-Clause
// The states that a quantization configuration can be in, and the table of legal transitions
// between them.
#ifndef DETENT_GRAPH_PPQ_STATE_HPP
#define DETENT_GRAPH_PPQ_STATE_HPP

#include <array>
#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The state of a quantization configuration. The enumerators have the numbers that PPQ gives them.
enum class quantization_state : std::uint8_t {
  /// The configuration has no scale and zero point yet: it waits for calibration.
  initial = 1,
  /// The tensor, a constant, is stored with the values that quantization gives it.
  baked = 2,
  /// Another configuration, the root of this one, quantizes in its place.
  overlapped = 3,
  /// The configuration has parameters of its own and quantizes with them.
  activated = 4,
  /// The configuration quantizes with parameters that follow from other configurations.
  passive = 5,
  /// The parameters are to follow from other configurations, which have none yet.
  passive_init = 6,
  /// The parameters follow from other configurations, and the tensor, a constant, is stored with
  /// the values that quantization gives it.
  passive_baked = 7,
  /// The configuration is switched off: its tensor stays float.
  fp32 = 8,
};

/// Number of enumerators of quantization_state.
inline constexpr std::size_t quantization_state_count = 8;

/// PPQ's name of a state, for example "ACTIVATED"; "?" for a number that is no state.
[[nodiscard]] constexpr const char* name(quantization_state state) noexcept {
  constexpr std::array<const char*, quantization_state_count + 1> names{
      "?",       "INITIAL",      "BAKED",         "OVERLAPPED", "ACTIVATED",
      "PASSIVE", "PASSIVE_INIT", "PASSIVE_BAKED", "FP32"};
  return names[static_cast<std::size_t>(state) <= quantization_state_count
                   ? static_cast<std::size_t>(state)
                   : 0];
}

/// The legal transitions between states: state_transitions[from - 1][to - 1] is true if a
/// configuration in state `from` may go to state `to`. Every state may be kept. Besides:
///
///   INITIAL -> ACTIVATED                    an observer has rendered scale and zero point
///   ACTIVATED -> INITIAL                    the configuration is to be calibrated once more
///   INITIAL, ACTIVATED -> OVERLAPPED        another configuration becomes its root
///   any -> PASSIVE, PASSIVE_INIT            another configuration becomes its master
///   ACTIVATED -> BAKED, PASSIVE -> PASSIVE_BAKED
///   any <-> FP32                            the configuration is switched off, or goes back to the
///                                           state it had before
inline constexpr std::array<std::array<bool, quantization_state_count>, quantization_state_count>
    state_transitions{{
        // INITIAL BAKED OVERLAPPED ACTIVATED PASSIVE PASSIVE_INIT PASSIVE_BAKED FP32
        {true, false, true, true, true, true, false, true},     // INITIAL
        {false, true, false, false, true, true, false, true},   // BAKED
        {false, false, true, false, true, true, false, true},   // OVERLAPPED
        {true, true, true, true, true, true, false, true},      // ACTIVATED
        {false, false, false, false, true, true, true, true},   // PASSIVE
        {false, false, false, false, true, true, false, true},  // PASSIVE_INIT
        {false, false, false, false, true, true, true, true},   // PASSIVE_BAKED
        {true, true, true, true, true, true, true, true},       // FP32
    }};

/// Whether state_transitions allows a configuration in state `from` to go to state `to`.
[[nodiscard]] constexpr bool is_legal(quantization_state from, quantization_state to) noexcept {
  return state_transitions[static_cast<std::size_t>(from) - 1][static_cast<std::size_t>(to) - 1];
}

/// Whether a configuration in this state quantizes when a model runs: ACTIVATED and PASSIVE do.
[[nodiscard]] constexpr bool is_active(quantization_state state) noexcept {
  return state == quantization_state::activated || state == quantization_state::passive;
}

/// Whether scale and zero point may be written in this state. They may be in INITIAL, ACTIVATED,
/// PASSIVE, PASSIVE_INIT and FP32, if the configuration is its own root.
[[nodiscard]] constexpr bool is_writable(quantization_state state) noexcept {
  return is_active(state) || state == quantization_state::fp32 ||
         state == quantization_state::initial || state == quantization_state::passive_init;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_STATE_HPP
