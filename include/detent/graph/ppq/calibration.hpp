// SPDX-License-Identifier: BSD-3-Clause
// The passes that find scales: those of constants from their values, those of activations from
// calibration samples.
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

/// Finds the parameters of constants: shows each constant whose configuration is INITIAL to its
/// observer, once for each phase of the observer, and makes the configuration ACTIVATED. Throws
/// what config_observer throws, naming the configuration; the graph is then as it was.
struct parameter_quantization_pass {
  /// Which observers PPQ's names stand for: the library's own, or, with a value, PPQ's.
  ppq_parity parity = {};
  /// The observers that methods and configurations name. A copy of default_observers() takes
  /// observers of your own.
  observer_registry observers = default_observers();

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    quantization_configs configs = g.configs;
    g.for_each_config([&](config_id id) {
      if (configs[id].state() != quantization_state::initial || !g.is_parameter(id)) {
        return;
      }
      config_observer observer(configs[id], parity, observers);
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

/// The values that a classifier ranks, with the axis along which their rows run: inputs and outputs
/// of Softmax and LogSoftmax, and matrices that the model returns.
[[nodiscard]] inline std::map<std::string, std::ptrdiff_t> ranked_values(const model& m) {
  std::map<std::string, std::ptrdiff_t> axes;
  const std::map<std::string, tensor> known = infer_types(m);
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

/// The network to run for calibration: with activation functions fused into layers, which is
/// faster, unless that hides one of the wanted values.
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

/// PPQ's RuntimeCalibrationPass, which finds the parameters of activations. It runs the float
/// network `calib_steps` times, with the samples in their order; where they end, it begins with the
/// first one again. All activations whose configuration is INITIAL are shown to their observers in
/// these runs, and the configurations become ACTIVATED. If observers need a second phase, the same
/// runs are made once more for those observers. Configurations with policy DYNAMIC become ACTIVATED
/// without being observed.
///
/// Differs from PPQ in three points. It makes exactly calib_steps runs, where PPQ may pass the
/// limit by the rest of an epoch. Constants are float while activations are observed. Every
/// observer that asks for a second phase gets it, where PPQ gives it to its own observers only.
///
/// Throws invalid_argument unless 8 <= calib_steps <= 512, for an unknown method, listing the
/// methods that there are, without samples, and for a NaN or an infinity, naming configuration and
/// run; unsupported if the executor lacks an operator. The graph is then as it was.
struct runtime_calibration_pass {
  /// The name of the observer that replaces the observer of every activation, in capital or small
  /// letters; any name that `observers` has. If it is empty, each
  /// activation keeps its own observer. "isotone" is only for values that classifiers rank: inputs
  /// and outputs of Softmax and LogSoftmax, with rows along their axis, and results of the model of
  /// rank 2. The other activations get "minmax" then.
  std::string method = {};
  /// Whether activations that are ACTIVATED and their own root are first brought back to INITIAL,
  /// so that they are calibrated anew.
  bool override = false;
  /// The number of runs, 8..512.
  std::size_t calib_steps = 32;
  /// Which observers PPQ's names stand for: the library's own, or, with a value, PPQ's.
  ppq_parity parity = {};
  /// The observers that methods and configurations name. A copy of default_observers() takes
  /// observers of your own.
  observer_registry observers = default_observers();

  /// Runs the pass on the samples of the context.
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
      targets.push_back({id, config_observer(configs[id], parity, observers)});
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
        !method.empty() &&
        observer_name(method, parity, observers).find("isotone") != std::string::npos;
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
