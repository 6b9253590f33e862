// SPDX-License-Identifier: BSD-3-Clause
// Adds nodes and constants with unused names to a model. The passes that write quantized models
// build on this.
#ifndef DETENT_GRAPH_MODEL_GRAPH_WRITER_HPP
#define DETENT_GRAPH_MODEL_GRAPH_WRITER_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/version.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The shape of `count` scales or zero points: [] for one, [count] for more.
[[nodiscard]] inline shape parameter_shape(std::size_t count) {
  return count == 1 ? shape{} : shape{static_cast<std::int64_t>(count)};
}

/// An axis of a tensor of that rank as nodes name it: the last one is -1.
[[nodiscard]] inline std::int64_t axis_or_last(std::size_t axis, std::size_t rank) {
  return axis + 1 == rank ? -1 : static_cast<std::int64_t>(axis);
}

/// A node of ONNX's own domain with one output.
[[nodiscard]] inline node make_node(const char* op, std::string name,
                                    std::vector<std::string> inputs, std::string output) {
  node n;
  n.op_type = op;
  n.name = std::move(name);
  n.inputs = std::move(inputs);
  n.outputs = {std::move(output)};
  return n;
}

/// Names this library and its version as the producer of the model.
inline void set_producer(model& m) {
  m.producer_name = "detent";
  m.producer_version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                       std::to_string(DETENT_VERSION_MINOR) + "." +
                       std::to_string(DETENT_VERSION_PATCH);
}

/// Finds names that are not used in a model, and adds constants under such names. The model must
/// outlive the writer. Names that others add to the model after construction are not known to it.
class graph_writer {
 public:
  explicit graph_writer(model& m) : m_(m), names_(m) {
    for (const node& n : m.nodes) {
      node_names_.reserve(n.name);
    }
  }

  /// A name that no value of the model has: `wish`, or `wish` followed by _2, _3, ... The name is
  /// reserved from then on.
  std::string fresh(const std::string& wish) { return names_.take(wish); }

  /// A node of ONNX's own domain with one output, under a name that no other node has. The caller
  /// adds it to the model.
  node make_node(const char* op, const std::string& name, std::vector<std::string> inputs,
                 std::string output) {
    return detail::make_node(op, node_names_.take(name), std::move(inputs), std::move(output));
  }

  /// Adds a constant to the model and returns its name, which is made from `wish` by fresh().
  std::string add_initializer(const std::string& wish, tensor t) {
    const std::string name = fresh(wish);
    m_.initializers[name] = std::move(t);
    return name;
  }
  /// Adds a constant of these values to the model and returns its name. Throws as tensor::of().
  template <class T>
  std::string add_values(const std::string& wish, element_type type, shape dims,
                         const std::vector<T>& values) {
    return add_initializer(wish, tensor::of<T>(type, std::move(dims), std::span<const T>(values)));
  }

 private:
  model& m_;
  unused_names names_;
  unused_names node_names_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_GRAPH_WRITER_HPP
