// SPDX-License-Identifier: BSD-3-Clause
// Observers of shared libraries that users bring (--plugin), by the interface of c_api_plugin.h.
#ifndef DETENT_CLI_PLUGIN_HPP
#define DETENT_CLI_PLUGIN_HPP

#include <string>

#include <detent/observer_registry.hpp>

namespace detent_cli {

/// The observers that methods may name: those of the library, and those of the plugins that were
/// loaded.
const detent::observer_registry& known_observers();

/// Loads a shared library and adds its observers to known_observers(). It stays loaded until the
/// process ends. To be called before threads begin. Throws detent::error, naming the library: io if
/// it cannot be loaded; invalid_argument if it is no plugin, or one of another version, or has an
/// observer without a function that it needs or with a name that is taken.
void load_plugin(const std::string& path);

}  // namespace detent_cli

#endif  // DETENT_CLI_PLUGIN_HPP
