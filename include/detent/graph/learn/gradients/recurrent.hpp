// SPDX-License-Identifier: BSD-3-Clause
// The gradients of RNN, GRU and LSTM: backpropagation through time.
//
// For each direction the steps are taken once more, and the values of the gates are kept. Then the
// steps are walked backwards, and each gives the gradients G of what its gates take before their
// activations. With the rows of all steps one below the other, in the order in which the direction
// takes them,
//
//   dW = G^T X,  dR = G^T H,  dX = G W,  dWb = dRb = sums of the columns of G
//
// where H are the hidden states before the steps, and G R goes to the hidden state of the step
// before. GRU's last gate has a state and a bias of its own; see its cell.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_RECURRENT_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_RECURRENT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/slopes.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/graph/ops/recurrent.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

// --- gates ---------------------------------------------------------------------------------------

/// alpha.
[[nodiscard]] inline double slope(const ops::recurrent::affine& f, double, double) {
  return f.alpha;
}
/// alpha beta (1 - tanh(beta x)^2).
[[nodiscard]] inline double slope(const ops::recurrent::scaled_tanh& f, double x, double) {
  const double t = portable_tanh(f.beta * x);
  return f.alpha * f.beta * (1.0 - t) * (1.0 + t);
}

/// An activation of a gate and its derivative at x, where the activation is y.
struct gate_function {
  std::function<float(float)> value;
  std::function<double(double x, double y)> derivative;
  float clip;

  /// What the activation takes: x clipped as ONNX's attribute asks.
  [[nodiscard]] float clipped(double x) const {
    const auto rounded = static_cast<float>(x);
    const float raised = rounded < -clip ? -clip : rounded;
    return raised > clip ? clip : raised;
  }
};

/// The value of a gate for one unit, and the derivative of that value for what the gate takes.
struct gate_value {
  double y = 0.0;
  double slope = 0.0;
};

/// The value of a gate that takes x; the derivative is 0 where x is clipped.
[[nodiscard]] inline gate_value open_gate(const gate_function& f, double x) {
  const float taken = f.clipped(x);
  const auto y = static_cast<double>(f.value(taken));
  const bool inside = std::fabs(static_cast<float>(x)) <= f.clip;
  return {y, inside ? f.derivative(static_cast<double>(taken), y) : 0.0};
}

/// The activations of a node, with those that the attributes leave out; see read_activations().
[[nodiscard]] inline std::vector<gate_function> gate_functions_of(
    const gradient_context& c, const ops::recurrent::recurrence& r,
    std::vector<std::string> defaults) {
  std::vector<gate_function> all;
  for (const node& parameters :
       ops::recurrent::activation_nodes(c.forward, std::move(defaults), r.directions)) {
    gate_function made;
    made.clip = r.clip;
    ops::visit_function(ops::recurrent::gate_functions{}, parameters, [&]<class F>() {
      const F f = ops::make_function<F>(parameters);
      made.value = [f](float x) { return ops::apply(f, x); };
      made.derivative = [f](double x, double y) { return slope(f, x, y); };
    });
    all.push_back(std::move(made));
  }
  return all;
}

// --- what all cells share ------------------------------------------------------------------------

/// The inputs and sums of one direction of a recurrent node. Row (s, b) belongs to step s of
/// sequence b; it is zero behind the end of a sequence.
class direction_pass {
 public:
  direction_pass(const gradient_context& c, const ops::recurrent::recurrence& r, std::size_t d,
                 std::size_t gates)
      : c_(c), r_(r), d_(d), gates_(gates), x_(rows() * r.inputs), states_(rows() * r.hidden) {
    const float* x = c.input(0).data<float>().data();
    for_each_row([&](std::size_t row, std::size_t s, std::size_t b) {
      std::copy_n(x + r_.row(r_.time(d_, s, b), b) * r_.inputs, r_.inputs,
                  x_.data() + row * r_.inputs);
    });
  }

