// SPDX-License-Identifier: BSD-3-Clause
// Weight solvers against definitions written out plainly, brute force, and each other.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "layer_data.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::gram_matrix;
using detent::matrix_view;
using detent::quant_scheme;
using detent::quantized_weights;
using detent::weight_format;
using test::check_error;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

matrix_view<const float> matrix(const std::vector<float>& w, std::size_t columns) {
  return {w.data(), w.size() / columns, columns};
}

constexpr quant_scheme symmetric_of(int bits) {
  return {{1 - (1 << (bits - 1)), (1 << (bits - 1)) - 1}, true};
}
constexpr quant_scheme asymmetric_of(int bits) {
  return {{-(1 << (bits - 1)), (1 << (bits - 1)) - 1}, false};
}

gram_matrix identity(std::size_t k) {
  std::vector<double> values(k * k);
  for (std::size_t i = 0; i < k; ++i) {
    values[i * k + i] = 1.0;
  }
  return gram_matrix::from_matrix({values.data(), k, k});
}

/// The sum over the rows, as it is defined.
double plain_objective(const std::vector<float>& w, const quantized_weights& q,
                       const gram_matrix& g) {
  double sum = 0.0;
  for (std::size_t r = 0; r < q.rows; ++r) {
    for (std::size_t i = 0; i < q.columns; ++i) {
      for (std::size_t j = 0; j < q.columns; ++j) {
        sum += (static_cast<double>(w[r * q.columns + i]) - q.value(r, i)) * g(i, j) *
               (static_cast<double>(w[r * q.columns + j]) - q.value(r, j));
      }
    }
  }
  return sum;
}

bool is_close(double a, double b, double tolerance = 1e-9) {
  return std::fabs(a - b) <= tolerance * (std::fabs(a) + std::fabs(b)) + 1e-300;
}

bool same_weights(const quantized_weights& a, const quantized_weights& b) {
  return a.codes == b.codes && a.params.scales == b.params.scales &&
         a.params.zero_points == b.params.zero_points && a.real_zero_points == b.real_zero_points &&
         a.evidence.objective == b.evidence.objective &&
         a.evidence.nearest_objective == b.evidence.nearest_objective &&
         a.evidence.iterations == b.evidence.iterations &&
         a.evidence.converged == b.evidence.converged &&
         a.evidence.kept_nearest == b.evidence.kept_nearest;
}

bool is_on_grid(const quantized_weights& q) {
  return std::all_of(q.codes.begin(), q.codes.end(),
                     [&](std::int8_t c) { return c >= q.levels.qmin && c <= q.levels.qmax; }) &&
         std::all_of(q.params.scales.begin(), q.params.scales.end(),
                     [](float s) { return std::isfinite(s) && s > 0.0F; }) &&
         std::all_of(q.params.zero_points.begin(), q.params.zero_points.end(),
                     [&](std::int32_t z) { return z >= q.levels.qmin && z <= q.levels.qmax; });
}

/// A layer with anything in it.
struct layer {
  std::size_t rows;
  std::size_t columns;
  std::vector<float> w;
  gram_matrix g;
  weight_format format;
};

layer any_layer(random_source& random, std::size_t largest) {
  layer l;
  l.rows = random.size(1, 6);
  l.columns = random.size(1, largest);
  l.w = test::gaussian_weights(random, l.rows * l.columns);
  // Fewer samples than features make it singular.
  std::vector<float> x = test::correlated_inputs(random, random.size(1, 2 * l.columns + 5),
                                                 l.columns, random.real(0.0F, 0.95F));
  if (random.chance(20)) {  // dead inputs, dead weights
    const std::size_t dead = random.size(0, l.columns - 1);
    for (std::size_t i = dead; i < x.size(); i += l.columns) {
      x[i] = 0.0F;
    }
    std::fill_n(l.w.begin(), l.columns, 0.0F);
  }
  l.g = test::gram_of(x, l.columns);
  if (random.chance(25)) {
    l.g = l.g.diagonal_part();
  }
  const int bits = random.integer(2, 8);
  l.format.scheme = random.chance(50) ? symmetric_of(bits) : asymmetric_of(bits);
  l.format.group_size = random.chance(50) ? 0 : random.size(1, l.columns + 2);
  return l;
}

}  // namespace

// ----------------------------------------------------------------------------------- arithmetic

TEST_CASE("exponentials, logarithms and powers of the solvers") {
  random_source random(400);
  INFO("seed ", random.seed());
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<double>(random.real(-700.0F, 700.0F));
    CHECK(is_close(detent::detail::portable_exp(x), std::exp(x), 2e-15));
    const double y =
        std::ldexp(static_cast<double>(random.real(0.5F, 1.0F)), random.integer(-300, 300));
    const double log = std::log(y);
    CHECK(std::fabs(detent::detail::portable_log(y) - log) <= 1e-15 * (1.0 + std::fabs(log)));
    const auto a = static_cast<double>(random.real(0.0F, 10.0F));
    const auto p = static_cast<double>(random.real(-3.0F, 20.0F));
    CHECK(is_close(detent::detail::portable_power(a, p), std::pow(a, p), 1e-13));
  }
  CHECK(detent::detail::portable_exp(0.0) == 1.0);
  CHECK(detent::detail::portable_exp(1000.0) == std::numeric_limits<double>::infinity());
  CHECK(detent::detail::portable_exp(-1000.0) == 0.0);
  CHECK(std::isnan(detent::detail::portable_exp(std::nan(""))));
  CHECK(detent::detail::portable_log(1.0) == 0.0);
  CHECK(detent::detail::portable_power(0.0, 0.0) == 1.0);
  CHECK(detent::detail::portable_power(0.0, 2.0) == 0.0);
  CHECK(detent::detail::portable_power(0.0, -2.0) == std::numeric_limits<double>::infinity());
}

TEST_CASE("powers of many numbers have the bits of powers of one") {
  random_source random(420);
  INFO("seed ", random.seed());
  for (const double y : {0.0, 1.0, 19.0, -2.0, 0.37}) {
    std::vector<double> x;
    for (int i = 0; i < 700; ++i) {  // more than two blocks
      x.push_back(i % 50 == 0 ? 0.0 : static_cast<double>(random.real(1e-6F, 2.0F)));
    }
    test::for_each_target([&] {
      std::vector<double> powers = x;
      detent::detail::replace_by_powers(powers, y);
      for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(powers[i] == detent::detail::portable_power(x[i], y));
      }
    });
  }
}

// -------------------------------------------------------------------------------------- nearest

TEST_CASE("nearest rounding is detent::quantize with a price") {
  random_source random(401);
  INFO("seed ", random.seed());
  for (int round = 0; round < 100; ++round) {
    const layer l = any_layer(random, 150);  // objectives go by blocks of 64 columns
    const quantized_weights q = detent::round_to_nearest(matrix(l.w, l.columns), l.g, l.format);
    INFO("round ", round, " columns ", l.columns, " group ", l.format.group_size);
    CHECK(is_on_grid(q));
    CHECK(is_close(q.evidence.objective, plain_objective(l.w, q, l.g)));
    CHECK(q.evidence.objective == q.evidence.nearest_objective);
    CHECK(detent::output_error(matrix(l.w, l.columns), q, l.g) == q.evidence.objective);
    CHECK(std::string(q.evidence.method) == "round_to_nearest");

    const std::size_t size =
        l.format.group_size == 0 ? l.columns : std::min(l.format.group_size, l.columns);
    CHECK(q.params.block_size == size);
    CHECK(q.groups() == (l.columns + size - 1) / size);
    std::vector<std::int8_t> codes(l.w.size());
    std::vector<float> values(l.w.size());
    const detent::tensor_view<const float> w(l.w.data(), {l.rows, l.columns});
    const detent::tensor_view<std::int8_t> c(codes.data(), {l.rows, l.columns});
    for (std::size_t r = 0; r < l.rows; ++r) {
      for (std::size_t group = 0; group < q.groups(); ++group) {
        detent::min_max_observer range;
        const std::size_t first = r * l.columns + group * size;
        range.observe({l.w.data() + first, std::min(size, l.columns - group * size)});
        const auto p = range.finalize(l.format.scheme);
        CHECK(q.params.scales[r * q.groups() + group] == p.scale);
        CHECK(q.params.zero_points[r * q.groups() + group] == p.zero_point);
      }
    }
    detent::quantize(w, c, q.params, l.format.scheme.levels);
    CHECK(codes == q.codes);
    detent::dequantize(detent::tensor_view<const std::int8_t>(c),
                       detent::tensor_view<float>(values.data(), {l.rows, l.columns}), q.params);
    CHECK(values == q.dequantized());
  }
}

