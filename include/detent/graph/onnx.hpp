// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes ONNX models: this header includes the reader and the writer. They and
// graph/model/onnx_fields.hpp are the only headers of the library that need protozero.
#ifndef DETENT_GRAPH_ONNX_HPP
#define DETENT_GRAPH_ONNX_HPP

#include <detent/graph/model/onnx_reader.hpp>
#include <detent/graph/model/onnx_writer.hpp>

#endif  // DETENT_GRAPH_ONNX_HPP
