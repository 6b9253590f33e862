// SPDX-License-Identifier: BSD-3-Clause
// The CPU targets that this program can use, the one that is in use, and how to choose another.
#ifndef DETENT_DISPATCH_HPP
#define DETENT_DISPATCH_HPP

#include <atomic>
#include <initializer_list>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/kernels/active_target.hpp>
#include <detent/target.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

/// Every target that the library knows, slowest first.
inline constexpr std::initializer_list<target> all_targets = {
    target::portable, target::avx2,        target::avx_vnni,
    target::avx512,   target::avx512_vnni, target::amx_int8};

[[nodiscard]] inline bool is_available(target t) noexcept {
  return kernels::is_compiled(t) && kernels::cpu_supports(t);
}

}  // namespace detail

/// The targets whose kernels are part of this program, slowest first. Thread-safe.
[[nodiscard]] inline std::vector<target> compiled_targets() {
  std::vector<target> compiled = detail::all_targets;
  std::erase_if(compiled, [](target t) { return !kernels::is_compiled(t); });
  return compiled;
}

/// The compiled targets that this processor can run, slowest first. Never empty: portable is always
/// available. Thread-safe.
[[nodiscard]] inline std::vector<target> available_targets() {
  std::vector<target> available = detail::all_targets;
  std::erase_if(available, [](target t) { return !detail::is_available(t); });
  return available;
}

/// The fastest of available_targets(). Thread-safe.
[[nodiscard]] inline target best_target() noexcept {
  target best = target::portable;
  for (const target t : detail::all_targets) {
    best = detail::is_available(t) ? t : best;
  }
  return best;
}

/// The target whose kernels are in use: the one that set_target() chose last, or best_target() if
/// it was never called. Thread-safe.
[[nodiscard]] inline target active_target() noexcept {
  std::atomic<int>& slot = kernels::active_target_slot();
  int active = slot.load(std::memory_order_relaxed);
  if (active == kernels::no_target) [[unlikely]] {
    const auto best = static_cast<int>(best_target());
    // Another thread may have chosen meanwhile: then `active` becomes its choice.
    if (slot.compare_exchange_strong(active, best, std::memory_order_relaxed)) {
      active = best;
    }
  }
  return static_cast<target>(active);
}

/// Makes every later call in this program use the kernels of `t`. All targets return the same bits;
/// choose one for tests, for measurements, or to work around a defect of a processor. Thread-safe:
/// kernels that are already running are not affected. Throws unsupported if `t` is not one of
/// available_targets().
inline void set_target(target t) {
  require(detail::is_available(t), error_kind::unsupported, "set_target: ", name(t),
          " is not compiled in or not supported by this processor");
  kernels::active_target_slot().store(static_cast<int>(t), std::memory_order_relaxed);
}

namespace detail {

/// The kernels of one family (kernels::statistics_kernels, ...) for the target in use. A header
/// that calls this includes <detent/kernels/definitions/...> of that family, which compiles the
/// kernels in header-only mode.
template <class Family>
[[nodiscard]] const Family& active() noexcept {
  return *Family::of(active_target());
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_DISPATCH_HPP
