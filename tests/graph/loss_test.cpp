// SPDX-License-Identifier: BSD-3-Clause
// Losses against their formulas without any care for overflow, in long double, and their gradients
// against central differences of these.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/loss.hpp>

#include "check_graph_error.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::cross_entropy;
using graph::element_type;
using graph::loss_result;
using graph::shape;
using graph::tensor;
using test::check_graph_error;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

using labels = std::vector<std::int64_t>;
using reals = std::vector<long double>;

tensor of(shape dims, const std::vector<float>& values) {
  return tensor::of<float>(element_type::f32, std::move(dims), values);
}

reals reals_of(const tensor& t) {
  const auto values = t.data<float>();
  return {values.begin(), values.end()};
}

/// softmax(z / temperature) of a row.
reals softmax(const reals& z, std::size_t row, std::size_t classes, long double temperature) {
  reals p(classes);
  long double sum = 0.0L;
  for (std::size_t c = 0; c < classes; ++c) {
    p[c] = std::exp(z[row * classes + c] / temperature);
    sum += p[c];
  }
  for (long double& x : p) {
    x /= sum;
  }
  return p;
}

/// The cross-entropy of logits z; PyTorch mixes the losses of the label and of all classes.
long double plain_cross_entropy(const reals& z, std::size_t classes, const labels& expected,
                                long double smoothing, std::optional<std::int64_t> ignored) {
  long double sum = 0.0L;
  long double counted = 0.0L;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (ignored.has_value() && expected[i] == *ignored) {
      continue;
    }
    const reals p = softmax(z, i, classes, 1.0L);
    sum -= (1.0L - smoothing) * std::log(p[static_cast<std::size_t>(expected[i])]);
    for (const long double x : p) {
      sum -= smoothing / static_cast<long double>(classes) * std::log(x);
    }
    counted += 1.0L;
  }
  return sum / counted;
}

long double plain_distillation(const reals& z, const reals& teacher, std::size_t classes,
                               long double temperature) {
  long double sum = 0.0L;
  const std::size_t rows = z.size() / classes;
  for (std::size_t i = 0; i < rows; ++i) {
    const reals p = softmax(z, i, classes, temperature);
    const reals q = softmax(teacher, i, classes, temperature);
    for (std::size_t c = 0; c < classes; ++c) {
      sum += q[c] * std::log(q[c] / p[c]);
    }
  }
  return temperature * temperature * sum / static_cast<long double>(rows);
}

/// Compares a loss with its formula, and its gradient with central differences of the formula.
void check_loss(const loss_result& found, const tensor& at,
                const std::function<long double(const reals&)>& formula) {
  reals z = reals_of(at);
  CHECK(found.value == doctest::Approx(static_cast<double>(formula(z))).epsilon(1e-13));
  REQUIRE(found.gradient.size() == z.size());
  constexpr long double h = 1e-5L;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const long double x = z[i];
    z[i] = x + h;
    const long double above = formula(z);
    z[i] = x - h;
    const long double below = formula(z);
    z[i] = x;
    INFO("element ", i);
    CHECK(std::fabs(found.gradient[i] - static_cast<double>((above - below) / (2.0L * h))) < 1e-9);
  }
}

tensor random_tensor(random_source& r, shape dims, float most) {
  const std::size_t count = graph::element_count(dims);
  return of(std::move(dims), r.reals(count, -most, most));
}

}  // namespace

TEST_CASE("cross-entropy and its gradient") {
  random_source r(321);
  INFO("seed ", r.seed());
  for (const shape& dims : {shape{4, 5}, shape{7}, shape{2, 3, 4}, shape{3, 1}, shape{5, 2}}) {
    const auto classes = static_cast<std::size_t>(dims.back());
    const std::size_t rows = graph::element_count(dims) / classes;
    INFO(rows, " rows of ", classes, " classes");
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      for (const bool ignores : {false, true}) {
        const tensor z = random_tensor(r, dims, 6.0F);
        labels expected;
        for (std::size_t i = 0; i < rows; ++i) {
          expected.push_back(r.integer(std::int64_t{0}, dims.back() - 1));
        }
        graph::cross_entropy_options o{.label_smoothing = smoothing};
        if (ignores) {
          o.ignored_label = -100;
          if (rows > 1) {
            expected[1] = -100;
          }
        }
        check_loss(cross_entropy(z, expected, o), z, [&](const reals& x) {
          return plain_cross_entropy(x, classes, expected, static_cast<long double>(smoothing),
                                     o.ignored_label);
        });
      }
    }
  }
}

