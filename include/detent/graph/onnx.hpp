// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes ONNX models. These two headers and their fields are the only ones that need
// protozero.
#ifndef DETENT_GRAPH_ONNX_HPP
#define DETENT_GRAPH_ONNX_HPP

#include <detent/graph/model/onnx_reader.hpp>
#include <detent/graph/model/onnx_writer.hpp>

#endif  // DETENT_GRAPH_ONNX_HPP
