// SPDX-License-Identifier: BSD-3-Clause
// RNN, GRU and LSTM in float.
//
// For each direction the products of all inputs with the weights are made first, then step by step
// those of the hidden state with the recurrence weights. What an activation takes is summed in
// double and rounded to float once; where a product is added, both factors are floats, so that the
// product is exact and it does not matter whether the compiler contracts.
#ifndef DETENT_GRAPH_OPS_RECURRENT_HPP
#define DETENT_GRAPH_OPS_RECURRENT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/unary_functions.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace recurrent {

// --- activations ---------------------------------------------------------------------------------

/// alpha * x + beta.
struct affine {
  static constexpr std::string_view name = "Affine";
  double alpha;
  double beta;
  explicit affine(const node& n)
      : alpha(static_cast<double>(n.get_float("alpha", 1.0F))),
        beta(static_cast<double>(n.get_float("beta", 0.0F))) {}
  [[nodiscard]] double operator()(double x) const { return alpha * x + beta; }
};

/// alpha * tanh(beta * x).
struct scaled_tanh {
  static constexpr std::string_view name = "ScaledTanh";
  double alpha;
  double beta;
  explicit scaled_tanh(const node& n)
      : alpha(static_cast<double>(n.get_float("alpha", 1.0F))),
        beta(static_cast<double>(n.get_float("beta", 1.0F))) {}
  [[nodiscard]] double operator()(double x) const { return alpha * unary::portable_tanh(beta * x); }
};

/// The functions that the attribute `activations` may name.
using gate_functions = type_list<unary::sigmoid, unary::tanh, unary::relu, unary::leaky_relu,
                                 unary::thresholded_relu, unary::elu, unary::hard_sigmoid,
                                 unary::softsign, unary::softplus, affine, scaled_tanh>;

/// Applies an activation to each value in place.
using activation = std::function<void(std::span<float>)>;

/// The activation of this name. Throws bad_file, naming the node, if there is none. `parameters`: a
/// node with the attributes alpha and beta.
[[nodiscard]] inline activation make_activation(const operator_context& c, const node& parameters) {
  activation made;
  const bool known = visit_function(gate_functions{}, parameters, [&]<class F>() {
    made = [f = make_function<F>(parameters)](std::span<float> values) {
      ops::apply(f, std::span<const float>(values), values);
    };
  });
  c.require(known, "no activation is called '", parameters.op_type, "'");
  return made;
}

/// The names and attributes of the activations of all directions, one after the other. The lists
/// activation_alpha and activation_beta hold values for those functions that take them; behind
/// their ends the defaults of the operators of these names count.
///
/// An RNN of one direction may name two functions: its schema has the default [Tanh, Tanh], which
/// runtimes write into nodes of one direction, too. As in ONNX Runtime, only the first one counts.
/// The schemas of LSTM and GRU have no default, and ONNX Runtime wants the exact number.
[[nodiscard]] inline std::vector<node> activation_nodes(const operator_context& c,
                                                        std::vector<std::string> defaults,
                                                        std::size_t directions) {
  const std::size_t per_direction = defaults.size();
  const attribute* named = c.n().find("activations");
  std::vector<std::string> names = named == nullptr ? std::vector<std::string>{} : named->strings;
  if (names.empty()) {
    for (std::size_t d = 0; d < directions; ++d) {
      names.insert(names.end(), defaults.begin(), defaults.end());
    }
  }
  if (per_direction == 1 && directions == 1 && names.size() == 2) {
    names.pop_back();
  }
  c.require(names.size() == per_direction * directions, names.size(), " activations, expected ",
            per_direction * directions);
  const auto values_of = [&](std::string_view key) {
    const attribute* a = c.n().find(key);
    return a == nullptr ? std::vector<float>{} : a->floats;
  };
  const std::vector<float> alpha = values_of("activation_alpha");
  const std::vector<float> beta = values_of("activation_beta");
  std::size_t next_alpha = 0;
  std::size_t next_beta = 0;
  std::vector<node> all;
  for (const std::string& name : names) {
    const bool takes_both = name == "HardSigmoid" || name == "Affine" || name == "ScaledTanh";
    const bool takes_alpha =
        takes_both || name == "LeakyRelu" || name == "ThresholdedRelu" || name == "Elu";
    node parameters;
    parameters.op_type = name;
    if (takes_alpha && next_alpha < alpha.size()) {
      parameters.attributes["alpha"] = attribute::of(alpha[next_alpha++]);
    }
    if (takes_both && next_beta < beta.size()) {
      parameters.attributes["beta"] = attribute::of(beta[next_beta++]);
    }
    all.push_back(std::move(parameters));
  }
  return all;
}