TEST_CASE("cross-entropy by hand") {
  const loss_result even = cross_entropy(of({1, 4}, {2.0F, 2.0F, 2.0F, 2.0F}), labels{1});
  CHECK(even.value == doctest::Approx(std::log(4.0)).epsilon(1e-15));
  CHECK(even.gradient == std::vector<double>{0.25, -0.75, 0.25, 0.25});
  const loss_result sure = cross_entropy(of({1}, {-7.0F}), labels{0});
  CHECK(sure.value == 0.0);
  CHECK(sure.gradient == std::vector<double>{0.0});
}

TEST_CASE("cross-entropy of extreme logits") {
  const tensor z = of({3, 2}, {1e30F, -1e30F, -1e30F, 1e30F, -1e30F, -1e30F});
  const loss_result found = cross_entropy(z, labels{1, 1, 0});
  const double span = 2.0 * static_cast<double>(1e30F);
  CHECK(found.value == doctest::Approx(span / 3.0).epsilon(1e-15));
  const std::vector<double> expected{1.0, -1.0, 0.0, 0.0, -0.5, 0.5};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(found.gradient[i] == doctest::Approx(expected[i] / 3.0).epsilon(1e-15));
  }
  // Probabilities that are too small for double still count.
  CHECK(cross_entropy(of({2}, {0.0F, -2000.0F}), labels{1}).value == 2000.0);
}