  [[nodiscard]] std::size_t rows() const { return r_.longest * r_.batch; }
  /// Values of all gates of a row.
  [[nodiscard]] std::size_t width() const { return gates_ * r_.hidden; }
  /// The input weights of the direction, [width(), inputs].
  [[nodiscard]] matrix_view<const float> input_weights() const {
    return {c_.input(1).data<float>().data() + d_ * width() * r_.inputs, width(), r_.inputs};
  }
  /// The recurrence weights of gates [first, first + count), [count * hidden, hidden].
  [[nodiscard]] matrix_view<const float> state_weights(std::size_t first, std::size_t count) const {
    return {c_.input(2).data<float>().data() + (d_ * width() + first * r_.hidden) * r_.hidden,
            count * r_.hidden, r_.hidden};
  }
  /// The products of all inputs with the input weights, [rows(), width()].
  [[nodiscard]] std::vector<float> input_products() const {
    return product(c_, matrix_view<const float>(x_.data(), rows(), r_.inputs),
                   input_weights().transposed());
  }
  /// Calls each(row, s, b) for the rows of all steps of all sequences.
  template <class Each>
  void for_each_row(const Each& each) const {
    for (std::size_t s = 0; s < r_.longest; ++s) {
      for (std::size_t b = 0; b < r_.batch; ++b) {
        if (s < r_.lengths[b]) {
          each(s * r_.batch + b, s, b);
        }
      }
    }
  }
  /// The hidden states before step s, [batch, hidden]; a cell fills them in as it takes the steps.
  [[nodiscard]] std::span<float> states(std::size_t s) {
    return std::span(states_).subspan(s * r_.batch * r_.hidden, r_.batch * r_.hidden);
  }
  /// The gradient of output i, a final state, for sequence b of this direction; 0 unless s is its
  /// last step.
  [[nodiscard]] double of_final_state(std::size_t i, std::size_t s, std::size_t b,
                                      std::size_t j) const {
    const std::span<const double> d = c_.output_gradient(i);
    return d.empty() || s + 1 != r_.lengths[b] ? 0.0 : d[r_.in_state(d_, b) + j];
  }
  /// The gradient of the hidden state behind step s as far as it is an output.
  [[nodiscard]] double of_state(std::size_t s, std::size_t b, std::size_t j) const {
    const std::span<const double> d = c_.output_gradient(0);
    const double of_all = d.empty() ? 0.0 : d[r_.in_all(r_.time(d_, s, b), d_, b) + j];
    return of_all + of_final_state(1, s, b, j);
  }
  /// Adds the gradient of initial states [batch, hidden] to that of input i.
  void add_initial(std::size_t i, std::span<const double> gradient) const {
    for (std::size_t b = 0; c_.wants(i) && b < r_.batch; ++b) {
      for (std::size_t j = 0; j < r_.hidden; ++j) {
        c_.gradient(i)[r_.in_state(d_, b) + j] += gradient[b * r_.hidden + j];
      }
    }
  }
  /// Adds the product G [batch, count * hidden] times the recurrence weights of gates
  /// [first, first + count) to the gradients of the states before a step.
  void add_state_products(const std::vector<float>& g, std::size_t first, std::size_t count,
                          std::span<double> sum) const {
    add_to(sum, product(c_, matrix_view<const float>(g.data(), r_.batch, count * r_.hidden),
                        state_weights(first, count)));
  }

