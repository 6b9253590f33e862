// SPDX-License-Identifier: BSD-3-Clause
// Observers by name: a process-wide table of factories that holds the observers of this library,
// those that reproduce other tools, and those that users register.
#ifndef DETENT_OBSERVER_REGISTRY_HPP
#define DETENT_OBSERVER_REGISTRY_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/observers/constant.hpp>
#include <detent/observers/histogram_observers.hpp>
#include <detent/observers/isotone.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/moving_average.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/percentile.hpp>
#include <detent/observers/sample_range.hpp>
#include <detent/observers/tools/inc.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/observers/tools/ort.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/ppq.hpp>
#include <detent/observers/tools/torch.hpp>
#include <detent/solvers/lp_norm.hpp>
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
  /// store their histograms. Sparse storage saves memory where there is one histogram for each of
  /// many channels.
  bin_storage storage = bin_storage::dense;
};

/// Makes a new observer from options. A factory may be called from several threads at once.
using observer_factory = std::function<any_observer(const observer_options&)>;

namespace detail {

/// The table behind the functions below. Names are in lower case; the mutex guards the map.
struct observer_registry {
  std::mutex mutex;
  std::map<std::string, observer_factory, std::less<>> factories;
};

template <class Observer>
observer_factory histogram_factory() {
  return [](const observer_options& o) { return any_observer(Observer(o.storage)); };
}
inline observer_factory sample_factory(sample_aggregator aggregator) {
  return [aggregator](const observer_options&) {
    return any_observer(sample_range_observer(aggregator));
  };
}
inline observer_factory percentile_factory(bool absolute) {
  return [absolute](const observer_options& o) {
    percentile_options options{.absolute = absolute, .exact = o.exact_percentile};
    options.percentile = o.percentile.value_or(options.percentile);
    return any_observer(percentile_observer(options, o.storage));
  };
}

template <class Observer>
observer_factory default_factory() {
  return [](const observer_options&) { return any_observer(Observer()); };
}
/// A factory for observers with an options struct of their own. It copies those members of
/// observer_options that the struct has: scheme, behaviour, symmetry (as `symmetric` or
/// `use_abs_max`) and percentile.
template <class Observer, class Options>
observer_factory parity_factory(Options options) {
  return [options](const observer_options& o) {
    Options own = options;
    if constexpr (requires { own.scheme = o.scheme; }) {
      own.scheme = o.scheme;
    }
    if constexpr (requires { own.behaviour = o.behaviour; }) {
      own.behaviour = o.behaviour;
    }
    if constexpr (requires { own.symmetric = o.scheme.symmetric; }) {
      own.symmetric = o.scheme.symmetric;
    }
    if constexpr (requires { own.use_abs_max = o.scheme.symmetric; }) {
      own.use_abs_max = o.scheme.symmetric;
    }
    if constexpr (requires { own.percentile = 50.0; }) {
      own.percentile = o.percentile.value_or(own.percentile);
    }
    return any_observer(Observer(own));
  };
}

inline observer_registry& observers() {
  static observer_registry registry{
      {},
      {
          {"absolute_percentile", percentile_factory(true)},
          {"aciq", histogram_factory<aciq_observer>()},
          {"constant", default_factory<constant_observer>()},
          {"grid_mse", histogram_factory<grid_mse_observer>()},
          {"isotone",
           [](const observer_options& o) {
             return any_observer(isotone_observer({o.scheme, o.top_k}));
           }},
          {"kl", histogram_factory<kl_observer>()},
          {"lp",
           [](const observer_options& o) { return any_observer(lp_observer(o.p, o.storage)); }},
          {"mean_minmax", sample_factory(sample_aggregator::mean)},
          {"mean_no_outliers_minmax", sample_factory(sample_aggregator::mean_no_outliers)},
          {"median_minmax", sample_factory(sample_aggregator::median)},
          {"median_no_outliers_minmax", sample_factory(sample_aggregator::median_no_outliers)},
          {"minmax", default_factory<min_max_observer>()},
          {"moving_average",
           [](const observer_options& o) {
             return any_observer(moving_average_observer(o.moving_constant));
           }},
          {"mse", histogram_factory<mse_observer>()},
          {"octav", histogram_factory<octav_observer>()},
          {"percentile", percentile_factory(false)},
          // Observers that reproduce other tools, with the defaults of the tool.
          {"inc.kl", parity_factory<inc::kl_observer>(inc::kl_options())},
          {"inc.percentile", parity_factory<inc::percentile_observer>(inc::percentile_options())},
          {"nncf.mean_minmax", parity_factory<nncf::range_observer>(nncf::mean_min_max)},
          {"nncf.mean_no_outliers_minmax",
           parity_factory<nncf::range_observer>(nncf::mean_no_outliers_min_max)},
          {"nncf.mean_quantile", parity_factory<nncf::range_observer>(nncf::mean_quantile)},
          {"nncf.median_minmax", parity_factory<nncf::range_observer>(nncf::median_min_max)},
          {"nncf.minmax", parity_factory<nncf::range_observer>(nncf::min_max)},
          {"ort.entropy", parity_factory<ort::entropy_observer>(ort::entropy_options())},
          {"ort.minmax", parity_factory<ort::min_max_observer>(ort::min_max_options())},
          {"ort.percentile", parity_factory<ort::percentile_observer>(ort::percentile_options())},
          {"ppq.isotone", parity_factory<ppq::isotone_observer>(ppq::isotone_options())},
          {"ppq.kl", parity_factory<ppq::kl_observer>(ppq::kl_options())},
          {"ppq.minmax", default_factory<ppq::min_max_observer>()},
          {"ppq.mse", parity_factory<ppq::mse_observer>(ppq::mse_options())},
          {"ppq.percentile", default_factory<ppq::percentile_observer>()},
          {"torch.histogram",
           parity_factory<torch::histogram_observer>(torch::histogram_options())},
          {"torch.moving_average", default_factory<torch::moving_average_min_max_observer>()},
      }};
  return registry;
}

/// The name with ASCII capitals replaced by small letters. Other characters stay.
inline std::string lower_case(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

}  // namespace detail

/// The names of all registered observers, in lower case and sorted. Thread-safe.
[[nodiscard]] inline std::vector<std::string> observer_names() {
  detail::observer_registry& registry = detail::observers();
  const std::lock_guard lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry.factories) {
    names.push_back(name);
  }
  return names;
}

