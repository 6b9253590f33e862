// SPDX-License-Identifier: BSD-3-Clause
// The quantization configurations of a network's tensors: their settings, their states, and the
// links by which they share scales and zero points.
//
// Links of two kinds join configurations. A configuration that is dominated by another one leaves
// quantization to it (OVERLAPPED). Dominated configurations form a union-find forest, and all
// configurations of a tree read the parameters of its root. A configuration that has a master
// (PASSIVE) quantizes by itself, with the parameters of its master.
#ifndef DETENT_GRAPH_PPQ_CONFIG_HPP
#define DETENT_GRAPH_PPQ_CONFIG_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The scales and zero points of a tensor: one of each for the whole tensor, or one of each for
/// every channel. Both vectors are empty while the parameters are not known.
struct tensor_parameters {
  std::vector<float> scales;              ///< The scales, positive and finite.
  std::vector<std::int32_t> zero_points;  ///< The zero points, as many as scales.
  /// Whether all values from which they were made are 0, so that the scale says nothing.
  bool of_zeros = false;
  /// Whether the parameters are not known.
  [[nodiscard]] bool empty() const noexcept { return scales.empty(); }
  /// Whether scales and zero points are equal.
  friend bool operator==(const tensor_parameters&, const tensor_parameters&) = default;
};

/// Constants of an observer that a configuration replaces; PPQ calls this `detail`. Where a value
/// is absent, the observer's own constant holds.
struct observer_overrides {
  /// The share of values that the observer percentile keeps, for example 0.9999.
  std::optional<double> percentile = {};
  /// The number of bins of PPQ's observers kl and mse ("ppq.kl", "ppq.mse").
  std::optional<std::size_t> histogram_bins = {};
  /// The axis along which the rows run that the observer isotone compares; a negative axis counts
  /// from the last one.
  std::ptrdiff_t isotone_axis = -1;
};

/// The settings of the quantizer of one tensor.
struct quantizer_settings {
  /// The name that error messages give the configuration.
  std::string name;
  /// The name of the tensor in the network.
  std::string variable;
  /// Granularity, symmetry and the kind of scales.
  quantization_policy policy = {};
  /// How x / scale is rounded to an integer.
  rounding_policy rounding = rounding_policy::half_even;
  /// The width of the integers in bits, 2..32.
  int bits = 8;
  /// The smallest and the largest integer. 0 must be one of the 2 to 2^bits levels.
  grid levels{-128, 127};
  /// The name of the observer that finds the range, among the `observers` of the pass that
  /// calibrates.
  std::string observer = "minmax";
  /// Constants of the observer that are not its defaults.
  observer_overrides overrides = {};
  /// The axis of the channels. It is given exactly if the policy is per channel.
  std::optional<std::size_t> channel_axis = {};
  /// Whether the configuration is written into exported models.
  visibility_policy visibility = visibility_policy::export_when_active;

  /// The levels and the symmetry as a quant_scheme.
  [[nodiscard]] quant_scheme scheme() const noexcept { return {levels, policy.is_symmetrical()}; }
};

/// Throws invalid_argument, naming the configuration, unless bits is 2..32, the grid has 2 to
/// 2^bits levels with 0 among them, and a channel axis is given exactly if the policy is per
/// channel.
inline void require_valid(const quantizer_settings& s) {
  require(s.bits >= 2 && s.bits <= 32, error_kind::invalid_argument, s.name, ": ", s.bits,
          " bits are not 2..32");
  const std::int64_t steps = std::int64_t{s.levels.qmax} - s.levels.qmin;
  require(
      s.levels.qmin <= 0 && s.levels.qmax >= 0 && steps >= 1 && steps < std::int64_t{1} << s.bits,
      error_kind::invalid_argument, s.name, ": grid ", s.levels.qmin, "..", s.levels.qmax,
      " does not hold 0 or has not 2 to 2^", s.bits, " levels");
  require(s.policy.is_per_channel() == s.channel_axis.has_value(), error_kind::invalid_argument,
          s.name, ": policy ", quantization_policy::describe(s.policy.properties()),
          s.channel_axis ? " with a channel axis" : " without a channel axis");
}

/// The quantization configuration of one tensor: its settings, which may be edited at any time, and
/// its state, which only quantization_configs changes.
class tensor_quantization_config : public quantizer_settings {
 public:
  /// The state of the configuration.
  [[nodiscard]] quantization_state state() const noexcept { return state_; }
  /// The state that restore() brings back if the configuration is switched off (FP32), else
  /// state().
  [[nodiscard]] quantization_state enabled_state() const noexcept {
    return state_ == quantization_state::fp32 ? former_ : state_;
  }