  /// Adds the gradients of the inputs and the input weights and biases for the gradients G
  /// [rows(), width()].
  void add_inputs(const std::vector<float>& g) const {
    const matrix_view<const float> gradients(g.data(), rows(), width());
    if (c_.wants(0)) {
      const std::vector<float> found = product(c_, gradients, input_weights());
      for_each_row([&](std::size_t row, std::size_t s, std::size_t b) {
        add_to(c_.gradient(0).subspan(r_.row(r_.time(d_, s, b), b) * r_.inputs, r_.inputs),
               std::span(found).subspan(row * r_.inputs, r_.inputs));
      });
    }
    if (c_.wants(1)) {
      add_transposed_product(g, width(), x_, r_.inputs,
                             c_.gradient(1).subspan(d_ * width() * r_.inputs));
    }
    add_biases(g, width(), 0);
  }
  /// Adds the gradients of the recurrence weights and biases of gates [first, first + count), for
  /// the gradients G [rows(), count * hidden] of what they give for the states [rows(), hidden].
  void add_states(const std::vector<float>& g, std::size_t first, std::size_t count,
                  const std::vector<float>& states) const {
    if (c_.wants(2)) {
      add_transposed_product(
          g, count * r_.hidden, states, r_.hidden,
          c_.gradient(2).subspan((d_ * width() + first * r_.hidden) * r_.hidden));
    }
    add_biases(g, count * r_.hidden, width() + first * r_.hidden);
  }
  /// The hidden states before all steps, [rows(), hidden].
  [[nodiscard]] const std::vector<float>& all_states() const { return states_; }

 private:
  /// Adds A^T B to `sum`, for A [rows(), a] and B [rows(), b].
  void add_transposed_product(const std::vector<float>& left, std::size_t a,
                              const std::vector<float>& right, std::size_t b,
                              std::span<double> sum) const {
    const std::vector<float> columns = ops::transposed_copy(left.data(), rows(), a);
    add_to(sum.first(a * b), product(c_, matrix_view<const float>(columns.data(), a, rows()),
                                     matrix_view<const float>(right.data(), rows(), b)));
  }
  /// Adds the sums of the columns of G to the biases from `first` on.
  void add_biases(const std::vector<float>& g, std::size_t columns, std::size_t first) const {
    if (!c_.wants(3)) {
      return;
    }
    const std::span<double> sum = c_.gradient(3).subspan(d_ * 2 * width() + first, columns);
    for (std::size_t i = 0; i < g.size(); ++i) {
      sum[i % columns] += static_cast<double>(g[i]);
    }
  }

  const gradient_context& c_;
  const ops::recurrent::recurrence& r_;
  std::size_t d_;
  std::size_t gates_;
  std::vector<float> x_;
  std::vector<float> states_;
};

/// Writes what a gate takes to one of the `count` gates of row b of a matrix
/// [batch, count * hidden].
inline void put_gate(const ops::recurrent::recurrence& r, std::vector<float>& g, std::size_t row,
                     std::size_t gate, std::size_t count, std::size_t j, double value) {
  g[(row * count + gate) * r.hidden + j] = static_cast<float>(value);
}

/// The rows of one step of a matrix [rows, columns].
[[nodiscard]] inline std::vector<float> rows_of_step(const ops::recurrent::recurrence& r,
                                                     const std::vector<float>& all,
                                                     std::size_t columns, std::size_t s) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(s * r.batch * columns);
  return {first, first + static_cast<std::ptrdiff_t>(r.batch * columns)};
}

/// Walks the steps of all sequences backwards: step(row, s, b) adds to the gradients of the states,
/// `behind_step(s)` comes when all sequences have taken step s.
template <class Step, class BehindStep>
void walk_back(const ops::recurrent::recurrence& r, const Step& step,
               const BehindStep& behind_step) {
  for (std::size_t s = r.longest; s-- > 0;) {
    for (std::size_t b = 0; b < r.batch; ++b) {
      if (s < r.lengths[b]) {
        step(s * r.batch + b, s, b);
      }
    }
    behind_step(s);
  }
}

/// Keeps the states of sequences that have not begun (walking backwards) as they are, and replaces
/// those of all others by `before`.
inline void replace_states(const ops::recurrent::recurrence& r, std::size_t s,
                           std::span<const double> before, std::span<double> states) {
  for (std::size_t b = 0; b < r.batch; ++b) {
    if (s < r.lengths[b]) {
      std::copy_n(before.data() + b * r.hidden, r.hidden, states.data() + b * r.hidden);
    }
  }
}

// --- RNN -----------------------------------------------------------------------------------------

