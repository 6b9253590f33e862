// SPDX-License-Identifier: BSD-3-Clause
// Makes the observer that a quantization configuration asks for, shows values to it, and computes
// scale and zero point from what it has seen.
#ifndef DETENT_GRAPH_PPQ_OBSERVING_HPP
#define DETENT_GRAPH_PPQ_OBSERVING_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/ppq.hpp>
#include <detent/reference.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Which observers PPQ's names stand for. Without a value, they stand for the library's own
/// observers. With a value, they stand for observers that compute what PPQ computes, bit for bit:
/// with PPQ's bugs (parity::as_published) or without them (parity::fixed).
using ppq_parity = std::optional<detent::parity>;

/// The full name of an observer, in small letters. With a parity, "minmax", "kl", "percentile",
/// "mse", "isotone" and "constant" become "ppq.minmax" and so on. Throws invalid_argument, listing
/// the names that there are, for a name that `observers` does not have.
[[nodiscard]] inline std::string observer_name(
    std::string_view method, ppq_parity p,
    const observer_registry& observers = default_observers()) {
  static constexpr std::string_view own[] = {"minmax", "kl",      "percentile",
                                             "mse",    "isotone", "constant"};
  std::string key = detent::detail::lower_case(method);
  if (p && std::find(std::begin(own), std::end(own), key) != std::end(own)) {
    return "ppq." + key;
  }
  if (observers.find(key) == nullptr) {
    static_cast<void>(make_observer(method, {}, observers));  // throws
  }
  return key;
}

namespace detail {

/// The observer that a configuration asks for, for one channel or for the whole tensor. `name`:
/// what observer_name() returned for it.
[[nodiscard]] inline any_observer make_observer_of(const quantizer_settings& s, ppq_parity p,
                                                   const std::string& name,
                                                   const observer_registry& observers) {
  const quant_scheme scheme = s.scheme();
  const parity behaviour = p.value_or(parity::as_published);
  if (name == "ppq.constant") {
    return any_observer(detent::ppq::constant_observer());
  }
  if (name == "ppq.percentile" && s.overrides.percentile) {
    return any_observer(detent::ppq::percentile_observer({*s.overrides.percentile}));
  }
  if (name == "ppq.kl") {
    detent::ppq::kl_options o;
    o.scheme = scheme;
    o.bins = s.overrides.histogram_bins.value_or(o.bins);
    o.power_of_two = s.policy.has(quantization_property::power_of_2);
    return any_observer(detent::ppq::kl_observer(o));
  }
  if (name == "ppq.mse") {
    detent::ppq::mse_options o;
    o.scheme = scheme;
    o.bins = s.overrides.histogram_bins.value_or(o.bins);
    o.behaviour = behaviour;
    return any_observer(detent::ppq::mse_observer(o));
  }
  observer_options o;
  o.storage = bin_storage::sparse;
  o.scheme = scheme;
  o.behaviour = behaviour;
  if (s.overrides.percentile) {
    o.percentile = 100.0 * *s.overrides.percentile;
  }
  return make_observer(name, o, observers);
}

/// Parameters as the policy wants them, with a power of two as scale if it says so. `from_zero`
/// says that the zero point was computed as if qmin were 0, so that qmin has to be added to it.
[[nodiscard]] inline quant_params fitted(quant_params p, const quantizer_settings& s,
                                         bool from_zero) {
  const grid levels = s.levels;
  const bool symmetric = s.policy.is_symmetrical();
  if (from_zero && !symmetric) {
    p.zero_point = std::clamp(p.zero_point + levels.qmin, levels.qmin, levels.qmax);
  }
  if (s.policy.has(quantization_property::power_of_2)) {
    const float power = project_to_power_of_two(p.scale, power_of_two_rounding::up);
    if (!symmetric) {
      // Exact: the quotient is a float's mantissa, the other factor an integer of the grid.
      const double ratio = static_cast<double>(p.scale) / static_cast<double>(power);
      const double below = detent::detail::rounded_product(
          static_cast<double>(p.zero_point) - static_cast<double>(levels.qmin), ratio);
      p.zero_point = levels.qmin + static_cast<std::int32_t>(reference::round_half_even(below));
    }
    p.scale = power;
  }
  return p;
}

}  // namespace detail

/// Observes the tensor of one configuration and computes its scales and zero points:
///
///   per tensor    one observer sees all values; each call of observe() is one batch
///   per channel   each index along the channel axis has its own observer; of PPQ's observers only
///                 "ppq.minmax" can do that, as in PPQ
///   power of 2    the scale is projected to 2^ceil(log2(scale)) (PPQ's kl rounds the exponent half
///                 up instead, in its own search); the zero point of asymmetric schemes moves so
///                 that the lower end of the range stays
///   parity fixed  zero points of asymmetric schemes count from qmin and stay in the grid; without
///                 it, those of PPQ's observers do so only where qmin is 0
///
/// Errors name the configuration. Not thread-safe.
class config_observer {
 public:
  /// Makes the observer that the settings ask for. Throws invalid_argument for an unknown observer;
  /// unsupported for the policies FLOATING and DYNAMIC (a DYNAMIC range is that of each run, so
  /// nothing observes it), and for a per-channel policy with one of PPQ's observers other than
  /// minmax; and what the observer's constructor throws.
  ///
  /// `observers` has the observers that settings name. It is not kept.
  config_observer(const quantizer_settings& s, ppq_parity p,
                  const observer_registry& observers = default_observers())
      : settings_(s),
        parity_(p),
        name_(named([&] { return observer_name(s.observer, p, observers); })),
        observer_(make(observers)) {}

