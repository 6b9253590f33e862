// SPDX-License-Identifier: BSD-3-Clause
// The interface of NNCF's post-training quantization, in full.
#ifndef DETENT_GRAPH_NNCF_NNCF_HPP
#define DETENT_GRAPH_NNCF_NNCF_HPP

#include <detent/graph/nncf/dataset.hpp>                         // IWYU pragma: export
#include <detent/graph/nncf/quantize.hpp>                        // IWYU pragma: export
#include <detent/graph/nncf/quantize_with_accuracy_control.hpp>  // IWYU pragma: export
#include <detent/graph/nncf/range_estimator.hpp>                 // IWYU pragma: export

#endif  // DETENT_GRAPH_NNCF_NNCF_HPP
