// SPDX-License-Identifier: BSD-3-Clause
// The part of <detent/graph/src.hpp> that quantizes and trains models. It needs the other part,
// execution.hpp, in the same program.
#ifndef DETENT_GRAPH_SRC_QUANTIZATION_HPP
#define DETENT_GRAPH_SRC_QUANTIZATION_HPP

#if (defined(DETENT_GRAPH_MODEL_SEPARATE_COMPILATION_HPP) || \
     defined(DETENT_OBSERVER_REGISTRY_REGISTRY_HPP)) &&      \
    !defined(DETENT_COMPILE_GRAPH_QUANTIZATION)
#error "detent: include <detent/graph/src/quantization.hpp> before any other header of detent"
#endif
#ifndef DETENT_COMPILE_GRAPH_QUANTIZATION
/// Marks the translation unit that defines the functions which quantize and train models. This
/// header defines the macro; users do not set it.
#define DETENT_COMPILE_GRAPH_QUANTIZATION
#endif
#ifndef DETENT_GRAPH_SEPARATE_COMPILATION
#define DETENT_GRAPH_SEPARATE_COMPILATION
#endif

#include <detent/graph/configuration/quantize_as_told.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/nncf/compress_weights.hpp>
#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/nncf/quantize_with_accuracy_control.hpp>
#include <detent/graph/nncf/tune_hyperparams.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/export_native.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/layer_means.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>
#include <detent/graph/quantize/recurrent_weights.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/tuning.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/observer_registry/default_observers.hpp>

#endif  // DETENT_GRAPH_SRC_QUANTIZATION_HPP
