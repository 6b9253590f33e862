// SPDX-License-Identifier: BSD-3-Clause
// The observers that come with the library. This file defines default_observers(), which
// registry.hpp declares: as an inline function, or for the one unit that compiles it.
#ifndef DETENT_OBSERVER_REGISTRY_DEFAULT_OBSERVERS_HPP
#define DETENT_OBSERVER_REGISTRY_DEFAULT_OBSERVERS_HPP

#include <detent/observer_registry/registry.hpp>
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
#include <detent/observers/tools/ppq.hpp>
#include <detent/observers/tools/torch.hpp>
#include <detent/types.hpp>

#if !defined(DETENT_GRAPH_SEPARATE_COMPILATION) || defined(DETENT_COMPILE_GRAPH_QUANTIZATION)

DETENT_NAMESPACE_BEGIN

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

const observer_registry& default_observers() {
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

DETENT_NAMESPACE_END

#endif

#endif  // DETENT_OBSERVER_REGISTRY_DEFAULT_OBSERVERS_HPP