  /// Number of phases of the observer: how often it has to see all values.
  [[nodiscard]] std::size_t phases() const {
    return std::visit([](const auto& o) { return o.phases(); }, observer_);
  }
  /// Begins a phase, counted from 0. Phase 0 has begun already. Throws invalid_argument if the
  /// phase is not the next one or does not exist, and what the observer throws.
  void begin_phase(std::size_t phase) {
    named([&] { std::visit([&](auto& o) { o.begin_phase(phase); }, observer_); });
  }

  /// Observes a batch, a float tensor; an empty one changes nothing. Throws invalid_argument if it
  /// holds a NaN or an infinity, with `where` at the end of the message.
  void observe(const tensor& value, const std::string& where = {}) {
    if (value.count() == 0) {
      return;
    }
    named(
        [&] {
          min_max_observer range;
          range.observe(value.data<float>());
          const value_range seen = range.range();
          of_zeros_ = of_zeros_ && seen.lower == 0.0F && seen.upper == 0.0F;
        },
        where);
    const tensor plain = to_plain(value);
    named([&] { std::visit([&](auto& o) { o.observe(view(plain)); }, observer_); }, where);
  }

  /// The scales and zero points of what was observed. Throws what the observer throws, for example
  /// invalid_argument if nothing was observed.
  [[nodiscard]] tensor_parameters finalize() const {
    return named([&] {
      tensor_parameters p;
      if (const auto* channels = std::get_if<channel_observer>(&observer_)) {
        for (const scale_solution& s : channels->solve(settings_.scheme())) {
          add(p, s.params);
        }
      } else {
        add(p, std::get<any_observer>(observer_).finalize(settings_.scheme()).params);
      }
      p.of_zeros = of_zeros_;
      return p;
    });
  }

 private:
  using held_observer = std::variant<any_observer, channel_observer>;

  template <class Function>
  std::invoke_result_t<const Function&> named(const Function& f,
                                              const std::string& where = {}) const {
    return graph::detail::with_context(settings_.name, f, where);
  }

  [[nodiscard]] held_observer make(const observer_registry& observers) const {
    return named([&]() -> held_observer {
      for (const std::uint32_t property :
           {quantization_property::floating, quantization_property::dynamic}) {
        require(!settings_.policy.has(property), error_kind::unsupported, "policy ",
                quantization_policy::describe(property), " cannot be calibrated");
      }
      any_observer one = detail::make_observer_of(settings_, parity_, name_, observers);
      if (!settings_.channel_axis) {
        return one;
      }
      require(name_.rfind("ppq.", 0) != 0 || name_ == "ppq.minmax", error_kind::unsupported,
              "observer ", name_, " knows no channels");
      return channel_observer(std::move(one), *settings_.channel_axis);
    });
  }

  /// A view of the tensor. The axis along which the rows of isotone run becomes the last one. If
  /// the tensor has more dimensions than views can have, all but the last are merged to one.
  [[nodiscard]] tensor_view<const float> view(const tensor& t) const {
    std::vector<std::size_t> dims(t.dims().begin(), t.dims().end());
    if (dims.size() > max_rank) {
      require(!settings_.channel_axis, error_kind::unsupported, "rank ", dims.size(),
              " with channels");
      dims = {t.count() / dims.back(), dims.back()};
    }
    tensor_view<const float> v(t.data<float>().data(), dims);
    const std::ptrdiff_t axis = settings_.overrides.isotone_axis;
    const auto rank = static_cast<std::ptrdiff_t>(v.rank);
    const bool rows = name_.find("isotone") != std::string::npos;
    if (rows && axis != -1 && axis != rank - 1) {
      require(axis >= -rank && axis < rank, error_kind::invalid_argument, "axis ", axis,
              " of a tensor of rank ", rank);
      const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
      std::swap(v.shape[at], v.shape[v.rank - 1]);
      std::swap(v.strides[at], v.strides[v.rank - 1]);
    }
    return v;
  }

  void add(tensor_parameters& to, quant_params p) const {
    const bool of_ppq = name_.rfind("ppq.", 0) == 0;
    p = detail::fitted(p, settings_, of_ppq && parity_ == parity::fixed);
    to.scales.push_back(p.scale);
    to.zero_points.push_back(p.zero_point);
  }

  quantizer_settings settings_;
  ppq_parity parity_;
  std::string name_;  // of the observer, as observer_name() returns it
  held_observer observer_;
  bool of_zeros_ = true;  // whether all values so far are 0
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_OBSERVING_HPP