TEST_CASE("given scales and zero points, strided weights") {
  const std::vector<float> w = {0.9F, 0.0F, -1.1F, 0.0F, 2.6F, 0.0F, 40.0F, 0.0F};
  const std::vector<float> scales = {1.0F, 0.5F};
  const std::vector<std::int32_t> zero_points = {1, -2};
  const gram_matrix g = gram_matrix::from_diagonal(std::vector<double>{1.0, 1.0, 1.0, 2.0});
  const matrix_view<const float> strided(w.data(), 1, 4, 8, 2);
  const auto given = detent::round_to_nearest(
      strided, g,
      {.scheme = asymmetric_of(4), .group_size = 2, .scales = scales, .zero_points = zero_points});
  CHECK(given.codes == std::vector<std::int8_t>{2, 0, 3, 7});
  CHECK(given.value(0, 0) == 1.0);
  CHECK(given.value(0, 3) == 4.5);
  const auto middle = detent::round_to_nearest(
      strided, g, {.scheme = {{0, 15}, false}, .group_size = 2, .scales = scales});
  CHECK(middle.params.zero_points == std::vector<std::int32_t>{8, 8});
  CHECK(middle.codes == std::vector<std::int8_t>{9, 7, 13, 15});
}

// --------------------------------------------------------------------------- coordinate descent

TEST_CASE("coordinate descent: no step makes it worse, and none is left") {
  random_source random(402);
  INFO("seed ", random.seed());
  // Many small groups on few samples: their scales creep along a valley.
  int unsettled = 0;
  for (int round = 0; round < 300; ++round) {
    const layer l = any_layer(random, 24);
    INFO("round ", round, " columns ", l.columns, " group ", l.format.group_size);
    const matrix_view<const float> w = matrix(l.w, l.columns);

    // Step by step, with the objective computed anew each time.
    const detent::detail::weight_problem problem(w, l.format, "test");
    quantized_weights q = problem.nearest();
    for (std::size_t r = 0; r < l.rows; ++r) {
      detent::detail::descent_of_rows rows(problem, l.g, false, r, 1, q);
      detent::detail::row_descent& descent = rows.row(0);
      double now = plain_objective(l.w, q, l.g);
      const double total = now;
      bool any = true;
      for (int iteration = 0; any && iteration < 1000; ++iteration) {
        any = false;
        for (std::size_t i = 0; i < q.groups() + l.columns; ++i) {
          const bool changed =
              i < q.groups() ? descent.improve_scale(i) : descent.improve_code(i - q.groups());
          const double next = plain_objective(l.w, q, l.g);
          CHECK((changed ? next < now + 1e-12 * total : next == now));
          now = next;
          any = any || changed;
        }
      }
      unsettled += any ? 1 : 0;
    }

    const quantized_weights solved =
        detent::coordinate_descent(w, l.g, l.format, {.max_iterations = 1000});
    const quantized_weights nearest = detent::round_to_nearest(w, l.g, l.format);
    CHECK(is_on_grid(solved));
    CHECK(solved.evidence.nearest_objective == nearest.evidence.objective);
    CHECK(solved.evidence.objective <= nearest.evidence.objective);
    // With few samples it is the small difference of large terms.
    CHECK(std::fabs(solved.evidence.objective - plain_objective(l.w, solved, l.g)) <=
          1e-9 * nearest.evidence.objective);

    if (!solved.evidence.converged) {
      ++unsettled;
      continue;
    }
    // No code can be changed for the better.
    for (std::size_t r = 0; r < l.rows; ++r) {
      const std::vector<float> row(l.w.begin() + static_cast<std::ptrdiff_t>(r * l.columns),
                                   l.w.begin() + static_cast<std::ptrdiff_t>((r + 1) * l.columns));
      quantized_weights one = solved;
      one.rows = 1;
      const std::size_t groups = solved.groups();
      for (std::size_t i = 0; i < groups; ++i) {
        one.params.scales[i] = solved.params.scales[r * groups + i];
        one.params.zero_points[i] = solved.params.zero_points[r * groups + i];
      }
      std::copy_n(solved.codes.begin() + static_cast<std::ptrdiff_t>(r * l.columns), l.columns,
                  one.codes.begin());
      const double found = plain_objective(row, one, l.g);
      quantized_weights start = nearest;
      start.rows = 1;
      for (std::size_t c = 0; c < l.columns; ++c) {
        const std::int8_t kept = one.codes[c];
        for (const int step : {-1, 1}) {
          const int code = kept + step;
          if (code < one.levels.qmin || code > one.levels.qmax) {
            continue;
          }
          one.codes[c] = static_cast<std::int8_t>(code);
          // The slack is what the solver takes for rounding, of the whole layer's start here.
          CHECK(plain_objective(row, one, l.g) >= found - 1e-11 * nearest.evidence.objective);
        }
        one.codes[c] = kept;
      }
    }
  }
  CHECK(unsettled < 30);
}

TEST_CASE("coordinate descent: rows that do not fit memory together have the same solutions") {
  random_source random(419);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 800;  // with a group for each column, six rows fit
  const std::vector<float> w = test::gaussian_weights(random, 8 * k);
  const gram_matrix g = test::gram_of(test::correlated_inputs(random, 100, k), k);
  const weight_format format{.scheme = symmetric_of(4), .group_size = 1};
  const detent::coordinate_descent_options options{.max_iterations = 2};
  const quantized_weights all = detent::coordinate_descent(matrix(w, k), g, format, options);
  for (std::size_t r = 0; r < 8; ++r) {
    const quantized_weights one = detent::coordinate_descent(
        matrix_view<const float>(w.data() + r * k, 1, k), g, format, options);
    CHECK(std::equal(one.codes.begin(), one.codes.end(),
                     all.codes.begin() + static_cast<std::ptrdiff_t>(r * k)));
    CHECK(std::equal(one.params.scales.begin(), one.params.scales.end(),
                     all.params.scales.begin() + static_cast<std::ptrdiff_t>(r * k)));
  }
}

TEST_CASE("coordinate descent and brute force over all codes") {
  random_source random(403);
  INFO("seed ", random.seed());
  int optimal = 0;
  int total = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t k = random.size(1, 4);
    const int bits = random.integer(2, 3);
    const std::vector<float> w = test::gaussian_weights(random, k);
    const gram_matrix g = test::gram_of(test::correlated_inputs(random, 12, k), k);
    const weight_format format{.scheme = round % 2 == 0 ? symmetric_of(bits) : asymmetric_of(bits)};
    const quantized_weights fixed =
        detent::coordinate_descent(matrix(w, k), g, format, {.fixed_scales = true});
    const quantized_weights nearest = detent::round_to_nearest(matrix(w, k), g, format);
    CHECK(fixed.params.scales == nearest.params.scales);

    quantized_weights any = nearest;
    double best = std::numeric_limits<double>::infinity();
    std::fill(any.codes.begin(), any.codes.end(), static_cast<std::int8_t>(any.levels.qmin));
    while (true) {
      best = std::min(best, plain_objective(w, any, g));
      std::size_t i = 0;
      while (i < k && any.codes[i] == any.levels.qmax) {
        any.codes[i++] = static_cast<std::int8_t>(any.levels.qmin);
      }
      if (i == k) {
        break;
      }
      ++any.codes[i];
    }
    // best <= descent <= nearest
    CHECK(best <= fixed.evidence.objective * (1.0 + 1e-9));
    CHECK(fixed.evidence.objective <= nearest.evidence.objective);
    optimal += fixed.evidence.objective <= best * (1.0 + 1e-9) + 1e-300 ? 1 : 0;
    ++total;
    // Codes of a diagonal G do not depend on each other.
    const gram_matrix d = g.diagonal_part();
    CHECK(detent::coordinate_descent(matrix(w, k), d, format, {.fixed_scales = true}).codes ==
          nearest.codes);
  }
  // A local optimum is most often the global one in so few dimensions.
  INFO("globally optimal: ", optimal, " of ", total);
  CHECK(optimal * 2 > total);
}

TEST_CASE("coordinate descent: the scale of one group is (w G c) / (c G c)") {
  random_source random(404);
  INFO("seed ", random.seed());
  for (int round = 0; round < 50; ++round) {
    const std::size_t k = random.size(2, 30);
    const std::vector<float> w = test::gaussian_weights(random, k);
    const gram_matrix g = test::gram_of(test::correlated_inputs(random, 3 * k, k), k);
    const auto q = detent::coordinate_descent(matrix(w, k), g, {.scheme = symmetric_of(4)});
    double above = 0.0;
    double below = 0.0;
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < k; ++j) {
        above += static_cast<double>(w[i]) * g(i, j) * q.codes[j];
        below += static_cast<double>(q.codes[i]) * g(i, j) * q.codes[j];
      }
    }
    // As near as the smallest gain makes it.
    CHECK(is_close(static_cast<double>(q.params.scales[0]), above / below, 1e-4));
  }
}

TEST_CASE("coordinate descent stops where it is told to") {
  random_source random(405);
  INFO("seed ", random.seed());
  const std::vector<float> w = test::gaussian_weights(random, 5 * 60);
  const gram_matrix g = test::gram_of(test::correlated_inputs(random, 200, 60), 60);
  const weight_format format{.scheme = symmetric_of(3)};
  double previous = detent::round_to_nearest(matrix(w, 60), g, format).evidence.objective;
  for (std::size_t n = 1; n < 100; ++n) {
    const auto q = detent::coordinate_descent(matrix(w, 60), g, format, {.max_iterations = n});
    CHECK(q.evidence.iterations <= n);
    CHECK(q.evidence.objective <= previous * (1.0 + 1e-9));
    previous = q.evidence.objective;
    if (n == 1) {
      CHECK_FALSE(q.evidence.converged);
    }
    if (q.evidence.converged) {
      CHECK(n > 1);
      return;
    }
  }
  FAIL("did not converge");
}

