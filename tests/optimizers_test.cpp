// SPDX-License-Identifier: BSD-3-Clause
// Optimizers against their formulas, written out plainly.
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "random.hpp"

namespace {

using detent::adam;
using detent::adam_options;
using detent::error_kind;
using detent::momentum_descent;
using detent::momentum_descent_options;
using test::check_error;
using test::random_source;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

/// One gradient for each parameter; that of the last is always 0.
std::vector<double> random_gradient(random_source& r, std::size_t count) {
  std::vector<double> gradient(count);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    gradient[i] = static_cast<double>(r.real(-1.0F, 1.0F));
  }
  return gradient;
}

void check_close(const std::vector<double>& x, const std::vector<long double>& expected) {
  REQUIRE(x.size() == expected.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO("parameter ", i);
    CHECK(x[i] == doctest::Approx(static_cast<double>(expected[i])).epsilon(1e-12));
  }
}

/// Adam as Kingma and Ba, AdamW as Loshchilov and Hutter write it.
class plain_adam {
 public:
  plain_adam(std::size_t count, const adam_options& o) : o_(o), mean_(count), square_(count) {}

  void step(std::vector<long double>& x, const std::vector<double>& gradient, long double pace) {
    ++t_;
    const long double b1 = static_cast<long double>(o_.momentum);
    const long double b2 = static_cast<long double>(o_.square_momentum);
    const long double rate = pace * static_cast<long double>(o_.learning_rate);
    const long double decay = static_cast<long double>(o_.weight_decay);
    for (std::size_t i = 0; i < x.size(); ++i) {
      long double g = static_cast<long double>(gradient[i]);
      if (!o_.decoupled) {
        g += decay * x[i];
      }
      mean_[i] = b1 * mean_[i] + (1.0L - b1) * g;
      square_[i] = b2 * square_[i] + (1.0L - b2) * g * g;
      const long double m = mean_[i] / (1.0L - std::pow(b1, static_cast<long double>(t_)));
      const long double v = square_[i] / (1.0L - std::pow(b2, static_cast<long double>(t_)));
      const long double update = m / (std::sqrt(v) + static_cast<long double>(o_.epsilon));
      x[i] -= rate * (update + (o_.decoupled ? decay * x[i] : 0.0L));
    }
  }

 private:
  adam_options o_;
  std::vector<long double> mean_;
  std::vector<long double> square_;
  int t_ = 0;
};

/// The steps of PyTorch's SGD without dampening: the buffer begins as the first gradient.
class plain_momentum_descent {
 public:
  explicit plain_momentum_descent(const momentum_descent_options& o) : o_(o) {}

  void step(std::vector<long double>& x, const std::vector<double>& gradient, long double pace) {
    const bool first = buffer_.empty();
    buffer_.resize(x.size());
    const long double momentum = static_cast<long double>(o_.momentum);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double g =
          static_cast<long double>(gradient[i]) + static_cast<long double>(o_.weight_decay) * x[i];
      buffer_[i] = first ? g : momentum * buffer_[i] + g;
      x[i] -= pace * static_cast<long double>(o_.learning_rate) *
              (o_.nesterov ? g + momentum * buffer_[i] : buffer_[i]);
    }
  }

 private:
  momentum_descent_options o_;
  std::vector<long double> buffer_;
};

/// Fifty steps of an optimizer beside those of its formula, at a pace that changes.
template <class Optimizer, class Plain>
void check_steps(random_source& r, Optimizer optimizer, Plain plain) {
  std::vector<double> x{1.0, -2.0, 0.5};
  std::vector<long double> expected(x.begin(), x.end());
  for (int t = 0; t < 50; ++t) {
    const std::vector<double> gradient = random_gradient(r, x.size());
    const double pace = t < 25 ? 1.0 : 0.25;
    optimizer.step(x, gradient, pace);
    plain.step(expected, gradient, static_cast<long double>(pace));
    check_close(x, expected);
  }
}

/// A second optimizer that goes on from the saved state of the first takes steps of the same bits.
template <class Optimizer, class Options>
void check_resumes(random_source& r, const Options& options) {
  constexpr std::size_t count = 5;
  for (const int saved_after : {0, 1, 7}) {
    INFO("saved after ", saved_after, " steps");
    Optimizer first(count, options);
    std::vector<double> x(count, 1.0);
    for (int t = 0; t < saved_after; ++t) {
      first.step(x, random_gradient(r, count));
    }
    Optimizer second(count, options);
    std::vector<double> y = x;
    second.step(y, random_gradient(r, count));  // a state that is replaced
    y = x;
    second.set_state(first.state());
    CHECK(second.state() == first.state());
    for (int t = 0; t < 20; ++t) {
      const std::vector<double> gradient = random_gradient(r, count);
      first.step(x, gradient, 0.5);
      second.step(y, gradient, 0.5);
      CHECK(x == y);
    }
    CHECK(second.state() == first.state());
  }
}

}  // namespace

TEST_CASE("Adam is what its formula says, with both kinds of weight decay") {
  random_source r(203);
  INFO("seed ", r.seed());
  for (const double decay : {0.0, 0.1}) {
    for (const bool decoupled : {false, true}) {
      INFO("weight decay ", decay, " decoupled ", decoupled);
      const adam_options options{.learning_rate = 0.05,
                                 .momentum = 0.8,
                                 .square_momentum = 0.95,
                                 .weight_decay = decay,
                                 .decoupled = decoupled};
      check_steps(r, adam(3, options), plain_adam(3, options));
    }
  }
}