 private:
  friend class quantization_configs;
  explicit tensor_quantization_config(quantizer_settings s) : quantizer_settings(std::move(s)) {}

  quantization_state state_ = quantization_state::initial;
  quantization_state former_ = quantization_state::initial;
  tensor_parameters own_;
};

/// Names one configuration of a quantization_configs: its index, in the order in which add() made
/// the configurations.
enum class config_id : std::size_t {};
/// The config_id of no configuration: it stands where a tensor has none.
inline constexpr config_id no_config = static_cast<config_id>(static_cast<std::size_t>(-1));

/// All configurations of a network, their states, and the links between them. It is a value:
/// copies are independent, and ids stay valid in them.
///
/// Not thread-safe: even constant functions must not run at the same time as other functions of the
/// same object, because reading compresses paths of the forest. Functions that throw
/// invalid_argument or shape_mismatch name the configuration in the message and change nothing. An
/// id that add() has not returned makes functions throw std::out_of_range.
class quantization_configs {
 public:
  /// Adds a configuration and returns its id. `state` is INITIAL, PASSIVE_INIT or FP32; restore()
  /// brings a configuration that begins as FP32 to INITIAL. Throws invalid_argument for any other
  /// state, and for settings that require_valid() rejects.
  config_id add(quantizer_settings settings,
                quantization_state state = quantization_state::initial) {
    require_valid(settings);
    require(state == quantization_state::initial || state == quantization_state::passive_init ||
                state == quantization_state::fp32,
            error_kind::invalid_argument, settings.name, ": no configuration begins as ",
            ppq::name(state));
    configs_.push_back(tensor_quantization_config(std::move(settings)));
    configs_.back().state_ = state;
    const auto id = static_cast<config_id>(configs_.size() - 1);
    parents_.push_back(id);
    masters_.push_back(no_config);
    return id;
  }

  /// Number of configurations.
  [[nodiscard]] std::size_t size() const noexcept { return configs_.size(); }
  /// The configuration named `id`. The reference is valid until add() is called.
  [[nodiscard]] const tensor_quantization_config& operator[](config_id id) const {
    return configs_.at(static_cast<std::size_t>(id));
  }
  /// The settings of a configuration, to be edited. The state is not among them, and edited
  /// settings are not checked. The reference is valid until add() is called.
  [[nodiscard]] quantizer_settings& settings(config_id id) { return at(id); }

  // ------------------------------------------------------------------------------------- states

  /// Brings a configuration to another state. Throws invalid_argument, naming both states, unless
  ///
  ///   - state_transitions allows the step,
  ///   - the configuration has parameters, if the new state is ACTIVATED or PASSIVE,
  ///   - it is dominated (dominated_by()), if the new state is OVERLAPPED,
  ///   - it stays OVERLAPPED, if it is (master_by() leads out of that state),
  ///   - the new state is the one before FP32, if the configuration is FP32.
  ///
  /// The step from another state to INITIAL forgets the configuration's own parameters.
  void transition(config_id id, quantization_state to) {
    if (to == quantization_state::fp32) {
      dequantize(id);
      return;
    }
    const tensor_quantization_config& c = (*this)[id];
    if (c.state_ == quantization_state::fp32) {
      require(to == c.former_, error_kind::invalid_argument, c.name, ": from FP32 to ",
              ppq::name(to), ", but it was ", ppq::name(c.former_), " before");
      restore(id);
      return;
    }
    require_legal(id, to);
    require(to == c.state_ || c.state_ != quantization_state::overlapped,
            error_kind::invalid_argument, c.name, ": from OVERLAPPED to ", ppq::name(to),
            " without a master; master_by() gives it one");
    require(to == c.state_ || !ppq::is_active(to) || has_parameters(id),
            error_kind::invalid_argument, c.name, ": from ", ppq::name(c.state_), " to ",
            ppq::name(to), " without a scale");
    require(to != quantization_state::overlapped || is_dominated(id), error_kind::invalid_argument,
            c.name, ": from ", ppq::name(c.state_), " to ", ppq::name(to),
            " without a root that dominates it");
    move(id, to);
  }

  /// Switches a configuration off (FP32) until restore() is called. Its parameters and links stay.
  void dequantize(config_id id) {
    tensor_quantization_config& c = at(id);
    if (c.state_ != quantization_state::fp32) {
      c.former_ = c.state_;
      c.state_ = quantization_state::fp32;
    }
  }
  /// Brings a configuration that is switched off back to the state that it had before dequantize().
  /// It has no effect on a configuration that is not switched off.
  void restore(config_id id) {
    tensor_quantization_config& c = at(id);
    c.state_ = c.enabled_state();
  }

  // ------------------------------------------------------------------------------------- links

