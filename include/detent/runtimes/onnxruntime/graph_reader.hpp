// SPDX-License-Identifier: BSD-3-Clause
// Turns a graph of ONNX Runtime into a model of the graph part, through ONNX Runtime's C
// interface.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_GRAPH_READER_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_GRAPH_READER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/runtimes/onnxruntime/api.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// How a model gets the elements of the constants of a graph.
enum class constants : std::uint8_t {
  borrowed,  ///< They stay where ONNX Runtime has them: the model must not outlive the call.
  copied,    ///< The model has elements of its own.
};

/// The type of elements that ONNX Runtime calls `type`; both number the types as ONNX does.
[[nodiscard]] inline graph::element_type element_type_of(ONNXTensorElementDataType type) noexcept {
  return static_cast<graph::element_type>(type);
}

/// Type and shape of a tensor, which may have open dimensions (-1).
struct tensor_form {
  graph::element_type type = graph::element_type::undefined;  ///< The type of its elements.
  graph::shape dims;                                          ///< Its shape.
};

/// Reads type and shape from `info`, which the caller keeps.
[[nodiscard]] inline tensor_form form_of(const api& a, const OrtTensorTypeAndShapeInfo* info) {
  tensor_form form;
  form.type =
      element_type_of(get<ONNXTensorElementDataType>(a, a.core->GetTensorElementType, info));
  form.dims.resize(get<std::size_t>(a, a.core->GetDimensionsCount, info));
  a.check(a.core->GetDimensions(info, form.dims.data(), form.dims.size()));
  return form;
}

/// Type and shape of a value that holds a tensor.
[[nodiscard]] inline tensor_form form_of(const api& a, const OrtValue* value) {
  const owned<OrtTensorTypeAndShapeInfo> info(
      get<OrtTensorTypeAndShapeInfo*>(a, a.core->GetTensorTypeAndShape, value),
      a.core->ReleaseTensorTypeAndShapeInfo);
  return form_of(a, info.get());
}

/// A tensor over the elements of `value`, which it does not own. Types whose elements the graph
/// part holds in another way than ONNX Runtime (strings, 4-bit integers) have none.
[[nodiscard]] inline graph::tensor borrowed_tensor(const api& a, const OrtValue* value) {
  tensor_form form = form_of(a, value);
  graph::tensor t(form.type, std::move(form.dims));
  if (form.type == graph::element_type::u4 || form.type == graph::element_type::s4 ||
      graph::element_size(form.type) == 0) {
    return t;
  }
  // GetTensorData(), which takes a constant value, came with version 1.23. The graph part never
  // writes to inputs and constants.
  void* const elements = get<void*>(a, a.core->GetTensorMutableData, const_cast<OrtValue*>(value));
  static std::byte none{};
  std::byte* const first = elements == nullptr ? &none : static_cast<std::byte*>(elements);
  t.set_storage(std::shared_ptr<std::byte>(std::shared_ptr<void>(), first));
  return t;
}

/// A tensor with a copy of the elements of `value`, if borrowed_tensor() has any.
[[nodiscard]] inline graph::tensor copied_tensor(const api& a, const OrtValue* value) {
  graph::tensor t = borrowed_tensor(a, value);
  if (!t.has_data()) {
    return t;
  }
  graph::tensor own = graph::tensor::allocate(t.type(), t.dims());
  if (t.bytes() > 0) {
    std::memcpy(own.mutable_raw(), t.raw(), t.bytes());
  }
  return own;
}

/// ONNX's own domain has two names.
[[nodiscard]] inline std::string domain_of(std::string_view name) {
  return name == "ai.onnx" ? std::string() : std::string(name);
}

/// Reads one graph; read() may be called once.
class graph_reader {
 public:
  graph_reader(const api& a, const OrtGraph* graph, constants how)
      : api_(a), graph_(graph), how_(how) {}

  [[nodiscard]] graph::model read() {
    model_.graph_name = get<const char*>(api_, api_.core->Graph_GetName, graph_);
    model_.ir_version = get<std::int64_t>(api_, api_.core->Graph_GetOnnxIRVersion, graph_);
    read_operator_sets();
    for (const OrtValueInfo* v : list<const OrtValueInfo*>(api_, api_.core->Graph_GetNumInputs,
                                                           api_.core->Graph_GetInputs, graph_)) {
      use(v);
    }
    for (const OrtNode* n : list<const OrtNode*>(api_, api_.core->Graph_GetNumNodes,
                                                 api_.core->Graph_GetNodes, graph_)) {
      read_node(n);
    }
    for (const OrtValueInfo* v : list<const OrtValueInfo*>(api_, api_.core->Graph_GetNumOutputs,
                                                           api_.core->Graph_GetOutputs, graph_)) {
      model_.outputs.push_back(declaration(v));
    }
    return std::move(model_);
  }