// -------------------------------------------------------------------------------------- adaround

TEST_CASE("AdaRound: next to the weight, never worse than nearest, on any layer") {
  random_source random(406);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    const layer l = any_layer(random, 20);
    INFO("round ", round, " columns ", l.columns, " group ", l.format.group_size);
    const matrix_view<const float> w = matrix(l.w, l.columns);
    const quantized_weights q = detent::adaround(w, l.g, l.format, {.iterations = 300});
    const quantized_weights nearest = detent::round_to_nearest(w, l.g, l.format);
    CHECK(is_on_grid(q));
    CHECK(q.params.scales == nearest.params.scales);
    CHECK(q.params.zero_points == nearest.params.zero_points);
    CHECK(q.evidence.nearest_objective == nearest.evidence.objective);
    CHECK(q.evidence.objective <= nearest.evidence.objective);
    CHECK(is_close(q.evidence.objective, plain_objective(l.w, q, l.g), 1e-7));
    CHECK(q.evidence.kept_nearest <= l.rows);
    for (std::size_t i = 0; i < l.w.size(); ++i) {
      const std::size_t r = i / l.columns;
      const std::size_t at = r * q.groups() + i % l.columns / q.params.block_size;
      const double steps = static_cast<double>(l.w[i]) / static_cast<double>(q.params.scales[at]);
      const auto below = static_cast<int>(std::floor(steps)) + q.params.zero_points[at];
      const int up = std::clamp(below + 1, q.levels.qmin, q.levels.qmax);
      const int down = std::clamp(below, q.levels.qmin, q.levels.qmax);
      CHECK((q.codes[i] == up || q.codes[i] == down || q.codes[i] == nearest.codes[i]));
    }
  }
}

TEST_CASE("AdaRound of weights that nothing is multiplied by is nearest rounding") {
  random_source random(77);
  INFO("seed ", random.seed());
  const auto w = random.reals(5 * 8, -1.0F, 1.0F);
  const std::vector<double> zeros(8 * 8);
  const gram_matrix g = gram_matrix::from_matrix({zeros.data(), 8, 8});
  const auto q = detent::adaround(matrix(w, 8), g);
  CHECK(q.codes == detent::round_to_nearest(matrix(w, 8), g).codes);
  CHECK(q.evidence.objective == 0.0);
}

TEST_CASE("AdaRound says where it kept nearest rounding") {
  // Nothing is better than nearest rounding of independent inputs.
  random_source random(407);
  INFO("seed ", random.seed());
  const std::vector<float> w = test::gaussian_weights(random, 3 * 10);
  const auto q = detent::adaround(matrix(w, 10), identity(10), {.scheme = symmetric_of(4)},
                                  {.regularization = 10.0, .first_beta = 2.0});
  CHECK(q.evidence.kept_nearest == 3);
  CHECK(q.evidence.objective == q.evidence.nearest_objective);
  CHECK(q.evidence.converged);
}

// ------------------------------------------------------------------------------- who beats whom

TEST_CASE("on correlated inputs, descent and AdaRound are much better than nearest rounding") {
  random_source random(408);
  INFO("seed ", random.seed());
  constexpr std::size_t rows = 8;
  constexpr std::size_t k = 96;
  const std::vector<float> w = test::gaussian_weights(random, rows * k);
  const gram_matrix g = test::gram_of(test::correlated_inputs(random, 400, k), k);
  for (const int bits : {3, 4}) {
    for (const std::size_t group : {std::size_t{0}, std::size_t{32}}) {
      const weight_format format{.scheme = asymmetric_of(bits), .group_size = group};
      const auto ratio = [&](const quantized_weights& q) {
        return q.evidence.objective / q.evidence.nearest_objective;
      };
      INFO("bits ", bits, " group ", group);
      const auto descent = detent::coordinate_descent(matrix(w, k), g, format);
      INFO("coordinate descent: ", ratio(descent));
      CHECK(ratio(descent) < 0.5);
      const auto ada = detent::adaround(matrix(w, k), g, format);
      INFO("AdaRound: ", ratio(ada));
      CHECK(ratio(ada) < 0.85);
      const auto columns = detent::gptq(matrix(w, k), g, format);
      INFO("GPTQ: ", ratio(columns));
      CHECK(ratio(columns) < 0.85);
      const auto ordered = detent::gptq(matrix(w, k), g, format, {.activation_order = true});
      INFO("GPTQ in the order of activations: ", ratio(ordered));
      CHECK(ratio(ordered) < 0.85);
    }
  }
}

// ------------------------------------------------------------------------------------------ gptq

namespace {

/// Gauss and Jordan, with pivots.
std::vector<double> inverse_of(std::vector<double> a, std::size_t n) {
  std::vector<double> inverse(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    inverse[i * n + i] = 1.0;
  }
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c; r < n; ++r) {
      pivot = std::fabs(a[r * n + c]) > std::fabs(a[pivot * n + c]) ? r : pivot;
    }
    for (std::size_t j = 0; j < n; ++j) {
      std::swap(a[c * n + j], a[pivot * n + j]);
      std::swap(inverse[c * n + j], inverse[pivot * n + j]);
    }
    const double scale = a[c * n + c];
    for (std::size_t j = 0; j < n; ++j) {
      a[c * n + j] /= scale;
      inverse[c * n + j] /= scale;
    }
    for (std::size_t r = 0; r < n; ++r) {
      const double factor = a[r * n + c];
      for (std::size_t j = 0; j < n && r != c; ++j) {
        a[r * n + j] -= factor * a[c * n + j];
        inverse[r * n + j] -= factor * inverse[c * n + j];
      }
    }
  }
  return inverse;
}

/// Optimal brain quantization in a fixed order: after each column, H^-1 loses a row and a column.
/// With `in_turn`, groups take their parameters when their first column is reached; else they keep
/// those of `q`. Returns the real values at which the codes were rounded.
std::vector<double> plain_gptq(const layer& l, const std::vector<std::size_t>& order,
                               double damping, quantized_weights& q, bool in_turn = false) {
  const std::size_t k = l.columns;
  std::vector<double> h(k * k);
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = 0; j < k; ++j) {
      h[i * k + j] = l.g(order[i], order[j]) + (i == j ? damping * l.g.mean_diagonal() : 0.0);
    }
  }
  const std::vector<double> inverse = inverse_of(h, k);
  std::vector<double> places(l.w.size());
  for (std::size_t r = 0; r < l.rows; ++r) {
    std::vector<double> b = inverse;
    std::vector<double> w(k);
    for (std::size_t j = 0; j < k; ++j) {
      w[j] = static_cast<double>(l.w[r * k + order[j]]);
    }
    for (std::size_t j = 0; j < k; ++j) {
      const std::size_t column = order[j];
      const std::size_t at = r * q.groups() + column / q.params.block_size;
      if (in_turn && column % q.params.block_size == 0) {
        detent::value_range range;
        for (std::size_t i = j; i < std::min(k, j + q.params.block_size); ++i) {
          range.lower = std::min(range.lower, static_cast<float>(w[i]));
          range.upper = std::max(range.upper, static_cast<float>(w[i]));
        }
        const detent::quant_params p = detent::params_from_range(range, l.format.scheme);
        q.params.scales[at] = p.scale;
        q.params.zero_points[at] = p.zero_point;
      }
      places[r * k + column] = w[j];
      const auto code = detent::reference::quantize(
          static_cast<float>(w[j]), {q.params.scales[at], q.params.zero_points[at]}, q.levels);
      q.codes[r * k + column] = static_cast<std::int8_t>(code);
      const double error = (w[j] - q.value(r, column)) / b[j * k + j];
      for (std::size_t i = j + 1; i < k; ++i) {
        w[i] -= error * b[j * k + i];
      }
      const std::vector<double> row(b.begin() + static_cast<std::ptrdiff_t>(j * k),
                                    b.begin() + static_cast<std::ptrdiff_t>((j + 1) * k));
      for (std::size_t i = j + 1; i < k; ++i) {
        for (std::size_t m = j + 1; m < k; ++m) {
          b[i * k + m] -= row[i] * row[m] / row[j];
        }
      }
    }
  }
  return places;
}

}  // namespace

