// SPDX-License-Identifier: BSD-3-Clause
// The quantization configurations of a network's tensors, what state each is in, and which of them
// share their parameters.
//
// Links of two kinds join configurations. One that is dominated by another leaves quantization to
// it (OVERLAPPED): dominated ones form a union-find forest, and all of a tree read the parameters
// of its root. One that has a master (PASSIVE) quantizes by itself, with the master's parameters.
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

/// One scale and zero point, or one of each for every channel. Without any: not known yet.
struct tensor_parameters {
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  [[nodiscard]] bool empty() const noexcept { return scales.empty(); }
  friend bool operator==(const tensor_parameters&, const tensor_parameters&) = default;
};

/// What replaces an observer's constants; absent ones are the observer's own. (PPQ's `detail`.)
struct observer_overrides {
  std::optional<double> percentile = {};           // a share, 0.9999
  std::optional<std::size_t> histogram_bins = {};  // of PPQ's kl and mse
  std::ptrdiff_t isotone_axis = -1;                // that rows run along
};

/// What is wanted of the quantizer of one tensor.
struct quantizer_settings {
  std::string name;      // that messages give it
  std::string variable;  // the tensor
  quantization_policy policy = {};
  rounding_policy rounding = rounding_policy::half_even;
  int bits = 8;
  grid levels{-128, 127};
  std::string observer = "minmax";  // whatever name make_observer() knows
  observer_overrides overrides = {};
  std::optional<std::size_t> channel_axis = {};  // of per-channel policies
  visibility_policy visibility = visibility_policy::export_when_active;

  [[nodiscard]] quant_scheme scheme() const noexcept { return {levels, policy.is_symmetrical()}; }
};

/// Throws invalid_argument, with the name, unless bits are 2..32, the grid has 2 to 2^bits levels
/// with 0 among them, and a channel axis is there exactly if the policy is per channel.
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

/// A configuration: its settings, which may be edited at any time, and its state, which
/// quantization_configs keeps.
class tensor_quantization_config : public quantizer_settings {
 public:
  [[nodiscard]] quantization_state state() const noexcept { return state_; }
  /// While it is FP32: the state that restore() brings back. Else state().
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

/// Names a configuration of quantization_configs.
enum class config_id : std::size_t {};
inline constexpr config_id no_config = static_cast<config_id>(static_cast<std::size_t>(-1));

/// All configurations of a network; a value. Reading compresses paths of the forest: not even
/// constant functions may run at the same time as others of the same object.
///
/// Functions throw invalid_argument, naming the configuration, for what is said to be illegal, and
/// then change nothing.
class quantization_configs {
 public:
  /// A new configuration, INITIAL, PASSIVE_INIT or FP32 (restored to INITIAL then). Throws
  /// invalid_argument for any other state and as require_valid() does.
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

  [[nodiscard]] std::size_t size() const noexcept { return configs_.size(); }
  [[nodiscard]] const tensor_quantization_config& operator[](config_id id) const {
    return configs_.at(static_cast<std::size_t>(id));
  }
  /// The settings, to be edited. The state is not among them.
  [[nodiscard]] quantizer_settings& settings(config_id id) { return at(id); }

  // ------------------------------------------------------------------------------------- states

  /// Brings a configuration to another state. Throws as the table of transitions says, naming both
  /// states; ACTIVATED and PASSIVE ask for parameters (has_parameters()), OVERLAPPED for a root
  /// (dominated_by()), to leave that for a master (master_by()), and what leaves FP32 goes back to
  /// what it was.
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

  /// Switches a configuration off until restore(); parameters and links stay.
  void dequantize(config_id id) {
    tensor_quantization_config& c = at(id);
    if (c.state_ != quantization_state::fp32) {
      c.former_ = c.state_;
      c.state_ = quantization_state::fp32;
    }
  }
  /// Brings back the state that it had before dequantize(); no effect on others.
  void restore(config_id id) {
    tensor_quantization_config& c = at(id);
    c.state_ = c.enabled_state();
  }

  // ------------------------------------------------------------------------------------- links

  /// Makes the root of `dominator` that of `id` and of all that share its root; its former root
  /// becomes OVERLAPPED and loses its own parameters. No effect if they have a root in common
  /// already. Illegal: that a configuration be dominated by one that it dominates itself, or that
  /// reads its parameters from it; a former root whose state can't become OVERLAPPED.
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

  /// Makes `id` read its parameters from `master`: PASSIVE if that has some, else PASSIVE_INIT. A
  /// dominated one leaves its root; those that are dominated by the same root stay with it. Illegal
  /// if `master` reads its own from `id`.
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

  /// The configuration that quantizes for this one: itself unless it is dominated.
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
  [[nodiscard]] bool is_dominated(config_id id) const { return root(id) != id; }
  /// The master of its root, or no_config.
  [[nodiscard]] config_id master(config_id id) const {
    return masters_[static_cast<std::size_t>(root(id))];
  }
  /// Whose parameters it reads: those of its root, or of the root's master, and so on.
  [[nodiscard]] config_id source(config_id id) const {
    config_id at_id = root(id);
    for (config_id m = master(at_id); m != no_config; m = master(at_id)) {
      at_id = root(m);
    }
    return at_id;
  }

  /// How many links stand between a configuration and its root as the forest is now; 1 at most once
  /// root() was asked. For tests and those who tune.
  [[nodiscard]] std::size_t depth(config_id id) const {
    std::size_t links = 0;
    for (; parents_.at(static_cast<std::size_t>(id)) != id; ++links) {
      id = parents_[static_cast<std::size_t>(id)];
    }
    return links;
  }

  // --------------------------------------------------------------------------------- parameters

  /// Those of source(id); empty while there are none.
  [[nodiscard]] const tensor_parameters& parameters(config_id id) const {
    return (*this)[source(id)].own_;
  }

  /// Whether the policy of source(id) is DYNAMIC: scale and zero point are found anew in each run.
  [[nodiscard]] bool is_dynamic(config_id id) const {
    return (*this)[source(id)].policy.has(quantization_property::dynamic);
  }
  /// Whether scale and zero point are known, or will be when the model runs.
  [[nodiscard]] bool has_parameters(config_id id) const {
    return is_dynamic(id) || !parameters(id).empty();
  }

  /// Writes scale and zero point; the state stays. Illegal on dominated configurations, on those
  /// that have a master, in the states BAKED, OVERLAPPED and PASSIVE_BAKED, unless there is a zero
  /// point within the grid for each scale and scales are positive and finite, or with several
  /// scales if the policy is per tensor.
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

  [[nodiscard]] bool is_active(config_id id) const { return ppq::is_active((*this)[id].state_); }

  /// Whether it is written into exported models: it has parameters, is active or baked (or, if
  /// asked for, OVERLAPPED), and its visibility does not say otherwise. A dynamic root has no
  /// parameters to lend to those that it dominates.
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

  /// Of the enabled state: being switched off is another matter.
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

  /// Illegal if `reader`, a root, or one of its masters is `owner`.
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
  mutable std::vector<config_id> parents_;  // of a root: itself
  std::vector<config_id> masters_;          // of roots
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_CONFIG_HPP