  /// Lets `dominator` quantize in place of `id`: the root of `dominator` becomes the root of `id`
  /// and of all configurations that share the root of `id`. The former root of `id` becomes
  /// OVERLAPPED and loses its own parameters. The call has no effect if both have the same root
  /// already. Throws invalid_argument if `id` is the root of `dominator` or `dominator` itself, if
  /// the root of `dominator` reads its parameters from the former root, and if the state of the
  /// former root cannot become OVERLAPPED.
  void dominated_by(config_id id, config_id dominator) {
    const config_id slave = root(id);
    const config_id master = root(dominator);
    require(id != dominator && (slave != master || slave != id), error_kind::invalid_argument,
            (*this)[id].name, ": dominated by '", (*this)[dominator].name, "' is a cycle");
    if (slave == master) {
      return;
    }
    require_not_read_by(slave, master, id, dominator, "dominated by");
    require_legal(slave, quantization_state::overlapped);
    parents_[static_cast<std::size_t>(slave)] = master;
    parents_[static_cast<std::size_t>(id)] = master;
    at(slave).own_ = {};
    move(slave, quantization_state::overlapped);
  }

  /// Makes `id` read its parameters from `master`. `id` becomes PASSIVE if `master` has parameters,
  /// else PASSIVE_INIT, and loses its own parameters. If `id` is dominated, it leaves its root; the
  /// other configurations that this root dominates stay with it. Throws invalid_argument if `id`
  /// and `master` are the same or `master` reads its parameters from `id`.
  void master_by(config_id id, config_id master) {
    require(id != master, error_kind::invalid_argument, (*this)[id].name, ": passive to '",
            (*this)[master].name, "' is a cycle");
    require_not_read_by(id, root(master), id, master, "passive to");
    const quantization_state to =
        parameters(master).empty() ? quantization_state::passive_init : quantization_state::passive;
    require_legal(id, to);
    if (is_dominated(id)) {
      const config_id old_root = root(id);
      for (config_id& parent : parents_) {
        parent = parent == id ? old_root : parent;
      }
      parents_[static_cast<std::size_t>(id)] = id;
    }
    masters_[static_cast<std::size_t>(id)] = master;
    at(id).own_ = {};
    move(id, to);
  }

  /// The configuration that quantizes for this one: the root of its tree, which is `id` itself
  /// unless it is dominated.
  [[nodiscard]] config_id root(config_id id) const {
    config_id top = id;
    while (parents_.at(static_cast<std::size_t>(top)) != top) {
      top = parents_[static_cast<std::size_t>(top)];
    }
    while (parents_[static_cast<std::size_t>(id)] != top) {
      const config_id next = parents_[static_cast<std::size_t>(id)];
      parents_[static_cast<std::size_t>(id)] = top;
      id = next;
    }
    return top;
  }
  /// Whether another configuration quantizes for this one.
  [[nodiscard]] bool is_dominated(config_id id) const { return root(id) != id; }
  /// The master of the configuration's root, or no_config if the root has none.
  [[nodiscard]] config_id master(config_id id) const {
    return masters_[static_cast<std::size_t>(root(id))];
  }
  /// The configuration whose parameters this one reads: its root, or, if that has a master, the
  /// root of the master, and so on.
  [[nodiscard]] config_id source(config_id id) const {
    config_id at_id = root(id);
    for (config_id m = master(at_id); m != no_config; m = master(at_id)) {
      at_id = root(m);
    }
    return at_id;
  }

  /// Number of links between a configuration and its root in the forest as it is now; at most 1
  /// after root(id) was called. It is meant for tests and for tuning.
  [[nodiscard]] std::size_t depth(config_id id) const {
    std::size_t links = 0;
    for (; parents_.at(static_cast<std::size_t>(id)) != id; ++links) {
      id = parents_[static_cast<std::size_t>(id)];
    }
    return links;
  }

  // --------------------------------------------------------------------------------- parameters

  /// The scales and zero points that the configuration uses, those of source(id); empty while there
  /// are none.
  [[nodiscard]] const tensor_parameters& parameters(config_id id) const {
    return (*this)[source(id)].own_;
  }

  /// Whether the policy of source(id) is DYNAMIC, so that scale and zero point are found anew in
  /// each run of the model.
  [[nodiscard]] bool is_dynamic(config_id id) const {
    return (*this)[source(id)].policy.has(quantization_property::dynamic);
  }
  /// Whether scale and zero point are known, or will be when the model runs.
  [[nodiscard]] bool has_parameters(config_id id) const {
    return is_dynamic(id) || !parameters(id).empty();
  }

