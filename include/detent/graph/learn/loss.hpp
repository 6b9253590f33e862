// SPDX-License-Identifier: BSD-3-Clause
// Losses of training with their gradients, and the number of correct predictions.
//
// Logits have shape [..., classes]: the last axis counts classes, all axes before it count rows.
// Everything is computed in double and in the order of the elements, with the same bits everywhere.
// All functions are thread-safe.
#ifndef DETENT_GRAPH_LEARN_LOSS_HPP
#define DETENT_GRAPH_LEARN_LOSS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A loss and its gradient.
struct loss_result {
  double value = 0.0;            ///< The loss.
  std::vector<double> gradient;  ///< Its derivative by each element of the output, in their order.
};

/// Options of cross_entropy().
struct cross_entropy_options {
  double label_smoothing = 0.0;  ///< Weight of the uniform distribution in the target, in [0, 1].
  std::optional<std::int64_t> ignored_label = std::nullopt;  ///< Rows with this label do not count.
};

namespace detail {

/// A float32 tensor as a matrix: its last axis counts columns. Throws invalid_argument for another
/// type, rank 0, and if there are no elements.
class loss_rows {
 public:
  loss_rows(const tensor& t, const char* where) {
    require(t.type() == element_type::f32, error_kind::invalid_argument, where, ": ",
            shown(t.type()), " values, not float32");
    require(t.rank() > 0 && t.count() > 0 && t.has_data(), error_kind::invalid_argument, where,
            ": no classes or rows in shape ", shown(t.dims()));
    values_ = t.data<float>();
    columns_ = static_cast<std::size_t>(t.dims().back());
    rows_ = t.count() / columns_;
  }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::span<const float> operator[](std::size_t row) const {
    return values_.subspan(row * columns_, columns_);
  }

 private:
  std::span<const float> values_;
  std::size_t columns_ = 0;
  std::size_t rows_ = 0;
};

inline void require_labels(const loss_rows& logits, std::span<const std::int64_t> labels,
                           std::optional<std::int64_t> ignored, const char* where) {
  require(labels.size() == logits.rows(), error_kind::shape_mismatch, where, ": ", labels.size(),
          " labels for ", logits.rows(), " rows");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    require(labels[i] == ignored ||
                (labels[i] >= 0 && static_cast<std::uint64_t>(labels[i]) < logits.columns()),
            error_kind::invalid_argument, where, ": the label of row ", i, " is ", labels[i],
            ", and there are ", logits.columns(), " classes");
  }
}

/// Computes log(softmax(logits / temperature)) of a row. Throws invalid_argument, naming row and
/// class, if the largest logit is not finite or a logit is NaN.
inline void log_probabilities(const loss_rows& logits, std::size_t row, double temperature,
                              std::span<double> result, const char* where) {
  const std::span<const float> z = logits[row];
  float largest = z[0];
  for (std::size_t c = 0; c < z.size(); ++c) {
    require(!std::isnan(z[c]) && z[c] != std::numeric_limits<float>::infinity(),
            error_kind::invalid_argument, where, ": the logit of row ", row, ", class ", c, " is ",
            z[c]);
    largest = (std::max)(largest, z[c]);
  }
  require(std::isfinite(largest), error_kind::invalid_argument, where, ": all logits of row ", row,
          " are ", largest);
  double sum = 0.0;
  for (std::size_t c = 0; c < z.size(); ++c) {
    result[c] = (static_cast<double>(z[c]) - static_cast<double>(largest)) / temperature;
    sum += detent::detail::portable_exp(result[c]);
  }
  const double log_sum = detent::detail::portable_log(sum);
  for (double& x : result) {
    x -= log_sum;
  }
}

}  // namespace detail

