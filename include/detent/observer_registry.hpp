// SPDX-License-Identifier: BSD-3-Clause
// Observers by name: observer_registry holds a factory for each name, and default_observers() those
// of this library and those that reproduce other tools. A copy of it takes observers of your own:
//
//   observer_registry mine = default_observers();
//   mine.add("half_range", [](const observer_options&) {
//     return any_observer(half_range_observer());
//   });
//   any_observer o = make_observer("half_range", {}, mine);
//
// A program that compiles the graph part separately (DETENT_GRAPH_SEPARATE_COMPILATION) compiles
// default_observers() once, in the unit that includes <detent/graph/src.hpp>.
#ifndef DETENT_OBSERVER_REGISTRY_HPP
#define DETENT_OBSERVER_REGISTRY_HPP

#include <string>
#include <string_view>

#include <detent/error.hpp>
#include <detent/observer_registry/default_observers.hpp>
#include <detent/observer_registry/registry.hpp>
#include <detent/observers/observer.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Makes the observer that a registry has under `name`; ASCII letter case is ignored. Throws
/// invalid_argument with a list of all names if there is no such observer, and whatever the
/// observer's constructor throws for the options. Thread-safe.
[[nodiscard]] inline any_observer make_observer(
    std::string_view name, const observer_options& options = {},
    const observer_registry& registry = default_observers()) {
  const observer_factory* factory = registry.find(name);
  if (factory == nullptr) {
    std::string all;
    for (const std::string& known : registry.names()) {
      all += (all.empty() ? "" : ", ") + known;
    }
    raise(error_kind::invalid_argument,
          detail::message("detent: there is no observer '", name, "'; there are ", all));
  }
  return (*factory)(options);
}

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVER_REGISTRY_HPP
