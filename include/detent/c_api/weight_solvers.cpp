// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on Gram matrices and codes of weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/checked_size.hpp>
#include <detent/c_api_weights.h>
#include <detent/config.hpp>
#include <detent/solvers/adaround.hpp>
#include <detent/solvers/awq.hpp>
#include <detent/solvers/coordinate_descent.hpp>
#include <detent/solvers/gptq.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/solvers/smooth_quant.hpp>

#include "calls.hpp"
#include "schemes.hpp"

struct detent_gram_observer {
  detent::gram_observer value;
  bool is_partial = false;
};

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

/// What is known of the inputs; without any of it, all inputs are of importance 1.
detent::gram_matrix gram_of(const detent_weight_quantization& o, std::size_t columns,
                            const char* where) {
  require(o.gram == nullptr || o.importance == nullptr, error_kind::invalid_argument, where,
          ": both a Gram matrix and its diagonal");
  if (o.gram != nullptr) {
    return detent::gram_matrix::from_matrix({o.gram, columns, columns});
  }
  return detent::gram_matrix::from_diagonal(
      o.importance != nullptr ? std::vector<double>(o.importance, o.importance + columns)
                              : std::vector<double>(columns, 1.0));
}

detent::quantized_weights solve_gptq(matrix_view<const float> w, const detent::gram_matrix& g,
                                     const detent::weight_format& format,
                                     const detent_weight_quantization& o,
                                     const detent::parallel_for& threads) {
  detent::gptq_options own;
  own.damping = o.damping;
  own.activation_order = o.activation_order != 0;
  own.static_groups = o.static_groups != 0;
  return detent::gptq(w, g, format, own, threads);
}

/// Codes by the algorithm of the options. For AWQ, `input_scales` receives the divisors of the
/// inputs; for others it stays empty.
detent::quantized_weights solve(matrix_view<const float> w, const detent_weight_quantization& o,
                                std::vector<float>& input_scales, const char* where) {
  detent::weight_format format{scheme_of(o.scheme, where), o.group_size, {}, {}};
  const std::size_t count =
      detent::detail::checked_size(where, {w.rows, detent_weight_groups(w.columns, o.group_size)});
  format.scales = optional_span(o.scales, count);
  format.zero_points = optional_span(o.zero_points, count);
  const detent::parallel_for threads = parallel_of(o.parallel);
  const auto limit = [&](std::size_t own) { return o.iterations == 0 ? own : o.iterations; };
  if (o.algorithm == DETENT_WEIGHTS_HQQ) {
    detent::hqq_options own;
    own.norm = o.norm;
    own.iterations = limit(own.iterations);
    return detent::hqq(w, format, own, threads);
  }
  const detent::gram_matrix g = gram_of(o, w.columns, where);
  switch (o.algorithm) {
    case DETENT_WEIGHTS_NEAREST:
      return detent::round_to_nearest(w, g, format, threads);
    case DETENT_WEIGHTS_COORDINATE_DESCENT: {
      detent::coordinate_descent_options own;
      own.max_iterations = limit(own.max_iterations);
      return detent::coordinate_descent(w, g, format, own, threads);
    }
    case DETENT_WEIGHTS_GPTQ:
      return solve_gptq(w, g, format, o, threads);
    case DETENT_WEIGHTS_ADAROUND: {
      detent::adaround_options own;
      own.iterations = limit(own.iterations);
      own.learning_rate = o.learning_rate;
      own.regularization = o.regularization;
      return detent::adaround(w, g, format, own, threads);
    }
    case DETENT_WEIGHTS_AWQ: {
      detent::awq_options own;
      own.activation_magnitudes = optional_span(o.magnitudes, w.columns);
      own.grid_points = o.grid_points;
      own.smallest_clip = o.smallest_clip;
      detent::awq_weights found = detent::awq(w, g, format, own, threads);
      input_scales = std::move(found.input_scales);
      return std::move(found.weights);
    }
    default:
      detent::raise(
          error_kind::invalid_argument,
          detent::detail::message("detent: ", where, ": algorithm ", static_cast<int>(o.algorithm),
                                  " is no detent_weight_algorithm"));
  }
}

}  // namespace

extern "C" {

detent_status detent_gram_observer_create(size_t features, detent_gram_observer** observer) {
  return guarded([&] {
    detent_gram_observer*& result = checked(observer, "detent_gram_observer_create", "result");
    result = new detent_gram_observer{detent::gram_observer(features)};
  });
}

void detent_gram_observer_free(detent_gram_observer* observer) { delete observer; }

detent_status detent_gram_observer_observe(detent_gram_observer* observer, detent_type type,
                                           const void* x, size_t rows, size_t stride,
                                           int32_t zero_point, const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_gram_observer_observe";
    detent_gram_observer& handle = whole(observer, where, "observer");
    detent::gram_observer& o = handle.value;
    const detent::parallel_for threads = parallel_of(parallel);
    const auto view = [&]<class T>() {
      return rows_of(static_cast<const T*>(x), rows, o.features(), stride, where);
    };
    switch (type) {
      case DETENT_F32:
        require(zero_point == 0, error_kind::invalid_argument, where, ": a zero point of ",
                zero_point, " for floats");
        return observe_batch(handle,
                             [&] { o.observe(view.template operator()<float>(), threads); });
      case DETENT_U8:
        return observe_batch(handle, [&] {
          o.observe(view.template operator()<std::uint8_t>(), zero_point, threads);
        });
      case DETENT_S8:
        return observe_batch(handle, [&] {
          o.observe(view.template operator()<std::int8_t>(), zero_point, threads);
        });
      default:
        raise_type(type, where, "DETENT_F32, DETENT_U8 or DETENT_S8");
    }
  });
}

