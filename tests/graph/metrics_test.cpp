// SPDX-License-Identifier: BSD-3-Clause
// Metrics against values computed by hand.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/quantize/metrics.hpp>

#include "check_graph_error.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using test::check_graph_error;

graph::score_matrix matrix(const std::vector<float>& values, std::size_t columns) {
  return {values, values.size() / columns, columns};
}

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("metrics: top-k accuracy") {
  const std::vector<float> s{0.1F,         0.7F, 0.2F,   //
                             0.5F,         0.5F, 0.4F,   //
                             not_a_number, 0.2F, 0.1F};  //
  const std::vector<std::int64_t> labels{2, 1, 0};
  CHECK(graph::top_k_accuracy(matrix(s, 3), labels, 1) == 0.0);
  CHECK(graph::top_k_accuracy(matrix(s, 3), labels, 2) == doctest::Approx(2.0 / 3.0));
  CHECK(graph::top_k_accuracy(matrix(s, 3), labels, 3) == doctest::Approx(2.0 / 3.0));
  const std::vector<std::int64_t> others{1, 0, 1};
  CHECK(graph::top_k_accuracy(matrix(s, 3), others, 1) == 1.0);
  check_graph_error(error_kind::invalid_argument, {"label 1", "3", "classes"}, [&] {
    const std::vector<std::int64_t> wrong{0, 3, 0};
    static_cast<void>(graph::top_k_accuracy(matrix(s, 3), wrong, 1));
  });
  check_graph_error(error_kind::invalid_argument, {"label 0", "-1"}, [&] {
    const std::vector<std::int64_t> wrong{-1, 0, 0};
    static_cast<void>(graph::top_k_accuracy(matrix(s, 3), wrong, 1));
  });
  check_graph_error(error_kind::shape_mismatch, {"2 labels", "3 rows"}, [&] {
    const std::vector<std::int64_t> wrong{0, 0};
    static_cast<void>(graph::top_k_accuracy(matrix(s, 3), wrong, 1));
  });
  check_graph_error(error_kind::invalid_argument, {"k = 0"},
                    [&] { static_cast<void>(graph::top_k_accuracy(matrix(s, 3), labels, 0)); });
  check_graph_error(error_kind::invalid_argument, {"no scores"},
                    [&] { static_cast<void>(graph::top_k_accuracy({}, {}, 1)); });
}

TEST_CASE("metrics: F1") {
  // Predictions 1 1 0 1, labels 1 0 1 1: two hits, one false alarm, one miss.
  const std::vector<float> one{0.9F, 0.6F, 0.5F, 0.8F};
  const std::vector<std::int64_t> labels{1, 0, 1, 1};
  CHECK(graph::f1_score(matrix(one, 1), labels) == doctest::Approx(4.0 / 6.0));
  const std::vector<float> two{0.1F, 0.9F, 0.4F, 0.6F, 0.5F, 0.5F, 0.2F, 0.8F};
  CHECK(graph::f1_score(matrix(two, 2), labels) == doctest::Approx(4.0 / 6.0));
  // Three classes, the last of which nothing names: classes 0 and 1 have 2/3 and 4/5.
  const std::vector<float> three{1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0};
  const std::vector<std::int64_t> names{0, 1, 1, 0};
  CHECK(graph::f1_score(matrix(three, 3), names) == doctest::Approx((2.0 / 3.0 + 4.0 / 5.0) / 2.0));
  const std::vector<std::int64_t> none{0, 0, 0, 0};
  const std::vector<float> zeros(4);
  CHECK(graph::f1_score(matrix(zeros, 1), none) == 0.0);
}

