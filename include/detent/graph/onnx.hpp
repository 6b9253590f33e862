// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes ONNX models. This header, the reader and the writer that it includes, and
// graph/model/onnx_fields.hpp are the only headers of the library that need protozero.
#ifndef DETENT_GRAPH_ONNX_HPP
#define DETENT_GRAPH_ONNX_HPP

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include <protozero/data_view.hpp>
#include <protozero/exception.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/onnx_reader.hpp>
#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Returns body(). Exceptions of protozero, and sizes beyond the memory there is, become bad_file.
template <class Body>
auto of_damaged_bytes(const Body& body) {
  try {
    return body();
  } catch (const protozero::exception& e) {
    raise(error_kind::bad_file, "detent: damaged or truncated (" + std::string(e.what()) + ")");
  } catch (const std::bad_alloc&) {
    raise(error_kind::bad_file, "detent: needs more memory than there is");
  } catch (const std::length_error&) {
    raise(error_kind::bad_file, "detent: needs more memory than there is");
  }
}

}  // namespace detail

/// Returns body(). Every failure becomes a detent::error whose message begins with the path:
/// exceptions of protozero, and sizes beyond the memory there is, become bad_file.
template <class Body>
auto with_file_name(const std::filesystem::path& path, const Body& body) {
  try {
    return detail::of_damaged_bytes(body);
  } catch (const error& e) {
    raise(e.kind(), path.string() + ": " + detail::message_of(e));
  }
}

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
/// become constants only. Elements of 4 bits are unpacked to one byte each.
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

/// Reads a file that holds one TensorProto, as ONNX's test data does. Throws as read_onnx().
[[nodiscard]] inline tensor read_onnx_tensor(const std::filesystem::path& path,
                                             const read_limits& limits = {}) {
  return with_file_name(path, [&] {
    const std::string bytes = read_file(path);
    std::string name;
    return detail::onnx_reader(path.parent_path(), limits)
        .read_tensor(protozero::data_view(bytes.data(), bytes.size()), name);
  });
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_ONNX_HPP