TEST_CASE("GPTQ is what the textbook says, for all block sizes and orders") {
  random_source random(409);
  INFO("seed ", random.seed());
  int codes = 0;
  int ties = 0;
  for (int round = 0; round < 60; ++round) {
    layer l = any_layer(random, 40);
    l.rows = random.size(1, 40);
    l.w = test::gaussian_weights(random, l.rows * l.columns);
    l.g = test::gram_of(test::correlated_inputs(random, 3 * l.columns + 5, l.columns), l.columns);
    const bool ordered = random.chance(50);
    const double damping = random.chance(50) ? 0.01 : static_cast<double>(random.real(0.0F, 0.3F));
    std::vector<std::size_t> order(l.columns);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (ordered) {
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return l.g.diagonal(a) > l.g.diagonal(b);
      });
    }
    INFO("round ", round, " columns ", l.columns, " ordered ", ordered, " damping ", damping);
    quantized_weights expected = detent::round_to_nearest(matrix(l.w, l.columns), l.g, l.format);
    const std::vector<double> places = plain_gptq(l, order, damping, expected);
    const quantized_weights q = detent::gptq(matrix(l.w, l.columns), l.g, l.format,
                                             {.damping = damping,
                                              .block_size = random.size(1, 50),
                                              .activation_order = ordered,
                                              .static_groups = true});
    CHECK(q.params.scales == expected.params.scales);
    CHECK(q.evidence.damping == damping);
    CHECK(std::string(q.evidence.method) == "gptq");
    CHECK(is_close(q.evidence.objective, plain_objective(l.w, q, l.g), 1e-7));
    for (std::size_t r = 0; r < l.rows; ++r) {
      bool same = true;
      for (std::size_t j = 0; j < l.columns && same; ++j) {
        const std::size_t i = r * l.columns + order[j];
        ++codes;
        if (q.codes[i] == expected.codes[i]) {
          continue;
        }
        // They may only differ where the place is a tie but for rounding; then so may what follows.
        same = false;
        ++ties;
        const std::size_t at = r * q.groups() + order[j] / q.params.block_size;
        const double steps = places[i] / static_cast<double>(q.params.scales[at]);
        CHECK(std::fabs(std::fabs(steps - std::floor(steps)) - 0.5) < 1e-5);
      }
    }
  }
  CHECK(ties * 1000 < codes);
}

TEST_CASE("GPTQ: T is the Cholesky factor from the end") {
  random_source random(410);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  for (const std::size_t k : {1U, 2U, 7U, 15U, 16U, 17U, 33U, 40U, 150U, 300U}) {
    const gram_matrix g = test::gram_of(test::correlated_inputs(random, 2 * k + 5, k), k);
    const gram_matrix h = g.dampened(0.01);
    INFO("size ", k);
    detent::detail::gptq_factor factor;
    std::vector<std::uint64_t> bits;
    bool threaded = false;
    test::for_each_target([&] {
      threaded = !threaded;
      factor = detent::detail::factorize(g, {.damping = 0.01},
                                         threaded ? pool.parallel() : detent::parallel_for{});
      std::vector<std::uint64_t> now;
      for (std::size_t i = 0; i < k; ++i) {
        for (std::size_t j = 0; j <= i; ++j) {  // what is above is not used
          now.push_back(std::bit_cast<std::uint64_t>(factor.shares[i * k + j]));
        }
      }
      CHECK((bits.empty() || now == bits));
      bits = now;
    });
    // T_jk = share_kj * pivot_k for j <= k.
    const auto t = [&](std::size_t j, std::size_t i) {
      return factor.shares[i * k + j] * factor.pivots[i];
    };
    double largest = 0.0;
    double difference = 0.0;
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = i; j < k; ++j) {
        double product = 0.0;
        for (std::size_t c = j; c < k; ++c) {
          product += t(i, c) * t(j, c);
        }
        largest = std::max(largest, std::fabs(h(i, j)));
        difference = std::max(difference, std::fabs(h(i, j) - product));
      }
    }
    CHECK(difference < 1e-12 * static_cast<double>(k) * largest);
  }
}

TEST_CASE("GPTQ: nothing to make up for is nearest rounding") {
  random_source random(411);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    layer l = any_layer(random, 200);
    std::vector<double> importance(l.columns);
    for (double& value : importance) {
      value = random.chance(20) ? 0.0 : static_cast<double>(random.real(0.0F, 3.0F));
    }
    const gram_matrix diagonal = gram_matrix::from_diagonal(importance);
    std::vector<double> dense(l.columns * l.columns);
    for (std::size_t i = 0; i < l.columns; ++i) {
      dense[i * l.columns + i] = importance[i];
    }
    const gram_matrix whole = gram_matrix::from_matrix({dense.data(), l.columns, l.columns});
    const gram_matrix zero = gram_matrix::from_diagonal(std::vector<double>(l.columns));
    const gram_matrix one = identity(l.columns);
    for (const gram_matrix* g : {&diagonal, &whole, &zero, &one}) {
      const matrix_view<const float> w = matrix(l.w, l.columns);
      const quantized_weights nearest = detent::round_to_nearest(w, *g, l.format);
      for (const bool ordered : {false, true}) {
        const auto q = detent::gptq(w, *g, l.format, {.activation_order = ordered});
        CHECK(q.codes == nearest.codes);
        CHECK(q.params.scales == nearest.params.scales);
        CHECK(q.params.zero_points == nearest.params.zero_points);
        CHECK(q.evidence.objective == nearest.evidence.objective);
      }
    }
  }
}

TEST_CASE("GPTQ: groups take their scales when their turn comes") {
  random_source random(418);
  INFO("seed ", random.seed());
  int rows = 0;
  int whole_rows = 0;
  for (int round = 0; round < 60; ++round) {
    layer l;
    l.rows = random.size(1, 40);
    l.columns = random.size(2, 90);
    l.format = {.scheme = random.chance(50) ? asymmetric_of(4) : symmetric_of(3),
                .group_size = random.size(1, 40)};
    l.w = test::gaussian_weights(random, l.rows * l.columns);
    l.g = test::gram_of(test::correlated_inputs(random, 3 * l.columns + 5, l.columns), l.columns);
    std::vector<std::size_t> order(l.columns);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const matrix_view<const float> w = matrix(l.w, l.columns);
    quantized_weights expected = detent::round_to_nearest(w, l.g, l.format);
    const std::vector<double> places = plain_gptq(l, order, 0.01, expected, true);
    const quantized_weights q = detent::gptq(w, l.g, l.format, {.block_size = random.size(1, 50)});
    INFO("round ", round, " columns ", l.columns, " groups of ", l.format.group_size);
    for (std::size_t r = 0; r < l.rows; ++r) {
      ++rows;
      bool same = true;
      for (std::size_t j = 0; j < l.columns && same; ++j) {
        const std::size_t i = r * l.columns + j;
        const std::size_t at = r * q.groups() + j / q.params.block_size;
        CHECK(is_close(static_cast<double>(q.params.scales[at]),
                       static_cast<double>(expected.params.scales[at]), 1e-6));
        // What follows may be different behind a tie, be it of a code or of a zero point.
        same = q.codes[i] == expected.codes[i] &&
               q.params.zero_points[at] == expected.params.zero_points[at];
        if (!same && q.params.zero_points[at] == expected.params.zero_points[at]) {
          const double steps = places[i] / static_cast<double>(q.params.scales[at]);
          CHECK(std::fabs(std::fabs(steps - std::floor(steps)) - 0.5) < 1e-5);
        }
      }
      whole_rows += same ? 1 : 0;
    }
  }
  CHECK(whole_rows * 100 > rows * 99);
}

TEST_CASE("GPTQ: the block size changes nothing") {
  random_source random(412);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 50;
  const std::vector<float> w = test::gaussian_weights(random, 3 * k);
  const gram_matrix g = test::gram_of(test::correlated_inputs(random, 200, k), k);
  const weight_format format{.scheme = asymmetric_of(4), .group_size = 16};
  const auto whole = detent::gptq(matrix(w, k), g, format, {.block_size = 1000});
  const auto fixed = detent::gptq(matrix(w, k), g, format, {.static_groups = true});
  CHECK(whole.groups() == 4);
  bool differ = false;
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(whole.params.scales[r * 4] == fixed.params.scales[r * 4]);
    differ = differ || whole.params.scales[r * 4 + 1] != fixed.params.scales[r * 4 + 1];
  }
  CHECK(differ);
  for (const std::size_t block : {1U, 3U, 16U, 17U, 40U}) {
    CHECK(same_weights(whole, detent::gptq(matrix(w, k), g, format, {.block_size = block})));
  }
}