/// The activations that activation_nodes() lists.
[[nodiscard]] inline std::vector<activation> read_activations(const operator_context& c,
                                                              std::vector<std::string> defaults,
                                                              std::size_t directions) {
  std::vector<activation> all;
  for (const node& parameters : activation_nodes(c, std::move(defaults), directions)) {
    all.push_back(make_activation(c, parameters));
  }
  return all;
}

// --- sizes and places ----------------------------------------------------------------------------

/// The sizes of a recurrent node and where its values lie.
struct recurrence {
  std::size_t directions = 1;
  std::size_t sequence = 0;
  std::size_t batch = 0;
  std::size_t inputs = 0;
  std::size_t hidden = 0;
  std::size_t longest = 0;  ///< The number of steps of the longest sequence.
  bool batch_first = false;
  bool backward_first = false;
  float clip = std::numeric_limits<float>::infinity();
  std::vector<std::size_t> lengths;  ///< Of each sequence; empty while shapes are inferred.

  /// Whether direction d takes the steps from the last to the first.
  [[nodiscard]] bool is_backward(std::size_t d) const { return d == 1 || backward_first; }
  /// The time at which direction d takes its step number s of sequence b.
  [[nodiscard]] std::size_t time(std::size_t d, std::size_t s, std::size_t b) const {
    return is_backward(d) ? lengths[b] - 1 - s : s;
  }
  /// The row of the input at time t.
  [[nodiscard]] std::size_t row(std::size_t t, std::size_t b) const {
    return batch_first ? b * sequence + t : t * batch + b;
  }
  /// Where the output of time t begins in Y.
  [[nodiscard]] std::size_t in_all(std::size_t t, std::size_t d, std::size_t b) const {
    return (batch_first ? row(t, b) * directions + d : (t * directions + d) * batch + b) * hidden;
  }
  /// Where a state begins in the initial and final states.
  [[nodiscard]] std::size_t in_state(std::size_t d, std::size_t b) const {
    return (batch_first ? b * directions + d : d * batch + b) * hidden;
  }
  /// The shape of all outputs.
  [[nodiscard]] shape all_dims() const {
    const auto size = [](std::size_t v) { return static_cast<std::int64_t>(v); };
    return batch_first ? shape{size(batch), size(sequence), size(directions), size(hidden)}
                       : shape{size(sequence), size(directions), size(batch), size(hidden)};
  }
  /// The shape of initial and final states.
  [[nodiscard]] shape state_dims() const {
    const auto size = [](std::size_t v) { return static_cast<std::int64_t>(v); };
    return batch_first ? shape{size(batch), size(directions), size(hidden)}
                       : shape{size(directions), size(batch), size(hidden)};
  }
};

/// Throws bad_file if input i is there and has another shape.
inline void require_shape(const operator_context& c, std::size_t i, const shape& expected) {
  c.require(!c.has_input(i) || c.inputs[i].dims() == expected, "input ", i, " has shape ",
            shown(c.has_input(i) ? c.inputs[i].dims() : shape{}), ", expected ", shown(expected));
}

/// Throws unsupported if input i is there and holds no floats.
inline void require_float(const operator_context& c, std::size_t i) {
  c.require_supported(!c.has_input(i) || c.inputs[i].type() == element_type::f32, "input ", i,
                      " has no code for elements of type ",
                      shown(c.has_input(i) ? c.inputs[i].type() : element_type::f32));
}