detent_status detent_gram_observer_merge(detent_gram_observer* observer,
                                         const detent_gram_observer* other) {
  return guarded([&] {
    constexpr const char* where = "detent_gram_observer_merge";
    detent::gram_observer& to = whole(observer, where, "observer").value;
    // Merged into a copy, so that a failure half way leaves no trace.
    detent::gram_observer next = to;
    next.merge(whole(other, where, "other observer").value);
    to = std::move(next);
  });
}

size_t detent_gram_observer_features(const detent_gram_observer* observer) {
  return observer == nullptr ? 0 : observer->value.features();
}
uint64_t detent_gram_observer_count(const detent_gram_observer* observer) {
  return observer == nullptr ? 0 : observer->value.count();
}

detent_status detent_gram_observer_finalize(const detent_gram_observer* observer, double* gram,
                                            float* magnitudes) {
  return guarded([&] {
    const detent::gram_observer& o =
        whole(observer, "detent_gram_observer_finalize", "observer").value;
    const std::vector<float> means = o.mean_magnitudes();
    if (gram != nullptr) {
      const detent::gram_matrix g = o.finalize();
      for (std::size_t i = 0; i < g.size(); ++i) {
        for (std::size_t j = 0; j < g.size(); ++j) {
          gram[i * g.size() + j] = g(i, j);
        }
      }
    }
    if (magnitudes != nullptr) {
      std::copy(means.begin(), means.end(), magnitudes);
    }
  });
}

detent_status detent_gram_observer_save(const detent_gram_observer* observer, void* buffer,
                                        size_t capacity, size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_gram_observer_save";
    const detent::gram_observer& o = whole(observer, where, "observer").value;
    checked(needed, where, "needed");
    hand_out(o.save(), buffer, capacity, needed, where);
  });
}

detent_status detent_gram_observer_load(const void* bytes, size_t size,
                                        detent_gram_observer** observer) {
  return guarded([&] {
    constexpr const char* where = "detent_gram_observer_load";
    detent_gram_observer*& result = checked(observer, where, "result");
    result = new detent_gram_observer{detent::gram_observer::load(bytes_of(bytes, size, where))};
  });
}

void detent_weight_quantization_init(detent_weight_quantization* options) {
  const detent::adaround_options adaround;
  const detent::awq_options awq;
  *options = {};
  options->size = sizeof *options;
  options->algorithm = DETENT_WEIGHTS_NEAREST;
  options->scheme = {-127, 127, 1};
  options->damping = 0.01;
  options->learning_rate = adaround.learning_rate;
  options->regularization = adaround.regularization;
  options->grid_points = awq.grid_points;
  options->smallest_clip = awq.smallest_clip;
  options->norm = detent::hqq_options().norm;
}

void detent_weight_evidence_init(detent_weight_evidence* evidence) {
  *evidence = {};
  evidence->size = sizeof *evidence;
}

size_t detent_weight_groups(size_t columns, size_t group_size) {
  return group_size == 0 || group_size >= columns ? 1 : (columns - 1) / group_size + 1;
}

detent_status detent_quantize_weights(const float* w, size_t rows, size_t columns, size_t stride,
                                      const detent_weight_quantization* options, int8_t* codes,
                                      float* scales, int32_t* zero_points, float* input_scales,
                                      detent_weight_evidence* evidence) {
  return guarded([&] {
    constexpr const char* where = "detent_quantize_weights";
    const detent_weight_quantization o =
        known_fields(options, &detent_weight_quantization_init, where);
    require(rows == 0 || (codes != nullptr && scales != nullptr && zero_points != nullptr),
            error_kind::invalid_argument, where, ": null codes, scales or zero points");
    require(o.algorithm != DETENT_WEIGHTS_AWQ || input_scales != nullptr,
            error_kind::invalid_argument, where, ": AWQ needs input_scales, which are null");
    detent::detail::checked_size(where, {rows, columns});
    require(rows == 0 || w != nullptr, error_kind::invalid_argument, where, ": null weights");
    std::vector<float> divisors;
    const detent::quantized_weights q =
        solve(rows_of(w, rows, columns, stride, where), o, divisors, where);
    if (evidence != nullptr) {
      const detent::solver_evidence& e = q.evidence;
      write_known_fields(evidence,
                         {0, e.objective, e.nearest_objective, e.iterations, e.converged ? 1 : 0,
                          e.kept_nearest, e.damping},
                         where);
    }
    std::copy(q.codes.begin(), q.codes.end(), codes);
    std::copy(q.params.scales.begin(), q.params.scales.end(), scales);
    std::copy(q.params.zero_points.begin(), q.params.zero_points.end(), zero_points);
    if (input_scales != nullptr && divisors.empty()) {
      std::fill_n(input_scales, columns, 1.0F);
    }
    std::copy(divisors.begin(), divisors.end(), input_scales);
  });
}

detent_status detent_smooth_quant_scales(const float* magnitudes, const float* w, size_t rows,
                                         size_t columns, size_t stride, float alpha,
                                         float* scales) {
  return guarded([&] {
    constexpr const char* where = "detent_smooth_quant_scales";
    require(columns == 0 || (magnitudes != nullptr && scales != nullptr),
            error_kind::invalid_argument, where, ": null magnitudes or scales");
    detent::smooth_quant_options o;
    o.alpha = alpha;
    const std::vector<float> found = detent::smooth_quant_scales(
        std::span(magnitudes, columns), rows_of(w, rows, columns, stride, where), o);
    std::copy(found.begin(), found.end(), scales);
  });
}

}  // extern "C"
