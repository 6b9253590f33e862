// SPDX-License-Identifier: BSD-3-Clause
// detent: INT8 numerics. Everything of the numerics floor; the graph floor is <detent/graph/...>.
#ifndef DETENT_DETENT_HPP
#define DETENT_DETENT_HPP

#include <detent/arithmetic.hpp>
#include <detent/batch.hpp>
#include <detent/bias.hpp>
#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/dispatch.hpp>
#include <detent/dynamic_convolution.hpp>
#include <detent/dynamic_linear.hpp>
#include <detent/dynamic_quantize.hpp>
#include <detent/elementwise.hpp>
#include <detent/error.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/fixed_point.hpp>
#include <detent/float_formats.hpp>
#include <detent/gemm.hpp>
#include <detent/gemm_batch.hpp>
#include <detent/int4_weights.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/constant.hpp>
#include <detent/observers/histogram.hpp>
#include <detent/observers/histogram_observers.hpp>
#include <detent/observers/isotone.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/moving_average.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/pattern_histogram.hpp>
#include <detent/observers/percentile.hpp>
#include <detent/observers/registry.hpp>
#include <detent/observers/sample_range.hpp>
#include <detent/observers/value_bins.hpp>
#include <detent/operands.hpp>
#include <detent/pack.hpp>
#include <detent/packed.hpp>
#include <detent/parallel.hpp>
#include <detent/power_of_two.hpp>
#include <detent/quantize.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/reference.hpp>
#include <detent/rounding.hpp>
#include <detent/rows.hpp>
#include <detent/scale_rules.hpp>
#include <detent/simd.hpp>
#include <detent/solvers/adaround.hpp>
#include <detent/solvers/awq.hpp>
#include <detent/solvers/coordinate_descent.hpp>
#include <detent/solvers/distribution.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/kl.hpp>
#include <detent/solvers/parts.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/solvers/smooth_quant.hpp>
#include <detent/target.hpp>
#include <detent/types.hpp>
#include <detent/uint128.hpp>
#include <detent/version.hpp>
#include <detent/weight_pairs.hpp>

#if DETENT_WITH_EIGEN
#include <detent/solvers/eigen_views.hpp>
#include <detent/solvers/gptq.hpp>
#endif

#endif  // DETENT_DETENT_HPP