TEST_CASE("GPTQ: singular Gram matrices") {
  random_source random(413);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 20;
  const std::vector<float> w = test::gaussian_weights(random, 2 * k);
  const gram_matrix one_sample = test::gram_of(test::correlated_inputs(random, 1, k), k);
  const weight_format format{.scheme = symmetric_of(4)};
  const auto dampened = detent::gptq(matrix(w, k), one_sample, format);
  CHECK(dampened.evidence.damping == 0.01);
  CHECK(is_on_grid(dampened));
  const auto undampened = detent::gptq(matrix(w, k), one_sample, format, {.damping = 0.0});
  CHECK(undampened.evidence.damping >= 1e-6);
  CHECK(undampened.evidence.damping < 1e-3);
  CHECK(is_on_grid(undampened));
  const gram_matrix definite = test::gram_of(test::correlated_inputs(random, 400, k), k);
  CHECK(detent::gptq(matrix(w, k), definite, format, {.damping = 0.0}).evidence.damping == 0.0);

  // An input that is always zero concerns no other.
  std::vector<float> x = test::correlated_inputs(random, 100, k);
  for (std::size_t i = 7; i < x.size(); i += k) {
    x[i] = 0.0F;
  }
  std::vector<float> other = w;
  other[7] = 0.01F;
  const std::vector<float> scales(2, 0.02F);
  const gram_matrix dead = test::gram_of(x, k);
  const weight_format given{.scheme = symmetric_of(4), .scales = scales};
  auto a = detent::gptq(matrix(w, k), dead, given);
  const auto b = detent::gptq(matrix(other, k), dead, given);
  CHECK(a.codes[7] == detent::reference::quantize(w[7], {0.02F, 0}, given.scheme.levels));
  a.codes[7] = b.codes[7];
  CHECK(a.codes == b.codes);

  // A pivot counts from twice the rounding of its diagonal element on, since there are two columns.
  const std::vector<float> two = {0.5F, 0.7F};
  const auto damping_needed = [&](double excess) {
    const std::vector<double> nearly_equal = {1.0 + excess, 1.0, 1.0, 1.0};
    return detent::gptq(matrix(two, 2), gram_matrix::from_matrix({nearly_equal.data(), 2, 2}),
                        format, {.damping = 0.0})
        .evidence.damping;
  };
  constexpr double rounding = std::numeric_limits<double>::epsilon();
  CHECK(damping_needed(4 * rounding) == 0.0);
  CHECK(damping_needed(2 * rounding) == 1e-6);
  CHECK(damping_needed(rounding) == 1e-6);

  // Definite from a damping of 0.6 on: 1 is the last one tried, whatever the first one was.
  for (const double damping : {0.0, 0.01, 0.03, 0.5, 1.0}) {
    const std::vector<double> nearly_definite = {1.0, 1.6, 1.6, 1.0};
    const auto last =
        detent::gptq(matrix(two, 2), gram_matrix::from_matrix({nearly_definite.data(), 2, 2}),
                     format, {.damping = damping});
    CHECK(last.evidence.damping == 1.0);
  }

  // Not a Gram matrix at all.
  const std::vector<double> indefinite = {1.0, 5.0, 5.0, 1.0};
  check_error(error_kind::invalid_argument, {"gptq", "positive definite"}, [&] {
    static_cast<void>(
        detent::gptq(matrix(two, 2), gram_matrix::from_matrix({indefinite.data(), 2, 2}), format));
  });
}

#if DETENT_WITH_EIGEN

TEST_CASE("Eigen's matrices are views, and views are Eigen's matrices") {
  Eigen::MatrixXf by_columns(2, 3);
  by_columns << 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F;
  const detent::matrix_view<const float> view = detent::as_view(by_columns);
  CHECK(view.rows == 2);
  CHECK(view.columns == 3);
  CHECK(view(0, 2) == 3.0F);
  CHECK(view(1, 0) == 4.0F);
  CHECK(view.data == by_columns.data());
  const Eigen::Matrix<float, 2, 3, Eigen::RowMajor> by_rows = by_columns;
  CHECK(detent::as_view(by_rows)(1, 1) == 5.0F);
  const auto block = by_columns.block(0, 1, 2, 2);
  CHECK(detent::as_view(block)(1, 1) == 6.0F);
  const Eigen::VectorXf vector = by_columns.row(1);
  CHECK(detent::as_view(vector).rows == 3);
  CHECK(detent::as_view(vector)(2, 0) == 6.0F);

  CHECK(detent::as_eigen(view) == by_columns);
  CHECK(detent::as_eigen(view.transposed()) == by_columns.transpose());
  float values[] = {1.0F, 2.0F, 3.0F, 4.0F};
  detent::as_eigen(detent::matrix_view<float>(values, 2, 2))(1, 0) = 9.0F;
  CHECK(values[2] == 9.0F);
  check_error(error_kind::invalid_argument, {"as_eigen", "-1"}, [&] {
    static_cast<void>(detent::as_eigen(detent::matrix_view<float>(values + 1, 1, 2, 2, -1)));
  });

  random_source random(414);
  const std::vector<float> x = test::correlated_inputs(random, 30, 3);
  const Eigen::MatrixXd g = detent::as_eigen(matrix(x, 3)).cast<double>().transpose() *
                            detent::as_eigen(matrix(x, 3)).cast<double>();
  const Eigen::MatrixXd symmetric = (g + g.transpose()) / 2.0;
  const gram_matrix gram = gram_matrix::from_matrix(detent::as_view(symmetric));
  CHECK(detent::gptq(detent::as_view(by_columns), gram).rows == 2);
}

#endif  // DETENT_WITH_EIGEN

// ------------------------------------------------------------------------------------------- hqq

TEST_CASE("HQQ lowers its own objective") {
  random_source random(415);
  INFO("seed ", random.seed());
  double first = 0.0;
  double found = 0.0;
  for (int round = 0; round < 200; ++round) {
    layer l = any_layer(random, 64);
    l.format.scheme = asymmetric_of(random.integer(2, 8));
    const detent::hqq_options options{.norm = static_cast<double>(random.real(0.4F, 1.0F)),
                                      .relative = random.chance(50),
                                      .real_zero_points = random.chance(50)};
    const auto q = detent::hqq(matrix(l.w, l.columns), l.format, options);
    const auto nearest = detent::round_to_nearest(matrix(l.w, l.columns), l.g, l.format);
    INFO("round ", round, " columns ", l.columns, " real ", options.real_zero_points);
    CHECK(is_on_grid(q));
    CHECK(q.params.scales == nearest.params.scales);
    const auto norm = [&](const quantized_weights& v) {
      double sum = 0.0;
      for (std::size_t i = 0; i < l.w.size(); ++i) {
        sum +=
            std::pow(std::fabs(static_cast<double>(l.w[i]) - v.value(i / l.columns, i % l.columns)),
                     options.norm);
      }
      return sum;
    };
    CHECK(q.evidence.objective <= q.evidence.nearest_objective);
    // Where a zero is rounded on one side only, its power is not near zero.
    CHECK(is_close(q.evidence.objective, norm(q), 1e-6));
    CHECK(is_close(q.evidence.nearest_objective, norm(nearest), 1e-6));
    CHECK(q.real_zero_points.size() ==
          (options.real_zero_points ? q.params.scales.size() : std::size_t{0}));
    if (q.evidence.kept_nearest == q.params.scales.size()) {
      CHECK(q.codes == nearest.codes);
    }
    if (options.real_zero_points) {
      first += q.evidence.nearest_objective;
      found += q.evidence.objective;
    }
  }
  INFO("real zero points: ", found / first, " of nearest rounding");
  CHECK(found < 0.98 * first);
}

TEST_CASE("HQQ: the evidence is that of the codes, also next to ties") {
  random_source random(431);
  INFO("seed ", random.seed());
  std::size_t kept = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<float> w(16);
    const float step = random.real(0.01F, 0.1F);
    for (float& x : w) {  // halves of steps, and what rounding makes of them
      x = (static_cast<float>(random.integer(-7, 7)) + 0.5F) * step;
    }
    w[0] = -7.0F * step;
    w[1] = 8.0F * step;
    const weight_format format{.scheme = asymmetric_of(4)};
    const bool is_real = random.chance(50);
    const auto q = detent::hqq(matrix(w, 16), format, {.real_zero_points = is_real});
    double sum = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double error = std::fabs(static_cast<double>(w[i]) - q.value(0, i));
      sum += error == 0.0 ? 0.0 : std::pow(error, detent::hqq_options().norm);
    }
    CHECK(is_close(q.evidence.objective, sum, 1e-12));
    const auto nearest = detent::round_to_nearest(
        matrix(w, 16), gram_matrix::from_diagonal(std::vector<double>(16, 1.0)), format);
    const bool is_nearest =
        q.codes == nearest.codes && q.params.zero_points == nearest.params.zero_points &&
        (!is_real || q.real_zero_points[0] == static_cast<float>(nearest.params.zero_points[0]));
    CHECK((q.evidence.kept_nearest == 1) == is_nearest);
    kept += q.evidence.kept_nearest;
  }
  CHECK(kept > 0);
}

TEST_CASE("HQQ: relative residuals do not depend on units") {
  random_source random(416);
  INFO("seed ", random.seed());
  const std::vector<float> w = test::gaussian_weights(random, 4 * 32);
  std::vector<float> larger = w;
  for (float& value : larger) {
    value *= 1024.0F;
  }
  const weight_format format{.scheme = asymmetric_of(3), .group_size = 16};
  const detent::hqq_options options{.relative = true, .real_zero_points = true};
  const auto a = detent::hqq(matrix(w, 32), format, options);
  const auto b = detent::hqq(matrix(larger, 32), format, options);
  CHECK(a.codes == b.codes);
  CHECK(a.real_zero_points == b.real_zero_points);
}

// ------------------------------------------------------------------------------------------- awq