 private:
  void read_operator_sets() {
    const auto count = get<std::size_t>(api_, api_.core->Graph_GetNumOperatorSets, graph_);
    std::vector<const char*> domains(count);
    std::vector<std::int64_t> versions(count);
    api_.check(api_.core->Graph_GetOperatorSets(graph_, domains.data(), versions.data(), count));
    for (std::size_t i = 0; i < count; ++i) {
      model_.opsets[domain_of(domains[i])] = versions[i];
    }
  }

  [[nodiscard]] std::string name_of(const OrtValueInfo* v) const {
    return v == nullptr ? std::string() : get<const char*>(api_, api_.core->GetValueInfoName, v);
  }

  [[nodiscard]] graph::value_info declaration(const OrtValueInfo* v) const {
    graph::value_info declared;
    declared.name = name_of(v);
    const auto* const type = get<const OrtTypeInfo*>(api_, api_.core->GetValueInfoTypeInfo, v);
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    if (type != nullptr) {
      tensor =
          get<const OrtTensorTypeAndShapeInfo*>(api_, api_.core->CastTypeInfoToTensorInfo, type);
    }
    if (tensor != nullptr) {
      tensor_form form = form_of(api_, tensor);
      declared.type = form.type;
      // An unknown shape and that of a scalar look the same.
      declared.dims = std::move(form.dims);
      declared.has_shape = !declared.dims.empty();
    }
    return declared;
  }

  /// Adds a value that no node of the graph makes, if it is new: a constant or an input.
  void use(const OrtValueInfo* v) {
    std::string name = name_of(v);
    if (name.empty() || !known_.insert(name).second) {
      return;
    }
    if (get<bool>(api_, api_.core->ValueInfo_IsConstantInitializer, v)) {
      const auto* const value =
          get<const OrtValue*>(api_, api_.core->ValueInfo_GetInitializerValue, v);
      model_.initializers.emplace(std::move(name), tensor_of(value));
      return;
    }
    model_.inputs.push_back(declaration(v));
  }

  [[nodiscard]] graph::tensor tensor_of(const OrtValue* value) const {
    return how_ == constants::borrowed ? borrowed_tensor(api_, value) : copied_tensor(api_, value);
  }

  void read_node(const OrtNode* n) {
    graph::node read;
    read.name = get<const char*>(api_, api_.core->Node_GetName, n);
    read.op_type = get<const char*>(api_, api_.core->Node_GetOperatorType, n);
    read.domain = domain_of(get<const char*>(api_, api_.core->Node_GetDomain, n));
    for (const OrtValueInfo* v : list<const OrtValueInfo*>(api_, api_.core->Node_GetNumInputs,
                                                           api_.core->Node_GetInputs, n)) {
      use(v);
      read.inputs.push_back(name_of(v));
    }
    for (const OrtValueInfo* v : list<const OrtValueInfo*>(api_, api_.core->Node_GetNumOutputs,
                                                           api_.core->Node_GetOutputs, n)) {
      read.outputs.push_back(name_of(v));
      if (!read.outputs.back().empty()) {
        known_.insert(read.outputs.back());
        model_.values.push_back(declaration(v));
      }
    }
    for (const OrtOpAttr* attribute : list<const OrtOpAttr*>(api_, api_.core->Node_GetNumAttributes,
                                                             api_.core->Node_GetAttributes, n)) {
      read.attributes.emplace(get<const char*>(api_, api_.core->OpAttr_GetName, attribute),
                              value_of(attribute));
    }
    read_captured(n, read);
    model_.nodes.push_back(std::move(read));
  }