/// The mean over rows of the cross-entropy between softmax(logits) and the labels. With p =
/// softmax(z), C classes and e = label_smoothing:
///
///     t_c       = (c == label ? 1 - e : 0) + e / C
///     loss      = -sum over c of t_c log(p_c)                         of a row
///     gradient  = (p - t) / rows
///
/// `logits` is float32 [..., classes]; `labels` has one class for each row. Rows with the ignored
/// label have no gradient and are not counted; if all are ignored, the loss is 0.
///
/// The largest logit is subtracted first, so that logits of any size are exact enough. A logit of
/// -infinity is a probability of 0: the loss is infinite if its target is not 0, and the gradient
/// is finite. Throws invalid_argument for a logit of NaN or +infinity and a row of -infinity only
/// in a row that counts, which it names; for a label that is no class, naming row, label and number
/// of classes; for label_smoothing outside of [0, 1]; and for logits that are not float32, of rank
/// 0, or empty. Throws shape_mismatch for another number of labels than rows.
///
/// Source of label smoothing: Szegedy et al., Rethinking the Inception architecture for computer
/// vision (2016).
[[nodiscard]] inline loss_result cross_entropy(const tensor& logits,
                                               std::span<const std::int64_t> labels,
                                               const cross_entropy_options& options = {}) {
  constexpr const char* where = "cross_entropy";
  const double smoothing = options.label_smoothing;
  require(smoothing >= 0.0 && smoothing <= 1.0, error_kind::invalid_argument, where,
          ": a label smoothing of ", smoothing, " is not in [0, 1]");
  const detail::loss_rows z(logits, where);
  detail::require_labels(z, labels, options.ignored_label, where);
  loss_result result;
  result.gradient.resize(logits.count());
  std::size_t counted = 0;
  double total = 0.0;
  for (std::size_t i = 0; i < z.rows(); ++i) {
    if (labels[i] == options.ignored_label) {
      continue;
    }
    ++counted;
    const auto row = std::span<double>(result.gradient).subspan(i * z.columns(), z.columns());
    detail::log_probabilities(z, i, 1.0, row, where);
    const auto label = static_cast<std::size_t>(labels[i]);
    for (std::size_t c = 0; c < z.columns(); ++c) {
      const double target =
          (c == label ? 1.0 - smoothing : 0.0) + smoothing / static_cast<double>(z.columns());
      if (target > 0.0) {
        total -= detent::detail::rounded_product(target, row[c]);
      }
      row[c] = detent::detail::portable_exp(row[c]) - target;
    }
  }
  if (counted > 0) {
    result.value = total / static_cast<double>(counted);
    for (double& g : result.gradient) {
      g /= static_cast<double>(counted);
    }
  }
  return result;
}

/// The mean of the squared differences of all n elements:
///
///     loss      = sum (output - target)^2 / n
///     gradient  = 2 (output - target) / n
///
/// Both tensors are float32 of the same shape. Throws shape_mismatch for different shapes, and
/// invalid_argument for other types, tensors without elements, and elements that are NaN or
/// infinite, with the index of the first one.
[[nodiscard]] inline loss_result mean_squared_error(const tensor& output, const tensor& target) {
  constexpr const char* where = "mean_squared_error";
  require(output.type() == element_type::f32 && target.type() == element_type::f32,
          error_kind::invalid_argument, where, ": an output of ", shown(output.type()),
          " and a target of ", shown(target.type()), ", not float32");
  require(output.dims() == target.dims(), error_kind::shape_mismatch, where,
          ": an output of shape ", shown(output.dims()), " and a target of shape ",
          shown(target.dims()));
  require(output.count() > 0, error_kind::invalid_argument, where, ": no elements in shape ",
          shown(output.dims()));
  const std::span<const float> y = output.data<float>();
  const std::span<const float> t = target.data<float>();
  loss_result result;
  result.gradient.resize(y.size());
  const auto count = static_cast<double>(y.size());
  double total = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    require(std::isfinite(y[i]) && std::isfinite(t[i]), error_kind::invalid_argument, where,
            ": element ", i, " is ", y[i], ", its target ", t[i]);
    const double difference = static_cast<double>(y[i]) - static_cast<double>(t[i]);
    total += detent::detail::rounded_product(difference, difference);
    result.gradient[i] = 2.0 * difference / count;
  }
  result.value = total / count;
  return result;
}