TEST_CASE("AWQ is never worse than nearest rounding, and adds up") {
  random_source random(417);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    const layer l = any_layer(random, 40);
    INFO("round ", round, " columns ", l.columns, " group ", l.format.group_size);
    const matrix_view<const float> w = matrix(l.w, l.columns);
    std::vector<float> magnitudes(l.columns);
    for (float& value : magnitudes) {
      value = random.chance(10) ? 0.0F : random.real(0.0F, 3.0F);
    }
    detent::awq_options options{.weight_magnitudes = random.chance(50),
                                .smallest_clip = random.chance(50) ? 0.91F : 1.0F};
    if (random.chance(50)) {
      options.activation_magnitudes = magnitudes;
    }
    const detent::awq_weights a = detent::awq(w, l.g, l.format, options);
    const auto nearest = detent::round_to_nearest(w, l.g, l.format);
    CHECK(is_on_grid(a.weights));
    CHECK(a.weights.evidence.nearest_objective == nearest.evidence.objective);
    CHECK(a.weights.evidence.objective <= nearest.evidence.objective);
    CHECK(a.input_scales.size() == l.columns);
    if (!a.ratio.has_value()) {
      CHECK(a.input_scales == std::vector<float>(l.columns, 1.0F));
    }
    // (w - v / s) G (w - v / s), in the units of the layer.
    double sum = 0.0;
    for (std::size_t r = 0; r < l.rows; ++r) {
      std::vector<double> e(l.columns);
      for (std::size_t c = 0; c < l.columns; ++c) {
        e[c] = static_cast<double>(l.w[r * l.columns + c]) -
               a.weights.value(r, c) / static_cast<double>(a.input_scales[c]);
      }
      for (std::size_t i = 0; i < l.columns; ++i) {
        for (std::size_t j = 0; j < l.columns; ++j) {
          sum += e[i] * l.g(i, j) * e[j];
        }
      }
    }
    // W s is rounded to float.
    double size = 0.0;
    for (std::size_t i = 0; i < l.w.size(); ++i) {
      size += static_cast<double>(l.w[i]) * static_cast<double>(l.w[i]);
    }
    size *= l.g.mean_diagonal() * static_cast<double>(l.columns);
    CHECK(std::fabs(a.weights.evidence.objective - sum) <= 1e-4 * sum + 1e-9 * size);
  }
}

TEST_CASE("AWQ: scales and clipping help where they should") {
  random_source random(418);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 64;
  const std::vector<float> w = test::gaussian_weights(random, 16 * k);
  std::vector<float> x = test::correlated_inputs(random, 300, k, 0.1F);
  for (std::size_t i = 5; i < x.size(); i += k) {
    x[i] *= 30.0F;
  }
  detent::gram_observer observer(k);
  observer.observe(matrix(x, k));
  const gram_matrix g = observer.finalize();
  const std::vector<float> magnitudes = observer.mean_magnitudes();
  const weight_format format{.scheme = symmetric_of(3)};
  const auto scaled = detent::awq(matrix(w, k), g, format,
                                  {.activation_magnitudes = magnitudes, .smallest_clip = 1.0F});
  CHECK(scaled.ratio.has_value());
  CHECK(scaled.ratio.value_or(0.0) > 0.0);
  CHECK(std::max_element(scaled.input_scales.begin(), scaled.input_scales.end()) -
            scaled.input_scales.begin() ==
        5);
  INFO("scaled: ", scaled.weights.evidence.objective / scaled.weights.evidence.nearest_objective);
  CHECK(scaled.weights.evidence.objective < 0.8 * scaled.weights.evidence.nearest_objective);
  CHECK(scaled.weights.evidence.kept_nearest == 16);
  const auto clipped = detent::awq(matrix(w, k), g, format,
                                   {.activation_magnitudes = magnitudes, .smallest_clip = 0.6F});
  CHECK(clipped.weights.evidence.objective < scaled.weights.evidence.objective);
  CHECK(clipped.weights.evidence.kept_nearest < 16);

  // The middle of the scales is 1, their logarithms are r times those of the magnitudes.
  const auto [least, largest] =
      std::minmax_element(scaled.input_scales.begin(), scaled.input_scales.end());
  CHECK(is_close(static_cast<double>(*least) * static_cast<double>(*largest), 1.0, 1e-6));
  const double ratio = scaled.ratio.value_or(0.0);
  for (std::size_t j = 1; j < k; ++j) {
    CHECK(is_close(
        static_cast<double>(scaled.input_scales[j]) / static_cast<double>(scaled.input_scales[0]),
        std::pow(static_cast<double>(magnitudes[j]) / static_cast<double>(magnitudes[0]), ratio),
        1e-5));
  }
}

TEST_CASE("AWQ: clipping a group is the best of all its ratios") {
  random_source random(419);
  INFO("seed ", random.seed());
  for (int round = 0; round < 50; ++round) {
    const std::size_t k = random.size(1, 20);
    const std::vector<float> w = test::gaussian_weights(random, k);
    const gram_matrix g = test::gram_of(test::correlated_inputs(random, 30, k), k);
    const weight_format format{.scheme = asymmetric_of(3)};
    const auto q = detent::awq(matrix(w, k), g, format,
                               {.grid_points = 1, .smallest_clip = 0.55F, .clip_step = 0.05F})
                       .weights;
    const auto [lower, upper] = std::minmax_element(w.begin(), w.end());
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 10; ++i) {
      const auto ratio = static_cast<float>(1.0 - i * static_cast<double>(0.05F));
      const auto p = detent::params_from_range(
          {std::min(*lower, 0.0F) * ratio, std::max(*upper, 0.0F) * ratio}, format.scheme);
      const std::vector<float> scales = {p.scale};
      const std::vector<std::int32_t> zero_points = {p.zero_point};
      best = std::min(best,
                      detent::round_to_nearest(
                          matrix(w, k), g,
                          {.scheme = format.scheme, .scales = scales, .zero_points = zero_points})
                          .evidence.objective);
    }
    CHECK(is_close(q.evidence.objective, best, 1e-9));
  }
}

TEST_CASE("AWQ: no clip is below the smallest one, however the steps are rounded") {
  const std::vector<float> w = {1.0F, -1.0F, 0.5F, -0.3F};
  const gram_matrix g = gram_matrix::from_diagonal(std::vector<double>(4, 1.0));
  for (const auto& [smallest, step] : {std::pair(1e-6F, 0.3333334F), std::pair(1e-38F, 0.5F)}) {
    const auto q = detent::awq(matrix(w, 4), g, {.scheme = asymmetric_of(3)},
                               {.smallest_clip = smallest, .clip_step = step});
    CHECK(q.weights.evidence.objective <= q.weights.evidence.nearest_objective);
  }
}

// ----------------------------------------------------------------------------------- SmoothQuant

TEST_CASE("SmoothQuant: powers of two stay within the clips") {
  const auto scale_of = [](float a, float w, detent::smooth_quant_options options) {
    options.power_of_two = true;
    return detent::smooth_quant_scales(std::vector<float>{a}, matrix(std::vector<float>{w}, 1),
                                       options)[0];
  };
  CHECK(scale_of(1000.0F, 1e-3F, {.largest = 100.0F}) == 64.0F);
  CHECK(scale_of(1e-10F, 1.0F, {.smallest = 1e-5F}) == 0x1p-16F);
  CHECK(scale_of(3.3e38F, 1.0F, {.alpha = 1.0F}) == 0x1p127F);
  // Without clips the nearest one in the logarithm: sqrt(2) is the middle between 1 and 2.
  CHECK(scale_of(1.41F, 1.0F, {.alpha = 1.0F}) == 1.0F);
  CHECK(scale_of(1.42F, 1.0F, {.alpha = 1.0F}) == 2.0F);
  // No power of two is left: the one below.
  CHECK(scale_of(10.0F, 1.0F, {.alpha = 1.0F, .smallest = 5.0F, .largest = 6.0F}) == 4.0F);
}

TEST_CASE("SmoothQuant: the formula and its clips") {
  const std::vector<float> a = {16.0F, 4.0F, 0.0F, 1.0F, 3e38F};
  const std::vector<float> w = {1.0F, 2.0F, 3.0F, 0.0F, -1e-38F, -4.0F, 1.0F, 1.0F, -0.0F, 0.0F};
  const auto scales = [&](const detent::smooth_quant_options& options) {
    return detent::smooth_quant_scales(a, matrix(w, 5), options);
  };
  // Column maxima: 4, 2, 3, 0, 1e-38.
  const auto half = scales({});
  CHECK(half[0] == doctest::Approx(2.0));
  CHECK(half[1] == doctest::Approx(std::sqrt(2.0)));
  CHECK(half[2] == 1.0F);
  CHECK(half[3] == 1.0F);
  CHECK(static_cast<double>(half[4]) == doctest::Approx(std::sqrt(3e38) / std::sqrt(1e-38)));
  CHECK(scales({.alpha = 1.0F})[0] == 16.0F);
  CHECK(scales({.alpha = 0.0F})[0] == 0.25F);
  CHECK(scales({.alpha = 0.0F, .largest = 100.0F})[4] == 100.0F);
  CHECK(scales({.alpha = 1.0F, .largest = 5.0F})[0] == 5.0F);
  CHECK(scales({.alpha = 0.0F, .smallest = 0.4F})[0] == 0.4F);
  CHECK(scales({.power_of_two = true})[0] == 2.0F);
  // Sorted: 0.25, 0.5, 1e38: the quantile 0.25 is halfway between the first two.
  CHECK(scales({.alpha = 0.0F, .smallest_quantile = 0.25F})[0] == doctest::Approx(0.375));
}