  /// Gives the sub-graphs of a node the values that they capture, of which the runtime tells only
  /// for all of them together.
  void read_captured(const OrtNode* n, graph::node& read) {
    graph::node user;
    for (const OrtValueInfo* v : list<const OrtValueInfo*>(
             api_, api_.core->Node_GetNumImplicitInputs, api_.core->Node_GetImplicitInputs, n)) {
      use(v);
      user.inputs.push_back(name_of(v));
    }
    if (user.inputs.empty()) {
      return;
    }
    graph::graph_body body;
    body.nodes = {std::move(user)};
    for (auto& [name, a] : read.attributes) {
      if (a.kind == graph::attribute::kind_type::g) {
        a = graph::attribute::of(body);
      }
    }
  }

  /// The bytes of an attribute's value.
  [[nodiscard]] std::vector<char> bytes_of(const OrtOpAttr* attribute, OrtOpAttrType type) const {
    std::size_t size = 0;
    // Without room for the value, the call fails and says how much is needed.
    if (OrtStatus* status = api_.core->ReadOpAttr(attribute, type, nullptr, 0, &size)) {
      api_.core->ReleaseStatus(status);
    }
    std::vector<char> bytes(size);
    if (size > 0) {
      api_.check(api_.core->ReadOpAttr(attribute, type, bytes.data(), bytes.size(), &size));
    }
    return bytes;
  }

  template <class T>
  [[nodiscard]] std::vector<T> numbers_of(const OrtOpAttr* attribute, OrtOpAttrType type) const {
    const std::vector<char> bytes = bytes_of(attribute, type);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) {
      std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    }
    return values;
  }

  [[nodiscard]] graph::attribute value_of(const OrtOpAttr* attribute) const {
    using kind = graph::attribute::kind_type;
    graph::attribute value;
    const auto type = get<OrtOpAttrType>(api_, api_.core->OpAttr_GetType, attribute);
    switch (type) {
      case ORT_OP_ATTR_INT:
        value = graph::attribute::of(std::int64_t{0});
        api_.check(read_one(attribute, type, value.i));
        break;
      case ORT_OP_ATTR_FLOAT:
        value = graph::attribute::of(0.0F);
        api_.check(read_one(attribute, type, value.f));
        break;
      case ORT_OP_ATTR_INTS:
        value = graph::attribute::of(numbers_of<std::int64_t>(attribute, type));
        break;
      case ORT_OP_ATTR_FLOATS:
        value.kind = kind::floats;
        value.floats = numbers_of<float>(attribute, type);
        break;
      case ORT_OP_ATTR_STRING: {
        const std::vector<char> bytes = bytes_of(attribute, type);
        value.kind = kind::s;
        value.s.assign(bytes.begin(), bytes.end());
        while (!value.s.empty() && value.s.back() == '\0') {
          value.s.pop_back();
        }
        break;
      }
      case ORT_OP_ATTR_STRINGS: {
        const std::vector<char> bytes = bytes_of(attribute, type);  // each ends with a zero
        value.kind = kind::strings;
        for (auto at = bytes.begin(); at != bytes.end();) {
          const auto end = std::find(at, bytes.end(), '\0');
          value.strings.emplace_back(at, end);
          at = end == bytes.end() ? end : end + 1;
        }
        break;
      }
      case ORT_OP_ATTR_TENSOR: {
        const owned<OrtValue> t(
            get<OrtValue*>(api_, api_.core->OpAttr_GetTensorAttributeAsOrtValue, attribute),
            api_.core->ReleaseValue);
        value.kind = kind::t;
        value.t = copied_tensor(api_, t.get());
        break;
      }
      case ORT_OP_ATTR_GRAPH:
        // The nodes of the graph are not read: what it captures is all that is asked of such a
        // node.
        value = graph::attribute::of(graph::graph_body{});
        break;
      default:
        value.kind = kind::other;
        break;
    }
    return value;
  }

  template <class T>
  [[nodiscard]] OrtStatus* read_one(const OrtOpAttr* attribute, OrtOpAttrType type,
                                    T& value) const {
    std::size_t size = 0;
    return api_.core->ReadOpAttr(attribute, type, &value, sizeof(value), &size);
  }

  const api api_;
  const OrtGraph* graph_;
  constants how_;
  graph::model model_;
  std::set<std::string> known_;
};

/// Reads a graph. Values of a graph around it are inputs or constants of the model. The nodes of
/// graphs within nodes are not read.
[[nodiscard]] inline graph::model read_graph(const api& a, const OrtGraph* graph, constants how) {
  return graph_reader(a, graph, how).read();
}

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_GRAPH_READER_HPP
