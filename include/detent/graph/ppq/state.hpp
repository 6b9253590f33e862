// SPDX-License-Identifier: BSD-3-Clause
// The states of a quantization configuration, and which may follow which.
#ifndef DETENT_GRAPH_PPQ_STATE_HPP
#define DETENT_GRAPH_PPQ_STATE_HPP

#include <array>
#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The numbers are PPQ's.
enum class quantization_state : std::uint8_t {
  initial = 1,        // waits for calibration
  baked = 2,          // the tensor is stored with the values that quantization gives it
  overlapped = 3,     // another configuration, its root, quantizes in its place
  activated = 4,      // has parameters, quantizes
  passive = 5,        // quantizes with parameters that come from others
  passive_init = 6,   // the same, but the others have none yet
  passive_baked = 7,  // passive, and stored with the values that quantization gives it
  fp32 = 8,           // switched off
};

inline constexpr std::size_t quantization_state_count = 8;

/// PPQ's name of a state.
[[nodiscard]] constexpr const char* name(quantization_state state) noexcept {
  constexpr std::array<const char*, quantization_state_count + 1> names{
      "?",       "INITIAL",      "BAKED",         "OVERLAPPED", "ACTIVATED",
      "PASSIVE", "PASSIVE_INIT", "PASSIVE_BAKED", "FP32"};
  return names[static_cast<std::size_t>(state) <= quantization_state_count
                   ? static_cast<std::size_t>(state)
                   : 0];
}

/// Row: from, column: to, both in the order of the numbers. Every state may be kept. Besides:
///
///   INITIAL -> ACTIVATED                    an observer has rendered scale and zero point
///   ACTIVATED -> INITIAL                    it is to be calibrated once more
///   INITIAL, ACTIVATED -> OVERLAPPED        another configuration becomes its root
///   any -> PASSIVE, PASSIVE_INIT            another configuration becomes its master
///   ACTIVATED -> BAKED, PASSIVE -> PASSIVE_BAKED
///   any <-> FP32                            switched off, and back to what it was
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

[[nodiscard]] constexpr bool is_legal(quantization_state from, quantization_state to) noexcept {
  return state_transitions[static_cast<std::size_t>(from) - 1][static_cast<std::size_t>(to) - 1];
}

/// States that quantize when a model runs.
[[nodiscard]] constexpr bool is_active(quantization_state state) noexcept {
  return state == quantization_state::activated || state == quantization_state::passive;
}

/// States in which scale and zero point may be written, by a configuration that is its own root.
[[nodiscard]] constexpr bool is_writable(quantization_state state) noexcept {
  return is_active(state) || state == quantization_state::fp32 ||
         state == quantization_state::initial || state == quantization_state::passive_init;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_STATE_HPP
