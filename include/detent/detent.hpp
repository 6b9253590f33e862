// SPDX-License-Identifier: BSD-3-Clause
// What most callers of detent need, in one include: quantize, dequantize, requantize and
// fake-quantize; products and convolutions with packed weights; observers of ranges; threads and
// targets.
//
// Everything else has a header of its own, which is not included here because it takes time to
// compile: observers that search for the best scale (observers/histogram_observers.hpp,
// isotone.hpp, ...), solvers (solvers/...), other tools' observers (observers/tools/...) and
// observers by name (observer_registry.hpp), rules and arithmetic of other engines
// (scale_rules.hpp, bias.hpp, rounding.hpp, fixed_point.hpp, power_of_two.hpp,
// quantized_elementwise.hpp), register-level templates (batch.hpp, simd.hpp). <detent/all.hpp> has
// all of these. The graph part is <detent/graph/...>.
#ifndef DETENT_DETENT_HPP
#define DETENT_DETENT_HPP

#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/dispatch.hpp>
#include <detent/dynamic_convolution.hpp>
#include <detent/dynamic_linear.hpp>
#include <detent/dynamic_quantize.hpp>
#include <detent/error.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/float_formats.hpp>
#include <detent/gemm.hpp>
#include <detent/gemm_batch.hpp>
#include <detent/int4_weights.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/moving_average.hpp>
#include <detent/observers/percentile.hpp>
#include <detent/pack.hpp>
#include <detent/packed_filters.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/sub_byte.hpp>
#include <detent/target.hpp>
#include <detent/types.hpp>
#include <detent/version.hpp>

#endif  // DETENT_DETENT_HPP
