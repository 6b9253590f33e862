// SPDX-License-Identifier: BSD-3-Clause
// Reads files that hold one ONNX TensorProto, as ONNX's test data does. Needs protozero.
#ifndef DETENT_GRAPH_MODEL_ONNX_TENSOR_HPP
#define DETENT_GRAPH_MODEL_ONNX_TENSOR_HPP

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>

#include <protozero/data_view.hpp>
#include <protozero/exception.hpp>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/onnx_tensor_reader.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Returns body(), which reads the messages of protocol buffers. Exceptions of protozero, and sizes
/// beyond the memory there is, become bad_file.
template <class Body>
auto of_damaged_bytes(const Body& body) {
  try {
    return body();
  } catch (const protozero::exception& e) {
    raise(error_kind::bad_file,
          "detent: no ONNX file, or damaged or truncated (" + std::string(e.what()) + ")");
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

/// Reads a file that holds one TensorProto. External data is read only below the folder of the
/// file.
///
/// Throws detent::error whose message begins with the path: io if a file cannot be read; bad_file
/// if it is damaged, contradicts itself, exceeds `limits`, or needs more memory than there is;
/// unsupported for element types that tensors cannot hold.
[[nodiscard]] inline tensor read_onnx_tensor(const std::filesystem::path& path,
                                             const read_limits& limits = {}) {
  return with_file_name(path, [&] {
    const std::string bytes = read_file(path);
    std::string name;
    std::string unread;
    return detail::onnx_tensor_reader(path.parent_path(), limits)
        .read(protozero::data_view(bytes.data(), bytes.size()), name, unread);
  });
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_TENSOR_HPP
