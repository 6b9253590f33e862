// SPDX-License-Identifier: BSD-3-Clause
// Measures of how good the outputs of a model are, for accuracy control and tuning.
//
// Scores are a matrix with one row for each sample and one column for each class, row by row.
// Sums are in double and in the order of the samples, so that results do not depend on the CPU.
#ifndef DETENT_GRAPH_QUANTIZE_METRICS_HPP
#define DETENT_GRAPH_QUANTIZE_METRICS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A matrix of scores, which is not owned.
struct score_matrix {
  std::span<const float> values;  ///< rows * columns scores, row by row.
  std::size_t rows = 0;           ///< Samples.
  std::size_t columns = 0;        ///< Classes.

  /// The scores of one sample.
  [[nodiscard]] std::span<const float> row(std::size_t i) const {
    return values.subspan(i * columns, columns);
  }
};

namespace detail {

/// Throws unless there is a sample and a label for each, and each label is a class.
inline void require_class_labels(const score_matrix& scores, std::span<const std::int64_t> labels,
                                 std::size_t classes) {
  require(scores.rows > 0 && scores.columns > 0, error_kind::invalid_argument,
          "a metric of no scores");
  require(labels.size() == scores.rows, error_kind::shape_mismatch, labels.size(), " labels for ",
          scores.rows, " rows of scores");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    require(labels[i] >= 0 && static_cast<std::size_t>(labels[i]) < classes,
            error_kind::invalid_argument, "label ", i, " is ", labels[i], ", and there are ",
            classes, " classes");
  }
}

inline void require_same_size(std::span<const float> values, std::span<const float> expected) {
  require(!values.empty(), error_kind::invalid_argument, "a metric of no values");
  require(values.size() == expected.size(), error_kind::shape_mismatch, expected.size(),
          " expected values for ", values.size(), " outputs");
}

/// The class that a sample is taken for: that of the largest score, the first one of several equal
/// ones; with one column, 1 if the score exceeds 0.5 and 0 otherwise. NaN is below every score.
[[nodiscard]] inline std::size_t predicted_class(std::span<const float> scores) {
  if (scores.size() == 1) {
    return scores[0] > 0.5F ? 1 : 0;
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    if (scores[i] > scores[best] || std::isnan(scores[best])) {
      best = i;
    }
  }
  return best;
}

/// The indices of some scores, the highest score first; equal ones keep their order, NaN is last.
[[nodiscard]] inline std::vector<std::size_t> by_descending_score(
    const std::vector<float>& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] > scores[b] || (std::isnan(scores[b]) && !std::isnan(scores[a]));
  });
  return order;
}

}  // namespace detail

/// The share of samples whose label is among the `k` highest scores. Equal scores rank in the order
/// of the classes; NaN never ranks. Throws invalid_argument if there are no samples, if k is 0, or
/// if a label is none of the classes; shape_mismatch for another number of labels than rows.
[[nodiscard]] inline double top_k_accuracy(const score_matrix& scores,
                                           std::span<const std::int64_t> labels, std::size_t k) {
  detail::require_class_labels(scores, labels, scores.columns);
  require(k > 0, error_kind::invalid_argument, "top-k accuracy with k = 0");
  std::size_t right = 0;
  for (std::size_t i = 0; i < scores.rows; ++i) {
    const auto row = scores.row(i);
    const auto label = static_cast<std::size_t>(labels[i]);
    std::size_t before = 0;
    for (std::size_t c = 0; c < row.size(); ++c) {
      before += row[c] > row[label] || (row[c] == row[label] && c < label) ? 1U : 0U;
    }
    right += before < k && !std::isnan(row[label]) ? 1U : 0U;
  }
  return static_cast<double>(right) / static_cast<double>(scores.rows);
}

/// The F1 score, 2 TP / (2 TP + FP + FN): of class 1 where there are two classes (or one column,
/// whose scores are compared with 0.5), else the mean over all classes that a label or a prediction
/// names. Throws as top_k_accuracy().
[[nodiscard]] inline double f1_score(const score_matrix& scores,
                                     std::span<const std::int64_t> labels) {
  const std::size_t classes = (std::max)(scores.columns, std::size_t{2});
  detail::require_class_labels(scores, labels, classes);
  std::vector<std::size_t> hits(classes);
  std::vector<std::size_t> named(classes);  // times that a label or a prediction names the class
  for (std::size_t i = 0; i < scores.rows; ++i) {
    const std::size_t predicted = detail::predicted_class(scores.row(i));
    const auto label = static_cast<std::size_t>(labels[i]);
    hits[label] += predicted == label ? 1U : 0U;
    ++named[label];
    ++named[predicted];
  }
  const auto score = [&](std::size_t c) {
    return named[c] == 0 ? 0.0 : 2.0 * static_cast<double>(hits[c]) / static_cast<double>(named[c]);
  };
  if (classes == 2) {
    return score(1);
  }
  double sum = 0.0;
  std::size_t count = 0;
  for (std::size_t c = 0; c < classes; ++c) {
    sum += score(c);
    count += named[c] != 0 ? 1U : 0U;
  }
  return sum / static_cast<double>(count);
}

