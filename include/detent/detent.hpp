// SPDX-License-Identifier: BSD-3-Clause
// detent: INT8 numerics. Everything of the numerics floor; the graph floor is <detent/graph/...>.
#ifndef DETENT_DETENT_HPP
#define DETENT_DETENT_HPP

#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/simd.hpp>
#include <detent/target.hpp>
#include <detent/types.hpp>
#include <detent/version.hpp>

#endif  // DETENT_DETENT_HPP