/// Reads the sizes of a node with the inputs X, W, R, B, sequence_lens and initial_h, and checks
/// them. `gates`: how many blocks of `hidden` rows the weights have. `columns`: the weights are
/// transposed, [directions, inputs, gates * hidden].
[[nodiscard]] inline recurrence read_recurrence(const operator_context& c, std::int64_t gates,
                                                bool columns = false) {
  recurrence r;
  const shape& x = c.input(0).dims();
  const shape& recurrent = c.input(2).dims();
  const std::string direction = c.n().get_string("direction", "forward");
  c.require(direction == "forward" || direction == "reverse" || direction == "bidirectional",
            "direction '", direction, "'");
  const std::int64_t layout = c.n().get_int("layout", 0);
  c.require(layout == 0 || layout == 1, "layout ", layout);
  c.require(x.size() == 3 && recurrent.size() == 3, "an input of shape ", shown(x),
            " and recurrence weights of shape ", shown(recurrent));
  const std::int64_t hidden = recurrent[columns ? 1 : 2];
  c.require(hidden > 0 && hidden <= std::int64_t{1} << 30 &&
                c.n().get_int("hidden_size", hidden) == hidden,
            "hidden_size is ", c.n().get_int("hidden_size", hidden),
            ", the recurrence weights have shape ", shown(recurrent));
  const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
  r.directions = direction == "bidirectional" ? 2 : 1;
  r.backward_first = direction == "reverse";
  r.batch_first = layout == 1;
  r.sequence = size(x[r.batch_first ? 1 : 0]);
  r.batch = size(x[r.batch_first ? 0 : 1]);
  r.inputs = size(x[2]);
  r.hidden = size(hidden);
  const auto directions = static_cast<std::int64_t>(r.directions);
  const std::int64_t rows = gates * hidden;
  require_shape(c, 1, columns ? shape{directions, x[2], rows} : shape{directions, rows, x[2]});
  require_shape(c, 2, columns ? shape{directions, hidden, rows} : shape{directions, rows, hidden});
  require_shape(c, 3, {directions, 2 * rows});
  require_shape(c, 4, {static_cast<std::int64_t>(r.batch)});
  require_shape(c, 5, r.state_dims());
  for (const std::size_t i : {std::size_t{0}, std::size_t{3}, std::size_t{5}}) {
    require_float(c, i);
  }
  if (c.n().find("clip") != nullptr) {
    r.clip = c.n().get_float("clip", 0.0F);
    c.require(r.clip > 0.0F, "clip is ", r.clip);
  }
  c.require(!c.has_input(4) || c.inputs[4].type() == element_type::s32, "sequence_lens are ",
            shown(c.has_input(4) ? c.inputs[4].type() : element_type::s32), ", not int32");
  return r;
}

/// Reads the lengths of the sequences, which a run needs.
inline void read_lengths(const operator_context& c, recurrence& r) {
  r.lengths.assign(r.batch, r.sequence);
  if (c.has_input(4)) {
    const std::span<const std::int32_t> given = c.inputs[4].data<std::int32_t>();
    for (std::size_t b = 0; b < r.batch; ++b) {
      c.require(given[b] >= 0 && static_cast<std::size_t>(given[b]) <= r.sequence, "a sequence of ",
                given[b], " steps where there are ", r.sequence);
      r.lengths[b] = static_cast<std::size_t>(given[b]);
    }
  }
  r.longest = r.lengths.empty() ? 0 : *std::max_element(r.lengths.begin(), r.lengths.end());
}

// --- what all cells share ------------------------------------------------------------------------

using floats = std::pmr::vector<float>;

/// The products of a float node: [rows, inputs] or [rows, hidden] times the transposed weights of a
/// direction. `parts` of the gates are multiplied by the hidden state one by one.
class float_products {
 public:
  /// `parts[k]`: how many gates part k of the recurrence weights has.
  float_products(operator_context& c, const recurrence& r, std::vector<std::size_t> parts)
      : context_(c), r_(r), parts_(std::move(parts)) {
    require_float(c, 1);
    require_float(c, 2);
    for (const std::size_t p : parts_) {
      gates_ += p;
    }
    std::size_t bytes = packed_bytes(r.inputs, gates_ * r.hidden);
    for (const std::size_t p : parts_) {
      bytes += packed_bytes(r.hidden, p * r.hidden);
    }
    const auto& state = cached_state<packed>(c, {1, 2}, r.directions * bytes, [&](packed& fresh) {
      const float* w = c.inputs[1].data<float>().data();
      const float* h = c.inputs[2].data<float>().data();
      for (std::size_t d = 0; d < r.directions; ++d) {
        fresh.input.push_back(pack(w, gates_ * r.hidden, r.inputs));
        w += gates_ * r.hidden * r.inputs;
        for (const std::size_t p : parts_) {
          fresh.hidden.push_back(pack(h, p * r.hidden, r.hidden));
          h += p * r.hidden * r.hidden;
        }
      }
    });
    packed_ = state.packed.get();
  }