/// What register_observer() does if the name is already registered.
enum class on_duplicate : std::uint8_t {
  reject,  ///< throws invalid_argument
  replace  ///< the new factory takes the place of the old one
};

/// Registers an observer under `name`; ASCII letter case is ignored. Throws invalid_argument if the
/// name or the factory is empty, or if the name is registered already and `duplicate` is
/// on_duplicate::reject. Thread-safe.
inline void register_observer(std::string_view name, observer_factory factory,
                              on_duplicate duplicate = on_duplicate::reject) {
  require(!name.empty() && factory, error_kind::invalid_argument,
          "register_observer: no name or no factory");
  detail::observer_registry& registry = detail::observers();
  const std::lock_guard lock(registry.mutex);
  std::string key = detail::lower_case(name);
  require(duplicate == on_duplicate::replace || registry.factories.count(key) == 0,
          error_kind::invalid_argument, "register_observer: there is a '", key, "' already");
  registry.factories.insert_or_assign(std::move(key), std::move(factory));
}

/// Makes the observer that is registered under `name`; ASCII letter case is ignored. Throws
/// invalid_argument with a list of all names if there is no such observer, and whatever the
/// observer's constructor throws for the options. Thread-safe.
[[nodiscard]] inline any_observer make_observer(std::string_view name,
                                                const observer_options& options = {}) {
  detail::observer_registry& registry = detail::observers();
  observer_factory factory;
  {
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.factories.find(detail::lower_case(name));
    if (found != registry.factories.end()) {
      factory = found->second;
    }
  }
  if (!factory) {
    std::string all;
    for (const std::string& known : observer_names()) {
      all += (all.empty() ? "" : ", ") + known;
    }
    raise(error_kind::invalid_argument,
          detail::message("detent: there is no observer '", name, "'; there are ", all));
  }
  return factory(options);
}

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVER_REGISTRY_HPP