/// The gradient of RNN, H' = f(a) with a = X W + H R + Wb + Rb: G = dH' f'(a).
inline void rnn(const gradient_context& c) {
  ops::recurrent::recurrence r = ops::recurrent::read_recurrence(c.forward, 1);
  ops::recurrent::read_lengths(c.forward, r);
  const std::vector<gate_function> f = gate_functions_of(c, r, {"Tanh"});
  const std::size_t n = r.hidden;
  for (std::size_t d = 0; d < r.directions && r.longest > 0; ++d) {
    direction_pass pass(c, r, d, 1);
    const std::vector<float> of_input = pass.input_products();
    ops::recurrent::floats h = ops::recurrent::initial_states(c.forward, r, 5, d);
    const ops::recurrent::gate_bias bias(c.forward, r, d, 0, 1);
    std::vector<gate_value> gates(pass.rows() * n);
    for (std::size_t s = 0; s < r.longest; ++s) {
      std::copy(h.begin(), h.end(), pass.states(s).begin());
      const std::vector<float> of_state = product(c, matrix_view<const float>(h.data(), r.batch, n),
                                                  pass.state_weights(0, 1).transposed());
      for (std::size_t i = 0; i < r.batch * n; ++i) {
        if (s < r.lengths[i / n]) {
          const std::size_t at = s * r.batch * n + i;
          gates[at] = open_gate(f[d], static_cast<double>(of_input[at]) +
                                          static_cast<double>(of_state[i]) + bias.sum(i % n));
          h[i] = static_cast<float>(gates[at].y);
        }
      }
    }
    std::vector<float> g(pass.rows() * n);
    std::vector<double> of_h(r.batch * n, 0.0);
    walk_back(
        r,
        [&](std::size_t row, std::size_t s, std::size_t b) {
          for (std::size_t j = 0; j < n; ++j) {
            const double total = of_h[b * n + j] + pass.of_state(s, b, j);
            put_gate(r, g, row, 0, 1, j, total * gates[row * n + j].slope);
          }
        },
        [&](std::size_t s) {
          std::vector<double> before(r.batch * n, 0.0);
          pass.add_state_products(rows_of_step(r, g, n, s), 0, 1, before);
          replace_states(r, s, before, of_h);
        });
    pass.add_initial(5, of_h);
    pass.add_inputs(g);
    pass.add_states(g, 0, 1, pass.all_states());
  }
}

// --- GRU -----------------------------------------------------------------------------------------