  /// The number of gates of all parts.
  [[nodiscard]] std::size_t gates() const { return gates_; }
  /// Multiplies rows of the input.
  void input(std::size_t d, const float* rows, std::size_t count, float* out) const {
    multiply(packed_->input[d], rows, count, r_.inputs, gates_ * r_.hidden, out);
  }
  /// Multiplies rows of the hidden state by one part of the weights.
  void hidden(std::size_t d, std::size_t part, const float* rows, std::size_t count,
              float* out) const {
    multiply(packed_->hidden[d * parts_.size() + part], rows, count, r_.hidden,
             parts_[part] * r_.hidden, out);
  }

 private:
  struct packed {
    std::vector<packed_floats> input, hidden;
  };
  [[nodiscard]] static packed_floats pack(const float* weights, std::size_t rows,
                                          std::size_t columns) {
    return packed_floats(matrix_view<const float>(weights, rows, columns).transposed(), {});
  }
  void multiply(const packed_floats& weights, const float* rows, std::size_t count, std::size_t k,
                std::size_t n, float* out) const {
    gemm({rows, count, k}, weights, {out, count, n}, {}, *context_.parallel);
  }

  const operator_context& context_;
  const recurrence& r_;
  std::vector<std::size_t> parts_;
  std::size_t gates_ = 0;
  const packed* packed_ = nullptr;
};

/// The outputs of a node as they are written step by step.
class written_outputs {
 public:
  written_outputs(operator_context& c, const recurrence& r) : r_(r) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (i < c.outputs.size() && c.has_output(i)) {
        const std::span<float> out = c.make_output(i).mutable_data<float>();
        std::fill(out.begin(), out.end(), 0.0F);  // what lies behind the end of a sequence
        data_[i] = out.data();
      }
    }
  }
  /// Writes the hidden state after a step.
  void write_step(std::size_t d, std::size_t t, std::size_t b, std::span<const float> state) {
    if (data_[0] != nullptr) {
      std::copy(state.begin(), state.end(), data_[0] + r_.in_all(t, d, b));
    }
  }
  /// Writes the last state of a sequence to output i.
  void write_state(std::size_t i, std::size_t d, std::size_t b, const floats& states) {
    if (data_[i] != nullptr) {
      std::copy_n(states.data() + b * r_.hidden, r_.hidden, data_[i] + r_.in_state(d, b));
    }
  }

 private:
  const recurrence& r_;
  float* data_[3] = {nullptr, nullptr, nullptr};
};

/// The initial states of a direction, [batch, hidden]; zeros if input i is absent.
[[nodiscard]] inline floats initial_states(const operator_context& c, const recurrence& r,
                                           std::size_t i, std::size_t d) {
  floats states(r.batch * r.hidden, 0.0F, c.memory);
  for (std::size_t b = 0; c.has_input(i) && b < r.batch; ++b) {
    std::copy_n(c.inputs[i].data<float>().data() + r.in_state(d, b), r.hidden,
                states.data() + b * r.hidden);
  }
  return states;
}

/// The two biases of one gate, each of `hidden` values; zeros if there is no bias.
struct gate_bias {
  const float* input = nullptr;
  const float* hidden = nullptr;
  gate_bias(const operator_context& c, const recurrence& r, std::size_t d, std::size_t gate,
            std::size_t gates) {
    if (c.has_input(3)) {
      input = c.inputs[3].data<float>().data() + (d * 2 * gates + gate) * r.hidden;
      hidden = input + gates * r.hidden;
    }
  }
  /// The sum of both.
  [[nodiscard]] double sum(std::size_t j) const {
    return input == nullptr ? 0.0 : static_cast<double>(input[j]) + static_cast<double>(hidden[j]);
  }
  [[nodiscard]] double of_input(std::size_t j) const {
    return input == nullptr ? 0.0 : static_cast<double>(input[j]);
  }
  [[nodiscard]] double of_hidden(std::size_t j) const {
    return hidden == nullptr ? 0.0 : static_cast<double>(hidden[j]);
  }
};

