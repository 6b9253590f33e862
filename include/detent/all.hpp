// SPDX-License-Identifier: BSD-3-Clause
// Everything of the numeric part, for tools and for the single header. <detent/detent.hpp> is
// what most callers need, and compiles in a third of the time.
#ifndef DETENT_ALL_HPP
#define DETENT_ALL_HPP

#include <detent/base/arithmetic.hpp>
#include <detent/base/rows.hpp>
#include <detent/base/uint128.hpp>
#include <detent/batch.hpp>
#include <detent/bias.hpp>
#include <detent/cache_sizes.hpp>
#include <detent/detent.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/elementwise/walk.hpp>
#include <detent/fixed_point.hpp>
#include <detent/fused_convolution.hpp>
#include <detent/fused_dynamic_linear.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/fused_gemm.hpp>
#include <detent/maxima.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/constant.hpp>
#include <detent/observers/elements.hpp>
#include <detent/observers/histogram_observers.hpp>
#include <detent/observers/isotone.hpp>
#include <detent/observers/observer.hpp>
#include <detent/observers/pattern_histogram.hpp>
#include <detent/observers/sample_range.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/inc.hpp>
#include <detent/observers/tools/linear_histogram.hpp>
#include <detent/observers/tools/nncf.hpp>
#include <detent/observers/tools/numpy_arithmetic.hpp>
#include <detent/observers/tools/ort.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/ppq.hpp>
#include <detent/observers/tools/torch.hpp>
#include <detent/power_of_two.hpp>
#include <detent/prepared_product.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/quantized_transform.hpp>
#include <detent/rounding.hpp>
#include <detent/row_ranges.hpp>
#include <detent/scale_rules.hpp>
#include <detent/simd.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/solvers/adaround.hpp>
#include <detent/solvers/awq.hpp>
#include <detent/solvers/cholesky.hpp>
#include <detent/solvers/coordinate_descent.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/fixed_power.hpp>
#include <detent/solvers/gptq.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/kl.hpp>
#include <detent/solvers/lp_norm.hpp>
#include <detent/solvers/lp_search.hpp>
#include <detent/solvers/momentum_descent.hpp>
#include <detent/solvers/parts.hpp>
#include <detent/solvers/powers.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/solvers/smooth_quant.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/weights/weight_pairs.hpp>
#include <detent/winograd.hpp>

#if DETENT_WITH_EIGEN
#include <detent/solvers/eigen_views.hpp>
#endif

#endif  // DETENT_ALL_HPP
