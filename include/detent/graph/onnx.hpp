// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes ONNX models. The headers that need protozero are this one, those that it
// includes from graph/model/onnx_*.hpp, and graph/model/samples.hpp, whose samples may be tensors
// of ONNX.
#ifndef DETENT_GRAPH_ONNX_HPP
#define DETENT_GRAPH_ONNX_HPP

#include <filesystem>
#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_reader.hpp>
#include <detent/graph/model/onnx_tensor.hpp>
#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Parses the bytes of a model (an ONNX ModelProto), sorts its nodes, and checks that its names fit
/// together (sort_and_check()) and that its nodes have the inputs and outputs that their operators
/// in `registry` require (require_arity()). `folder` is the folder below which its external data is
/// looked for.
///
/// Throws detent::error: bad_file for what is damaged or truncated, contradicts itself, is not a
/// model, exceeds `limits`, or needs more memory than there is; unsupported for what is valid but
/// not supported here (element types, sparse initializers, function overloads); io for external
/// data that cannot be read.
[[nodiscard]] inline model parse_onnx(std::string_view bytes, const std::filesystem::path& folder,
                                      const read_limits& limits = {},
                                      const operator_registry& registry = default_operators()) {
  return detail::of_damaged_bytes([&] {
    model m = detail::onnx_reader(folder, limits).read_model(bytes);
    sort_and_check(m);
    require_arity(m, registry);
    return m;
  });
}

/// Reads a model and its external data as parse_onnx() does. Inputs that are also initializers
/// become constants only, in sub-graphs too. Elements of 4 bits are unpacked to one byte each.
///
/// Fields that the library does not interpret, such as descriptions, metadata and denotations, are
/// kept where they stand and are written back by to_onnx() and write_onnx(): those of the model, of
/// graphs, nodes, attributes, declared values and initializers (unread_fields). Not kept are
/// training_info of the model, quantization_annotation of graphs and device_configurations of
/// nodes, which refer to values that rewrites may remove or rename, and the name and description of
/// a tensor that is an attribute.
///
/// Throws detent::error whose message begins with the path: io if a file cannot be read; bad_file
/// if it is damaged, contradicts itself, is not an ONNX model, exceeds `limits`, or needs more
/// memory than there is;
/// unsupported for element types that tensors cannot hold, sparse initializers, function overloads,
/// and functions of the model that replace operators of ONNX.
[[nodiscard]] inline model read_onnx(const std::filesystem::path& path,
                                     const read_limits& limits = {},
                                     const operator_registry& registry = default_operators()) {
  return with_file_name(path, [&] {
    const std::string bytes = read_file(path);
    return parse_onnx(bytes, path.parent_path(), limits, registry);
  });
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_ONNX_HPP