/// Clips what an activation takes, rounds it to float and applies the activation. sum(j) is the
/// value of unit j.
template <class Sum>
void compute_gate(const recurrence& r, const activation& f, std::span<float> gate, const Sum& sum) {
  for (std::size_t j = 0; j < gate.size(); ++j) {
    const auto x = static_cast<float>(sum(j));
    const float raised = x < -r.clip ? -r.clip : x;
    gate[j] = raised > r.clip ? r.clip : raised;
  }
  f(gate);
}

/// Runs all directions. `step(d, s, b, of_input)` takes step s of sequence b; `of_input` are the
/// products of its input. `begin(d)` comes before the steps of a direction, `prepare(d, s)` before
/// step s of all sequences, `end(d, b)` behind the last step of sequence b.
template <class Products, class Begin, class Prepare, class Step, class End>
void run_steps(const operator_context& c, const recurrence& r, const Products& products,
               const Begin& begin, const Prepare& prepare, const Step& step, const End& end) {
  const std::size_t width = products.gates() * r.hidden;
  const std::size_t rows = r.batch_first ? r.batch * r.sequence : r.batch * r.longest;
  c.count_multiply_adds({r.directions, rows, width, r.inputs});
  c.count_multiply_adds({r.directions, r.longest, r.batch, width, r.hidden});
  floats of_input(rows * width, c.memory);
  for (std::size_t d = 0; d < r.directions; ++d) {
    begin(d);
    if (rows > 0) {
      products.input(d, c.inputs[0].data<float>().data(), rows, of_input.data());
    }
    for (std::size_t s = 0; s < r.longest; ++s) {
      prepare(d, s);
      for (std::size_t b = 0; b < r.batch; ++b) {
        if (s < r.lengths[b]) {
          step(d, s, b, of_input.data() + r.row(r.time(d, s, b), b) * width);
        }
        if (s + 1 == r.lengths[b]) {
          end(d, b);
        }
      }
    }
  }
}

// --- RNN -----------------------------------------------------------------------------------------

inline void infer_rnn(operator_context& c) {
  const recurrence r = read_recurrence(c, 1);
  static_cast<void>(read_activations(c, {"Tanh"}, r.directions));
  c.set_output(0, c.input(0).type(), r.all_dims());
  c.set_output(1, c.input(0).type(), r.state_dims());
}

/// H = f(X W + H R + Wb + Rb).
inline void run_rnn(operator_context& c) {
  recurrence r = read_recurrence(c, 1);
  read_lengths(c, r);
  const std::vector<activation> f = read_activations(c, {"Tanh"}, r.directions);
  const float_products products(c, r, {1});
  written_outputs outputs(c, r);
  floats h(c.memory);
  floats of_hidden(r.batch * r.hidden, c.memory);
  run_steps(
      c, r, products, [&](std::size_t d) { h = initial_states(c, r, 5, d); },
      [&](std::size_t d, std::size_t /*s*/) {
        products.hidden(d, 0, h.data(), r.batch, of_hidden.data());
      },
      [&](std::size_t d, std::size_t s, std::size_t b, const float* x) {
        const gate_bias bias(c, r, d, 0, 1);
        const std::span<float> state = std::span(h).subspan(b * r.hidden, r.hidden);
        compute_gate(r, f[d], state, [&](std::size_t j) {
          return static_cast<double>(x[j]) + static_cast<double>(of_hidden[b * r.hidden + j]) +
                 bias.sum(j);
        });
        outputs.write_step(d, r.time(d, s, b), b, state);
      },
      [&](std::size_t d, std::size_t b) { outputs.write_state(1, d, b, h); });
}

// --- GRU -----------------------------------------------------------------------------------------

inline void infer_gru(operator_context& c) {
  const recurrence r = read_recurrence(c, 3);
  static_cast<void>(read_activations(c, {"Sigmoid", "Tanh"}, r.directions));
  c.set_output(0, c.input(0).type(), r.all_dims());
  c.set_output(1, c.input(0).type(), r.state_dims());
}