TEST_CASE("Adam: without gradient only the decoupled decay moves a parameter") {
  std::vector<double> x{0.5};
  adam still(1);
  still.step(x, std::vector<double>{0.0});
  CHECK(x[0] == 0.5);
  adam decays(1, {.learning_rate = 0.5, .weight_decay = 0.25});
  decays.step(x, std::vector<double>{0.0});
  CHECK(x[0] == 0.4375);
  decays.step(x, std::vector<double>{0.0}, 2.0);
  CHECK(x[0] == 0.328125);
}

TEST_CASE("Adam names what is wrong with its arguments") {
  const auto rejected = [](adam_options o, std::string_view word) {
    check_error(error_kind::invalid_argument, {"adam", word}, [&] { adam fails(1, o); });
  };
  rejected({.learning_rate = 0.0}, "learning rate of 0");
  rejected({.learning_rate = infinity}, "learning rate of inf");
  rejected({.momentum = 1.0}, "momentum of 1");
  rejected({.square_momentum = -0.5}, "momentum of -0.5");
  rejected({.epsilon = 0.0}, "epsilon of 0");
  rejected({.weight_decay = -1.0}, "weight decay of -1");
  rejected({.weight_decay = quiet_nan}, "weight decay of nan");
  check_error(error_kind::shape_mismatch, {"2 parameters", "3 gradients"}, [] {
    adam two(2);
    std::vector<double> values(2);
    two.step(values, std::vector<double>(3));
  });
}

TEST_CASE("Adam goes on from a saved state with the same bits") {
  random_source r(204);
  INFO("seed ", r.seed());
  check_resumes<adam>(r, adam_options{});
  check_resumes<adam>(r, adam_options{.learning_rate = 0.3, .momentum = 0.0, .weight_decay = 0.1});
  adam two(2);
  std::vector<double> x(2);
  two.step(x, std::vector<double>{1.0, -2.0});
  const std::vector<double> good = two.state();
  CHECK(good[0] == 1.0);  // steps
  const auto rejected = [&](std::size_t at, double value, std::string_view word) {
    std::vector<double> state = good;
    state[at] = value;
    check_error(error_kind::invalid_argument, {"adam", "state", word},
                [&] { two.set_state(state); });
    CHECK(two.state() == good);
  };
  rejected(0, -1.0, "after -1 steps");
  rejected(0, 1.5, "after 1.5 steps");
  rejected(0, 1e300, "steps");
  rejected(0, 0.0, "power of 0.9 after 0 steps");
  rejected(1, 1.0, "power of 1 after 1 steps");
  rejected(2, -0.5, "power of -0.5");
  rejected(3, infinity, "number 3 of the state is inf");
  rejected(5, quiet_nan, "number 5 of the state is nan");
  rejected(6, -1.0, "mean of squares of -1 for parameter 1");
  check_error(error_kind::invalid_argument, {"adam", "state of 5 numbers, not 7"},
              [&] { two.set_state(adam(1).state()); });
}

TEST_CASE("descent with momentum is what its formula says") {
  random_source r(205);
  INFO("seed ", r.seed());
  for (const double decay : {0.0, 0.1}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0.0) {
          continue;
        }
        INFO("weight decay ", decay, " momentum ", momentum, " nesterov ", nesterov);
        const momentum_descent_options options{.learning_rate = 0.05,
                                               .momentum = momentum,
                                               .nesterov = nesterov,
                                               .weight_decay = decay};
        check_steps(r, momentum_descent(3, options), plain_momentum_descent(options));
      }
    }
  }
}

TEST_CASE("descent with momentum: two steps by hand") {
  const std::vector<double> gradient{1.0};
  std::vector<double> x{2.0};
  momentum_descent plain(1, {.learning_rate = 0.5, .momentum = 0.5});
  plain.step(x, gradient);
  CHECK(x[0] == 1.5);
  plain.step(x, gradient);
  CHECK(x[0] == 0.75);
  x = {2.0};
  momentum_descent ahead(1, {.learning_rate = 0.5, .momentum = 0.5, .nesterov = true});
  ahead.step(x, gradient);
  CHECK(x[0] == 1.25);
  ahead.step(x, gradient, 2.0);
  CHECK(x[0] == -0.5);
}

TEST_CASE("descent with momentum names what is wrong with its arguments") {
  const auto rejected = [](momentum_descent_options o, std::string_view word) {
    check_error(error_kind::invalid_argument, {"momentum_descent", word},
                [&] { momentum_descent fails(1, o); });
  };
  rejected({.learning_rate = -1.0}, "learning rate of -1");
  rejected({.learning_rate = quiet_nan}, "learning rate of nan");
  rejected({.momentum = 1.0}, "momentum of 1");
  rejected({.momentum = 0.0, .nesterov = true}, "nesterov with a momentum of 0");
  rejected({.weight_decay = infinity}, "weight decay of inf");
  check_error(error_kind::shape_mismatch, {"momentum_descent", "3 parameters", "2 gradients"}, [] {
    momentum_descent two(2);
    std::vector<double> values(3);
    two.step(values, std::vector<double>(2));
  });
}

TEST_CASE("descent with momentum goes on from a saved state with the same bits") {
  random_source r(206);
  INFO("seed ", r.seed());
  check_resumes<momentum_descent>(r, momentum_descent_options{});
  check_resumes<momentum_descent>(r, momentum_descent_options{.nesterov = true});
  momentum_descent two(2);
  check_error(error_kind::invalid_argument, {"momentum_descent", "state of 1 numbers, not 2"},
              [&] { two.set_state(std::vector<double>(1)); });
  check_error(error_kind::invalid_argument, {"number 1 of the state is inf"}, [&] {
    two.set_state(std::vector<double>{0.0, infinity});
  });
  CHECK(two.state() == std::vector<double>(2));
}