/// The mean over all classes of average precision: for each class, samples are ranked by its score,
/// and precision is averaged over recall. `relevant` has a 1 for each sample and class that belong
/// together, else 0, in the layout of the scores; classes without a 1 do not count. `points` says
/// at how many recalls precision is taken, each time the largest precision at this recall or a
/// higher one: 11 or 101 (evenly from 0 to 1), or 0 for the area under that curve.
///
/// Throws shape_mismatch if there are no samples or `relevant` has another size; invalid_argument
/// if no sample is relevant for any class, or for another number of points.
[[nodiscard]] inline double mean_average_precision(const score_matrix& scores,
                                                   std::span<const std::uint8_t> relevant,
                                                   int points = 0) {
  require(points == 0 || points == 11 || points == 101, error_kind::invalid_argument,
          "average precision at ", points, " recalls; there are 0 (the area), 11 and 101");
  require(scores.rows > 0 && relevant.size() == scores.rows * scores.columns,
          error_kind::shape_mismatch, relevant.size(), " labels for ", scores.rows, " x ",
          scores.columns, " scores");
  double sum = 0.0;
  std::size_t counted = 0;
  for (std::size_t c = 0; c < scores.columns; ++c) {
    std::vector<float> column(scores.rows);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < scores.rows; ++i) {
      column[i] = scores.row(i)[c];
      wanted += relevant[i * scores.columns + c] != 0 ? 1U : 0U;
    }
    if (wanted == 0) {
      continue;
    }
    ++counted;
    // Precision each time that a relevant sample is found, the last one first.
    std::vector<double> precision;
    std::size_t rank = 0;
    for (const std::size_t i : detail::by_descending_score(column)) {
      ++rank;
      if (relevant[i * scores.columns + c] != 0) {
        precision.push_back(static_cast<double>(precision.size() + 1) / static_cast<double>(rank));
      }
    }
    for (std::size_t k = precision.size() - 1; k-- > 0;) {
      precision[k] = (std::max)(precision[k], precision[k + 1]);
    }
    double average = 0.0;
    if (points == 0) {
      for (const double p : precision) {
        average += p / static_cast<double>(wanted);
      }
    }
    for (int k = 0; k < points; ++k) {
      // The first relevant sample whose recall (index + 1) / wanted is at least k / (points - 1).
      const std::size_t least =
          (static_cast<std::size_t>(k) * wanted + static_cast<std::size_t>(points) - 2) /
          static_cast<std::size_t>(points - 1);
      average += precision[least == 0 ? 0 : least - 1] / points;
    }
    sum += average;
  }
  require(counted > 0, error_kind::invalid_argument, "no sample is relevant for any class");
  return sum / static_cast<double>(counted);
}

/// The area under the receiver operating characteristic: the share of pairs of a sample with label
/// 1 and one with label 0 in which the first has the higher score, where equal scores count half.
/// With two columns, the score is the second one. Throws invalid_argument if there are no samples,
/// for a number of columns other than 1 and 2, for labels other than 0 and 1, if all labels are
/// equal, and for a score that is NaN; shape_mismatch as top_k_accuracy().
[[nodiscard]] inline double roc_area(const score_matrix& scores,
                                     std::span<const std::int64_t> labels) {
  require(scores.columns == 1 || scores.columns == 2, error_kind::invalid_argument, "the ROC of ",
          scores.columns, " classes; it is for two");
  detail::require_class_labels(scores, labels, 2);
  std::vector<std::pair<float, std::int64_t>> ranked;
  for (std::size_t i = 0; i < scores.rows; ++i) {
    ranked.emplace_back(scores.row(i).back(), labels[i]);
    require(!std::isnan(ranked.back().first), error_kind::invalid_argument, "score ", i, " is NaN");
  }
  std::sort(ranked.begin(), ranked.end());
  double pairs = 0.0;
  std::size_t zeros = 0;
  std::size_t ones = 0;
  for (std::size_t i = 0; i < ranked.size();) {
    std::size_t equal_zeros = 0;
    std::size_t equal_ones = 0;
    const float score = ranked[i].first;
    for (; i < ranked.size() && ranked[i].first == score; ++i) {
      (ranked[i].second == 0 ? equal_zeros : equal_ones) += 1;
    }
    pairs += static_cast<double>(equal_ones) *
             (static_cast<double>(zeros) + 0.5 * static_cast<double>(equal_zeros));
    zeros += equal_zeros;
    ones += equal_ones;
  }
  require(zeros > 0 && ones > 0, error_kind::invalid_argument,
          "the ROC needs labels of both classes");
  return pairs / (static_cast<double>(zeros) * static_cast<double>(ones));
}

/// The mean of (value - expected)^2. Throws invalid_argument for no values, shape_mismatch for
/// another number of expected ones.
[[nodiscard]] inline double mean_squared_error(std::span<const float> values,
                                               std::span<const float> expected) {
  detail::require_same_size(values, expected);
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double d = static_cast<double>(values[i]) - static_cast<double>(expected[i]);
    sum += detent::detail::rounded_product(d, d);
  }
  return sum / static_cast<double>(values.size());
}

/// The mean of |value - expected|. Throws as mean_squared_error().
[[nodiscard]] inline double mean_absolute_error(std::span<const float> values,
                                                std::span<const float> expected) {
  detail::require_same_size(values, expected);
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += std::fabs(static_cast<double>(values[i]) - static_cast<double>(expected[i]));
  }
  return sum / static_cast<double>(values.size());
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_METRICS_HPP
