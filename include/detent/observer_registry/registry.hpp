// SPDX-License-Identifier: BSD-3-Clause
// A set of observers that are made by name. Include <detent/observer_registry.hpp>, which also
// defines default_observers().
#ifndef DETENT_OBSERVER_REGISTRY_REGISTRY_HPP
#define DETENT_OBSERVER_REGISTRY_REGISTRY_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/solvers/lp_norm.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of make_observer(). A factory reads the members that concern its observer and ignores
/// all others.
struct observer_options {
  /// The scheme that finalize() will be called with. Observers whose method depends on it take it
  /// from here: `isotone`, `ppq.isotone`, `ppq.kl` and `ppq.mse` keep it, the `ort.` and `nncf.`
  /// observers take its symmetry.
  quant_scheme scheme = asymmetric<std::uint8_t>;
  /// Share of the values inside the range, in percent, for `percentile`, `absolute_percentile`,
  /// `inc.percentile` and `ort.percentile`. Without a value, the observer's own default applies.
  std::optional<double> percentile = {};
  /// Whether `percentile` and `absolute_percentile` make a second pass over the data, which finds
  /// the exact order statistic (percentile_options::exact).
  bool exact_percentile = false;
  /// Weight of the newest batch for `moving_average`, in (0, 1].
  double moving_constant = 0.01;
  /// Exponent of the error for `lp`, in 1..8.
  double p = lp_norm_options().p;
  /// How many leading values of a row keep their order under `isotone`.
  std::size_t top_k = 1;
  /// Whether observers of other tools reproduce the bugs of the tool or repair them.
  parity behaviour = parity::as_published;
  /// How `absolute_percentile`, `aciq`, `grid_mse`, `kl`, `lp`, `mse`, `octav` and `percentile`
  /// store their histograms. Sparse storage saves memory where there are many of them, as for
  /// channels or for the activations of a model.
  bin_storage storage = bin_storage::dense;
};

/// Makes a new observer from options. A factory may be called from several threads at once.
using observer_factory = std::function<any_observer(const observer_options&)>;

namespace detail {

/// The name with ASCII capitals replaced by small letters. Other characters stay.
inline std::string lower_case(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

}  // namespace detail

/// A set of observer factories, found by name; ASCII letter case is ignored. A value: copy it to
/// change it. Concurrent calls of const functions are safe.
class observer_registry {
 public:
  /// Adds an observer. It replaces one of the same name. Throws invalid_argument if the name or the
  /// factory is empty.
  void add(std::string_view name, observer_factory factory) {
    require(!name.empty() && factory, error_kind::invalid_argument,
            "observer_registry::add: no name or no factory");
    factories_.insert_or_assign(detail::lower_case(name), std::move(factory));
  }
  /// The factory of this name, or null. The pointer is valid until the registry ends; a later add()
  /// of the same name changes what it points to.
  [[nodiscard]] const observer_factory* find(std::string_view name) const {
    const auto found = factories_.find(detail::lower_case(name));
    return found == factories_.end() ? nullptr : &found->second;
  }
  /// All names, in lower case and sorted.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, factory] : factories_) {
      all.push_back(name);
    }
    return all;
  }

 private:
  std::map<std::string, observer_factory, std::less<>> factories_;
};

/// The registry of all observers that come with the library: its own, and those that reproduce
/// other tools (names such as `ort.percentile`) with the defaults of the tool. Thread-safe.
#if defined(DETENT_GRAPH_SEPARATE_COMPILATION)
[[nodiscard]] const observer_registry& default_observers();  // compiled once, with the graph part
#else
[[nodiscard]] inline const observer_registry& default_observers();
#endif

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVER_REGISTRY_REGISTRY_HPP