/// The gradient of GRU, with z = f(a_z), r = f(a_r), n = g(a_n) and H' = (1 - z) n + z H:
///
///   G_z = dH' (H - n) f'(a_z),  G_n = dH' (1 - z) g'(a_n)
///
/// If the reset comes first, a_n has (r H) Rh + Rbh, and with P = G_n Rh:
///
///   G_r = P H f'(a_r),  dH = z dH' + P r + G_z Rz + G_r Rr
///
/// With linear_before_reset, a_n has r Q with Q = H Rh + Rbh, and with dQ = G_n r:
///
///   G_r = G_n Q f'(a_r),  dH = z dH' + dQ Rh + G_z Rz + G_r Rr
inline void gru(const gradient_context& c) {
  ops::recurrent::recurrence r = ops::recurrent::read_recurrence(c.forward, 3);
  ops::recurrent::read_lengths(c.forward, r);
  const std::vector<gate_function> f = gate_functions_of(c, r, {"Sigmoid", "Tanh"});
  const bool linear = c.n().get_int("linear_before_reset", 0) != 0;
  const std::size_t n = r.hidden;
  const std::size_t step_size = r.batch * n;
  for (std::size_t d = 0; d < r.directions && r.longest > 0; ++d) {
    direction_pass pass(c, r, d, 3);
    const std::vector<float> of_input = pass.input_products();
    ops::recurrent::floats h = ops::recurrent::initial_states(c.forward, r, 5, d);
    std::vector<gate_value> update(pass.rows() * n);
    std::vector<gate_value> reset(pass.rows() * n);
    std::vector<gate_value> next(pass.rows() * n);
    std::vector<float> last(pass.rows() * n);          // Q if linear
    std::vector<float> reset_states(pass.rows() * n);  // r H if not linear
    const auto bias = [&](std::size_t gate) {
      return ops::recurrent::gate_bias(c.forward, r, d, gate, 3);
    };
    for (std::size_t s = 0; s < r.longest; ++s) {
      std::copy(h.begin(), h.end(), pass.states(s).begin());
      const std::vector<float> of_state = product(c, matrix_view<const float>(h.data(), r.batch, n),
                                                  pass.state_weights(0, 2).transposed());
      const auto taken = [&](std::size_t i, std::size_t gate) {
        return static_cast<double>(of_input[((s * r.batch + i / n) * 3 + gate) * n + i % n]);
      };
      for (std::size_t i = 0; i < step_size; ++i) {
        const std::size_t at = s * step_size + i;
        const float* from = of_state.data() + i / n * 2 * n + i % n;
        update[at] =
            open_gate(f[2 * d], taken(i, 0) + static_cast<double>(from[0]) + bias(0).sum(i % n));
        reset[at] =
            open_gate(f[2 * d], taken(i, 1) + static_cast<double>(from[n]) + bias(1).sum(i % n));
        reset_states[at] = linear ? h[i] : static_cast<float>(reset[at].y) * h[i];
      }
      const std::vector<float> of_last =
          product(c, matrix_view<const float>(reset_states.data() + s * step_size, r.batch, n),
                  pass.state_weights(2, 1).transposed());
      for (std::size_t i = 0; i < step_size; ++i) {
        const std::size_t at = s * step_size + i;
        last[at] = static_cast<float>(static_cast<double>(of_last[i]) + bias(2).of_hidden(i % n));
        const double q = static_cast<double>(last[at]);
        next[at] = open_gate(f[2 * d + 1], taken(i, 2) + bias(2).of_input(i % n) +
                                               (linear ? rounded_product(reset[at].y, q) : q));
        if (s < r.lengths[i / n]) {
          const double z = update[at].y;
          h[i] = static_cast<float>(rounded_product(1.0 - z, next[at].y) +
                                    rounded_product(z, static_cast<double>(h[i])));
        }
      }
    }
    std::vector<float> g(pass.rows() * 3 * n);    // of the three gates
    std::vector<float> of_last(pass.rows() * n);  // G_n, or dQ if linear
    std::vector<double> of_h(step_size, 0.0);
    std::vector<double> before(step_size, 0.0);
    const auto state = [&](std::size_t at) { return static_cast<double>(pass.all_states()[at]); };
    walk_back(
        r,
        [&](std::size_t row, std::size_t s, std::size_t b) {
          for (std::size_t j = 0; j < n; ++j) {
            const std::size_t at = row * n + j;
            const double total = of_h[b * n + j] + pass.of_state(s, b, j);
            const double of_next = total * (1.0 - update[at].y) * next[at].slope;
            before[b * n + j] = rounded_product(total, update[at].y);
            put_gate(r, g, row, 0, 3, j, total * (state(at) - next[at].y) * update[at].slope);
            put_gate(r, g, row, 2, 3, j, of_next);
            of_last[at] = static_cast<float>(linear ? of_next * reset[at].y : of_next);
            if (linear) {
              put_gate(r, g, row, 1, 3, j,
                       of_next * static_cast<double>(last[at]) * reset[at].slope);
            }
          }
        },
        [&](std::size_t s) {
          std::vector<double> products(step_size, 0.0);
          pass.add_state_products(rows_of_step(r, of_last, n, s), 2, 1, products);
          for (std::size_t i = 0; i < step_size; ++i) {
            const std::size_t at = s * step_size + i;
            if (s >= r.lengths[i / n]) {
              continue;
            }
            if (!linear) {
              put_gate(r, g, at / n, 1, 3, i % n, products[i] * state(at) * reset[at].slope);
            }
            before[i] += linear ? products[i] : rounded_product(products[i], reset[at].y);
          }
          // Gates z and r stand before n in each row.
          std::vector<float> first_two(r.batch * 2 * n);
          for (std::size_t b = 0; b < r.batch; ++b) {
            std::copy_n(g.data() + (s * r.batch + b) * 3 * n, 2 * n, first_two.data() + b * 2 * n);
          }
          pass.add_state_products(first_two, 0, 2, before);
          replace_states(r, s, before, of_h);
        });
    pass.add_initial(5, of_h);
    pass.add_inputs(g);
    std::vector<float> first_two(pass.rows() * 2 * n);
    for (std::size_t row = 0; row < pass.rows(); ++row) {
      std::copy_n(g.data() + row * 3 * n, 2 * n, first_two.data() + row * 2 * n);
    }
    pass.add_states(first_two, 0, 2, pass.all_states());
    pass.add_states(of_last, 2, 1, reset_states);
  }
}