  /// Writes the scales and zero points of a configuration, and leaves its state. Throws
  /// invalid_argument if the configuration is dominated, has a master, or is BAKED, OVERLAPPED or
  /// PASSIVE_BAKED, and for a scale that is not positive and finite or a zero point outside the
  /// grid. Throws shape_mismatch unless there is one zero point for each of one or more scales, and
  /// for several scales if the policy is per tensor.
  void set_parameters(config_id id, tensor_parameters p) {
    tensor_quantization_config& c = at(id);
    require(!is_dominated(id), error_kind::invalid_argument, c.name, ": its scale is that of '",
            (*this)[root(id)].name, "', which dominates it, and can't be written");
    require(master(id) == no_config, error_kind::invalid_argument, c.name,
            ": its scale is that of its master '", (*this)[source(id)].name,
            "' and can't be written");
    require(is_writable(c.state_), error_kind::invalid_argument, c.name,
            ": its scale can't be written in state ", ppq::name(c.state_));
    require(!p.empty() && p.scales.size() == p.zero_points.size(), error_kind::shape_mismatch,
            c.name, ": ", p.scales.size(), " scales and ", p.zero_points.size(), " zero points");
    require(p.scales.size() == 1 || c.policy.is_per_channel(), error_kind::shape_mismatch, c.name,
            ": ", p.scales.size(), " scales for a tensor");
    for (std::size_t i = 0; i < p.scales.size(); ++i) {
      require(std::isfinite(p.scales[i]) && p.scales[i] > 0.0F, error_kind::invalid_argument,
              c.name, ": scale ", p.scales[i], " is not a positive finite number");
      require(p.zero_points[i] >= c.levels.qmin && p.zero_points[i] <= c.levels.qmax,
              error_kind::invalid_argument, c.name, ": zero point ", p.zero_points[i],
              " is outside ", c.levels.qmin, "..", c.levels.qmax);
    }
    c.own_ = std::move(p);
  }

  // ----------------------------------------------------------------------------------- questions

  /// Whether the configuration quantizes when a model runs: it is ACTIVATED or PASSIVE.
  [[nodiscard]] bool is_active(config_id id) const { return ppq::is_active((*this)[id].state_); }

  /// Whether the configuration is written into exported models. It must have parameters and be
  /// active or baked, or, with `overlapped_too`, OVERLAPPED. The visibility force_export lifts the
  /// condition on the state, and internal always says no. A configuration that is dominated by a
  /// dynamic root is not exportable: that root has no parameters to lend.
  [[nodiscard]] bool is_exportable(config_id id, bool overlapped_too = false) const {
    const tensor_quantization_config& c = (*this)[id];
    if (c.visibility == visibility_policy::internal || !has_parameters(id) ||
        (is_dynamic(id) && is_dominated(id))) {
      return false;
    }
    return c.visibility == visibility_policy::force_export || is_active(id) ||
           c.state_ == quantization_state::baked || c.state_ == quantization_state::passive_baked ||
           (overlapped_too && c.state_ == quantization_state::overlapped);
  }

 private:
  [[nodiscard]] tensor_quantization_config& at(config_id id) {
    return configs_.at(static_cast<std::size_t>(id));
  }

  /// Checks the transition from the enabled state: a configuration that is switched off (FP32)
  /// changes the state that restore() will bring back.
  void require_legal(config_id id, quantization_state to) const {
    const tensor_quantization_config& c = (*this)[id];
    require(is_legal(c.enabled_state(), to), error_kind::invalid_argument, c.name,
            ": illegal transition from ", ppq::name(c.enabled_state()), " to ", ppq::name(to));
  }
  void move(config_id id, quantization_state to) {
    tensor_quantization_config& c = at(id);
    if (to == quantization_state::initial && c.enabled_state() != to) {
      c.own_ = {};
    }
    (c.state_ == quantization_state::fp32 ? c.former_ : c.state_) = to;
  }

  /// Throws invalid_argument if `reader`, a root, or one of its masters is `owner`.
  void require_not_read_by(config_id owner, config_id reader, config_id id, config_id other,
                           const char* relation) const {
    for (config_id r = reader;; r = root(masters_[static_cast<std::size_t>(r)])) {
      require(r != owner, error_kind::invalid_argument, (*this)[id].name, ": ", relation, " '",
              (*this)[other].name, "' is a cycle");
      const config_id above = masters_[static_cast<std::size_t>(r)];
      if (above == no_config) {
        return;
      }
      // The owner may be about to leave the root that stands for it here.
      require(above != owner, error_kind::invalid_argument, (*this)[id].name, ": ", relation, " '",
              (*this)[other].name, "' is a cycle");
    }
  }

  std::vector<tensor_quantization_config> configs_;
  mutable std::vector<config_id> parents_;  // a root is its own parent
  std::vector<config_id> masters_;          // only the entries of roots count
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_CONFIG_HPP
