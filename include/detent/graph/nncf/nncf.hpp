// SPDX-License-Identifier: BSD-3-Clause
// The main header of graph/nncf/: post-training quantization of a float model with the interface
// and the numbers of NNCF (nncf.quantize, nncf.quantize_with_accuracy_control and
// nncf.compress_weights), for those who have to reproduce models that NNCF made. Its headers may
// include each other, the folders model/, run/, rewrite/ and quantize/ of the graph part, and the
// core of the library; nothing includes graph/ppq/, and no header below includes this folder.
#ifndef DETENT_GRAPH_NNCF_NNCF_HPP
#define DETENT_GRAPH_NNCF_NNCF_HPP

#include <detent/graph/nncf/compress_weights.hpp>                // IWYU pragma: export
#include <detent/graph/nncf/compress_weights_options.hpp>        // IWYU pragma: export
#include <detent/graph/nncf/dataset.hpp>                         // IWYU pragma: export
#include <detent/graph/nncf/placement.hpp>                       // IWYU pragma: export
#include <detent/graph/nncf/quantize.hpp>                        // IWYU pragma: export
#include <detent/graph/nncf/quantize_options.hpp>                // IWYU pragma: export
#include <detent/graph/nncf/quantize_with_accuracy_control.hpp>  // IWYU pragma: export
#include <detent/graph/nncf/range_estimator.hpp>                 // IWYU pragma: export
#include <detent/graph/nncf/statistics.hpp>                      // IWYU pragma: export
#include <detent/graph/nncf/tune_hyperparams.hpp>                // IWYU pragma: export

#endif  // DETENT_GRAPH_NNCF_NNCF_HPP