// --- LSTM ----------------------------------------------------------------------------------------

/// The gradient of LSTM, with i, o, u = f(a_i), f(a_o), f(a_u), n = g(a_n), C' = u C + i n and
/// H' = o h(C'). With the gradient dC' that comes from the step behind, or from output Y_c:
///
///   G_o = dH' h(C') f'(a_o),  dC' += dH' o h'(C') + G_o Po
///   G_i = dC' n f'(a_i),  G_n = dC' i g'(a_n),  G_u = dC' C f'(a_u)
///   dC = dC' u + G_i Pi + G_u Pu
///   dPi = sum of G_i C,  dPu = sum of G_u C,  dPo = sum of G_o C'
///
/// With input_forget u is 1 - i, and G_i = dC' (n - C) f'(a_i). The order of the blocks of weights
/// is i, o, u, n, that of the peepholes i, o, u.
inline void lstm(const gradient_context& c) {
  ops::recurrent::recurrence r = ops::recurrent::read_lstm(c.forward, false);
  ops::recurrent::read_lengths(c.forward, r);
  const std::vector<gate_function> f = gate_functions_of(c, r, {"Sigmoid", "Tanh", "Tanh"});
  const bool coupled = c.n().get_int("input_forget", 0) != 0;
  const std::size_t n = r.hidden;
  const std::size_t step_size = r.batch * n;
  enum gate : std::size_t { input, output, forget, next, gate_count };
  for (std::size_t d = 0; d < r.directions && r.longest > 0; ++d) {
    direction_pass pass(c, r, d, gate_count);
    const std::vector<float> of_input = pass.input_products();
    const float* peepholes =
        c.forward.has_input(7) ? c.input(7).data<float>().data() + d * 3 * n : nullptr;
    const auto seen = [&](gate k, std::size_t j) {
      return peepholes == nullptr ? 0.0 : static_cast<double>(peepholes[k * n + j]);
    };
    ops::recurrent::floats h = ops::recurrent::initial_states(c.forward, r, 5, d);
    ops::recurrent::floats cells = ops::recurrent::initial_states(c.forward, r, 6, d);
    std::vector<gate_value> gates[gate_count];
    for (auto& values : gates) {
      values.resize(pass.rows() * n);
    }
    std::vector<gate_value> shown_cells(pass.rows() * n);  // h(C')
    std::vector<float> before(pass.rows() * n);            // C
    std::vector<float> behind(pass.rows() * n);            // C'
    for (std::size_t s = 0; s < r.longest; ++s) {
      std::copy(h.begin(), h.end(), pass.states(s).begin());
      const std::vector<float> of_state = product(c, matrix_view<const float>(h.data(), r.batch, n),
                                                  pass.state_weights(0, gate_count).transposed());
      for (std::size_t i = 0; i < step_size; ++i) {
        const std::size_t at = s * step_size + i;
        const std::size_t j = i % n;
        if (s >= r.lengths[i / n]) {
          continue;
        }
        // Products of floats are exact in double: no difference if they are contracted.
        const auto compute = [&](gate k, const gate_function& function, double of_cell) {
          const std::size_t place = (i / n * gate_count + k) * n + j;
          gates[k][at] = open_gate(
              function, static_cast<double>(of_input[s * r.batch * gate_count * n + place]) +
                            static_cast<double>(of_state[place]) +
                            ops::recurrent::gate_bias(c.forward, r, d, k, gate_count).sum(j) +
                            of_cell);
        };
        const auto cell = static_cast<double>(cells[i]);
        before[at] = cells[i];
        compute(input, f[3 * d], seen(input, j) * cell);
        if (coupled) {
          gates[forget][at] = {1.0 - gates[input][at].y, 0.0};
        } else {
          compute(forget, f[3 * d], seen(forget, j) * cell);
        }
        compute(next, f[3 * d + 1], 0.0);
        cells[i] = static_cast<float>(rounded_product(gates[forget][at].y, cell) +
                                      rounded_product(gates[input][at].y, gates[next][at].y));
        behind[at] = cells[i];
        compute(output, f[3 * d], seen(output, j) * static_cast<double>(cells[i]));
        gate_function unclipped = f[3 * d + 2];
        unclipped.clip = std::numeric_limits<float>::infinity();
        shown_cells[at] = open_gate(unclipped, static_cast<double>(cells[i]));
        h[i] = static_cast<float>(shown_cells[at].y * gates[output][at].y);
      }
    }
    std::vector<float> g(pass.rows() * gate_count * n);
    std::vector<double> of_h(step_size, 0.0);
    std::vector<double> of_c(step_size, 0.0);
    const auto add_peephole = [&](gate k, std::size_t j, double of_gate, double cell) {
      if (c.wants(7)) {
        c.gradient(7)[(d * 3 + k) * n + j] += rounded_product(of_gate, cell);
      }
    };
    walk_back(
        r,
        [&](std::size_t row, std::size_t s, std::size_t b) {
          for (std::size_t j = 0; j < n; ++j) {
            const std::size_t at = row * n + j;
            const auto value = [&](gate k) { return gates[k][at].y; };
            const double total = of_h[b * n + j] + pass.of_state(s, b, j);
            const double of_output = total * shown_cells[at].y * gates[output][at].slope;
            const double cell = of_c[b * n + j] + pass.of_final_state(2, s, b, j) +
                                rounded_product(total * value(output), shown_cells[at].slope) +
                                rounded_product(of_output, seen(output, j));
            const auto old = static_cast<double>(before[at]);
            const double of_in =
                cell * (coupled ? value(next) - old : value(next)) * gates[input][at].slope;
            const double of_forget = coupled ? 0.0 : cell * old * gates[forget][at].slope;
            const double of_next = cell * value(input) * gates[next][at].slope;
            of_c[b * n + j] = rounded_product(cell, value(forget)) +
                              rounded_product(of_in, seen(input, j)) +
                              rounded_product(of_forget, seen(forget, j));
            add_peephole(input, j, of_in, old);
            add_peephole(output, j, of_output, static_cast<double>(behind[at]));
            add_peephole(forget, j, of_forget, old);
            put_gate(r, g, row, input, gate_count, j, of_in);
            put_gate(r, g, row, output, gate_count, j, of_output);
            put_gate(r, g, row, forget, gate_count, j, of_forget);
            put_gate(r, g, row, next, gate_count, j, of_next);
          }
        },
        [&](std::size_t s) {
          std::vector<double> of_states(step_size, 0.0);
          pass.add_state_products(rows_of_step(r, g, gate_count * n, s), 0, gate_count, of_states);
          replace_states(r, s, of_states, of_h);
        });
    pass.add_initial(5, of_h);
    pass.add_initial(6, of_c);
    pass.add_inputs(g);
    pass.add_states(g, 0, gate_count, pass.all_states());
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_RECURRENT_HPP
