// SPDX-License-Identifier: BSD-3-Clause
// Runs a float model on calibration samples and shows its values to observers, sample by sample:
// memory does not grow with the number of samples.
#ifndef DETENT_GRAPH_QUANTIZE_CALIBRATION_HPP
#define DETENT_GRAPH_QUANTIZE_CALIBRATION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/observer.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A source of calibration samples. Each call returns the inputs of the next run, by name, or
/// nothing at the end of a pass; the call after that starts the next pass.
///
/// A caller that catches an error in the middle of a pass must draw the rest of the pass before it
/// uses the source again.
using calibration_source = std::function<std::optional<std::map<std::string, tensor>>()>;

/// A source of the first `limit` samples of another source. At the end of a pass it draws the
/// remaining samples as well, so that the next pass begins at the first one.
[[nodiscard]] inline calibration_source first_samples(calibration_source source,
                                                      std::size_t limit) {
  return [source = std::move(source), limit,
          count = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    auto next = source();
    if (next && count < limit) {
      ++count;
      return next;
    }
    while (next) {
      next = source();
    }
    count = 0;
    return std::nullopt;
  };
}

/// A source of every other sample of another one: the 1st, 3rd, 5th ..., or, with `second`, the
/// 2nd, 4th, 6th ...
[[nodiscard]] inline calibration_source every_other_sample(calibration_source source, bool second) {
  return [source = std::move(source), second,
          count = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    while (auto next = source()) {
      if ((count++ % 2 == 1) == second) {
        return next;
      }
    }
    count = 0;
    return std::nullopt;
  };
}

/// A value of a model and an observer of it. A value may have several observers.
struct observed_value {
  std::string name;       ///< Name of the value.
  any_observer observer;  ///< The observer; calibrate() shows the value to it.
};

namespace detail {

/// An executor of a float model that computes all `values`, and with `also` all values that the
/// model has.
[[nodiscard]] inline executor calibration_executor(const model& float_model,
                                                   const std::vector<std::string>& values,
                                                   bool also, const executor_options& options) {
  model fused = float_model;
  // Fusion drops the values that an activation absorbs: no fusion if one of them is needed.
  const links l(fused);
  fuse_activations(fused);
  const links after(fused);
  if (also || std::any_of(values.begin(), values.end(), [&](const std::string& name) {
        return l.producer(name) != links::none && after.producer(name) == links::none;
      })) {
    fused = float_model;
  }
  return executor(std::move(fused), options);
}

/// Whether observers see a value: it holds float32 numbers.
[[nodiscard]] inline bool is_observable(const tensor& value) {
  return value.type() == element_type::f32 && value.count() != 0;
}

/// Throws invalid_argument unless all elements of a value are finite, naming the value and the
/// sample, counted from 1; 0 for constants.
inline void require_finite(const std::string& name, const tensor& value, std::uint64_t sample) {
  of_tensor(
      name,
      [&] {
        min_max_observer range;
        range.observe(value.data<float>());
        static_cast<void>(range.range());
      },
      sample == 0 ? std::string() : " in calibration sample " + std::to_string(sample));
}

}  // namespace detail

/// Runs a float model on all samples, once for each pass that an observer needs, and shows the
/// values to their observers. Constants are shown once in each pass. Values that are not float32
/// and empty tensors are skipped. In the first pass, `also` is called with every value that a run
/// computes.
///
/// Throws invalid_argument if there is no source or no sample, if an observed value holds NaN or
/// infinity (naming the value and the number of the sample), or if the second pass has another
/// number of samples than the first; and what the executor throws for samples that do not fit the
/// model.
inline void calibrate(const model& float_model, std::span<observed_value> values,
                      const calibration_source& samples, const executor_options& options = {},
                      const executor::value_observer& also = {}) {
  require(static_cast<bool>(samples), error_kind::invalid_argument,
          "there is no source of calibration samples");
  std::multimap<std::string, any_observer*> observers;
  std::size_t phases = 1;
  for (observed_value& v : values) {
    phases = (std::max)(phases, v.observer.phases());
    observers.emplace(v.name, &v.observer);
  }
  std::vector<std::string> names;
  for (const observed_value& v : values) {
    names.push_back(v.name);
  }
  executor runner =
      detail::calibration_executor(float_model, names, static_cast<bool>(also), options);
  std::size_t count = 0;
  for (std::size_t phase = 0; phase < phases; ++phase) {
    const auto show = [&](const std::string& name, const tensor& stored, std::size_t sample) {
      const auto [first, last] = observers.equal_range(name);
      if (first == last || !detail::is_observable(stored)) {
        return;
      }
      // Observers may depend on the shape or on the order of the elements.
      const tensor value = to_plain(stored);
      bool checked = false;
      for (auto o = first; o != last; ++o) {
        if (phase >= o->second->phases()) {
          continue;
        }
        if (!checked) {
          // At once, while the number of the sample is known.
          detail::require_finite(name, value, sample);
          checked = true;
        }
        detail::of_tensor(name, [&] { o->second->observe(tensor_view_of<float>(value)); });
      }
    };
    for (auto o = observers.begin(); o != observers.end(); o = observers.upper_bound(o->first)) {
      if (const tensor* t = float_model.initializer(o->first)) {
        show(o->first, *t, 0);
      }
    }
    std::size_t seen = 0;
    while (const auto inputs = samples()) {
      ++seen;
      static_cast<void>(runner.run(*inputs, [&](const std::string& name, const tensor& value) {
        show(name, value, seen);
        if (phase == 0 && also) {
          also(name, value);
        }
      }));
    }
    require(phase == 0 || seen == count, error_kind::invalid_argument,
            "the second pass of the calibration had ", seen, " samples, the first ", count);
    count = seen;
    require(count > 0, error_kind::invalid_argument, "there are no calibration samples");
    for (observed_value& v : values) {
      if (phase + 1 < v.observer.phases()) {
        detail::of_tensor(v.name, [&] { v.observer.begin_phase(phase + 1); });
      }
    }
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_CALIBRATION_HPP
