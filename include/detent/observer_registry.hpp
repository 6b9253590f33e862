// SPDX-License-Identifier: BSD-3-Clause
// Observers by name: observer_registry holds a factory for each name, and default_observers() those
// of this library and those that reproduce other tools. A copy of it takes observers of your own:
//
//   observer_registry mine = default_observers();
//   mine.add("half_range", [](const observer_options&) { return
//   any_observer(half_range_observer()); }); any_observer o = make_observer("half_range", {},
//   mine);
#ifndef DETENT_OBSERVER_REGISTRY_HPP
#define DETENT_OBSERVER_REGISTRY_HPP

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

namespace detail {

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

}  // namespace detail

/// The registry of all observers that come with the library: its own, and those that reproduce
/// other tools (names such as `ort.percentile`) with the defaults of the tool. Thread-safe.
[[nodiscard]] inline const observer_registry& default_observers() {
  static const observer_registry registry = [] {
    observer_registry r;
    r.add("absolute_percentile", detail::percentile_factory(true));
    r.add("aciq", detail::histogram_factory<aciq_observer>());
    r.add("constant", detail::default_factory<constant_observer>());
    r.add("grid_mse", detail::histogram_factory<grid_mse_observer>());
    r.add("isotone", [](const observer_options& o) {
      return any_observer(isotone_observer({o.scheme, o.top_k}));
    });
    r.add("kl", detail::histogram_factory<kl_observer>());
    r.add("lp",
          [](const observer_options& o) { return any_observer(lp_observer(o.p, o.storage)); });
    r.add("mean_minmax", detail::sample_factory(sample_aggregator::mean));
    r.add("mean_no_outliers_minmax", detail::sample_factory(sample_aggregator::mean_no_outliers));
    r.add("median_minmax", detail::sample_factory(sample_aggregator::median));
    r.add("median_no_outliers_minmax",
          detail::sample_factory(sample_aggregator::median_no_outliers));
    r.add("minmax", detail::default_factory<min_max_observer>());
    r.add("moving_average", [](const observer_options& o) {
      return any_observer(moving_average_observer(o.moving_constant));
    });
    r.add("mse", detail::histogram_factory<mse_observer>());
    r.add("octav", detail::histogram_factory<octav_observer>());
    r.add("percentile", detail::percentile_factory(false));
    // Observers that reproduce other tools, with the defaults of the tool.
    r.add("inc.kl", detail::parity_factory<inc::kl_observer>(inc::kl_options()));
    r.add("inc.percentile",
          detail::parity_factory<inc::percentile_observer>(inc::percentile_options()));
    r.add("nncf.mean_minmax", detail::parity_factory<nncf::range_observer>(nncf::mean_min_max));
    r.add("nncf.mean_no_outliers_minmax",
          detail::parity_factory<nncf::range_observer>(nncf::mean_no_outliers_min_max));
    r.add("nncf.mean_quantile", detail::parity_factory<nncf::range_observer>(nncf::mean_quantile));
    r.add("nncf.median_minmax", detail::parity_factory<nncf::range_observer>(nncf::median_min_max));
    r.add("nncf.minmax", detail::parity_factory<nncf::range_observer>(nncf::min_max));
    r.add("ort.entropy", detail::parity_factory<ort::entropy_observer>(ort::entropy_options()));
    r.add("ort.minmax", detail::parity_factory<ort::min_max_observer>(ort::min_max_options()));
    r.add("ort.percentile",
          detail::parity_factory<ort::percentile_observer>(ort::percentile_options()));
    r.add("ppq.isotone", detail::parity_factory<ppq::isotone_observer>(ppq::isotone_options()));
    r.add("ppq.kl", detail::parity_factory<ppq::kl_observer>(ppq::kl_options()));
    r.add("ppq.minmax", detail::default_factory<ppq::min_max_observer>());
    r.add("ppq.mse", detail::parity_factory<ppq::mse_observer>(ppq::mse_options()));
    r.add("ppq.percentile", detail::default_factory<ppq::percentile_observer>());
    r.add("torch.histogram",
          detail::parity_factory<torch::histogram_observer>(torch::histogram_options()));
    r.add("torch.moving_average",
          detail::default_factory<torch::moving_average_min_max_observer>());
    return r;
  }();
  return registry;
}

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