TEST_CASE("metrics: mean average precision") {
  // Ranks of the relevant ones of class 0: 1, 3; class 1: 2; class 2 has none.
  const std::vector<float> s{0.9F, 0.1F, 0.0F,   //
                             0.8F, 0.7F, 0.0F,   //
                             0.7F, 0.9F, 0.0F};  //
  const std::vector<std::uint8_t> relevant{1, 0, 0, 0, 1, 0, 1, 0, 0};
  // Class 0: precision 1 up to recall 1/2, 2/3 up to 1.
  CHECK(graph::mean_average_precision(matrix(s, 3), relevant) ==
        doctest::Approx(((1.0 + 2.0 / 3.0) / 2.0 + 0.5) / 2.0));
  CHECK(graph::mean_average_precision(matrix(s, 3), relevant, 11) ==
        doctest::Approx(((6.0 + 5.0 * 2.0 / 3.0) / 11.0 + 0.5) / 2.0));
  CHECK(graph::mean_average_precision(matrix(s, 3), relevant, 101) ==
        doctest::Approx(((51.0 + 50.0 * 2.0 / 3.0) / 101.0 + 0.5) / 2.0));
  // A later rank with a higher precision counts for the recalls before it.
  const std::vector<float> t{0.9F, 0.8F, 0.7F, 0.6F};
  const std::vector<std::uint8_t> late{0, 1, 1, 1};
  CHECK(graph::mean_average_precision(matrix(t, 1), late) == doctest::Approx(0.75));
  const std::vector<std::uint8_t> no(9);
  check_graph_error(error_kind::invalid_argument, {"relevant"},
                    [&] { static_cast<void>(graph::mean_average_precision(matrix(s, 3), no)); });
  check_graph_error(error_kind::invalid_argument, {"7 recalls"}, [&] {
    static_cast<void>(graph::mean_average_precision(matrix(s, 3), relevant, 7));
  });
  check_graph_error(error_kind::shape_mismatch, {"9 labels", "4 x 1"}, [&] {
    static_cast<void>(graph::mean_average_precision(matrix(t, 1), relevant));
  });
}

TEST_CASE("metrics: area under the ROC, against all pairs") {
  for (std::uint64_t seed = 1100; seed < 1110; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    std::vector<float> s(60);
    std::vector<std::int64_t> labels(30);
    for (std::size_t i = 0; i < 30; ++i) {
      s[2 * i] = 1.0F;
      s[2 * i + 1] = static_cast<float>(r.integer(0, 8));  // with ties
      labels[i] = r.integer(0, 1);
    }
    labels[0] = 0;
    labels[1] = 1;
    double pairs = 0.0;
    double better = 0.0;
    for (std::size_t i = 0; i < 30; ++i) {
      for (std::size_t k = 0; k < 30; ++k) {
        if (labels[i] == 1 && labels[k] == 0) {
          pairs += 1.0;
          better += s[2 * i + 1] > s[2 * k + 1] ? 1.0 : s[2 * i + 1] == s[2 * k + 1] ? 0.5 : 0.0;
        }
      }
    }
    CHECK(graph::roc_area(matrix(s, 2), labels) == doctest::Approx(better / pairs));
  }
  const std::vector<float> s{1.0F, 2.0F};
  const std::vector<std::int64_t> equal{1, 1};
  check_graph_error(error_kind::invalid_argument, {"both classes"},
                    [&] { static_cast<void>(graph::roc_area(matrix(s, 1), equal)); });
  const std::vector<float> wide(6);
  check_graph_error(error_kind::invalid_argument, {"3 classes"},
                    [&] { static_cast<void>(graph::roc_area(matrix(wide, 3), equal)); });
}

TEST_CASE("metrics: errors of values") {
  const std::vector<float> a{1.0F, 2.0F, 4.0F};
  const std::vector<float> b{1.0F, 0.0F, 5.0F};
  CHECK(graph::mean_squared_error(a, b) == doctest::Approx(5.0 / 3.0));
  CHECK(graph::mean_absolute_error(a, b) == doctest::Approx(1.0));
  check_graph_error(error_kind::shape_mismatch, {"2 expected", "3 outputs"}, [&] {
    static_cast<void>(graph::mean_squared_error(a, std::vector<float>(2)));
  });
  check_graph_error(error_kind::invalid_argument, {"no values"},
                    [&] { static_cast<void>(graph::mean_absolute_error({}, {})); });
}