TEST_CASE("cross-entropy: a logit of -infinity is a probability of 0") {
  const tensor z = of({1, 3}, {0.0F, -infinity, 0.0F});
  const loss_result masked = cross_entropy(z, labels{2});
  CHECK(masked.value == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(masked.gradient == std::vector<double>{0.5, 0.0, -0.5});
  const loss_result impossible = cross_entropy(z, labels{1});
  CHECK(impossible.value == infinite);
  CHECK(impossible.gradient == std::vector<double>{0.5, -1.0, 0.5});
  CHECK(cross_entropy(z, labels{2}, {.label_smoothing = 0.3}).value == infinite);
}

TEST_CASE("cross-entropy: ignored rows may hold anything") {
  const tensor z = of({2, 2}, {quiet_nan, infinity, 0.0F, 0.0F});
  const loss_result one = cross_entropy(z, labels{9, 0}, {.ignored_label = 9});
  CHECK(one.value == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(one.gradient == std::vector<double>{0.0, 0.0, -0.5, 0.5});
  const loss_result none = cross_entropy(z, labels{0, 0}, {.ignored_label = 0});
  CHECK(none.value == 0.0);
  CHECK(none.gradient == std::vector<double>(4));
}

TEST_CASE("cross-entropy names what is wrong") {
  const tensor z = of({2, 3}, std::vector<float>(6));
  const auto rejected = [](error_kind kind, const tensor& t, const labels& l,
                           std::initializer_list<std::string_view> words, double smoothing = 0.0) {
    check_graph_error(kind, words, [&] {
      static_cast<void>(cross_entropy(t, l, {.label_smoothing = smoothing, .ignored_label = -1}));
    });
  };
  const error_kind invalid = error_kind::invalid_argument;
  rejected(invalid, z, {0, 3}, {"cross_entropy", "row 1 is 3", "3 classes"});
  rejected(invalid, z, {-2, 0}, {"row 0 is -2", "3 classes"});
  rejected(error_kind::shape_mismatch, z, {0}, {"1 labels for 2 rows"});
  rejected(invalid, z, {0, 0}, {"label smoothing of 1.5"}, 1.5);
  rejected(invalid, z, {0, 0}, {"label smoothing of nan"}, static_cast<double>(quiet_nan));
  rejected(invalid, of({0, 3}, {}), {}, {"[0,3]"});
  rejected(invalid, of({3, 0}, {}), {0, 0, 0}, {"[3,0]"});
  rejected(invalid, of({}, {1.0F}), {0}, {"[]"});
  rejected(invalid, tensor(element_type::f32, {2, 3}), {0, 0}, {"[2,3]"});
  rejected(invalid, tensor::allocate(element_type::f64, {2, 3}), {0, 0}, {"float64"});
  rejected(invalid, of({2, 2}, {0.0F, 1.0F, 2.0F, quiet_nan}), {0, 0}, {"row 1, class 1 is nan"});
  rejected(invalid, of({1, 2}, {infinity, 1.0F}), {0}, {"row 0, class 0 is inf"});
  rejected(invalid, of({1, 2}, {-infinity, -infinity}), {0}, {"all logits of row 0 are -inf"});
}

TEST_CASE("mean squared error and its gradient") {
  random_source r(322);
  INFO("seed ", r.seed());
  for (const shape& dims : {shape{3, 4}, shape{}, shape{1, 2, 3, 2}}) {
    const tensor y = random_tensor(r, dims, 3.0F);
    const tensor t = random_tensor(r, dims, 3.0F);
    check_loss(graph::mean_squared_error(y, t), y, [&](const reals& x) {
      const reals target = reals_of(t);
      long double sum = 0.0L;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += (x[i] - target[i]) * (x[i] - target[i]);
      }
      return sum / static_cast<long double>(x.size());
    });
  }
  const loss_result by_hand =
      graph::mean_squared_error(of({2}, {1e30F, 3.0F}), of({2}, {1e30F, 1.0F}));
  CHECK(by_hand.value == 2.0);
  CHECK(by_hand.gradient == std::vector<double>{0.0, 2.0});
  const auto rejected = [](error_kind kind, const tensor& y, const tensor& t,
                           std::initializer_list<std::string_view> words) {
    check_graph_error(kind, words, [&] { static_cast<void>(graph::mean_squared_error(y, t)); });
  };
  const tensor two = of({2}, {0.0F, 0.0F});
  rejected(error_kind::shape_mismatch, two, of({1, 2}, {0.0F, 0.0F}), {"[2]", "[1,2]"});
  rejected(error_kind::invalid_argument, two, of({2}, {0.0F, quiet_nan}),
           {"element 1 is 0", "target nan"});
  rejected(error_kind::invalid_argument, of({2}, {infinity, 0.0F}), two, {"element 0 is inf"});
  rejected(error_kind::invalid_argument, of({0}, {}), of({0}, {}), {"[0]"});
  rejected(error_kind::invalid_argument, two, tensor::allocate(element_type::s64, {2}), {"int64"});
}

TEST_CASE("distillation and its gradient") {
  random_source r(323);
  INFO("seed ", r.seed());
  for (const shape& dims : {shape{4, 5}, shape{7}, shape{2, 3, 4}, shape{3, 1}}) {
    const auto classes = static_cast<std::size_t>(dims.back());
    for (const double temperature : {0.5, 1.0, 4.0}) {
      const tensor z = random_tensor(r, dims, 5.0F);
      const tensor teacher = random_tensor(r, dims, 5.0F);
      check_loss(graph::distillation(z, teacher, temperature), z, [&](const reals& x) {
        return plain_distillation(x, reals_of(teacher), classes,
                                  static_cast<long double>(temperature));
      });
      const loss_result same = graph::distillation(z, z, temperature);
      CHECK(same.value == 0.0);
      CHECK(same.gradient == std::vector<double>(z.count()));
    }
  }
}

TEST_CASE("distillation of extreme logits and temperatures") {
  const tensor left = of({2}, {1e30F, -1e30F});
  const tensor right = of({2}, {-1e30F, 1e30F});
  const loss_result far = graph::distillation(left, right, 1.0);
  CHECK(far.value == doctest::Approx(2e30).epsilon(1e-6));
  CHECK(far.gradient == std::vector<double>{1.0, -1.0});
  const tensor masked = of({2}, {0.0F, -infinity});
  const tensor open = of({2}, {0.0F, 0.0F});
  const loss_result narrow = graph::distillation(open, masked, 2.0);
  CHECK(narrow.value == doctest::Approx(4.0 * std::log(2.0)).epsilon(1e-15));
  CHECK(narrow.gradient == std::vector<double>{-1.0, 1.0});
  CHECK(graph::distillation(masked, open, 2.0).value == infinite);
  // Hot: the mean of squared differences of logits without their means, halved.
  const loss_result hot = graph::distillation(of({2}, {1.0F, -1.0F}), open, 1e4);
  CHECK(hot.value == doctest::Approx(0.5).epsilon(1e-4));
  CHECK(hot.gradient[0] == doctest::Approx(0.5).epsilon(1e-4));
  CHECK(graph::distillation(left, open, 1e200).value == 0.0);
  CHECK(graph::distillation(left, left, 1e-300).value == 0.0);
}

TEST_CASE("distillation names what is wrong") {
  const auto rejected = [](error_kind kind, const tensor& z, const tensor& teacher, double t,
                           std::initializer_list<std::string_view> words) {
    check_graph_error(kind, words, [&] { static_cast<void>(graph::distillation(z, teacher, t)); });
  };
  const error_kind invalid = error_kind::invalid_argument;
  const tensor two = of({1, 2}, {0.0F, 0.0F});
  rejected(error_kind::shape_mismatch, two, of({2}, {0.0F, 0.0F}), 1.0, {"[1,2]", "[2]"});
  rejected(invalid, two, two, 0.0, {"temperature of 0"});
  rejected(invalid, two, two, infinite, {"temperature of inf"});
  rejected(invalid, of({1, 2}, {0.0F, quiet_nan}), two, 1.0, {"distillation: the logit", "nan"});
  rejected(invalid, two, of({1, 2}, {infinity, 0.0F}), 1.0, {"teacher", "row 0, class 0 is inf"});
  rejected(invalid, two, tensor::allocate(element_type::s64, {1, 2}), 1.0, {"teacher", "int64"});
  rejected(invalid, of({0, 2}, {}), of({0, 2}, {}), 1.0, {"[0,2]"});
}

TEST_CASE("correct predictions: the first largest wins, NaN is wrong") {
  const tensor z = of({2, 3, 2}, {1.0F, 2.0F, 3.0F, 3.0F, 3.0F, 3.0F,  //
                                  quiet_nan, 1.0F, 1.0F, quiet_nan, -infinity, infinity});
  CHECK(graph::correct_predictions(z, labels{1, 0, 1, 1, 0, 1}) == 3);
  CHECK(graph::correct_predictions(z, labels{0, 1, 1, 0, 1, 0}) == 0);
  CHECK(graph::correct_predictions(z, labels{1, 7, 0, 7, 7, 7}, 7) == 2);
  CHECK(graph::correct_predictions(z, labels{1, 1, 1, 1, 1, 1}, 1) == 0);
  check_graph_error(error_kind::invalid_argument, {"row 2 is 2", "2 classes"}, [&] {
    static_cast<void>(graph::correct_predictions(z, labels{0, 0, 2, 0, 0, 0}));
  });
  check_graph_error(error_kind::shape_mismatch, {"1 labels for 6 rows"},
                    [&] { static_cast<void>(graph::correct_predictions(z, labels{0})); });
  check_graph_error(error_kind::invalid_argument, {"int64"}, [&] {
    static_cast<void>(
        graph::correct_predictions(tensor::allocate(element_type::s64, {1, 2}), labels{0}));
  });
}

TEST_CASE("losses have these bits on every machine") {
  const tensor z = of({2, 3}, {0.3F, -1.7F, 2.9F, 0.1F, 0.7F, -3.3F});
  const tensor teacher = of({2, 3}, {1.1F, -0.4F, 0.9F, -2.1F, 0.2F, 0.6F});
  const loss_result entropy = cross_entropy(z, labels{0, 1}, {.label_smoothing = 0.1});
  CHECK(entropy.value == 0x1.a1bb8941bcfc6p+0);
  CHECK(entropy.gradient[0] == -0x1.bacbc364972cfp-2);
  const loss_result distilled = graph::distillation(z, teacher, 3.0);
  CHECK(distilled.value == 0x1.fa2712a5a5ec8p+0);
  CHECK(distilled.gradient[5] == -0x1.debb195ccba5ep-2);
}