/// z = f(X Wz + H Rz + bz), r = f(X Wr + H Rr + br), n = g(X Wh + (r H) Rh + Rbh + Wbh), or with
/// linear_before_reset n = g(X Wh + r (H Rh + Rbh) + Wbh); H = (1 - z) n + z H.
inline void run_gru(operator_context& c) {
  recurrence r = read_recurrence(c, 3);
  read_lengths(c, r);
  const std::vector<activation> f = read_activations(c, {"Sigmoid", "Tanh"}, r.directions);
  const bool linear = c.n().get_int("linear_before_reset", 0) != 0;
  const float_products products(c, r, {2, 1});
  written_outputs outputs(c, r);
  const std::size_t n = r.hidden;
  floats h(c.memory);
  floats of_hidden(r.batch * 2 * n, c.memory);
  floats last(r.batch * n, c.memory);  // products of the last gate
  floats update(n, c.memory);
  floats reset(n, c.memory);
  floats reset_state(linear ? 0 : n, c.memory);
  floats next(n, c.memory);
  run_steps(
      c, r, products, [&](std::size_t d) { h = initial_states(c, r, 5, d); },
      [&](std::size_t d, std::size_t /*s*/) {
        products.hidden(d, 0, h.data(), r.batch, of_hidden.data());
        if (linear) {
          products.hidden(d, 1, h.data(), r.batch, last.data());
        }
      },
      [&](std::size_t d, std::size_t s, std::size_t b, const float* x) {
        const gate_bias of_update(c, r, d, 0, 3);
        const gate_bias of_reset(c, r, d, 1, 3);
        const gate_bias of_next(c, r, d, 2, 3);
        const float* from = of_hidden.data() + b * 2 * n;
        compute_gate(r, f[2 * d], update, [&](std::size_t j) {
          return static_cast<double>(x[j]) + static_cast<double>(from[j]) + of_update.sum(j);
        });
        compute_gate(r, f[2 * d], reset, [&](std::size_t j) {
          return static_cast<double>(x[n + j]) + static_cast<double>(from[n + j]) + of_reset.sum(j);
        });
        const std::span<float> state = std::span(h).subspan(b * n, n);
        float* gate = last.data() + b * n;
        if (!linear) {
          for (std::size_t j = 0; j < n; ++j) {
            reset_state[j] = reset[j] * state[j];
          }
          products.hidden(d, 1, reset_state.data(), 1, gate);
        }
        compute_gate(r, f[2 * d + 1], next, [&](std::size_t j) {
          const auto product = static_cast<double>(gate[j]);
          const double of_state =
              linear ? static_cast<double>(reset[j]) *
                           static_cast<double>(static_cast<float>(product + of_next.of_hidden(j)))
                     : product + of_next.of_hidden(j);
          return static_cast<double>(x[2 * n + j]) + of_state + of_next.of_input(j);
        });
        for (std::size_t j = 0; j < n; ++j) {
          const auto z = static_cast<double>(update[j]);
          const auto rest = static_cast<double>(1.0F - update[j]);
          state[j] = static_cast<float>(rest * static_cast<double>(next[j]) +
                                        z * static_cast<double>(state[j]));
        }
        outputs.write_step(d, r.time(d, s, b), b, state);
      },
      [&](std::size_t d, std::size_t b) { outputs.write_state(1, d, b, h); });
}

// --- LSTM ----------------------------------------------------------------------------------------

/// Reads the sizes of a node with the inputs of LSTM.
[[nodiscard]] inline recurrence read_lstm(const operator_context& c, bool columns) {
  const recurrence r = read_recurrence(c, 4, columns);
  require_shape(c, 6, r.state_dims());
  require_shape(c, 7,
                {static_cast<std::int64_t>(r.directions), 3 * c.input(2).dim(columns ? 1 : 2)});
  require_float(c, 6);
  require_float(c, 7);
  return r;
}

/// Declares the outputs of LSTM and DynamicQuantizeLSTM.
inline void infer_lstm(operator_context& c, bool columns) {
  const recurrence r = read_lstm(c, columns);
  static_cast<void>(read_activations(c, {"Sigmoid", "Tanh", "Tanh"}, r.directions));
  c.set_output(0, c.input(0).type(), r.all_dims());
  c.set_output(1, c.input(0).type(), r.state_dims());
  c.set_output(2, c.input(0).type(), r.state_dims());
}

/// One value of the weights through which a gate sees the cell state, times the state.
[[nodiscard]] inline double peephole(const float* weights, std::size_t j, float cell) {
  return weights == nullptr ? 0.0 : static_cast<double>(weights[j]) * static_cast<double>(cell);
}