/// How far a student is from its teacher: the mean over rows of the Kullback-Leibler divergence
/// between their softened probabilities. With T = temperature:
///
///     q         = softmax(teacher_logits / T),  p = softmax(logits / T)
///     loss      = T^2 sum over c of q_c (log(q_c) - log(p_c))        of a row
///     gradient  = T (p - q) / rows                                   by the student's logits
///
/// The factor T^2 keeps the size of gradients the same for all temperatures. The loss is 0 if both
/// have the same bits, and otherwise at least 0 within rounding.
///
/// Both tensors are float32 [..., classes] of the same shape. A logit of -infinity is a probability
/// of 0: if only the student's is, the loss is infinite. Throws invalid_argument for logits as
/// cross_entropy() in any row, and unless the temperature is positive and finite; shape_mismatch
/// for different shapes.
///
/// Source: Hinton, Vinyals, Dean, Distilling the knowledge in a neural network (2015).
[[nodiscard]] inline loss_result distillation(const tensor& logits, const tensor& teacher_logits,
                                              double temperature) {
  constexpr const char* where = "distillation";
  require(std::isfinite(temperature) && temperature > 0.0, error_kind::invalid_argument, where,
          ": a temperature of ", temperature);
  require(logits.dims() == teacher_logits.dims(), error_kind::shape_mismatch, where,
          ": logits of shape ", shown(logits.dims()), ", and the teacher's of shape ",
          shown(teacher_logits.dims()));
  const detail::loss_rows student(logits, where);
  const detail::loss_rows teacher(teacher_logits, "distillation: teacher");
  const auto rows = static_cast<double>(student.rows());
  loss_result result;
  result.gradient.resize(logits.count());
  std::vector<double> log_q(student.columns());
  double total = 0.0;
  for (std::size_t i = 0; i < student.rows(); ++i) {
    const auto row =
        std::span<double>(result.gradient).subspan(i * student.columns(), student.columns());
    detail::log_probabilities(student, i, temperature, row, where);
    detail::log_probabilities(teacher, i, temperature, log_q, "distillation: teacher");
    for (std::size_t c = 0; c < row.size(); ++c) {
      const double q = detent::detail::portable_exp(log_q[c]);
      if (q > 0.0) {
        total += detent::detail::rounded_product(q, log_q[c] - row[c]);
      }
      row[c] = temperature * (detent::detail::portable_exp(row[c]) - q) / rows;
    }
  }
  // T^2 may be beyond double where this is not.
  result.value = detent::detail::rounded_product(temperature, temperature * (total / rows));
  return result;
}

/// The number of rows of `logits`, float32 [..., classes], whose largest element is that of their
/// label; the first one of several largest. A row with NaN is not correct, nor is one with the
/// ignored label. Throws as cross_entropy(), but for infinite logits and NaN, which may be there.
[[nodiscard]] inline std::size_t correct_predictions(
    const tensor& logits, std::span<const std::int64_t> labels,
    std::optional<std::int64_t> ignored_label = std::nullopt) {
  constexpr const char* where = "correct_predictions";
  const detail::loss_rows z(logits, where);
  detail::require_labels(z, labels, ignored_label, where);
  std::size_t correct = 0;
  for (std::size_t i = 0; i < z.rows(); ++i) {
    const std::span<const float> row = z[i];
    const bool is_number =
        std::none_of(row.begin(), row.end(), [](float x) { return std::isnan(x); });
    if (is_number && labels[i] != ignored_label) {
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      correct += best == labels[i] ? 1U : 0U;
    }
  }
  return correct;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_LOSS_HPP