TEST_CASE("SmoothQuant changes no product") {
  random_source random(420);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    const std::size_t k = random.size(1, 40);
    const std::size_t m = random.size(1, 20);
    const std::size_t n = random.size(1, 20);
    const std::vector<float> x = test::correlated_inputs(random, m, k);
    const std::vector<float> w = test::gaussian_weights(random, n * k);
    std::vector<float> largest(k);
    for (std::size_t i = 0; i < x.size(); ++i) {
      largest[i % k] = std::max(largest[i % k], std::fabs(x[i]));
    }
    for (const bool exact : {true, false}) {
      const auto s = detent::smooth_quant_scales(largest, matrix(w, k), {.power_of_two = exact});
      const auto xs = detent::divide_columns(matrix(x, k), s);
      const auto ws = detent::multiply_columns(matrix(w, k), s);
      for (std::size_t r = 0; r < m; ++r) {
        for (std::size_t c = 0; c < n; ++c) {
          double sum = 0.0;
          double smooth = 0.0;
          double size = 0.0;
          for (std::size_t j = 0; j < k; ++j) {
            const double product =
                static_cast<double>(x[r * k + j]) * static_cast<double>(w[c * k + j]);
            const double scaled =
                static_cast<double>(xs[r * k + j]) * static_cast<double>(ws[c * k + j]);
            CHECK((!exact || product == scaled));
            sum += product;
            smooth += scaled;
            size += std::fabs(product);
          }
          CHECK((exact ? sum == smooth : std::fabs(sum - smooth) <= 1.3e-7 * size));
        }
      }
    }
  }
}

TEST_CASE("SmoothQuant finds its alpha") {
  random_source random(421);
  INFO("seed ", random.seed());
  constexpr std::size_t k = 40;
  constexpr std::size_t samples = 60;
  constexpr std::size_t rows = 12;
  const std::vector<float> w = test::gaussian_weights(random, rows * k);
  std::vector<float> x = test::correlated_inputs(random, samples, k, 0.2F);
  for (std::size_t i = 3; i < x.size(); i += k) {
    x[i] *= 60.0F;
  }
  const auto found = detent::smooth_quant_search(matrix(x, k), matrix(w, k));
  REQUIRE(found.alpha.has_value());
  REQUIRE(found.errors.size() == 11);
  const double objective = found.weights.evidence.objective;
  CHECK(objective == *std::min_element(found.errors.begin(), found.errors.end()));
  INFO("alpha ", found.alpha.value_or(-1.0F), " ratio ",
       objective / found.weights.evidence.nearest_objective);
  CHECK(objective < 0.4 * found.weights.evidence.nearest_objective);
  CHECK(found.alpha.value_or(-1.0F) ==
        static_cast<float>(std::min_element(found.errors.begin(), found.errors.end()) -
                           found.errors.begin()) /
            10.0F);
  // Both errors, by hand.
  const auto error_of = [&](const std::vector<float>& scales, detent::quant_params p,
                            const quantized_weights& q) {
    const auto smooth = detent::divide_columns(matrix(x, k), scales);
    double sum = 0.0;
    for (std::size_t i = 0; i < samples; ++i) {
      for (std::size_t r = 0; r < rows; ++r) {
        double e = 0.0;
        for (std::size_t j = 0; j < k; ++j) {
          const auto code =
              detent::reference::quantize(smooth[i * k + j], p, detent::full_grid<std::uint8_t>);
          e += static_cast<double>(x[i * k + j]) * static_cast<double>(w[r * k + j]) -
               (code - p.zero_point) * static_cast<double>(p.scale) * q.value(r, j);
        }
        sum += e * e;
      }
    }
    return sum;
  };
  CHECK(is_close(objective, error_of(found.scales, found.activation_params, found.weights), 1e-6));
  detent::min_max_observer range;
  range.observe(x);
  const auto nearest = detent::round_to_nearest(matrix(w, k), identity(k));
  CHECK(is_close(found.weights.evidence.nearest_objective,
                 error_of(std::vector<float>(k, 1.0F),
                          range.finalize(detent::asymmetric<std::uint8_t>), nearest),
                 1e-6));
  // Nothing to smooth: all features and columns are alike.
  const std::vector<float> ones(4 * 8, 1.0F);
  const auto even = detent::smooth_quant_search(matrix(ones, 8), matrix(ones, 8));
  CHECK_FALSE(even.alpha.has_value());
  CHECK(even.scales == std::vector<float>(8, 1.0F));
}

// ------------------------------------------------------------------------------------- all of them

namespace {

struct solver {
  const char* name;
  quantized_weights (*solve)(matrix_view<const float>, const gram_matrix&, const weight_format&,
                             const detent::parallel_for&);
};

const solver solvers[] = {
    {"round_to_nearest",
     [](matrix_view<const float> w, const gram_matrix& g, const weight_format& f,
        const detent::parallel_for& p) { return detent::round_to_nearest(w, g, f, p); }},
    {"coordinate_descent",
     [](matrix_view<const float> w, const gram_matrix& g, const weight_format& f,
        const detent::parallel_for& p) { return detent::coordinate_descent(w, g, f, {}, p); }},
    {"adaround",
     [](matrix_view<const float> w, const gram_matrix& g, const weight_format& f,
        const detent::parallel_for& p) {
       return detent::adaround(w, g, f, {.iterations = 50}, p);
     }},
    {"awq", [](matrix_view<const float> w, const gram_matrix& g, const weight_format& f,
               const detent::parallel_for& p) { return detent::awq(w, g, f, {}, p).weights; }},
    {"hqq",
     [](matrix_view<const float> w, const gram_matrix&, const weight_format& f,
        const detent::parallel_for& p) {
       weight_format asymmetric = f;
       asymmetric.scheme.symmetric = false;
       return detent::hqq(w, asymmetric, {}, p);
     }},
    {"gptq", [](matrix_view<const float> w, const gram_matrix& g, const weight_format& f,
                const detent::parallel_for& p) { return detent::gptq(w, g, f, {}, p); }},
};

}  // namespace

TEST_CASE("targets, threads, strides and repetition change nothing") {
  random_source random(422);
  INFO("seed ", random.seed());
  detent::thread_pool pool(4);
  for (int round = 0; round < 10; ++round) {
    layer l = any_layer(random, 40);
    l.rows = random.size(1, 70);
    l.w = test::gaussian_weights(random, l.rows * l.columns);
    std::vector<float> turned(l.w.size());
    for (std::size_t i = 0; i < l.w.size(); ++i) {
      turned[i % l.columns * l.rows + i / l.columns] = l.w[i];
    }
    const matrix_view<const float> w = matrix(l.w, l.columns);
    const matrix_view<const float> other =
        matrix_view<const float>(turned.data(), l.columns, l.rows).transposed();
    for (const solver& s : solvers) {
      INFO(s.name, " round ", round);
      const quantized_weights one = s.solve(w, l.g, l.format, {});
      CHECK(same_weights(one, s.solve(other, l.g, l.format, pool.parallel())));
      test::for_each_target([&] { CHECK(same_weights(one, s.solve(w, l.g, l.format, {}))); });
    }
  }
}

TEST_CASE("edges: one column, one row, no rows, zeros, huge and tiny weights") {
  const auto diagonal = [](std::size_t k, double value) {
    return gram_matrix::from_diagonal(std::vector<double>(k, value));
  };
  for (const solver& s : solvers) {
    INFO(s.name);
    for (const quant_scheme scheme : {symmetric_of(2), asymmetric_of(4), symmetric_of(8)}) {
      const weight_format format{.scheme = scheme, .group_size = 2};
      const std::vector<float> one = {0.7F};
      const auto single = s.solve(matrix(one, 1), diagonal(1, 2.0), format, {});
      CHECK(is_on_grid(single));
      const quantized_weights none =
          s.solve(matrix_view<const float>(nullptr, 0, 3), diagonal(3, 1.0), format, {});
      CHECK(none.codes.empty());
      CHECK(none.evidence.objective == 0.0);
      const std::vector<float> zeros(2 * 5, 0.0F);
      const auto zero = s.solve(matrix(zeros, 5), diagonal(5, 1.0), format, {});
      CHECK(zero.dequantized() == zeros);
      CHECK(zero.evidence.objective == 0.0);
      const std::vector<float> w = {0.3F, -0.2F, 0.0F, 0.0F, 0.5F};
      CHECK(is_on_grid(s.solve(matrix(w, 5), diagonal(5, 0.0), format, {})));
      CHECK(s.solve(matrix(w, 5), diagonal(5, 0.0), format, {}).groups() == 3);
      const std::vector<double> dense(25, 0.0);
      CHECK(is_on_grid(
          s.solve(matrix(w, 5), gram_matrix::from_matrix({dense.data(), 5, 5}), format, {})));
      const std::vector<float> extreme = {3e38F, -1e38F, 1e-45F, -1e-45F, 1.0F};
      CHECK(is_on_grid(s.solve(matrix(extreme, 5), diagonal(5, 1e-10), format, {})));
    }
  }
}