/// i = f(X Wi + H Ri + Pi C + bi), u = f(X Wf + H Rf + Pf C + bf), or 1 - i with input_forget,
/// n = g(X Wc + H Rc + bc), C' = u C + i n, o = f(X Wo + H Ro + Po C' + bo), H = o h(C').
/// The blocks of weights are in the order i, o, f, c.
template <class Products>
void run_lstm_with(operator_context& c, const recurrence& r, const Products& products) {
  const std::vector<activation> f = read_activations(c, {"Sigmoid", "Tanh", "Tanh"}, r.directions);
  const bool coupled = c.n().get_int("input_forget", 0) != 0;
  written_outputs outputs(c, r);
  const std::size_t n = r.hidden;
  floats h(c.memory);
  floats cells(c.memory);
  floats of_hidden(r.batch * 4 * n, c.memory);
  floats input(n, c.memory);
  floats forget(n, c.memory);
  floats next(n, c.memory);
  floats output(n, c.memory);
  const auto begin = [&](std::size_t d) {
    h = initial_states(c, r, 5, d);
    cells = initial_states(c, r, 6, d);
  };
  const auto step = [&](std::size_t d, std::size_t s, std::size_t b, const float* x) {
    const float* from = of_hidden.data() + b * 4 * n;
    const std::span<float> state = std::span(h).subspan(b * n, n);
    const std::span<float> cell = std::span(cells).subspan(b * n, n);
    const float* seen = c.has_input(7) ? c.inputs[7].data<float>().data() + d * 3 * n : nullptr;
    const auto compute = [&](std::size_t gate, const activation& function, std::span<float> out,
                             const float* weights) {
      const gate_bias bias(c, r, d, gate, 4);
      compute_gate(r, function, out, [&](std::size_t j) {
        return static_cast<double>(x[gate * n + j]) + static_cast<double>(from[gate * n + j]) +
               bias.sum(j) + peephole(weights, j, cell[j]);
      });
    };
    const activation* functions = f.data() + 3 * d;
    compute(0, functions[0], input, seen);
    if (coupled) {
      std::transform(input.begin(), input.end(), forget.begin(), [](float i) { return 1.0F - i; });
    } else {
      compute(2, functions[0], forget, seen == nullptr ? nullptr : seen + 2 * n);
    }
    compute(3, functions[1], next, nullptr);
    for (std::size_t j = 0; j < n; ++j) {
      cell[j] = static_cast<float>(static_cast<double>(forget[j]) * static_cast<double>(cell[j]) +
                                   static_cast<double>(input[j]) * static_cast<double>(next[j]));
    }
    compute(1, functions[0], output, seen == nullptr ? nullptr : seen + n);
    std::copy(cell.begin(), cell.end(), state.begin());
    functions[2](state);
    for (std::size_t j = 0; j < n; ++j) {
      state[j] *= output[j];
    }
    outputs.write_step(d, r.time(d, s, b), b, state);
  };
  run_steps(
      c, r, products, begin,
      [&](std::size_t d, std::size_t s) {
        products.hidden(d, 0, h.data(), r.batch, of_hidden.data());
        // The states of sequences that have ended count once more when those of all are quantized,
        // as in ONNX Runtime, and are zeros from then on.
        for (std::size_t b = 0; b < r.batch; ++b) {
          if (s >= r.lengths[b]) {
            std::fill_n(h.data() + b * n, n, 0.0F);
          }
        }
      },
      step,
      [&](std::size_t d, std::size_t b) {
        outputs.write_state(1, d, b, h);
        outputs.write_state(2, d, b, cells);
      });
}

inline void run_lstm(operator_context& c) {
  recurrence r = read_lstm(c, false);
  read_lengths(c, r);
  run_lstm_with(c, r, float_products(c, r, {4}));
}

}  // namespace recurrent

inline constexpr operator_definition recurrent_operators[] = {
    {"", "RNN", 3, 6, layout_support::plain, recurrent::infer_rnn, recurrent::run_rnn, true},
    {"", "GRU", 3, 6, layout_support::plain, recurrent::infer_gru, recurrent::run_gru, true},
    {"", "LSTM", 3, 8, layout_support::plain,
     [](operator_context& c) { recurrent::infer_lstm(c, false); }, recurrent::run_lstm, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_RECURRENT_HPP
