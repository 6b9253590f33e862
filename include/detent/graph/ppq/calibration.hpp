// SPDX-License-Identifier: BSD-3-Clause
// The passes that find scales: of constants from their values, of activations from samples.
#ifndef DETENT_GRAPH_PPQ_CALIBRATION_HPP
#define DETENT_GRAPH_PPQ_CALIBRATION_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/observing.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Shows each constant with an INITIAL configuration to its observer, once, and makes the
/// configuration ACTIVATED. Observers of several phases see it as often.
struct parameter_quantization_pass {
  ppq_parity parity = {};

  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    quantization_configs configs = g.configs;
    g.for_each_config([&](config_id id) {
      if (configs[id].state() != quantization_state::initial || !g.is_parameter(id)) {
        return;
      }
      config_observer observer(configs[id], parity);
      for (std::size_t phase = 0; phase < observer.phases(); ++phase) {
        if (phase > 0) {
          observer.begin_phase(phase);
        }
        observer.observe(*g.network.initializer(configs[id].variable));
      }
      configs.set_parameters(id, observer.finalize());
      configs.transition(id, quantization_state::activated);
    });
    g.configs = std::move(configs);
  }
};

namespace detail {

/// Values that a classifier ranks, with the axis of their rows: what Softmax takes and makes, and
/// matrices that the model returns.
[[nodiscard]] inline std::map<std::string, std::ptrdiff_t> ranked_values(const model& m) {
  std::map<std::string, std::ptrdiff_t> axes;
  const std::map<std::string, tensor> known = infer_shapes(m);
  for (const value_info& v : m.outputs) {
    const auto found = known.find(v.name);
    if (found != known.end() && found->second.rank() == 2) {
      axes[v.name] = -1;
    }
  }
  for (const node& n : m.nodes) {
    if ((n.is("Softmax") || n.is("LogSoftmax")) && !n.inputs.empty() && !n.outputs.empty()) {
      const auto axis = static_cast<std::ptrdiff_t>(n.get_int("axis", -1));
      axes[n.inputs[0]] = axis;
      axes[n.outputs[0]] = axis;
    }
  }
  return axes;
}

/// The network for calibration: with activations fused into layers, unless that hides a value that
/// is wanted.
[[nodiscard]] inline model observable_network(const model& network,
                                              const std::set<std::string>& wanted) {
  model fused = network;
  fuse_activations(fused);
  std::set<std::string> made;
  for (const node& n : fused.nodes) {
    made.insert(n.outputs.begin(), n.outputs.end());
  }
  for (const value_info& v : fused.inputs) {
    made.insert(v.name);
  }
  return std::includes(made.begin(), made.end(), wanted.begin(), wanted.end()) ? fused : network;
}

}  // namespace detail

/// PPQ's RuntimeCalibrationPass. Runs the float network `calib_steps` times, with the samples in
/// their order, from the first one again where they end; shows each activation whose configuration
/// is INITIAL to its observer, all of them together; and makes the configurations ACTIVATED. Where
/// an observer wants a second phase, the same runs are made once more for all that do.
///
///   method    replaces the observer of every activation; any name of the registry, those of users
///             among them, in capital or small letters. Empty: each keeps its own.
///             "isotone" is for what classifiers rank (what Softmax takes or makes, rows along its
///             axis; results of rank 2); other activations get "minmax" with it.
///   override  ACTIVATED activations that are their own root go back to INITIAL before
///   parity    see ppq_parity
///
/// Those with policy DYNAMIC become ACTIVATED without being observed.
///
/// Differs from PPQ: exactly calib_steps runs (PPQ may pass the limit by the rest of an epoch),
/// constants are float while activations are observed, second phases are given to every observer
/// that asks for one (PPQ: to its own ones).
///
/// Throws invalid_argument unless 8 <= calib_steps <= 512, for an unknown method, listing those
/// that there are, without samples, for NaN and infinity, naming configuration and run; unsupported
/// if the executor lacks an operator. Then the graph is as it was.
struct runtime_calibration_pass {
  std::string method = {};
  bool override = false;
  std::size_t calib_steps = 32;
  ppq_parity parity = {};

  void operator()(quantized_graph& g, pass_context& context) const {
    require(calib_steps >= 8 && calib_steps <= 512, error_kind::invalid_argument,
            "runtime_calibration_pass: calib_steps ", calib_steps, " is not 8..512");
    quantization_configs configs = g.configs;
    choose_observers(g, configs);
    std::vector<target> targets;
    std::map<std::string, std::vector<std::size_t>> by_variable;
    std::set<std::string> wanted;
    std::size_t phases = 1;
    g.for_each_config([&](config_id id) {
      if (configs[id].state() != quantization_state::initial || g.is_parameter(id)) {
        return;
      }
      if (configs[id].policy.has(quantization_property::dynamic)) {
        configs.transition(id, quantization_state::activated);
        return;
      }
      by_variable[configs[id].variable].push_back(targets.size());
      wanted.insert(configs[id].variable);
      targets.push_back({id, config_observer(configs[id], parity)});
      phases = (std::max)(phases, targets.back().observer.phases());
    });
    if (targets.empty()) {
      g.configs = std::move(configs);
      return;
    }
    executor float_executor(detail::observable_network(g.network, wanted), context.executor);
    for (std::size_t phase = 0; phase < phases; ++phase) {
      for (target& t : targets) {
        if (phase > 0 && phase < t.observer.phases()) {
          t.observer.begin_phase(phase);
        }
      }
      detail::for_each_run(
          context.samples, calib_steps, [&](const detail::run_inputs& inputs, std::size_t run) {
            const auto observe = [&](const std::string& value_name, const tensor& value) {
              const auto found = by_variable.find(value_name);
              if (found == by_variable.end() || value.type() != element_type::f32) {
                return;
              }
              for (const std::size_t i : found->second) {
                if (phase < targets[i].observer.phases()) {
                  targets[i].observer.observe(value, " in calibration run " + std::to_string(run));
                }
              }
            };
            static_cast<void>(float_executor.run(inputs, observe));
          });
    }
    for (const target& t : targets) {
      configs.set_parameters(t.id, t.observer.finalize());
      configs.transition(t.id, quantization_state::activated);
    }
    g.configs = std::move(configs);
  }

 private:
  struct target {
    config_id id;
    config_observer observer;
  };

  void choose_observers(const quantized_graph& g, quantization_configs& configs) const {
    const bool ranks =
        !method.empty() && observer_name(method, parity).find("isotone") != std::string::npos;
    const std::map<std::string, std::ptrdiff_t> ranked =
        ranks ? detail::ranked_values(g.network) : std::map<std::string, std::ptrdiff_t>();
    g.for_each_config([&](config_id id) {
      if (g.is_parameter(id)) {
        return;
      }
      if (override && configs[id].state() == quantization_state::activated &&
          !configs.is_dominated(id)) {
        configs.transition(id, quantization_state::initial);
      }
      if (method.empty()) {
        return;
      }
      quantizer_settings& s = configs.settings(id);
      const auto found = ranked.find(s.variable);
      s.observer = ranks && found == ranked.end() ? "minmax" : method;
      if (found != ranked.end()) {
        s.overrides.isotone_axis = found->second;
      }
    });
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_CALIBRATION_HPP
