// SPDX-License-Identifier: BSD-3-Clause
// Which CPU target the library uses, and how to choose another one.
#ifndef DETENT_DISPATCH_HPP
#define DETENT_DISPATCH_HPP

#include <cstring>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/kernels/dispatch.hpp>
#include <detent/target.hpp>

DETENT_NAMESPACE_BEGIN

/// The targets whose kernels are part of this program, worst first.
[[nodiscard]] inline std::vector<target> compiled_targets() {
  const kernels::table_list tables = kernels::compiled_tables();
  std::vector<target> all;
  for (std::size_t i = 0; i < tables.size; ++i) {
    all.push_back(tables.first[i]->id);
  }
  return all;
}

/// The compiled targets that this processor can run, worst first. Never empty.
[[nodiscard]] inline std::vector<target> available_targets() {
  std::vector<target> all = compiled_targets();
  std::erase_if(all, [](target t) { return !kernels::cpu_supports(t); });
  return all;
}

namespace detail {

/// The table of a target, or null if it is not compiled or this processor can't run it.
[[nodiscard]] inline const kernels::kernel_table* find_table(target t) noexcept {
  const kernels::table_list tables = kernels::compiled_tables();
  for (std::size_t i = 0; i < tables.size; ++i) {
    if (tables.first[i]->id == t && kernels::cpu_supports(t)) {
      return tables.first[i];
    }
  }
  return nullptr;
}

[[nodiscard]] inline const kernels::kernel_table& best_table() noexcept {
  const kernels::table_list tables = kernels::compiled_tables();
  std::size_t i = tables.size - 1;
  while (i > 0 && !kernels::cpu_supports(tables.first[i]->id)) {
    --i;
  }
  return *tables.first[i];
}

/// What every public function calls, once per operation.
[[nodiscard]] inline const kernels::kernel_table& active_table() noexcept {
  std::atomic<const kernels::kernel_table*>& slot = kernels::active_table_slot();
  const kernels::kernel_table* table = slot.load(std::memory_order_acquire);
  if (table == nullptr) [[unlikely]] {
    table = &best_table();
    const kernels::kernel_table* nobody_chose = nullptr;
    if (!slot.compare_exchange_strong(nobody_chose, table, std::memory_order_acq_rel)) {
      table = nobody_chose;
    }
  }
  return *table;
}

}  // namespace detail

/// The best of available_targets().
[[nodiscard]] inline target best_target() noexcept { return detail::best_table().id; }

/// The target in use: best_target() until set_target() was called.
[[nodiscard]] inline target active_target() noexcept { return detail::active_table().id; }

/// Makes every later call use the kernels of `t`. All targets return the same bits; this is for
/// tests, measurements and for working around a processor. Thread-safe: calls that have begun are
/// not affected. Throws error_kind::unsupported if `t` is not one of available_targets().
inline void set_target(target t) {
  const kernels::kernel_table* table = detail::find_table(t);
  detail::require(table != nullptr, error_kind::unsupported, "set_target: ", name(t),
                  " is not compiled in or not supported by this processor");
  kernels::active_table_slot().store(table, std::memory_order_release);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DISPATCH_HPP