TEST_CASE("what no solver takes") {
  const auto invalid = error_kind::invalid_argument;
  const auto mismatch = error_kind::shape_mismatch;
  const gram_matrix g = gram_matrix::from_diagonal(std::vector<double>{1.0, 1.0, 1.0});
  const std::vector<float> good = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  for (const solver& s : solvers) {
    INFO(s.name);
    const auto solve = [&](const std::vector<float>& w, const weight_format& format) {
      static_cast<void>(s.solve(matrix(w, 3), g, format, {}));
    };
    for (const float bad : {quiet_nan, infinity, -infinity}) {
      std::vector<float> w = good;
      w[5] = bad;
      check_error(invalid, {"row 1, column 2"}, [&] { solve(w, {}); });
    }
    check_error(invalid, {"0..255"}, [&] { solve(good, {.scheme = {{0, 255}, false}}); });
    check_error(invalid, {"3..3"}, [&] { solve(good, {.scheme = {{3, 3}, false}}); });
    check_error(invalid, {"2 x 0"}, [&] {
      static_cast<void>(s.solve(matrix_view<const float>(good.data(), 2, 0), {}, {}, {}));
    });
    check_error(invalid, {"null", "2 x 3"}, [&] {
      static_cast<void>(s.solve(matrix_view<const float>(nullptr, 2, 3), g, {}, {}));
    });
    if (std::string(s.name) != "hqq") {
      check_error(mismatch, {"2 inputs", "3 columns"}, [&] {
        static_cast<void>(s.solve(
            matrix(good, 3), gram_matrix::from_diagonal(std::vector<double>{1.0, 1.0}), {}, {}));
      });
    }
    if (std::string(s.name) != "awq") {
      const std::vector<float> two = {1.0F, 0.0F};
      const std::vector<float> three = {1.0F, 1.0F, 1.0F};
      const std::vector<std::int32_t> far = {0, 99};
      const std::vector<float> ones = {1.0F, 1.0F};
      check_error(invalid, {"scale 0"}, [&] { solve(good, {.scales = two}); });
      check_error(mismatch, {"3 scales", "2 rows of 1 groups"},
                  [&] { solve(good, {.scales = three}); });
      check_error(invalid, {"zero point 99"}, [&] {
        solve(good, {.scheme = asymmetric_of(4), .scales = ones, .zero_points = far});
      });
      check_error(mismatch, {"2 zero points with 0 scales"},
                  [&] { solve(good, {.zero_points = far}); });
    }
  }
}

TEST_CASE("output_error: blocks of any size, and as many real zero points as scales") {
  const std::vector<float> w = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
  const detent::gram_matrix g =
      detent::gram_matrix::from_diagonal(std::vector<double>{1.0, 1.0, 1.0});
  detent::quantized_weights q;
  q.rows = 2;
  q.columns = 3;
  q.levels = {-128, 127};
  q.codes = {1, 1, 1, 2, 2, 2};
  q.params = {1, std::numeric_limits<std::size_t>::max(), {1.0F, 0.5F}, {0, 0}};
  const auto error = [&] {
    return detent::output_error(detent::matrix_view<const float>(w.data(), 2, 3), q, g);
  };
  CHECK(q.groups() == 1);
  CHECK(error() == 0.0);
  q.real_zero_points = {0.0F, 1.0F};
  CHECK(error() == 0.75);  // the second row stands for 0.5
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}}) {
    q.real_zero_points.assign(count, 0.0F);
    check_error(error_kind::shape_mismatch, {"output_error", "2 x 3"},
                [&] { static_cast<void>(error()); });
  }
  q.columns = 0;
  CHECK(q.groups() == 0);
}

TEST_CASE("options out of their domain") {
  const auto invalid = error_kind::invalid_argument;
  const std::vector<float> values = {1.0F, 2.0F, 3.0F, 4.0F};
  const matrix_view<const float> w = matrix(values, 2);
  const gram_matrix g = gram_matrix::from_diagonal(std::vector<double>{1.0, 1.0});
  const auto ignore = [](const auto&) {};
  const std::vector<float> scales = {1.0F, 1.0F};
  const std::vector<float> negative = {1.0F, -1.0F};
  const std::vector<float> three = {1.0F, 1.0F, 1.0F};
  for (const double damping :
       {std::numeric_limits<double>::infinity(), -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    check_error(invalid, {"gptq", "damping"},
                [&] { ignore(detent::gptq(w, g, {}, {.damping = damping})); });
  }
  check_error(invalid, {"max_iterations"},
              [&] { ignore(detent::coordinate_descent(w, g, {}, {.max_iterations = 0})); });
  check_error(invalid, {"iterations"},
              [&] { ignore(detent::adaround(w, g, {}, {.iterations = 0})); });
  check_error(invalid, {"learning rate", "0"},
              [&] { ignore(detent::adaround(w, g, {}, {.learning_rate = 0.0})); });
  check_error(invalid, {"regularization", "-1"},
              [&] { ignore(detent::adaround(w, g, {}, {.regularization = -1.0})); });
  check_error(invalid, {"warm-up", "1"},
              [&] { ignore(detent::adaround(w, g, {}, {.warm_up = 1.0})); });
  check_error(invalid, {"beta", "0.5"},
              [&] { ignore(detent::adaround(w, g, {}, {.last_beta = 0.5})); });
  check_error(invalid, {"grid points"}, [&] { ignore(detent::awq(w, g, {}, {.grid_points = 0})); });
  check_error(invalid, {"clipped to 0"},
              [&] { ignore(detent::awq(w, g, {}, {.smallest_clip = 0.0F})); });
  check_error(invalid, {"steps of 1"}, [&] { ignore(detent::awq(w, g, {}, {.clip_step = 1.0F})); });
  check_error(invalid, {"cannot be given"}, [&] { ignore(detent::awq(w, g, {.scales = scales})); });
  check_error(invalid, {"input 1", "-1"},
              [&] { ignore(detent::awq(w, g, {}, {.activation_magnitudes = negative})); });
  check_error(error_kind::shape_mismatch, {"3 magnitudes"},
              [&] { ignore(detent::awq(w, g, {}, {.activation_magnitudes = three})); });
  check_error(invalid, {"symmetric"}, [&] { ignore(detent::hqq(w, {})); });
  const weight_format asymmetric{.scheme = asymmetric_of(4)};
  check_error(invalid, {"norm 0"}, [&] { ignore(detent::hqq(w, asymmetric, {.norm = 0.0})); });
  check_error(invalid, {"penalty -1"},
              [&] { ignore(detent::hqq(w, asymmetric, {.penalty = -1.0})); });
  check_error(invalid, {"alpha 1.5"},
              [&] { ignore(detent::smooth_quant_scales(scales, w, {.alpha = 1.5F})); });
  check_error(invalid, {"quantile 1"},
              [&] { ignore(detent::smooth_quant_scales(scales, w, {.smallest_quantile = 1.0F})); });
  check_error(invalid, {"from 2 to 1"}, [&] {
    ignore(detent::smooth_quant_scales(scales, w, {.smallest = 2.0F, .largest = 1.0F}));
  });
  check_error(invalid, {"feature 1", "-1"},
              [&] { ignore(detent::smooth_quant_scales(negative, w)); });
  check_error(error_kind::shape_mismatch, {"3 magnitudes", "2 features"},
              [&] { ignore(detent::smooth_quant_scales(three, w)); });
  check_error(invalid, {"1 alphas"},
              [&] { ignore(detent::smooth_quant_search(w, w, {}, {.grid_points = 1})); });
  check_error(invalid, {"no samples"}, [&] {
    ignore(detent::smooth_quant_search(matrix_view<const float>(nullptr, 0, 2), w));
  });
  check_error(error_kind::shape_mismatch, {"3 features"},
              [&] { ignore(detent::smooth_quant_search(matrix(three, 3), w)); });
  check_error(error_kind::overflow, {"row 0, column 1"}, [&] {
    ignore(detent::multiply_columns(w, std::vector<float>{1.0F, 3e38F}));
  });
  check_error(invalid, {"scale 0"}, [&] {
    ignore(detent::divide_columns(w, std::vector<float>{1.0F, 0.0F}));
  });
  const std::vector<float> large = {3e38F, 3e38F};
  check_error(error_kind::overflow, {"objective"}, [&] {
    ignore(detent::round_to_nearest(matrix(large, 2),
                                    gram_matrix::from_diagonal(std::vector<double>{1e300, 1e300}),
                                    {.scales = std::vector<float>{1.0F}}));
  });
  quantized_weights q = detent::round_to_nearest(w, g);
  q.codes.pop_back();
  check_error(error_kind::shape_mismatch, {"output_error"},
              [&] { ignore(detent::output_error(w, q, g)); });
  check_error(invalid, {"damping", "-1"},
              [&] { ignore(detent::gptq(w, g, {}, {.damping = -1.0})); });
  check_error(invalid, {"block size"}, [&] { ignore(detent::gptq(w, g, {}, {.block_size = 0})); });
}
