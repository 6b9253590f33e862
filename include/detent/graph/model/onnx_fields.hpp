// SPDX-License-Identifier: BSD-3-Clause
// The field numbers of the messages in onnx.proto, for the ONNX reader and writer.
#ifndef DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP
#define DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP

#include <protozero/types.hpp>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
/// Field numbers of the protobuf messages of ONNX's onnx.proto that are read or written. The names
/// of the enumerators are the names of the fields.
namespace onnx {

/// Fields of ModelProto.
enum class model_field : protozero::pbf_tag_type {
  ir_version = 1,        ///< Version of the file format.
  producer_name = 2,     ///< Tool that wrote the file.
  producer_version = 3,  ///< Version of that tool.
  doc_string = 6,        ///< Description.
  graph = 7,             ///< GraphProto of the model.
  opset_import = 8,      ///< Repeated OperatorSetIdProto.
  metadata_props = 14,   ///< Repeated key/value pairs.
  training_info = 20,    ///< Repeated TrainingInfoProto; not kept by the reader.
  functions = 25,        ///< Repeated FunctionProto.
};
/// Fields of OperatorSetIdProto.
enum class opset_field : protozero::pbf_tag_type {
  domain = 1,  ///< Name of the domain.
  version = 2  ///< Version of its operators.
};
/// Fields of StringStringEntryProto.
enum class entry_field : protozero::pbf_tag_type {
  key = 1,   ///< Key.
  value = 2  ///< Value.
};
/// Fields of GraphProto.
enum class graph_field : protozero::pbf_tag_type {
  node = 1,                      ///< Repeated NodeProto.
  name = 2,                      ///< Name of the graph.
  initializer = 5,               ///< Repeated TensorProto: the constants.
  input = 11,                    ///< Repeated ValueInfoProto.
  output = 12,                   ///< Repeated ValueInfoProto.
  value_info = 13,               ///< Repeated ValueInfoProto of inner values.
  quantization_annotation = 14,  ///< Repeated TensorAnnotation; not kept by the reader.
  sparse_initializer = 15,       ///< Sparse constants; rejected by the reader.
};
/// Fields of FunctionProto.
enum class function_field : protozero::pbf_tag_type {
  name = 1,    ///< Name of the function.
  domain = 10  ///< Domain of the function.
};
/// Fields of NodeProto.
enum class node_field : protozero::pbf_tag_type {
  input = 1,                   ///< Repeated names of values.
  output = 2,                  ///< Repeated names of values.
  name = 3,                    ///< Name of the node.
  op_type = 4,                 ///< Name of the operator.
  attribute = 5,               ///< Repeated AttributeProto.
  domain = 7,                  ///< Domain of the operator.
  overload = 8,                ///< Overload of a function; rejected by the reader.
  device_configurations = 10,  ///< Repeated NodeDeviceConfigurationProto; not kept by the reader.
};
/// Fields of AttributeProto.
enum class attribute_field : protozero::pbf_tag_type {
  name = 1,         ///< Name of the attribute.
  f = 2,            ///< Float.
  i = 3,            ///< Int64.
  s = 4,            ///< Bytes.
  t = 5,            ///< TensorProto.
  g = 6,            ///< GraphProto.
  floats = 7,       ///< Repeated float.
  ints = 8,         ///< Repeated int64.
  strings = 9,      ///< Repeated bytes.
  tensors = 10,     ///< Repeated TensorProto; not interpreted.
  graphs = 11,      ///< Repeated GraphProto.
  doc_string = 13,  ///< Description.
  type = 20,        ///< AttributeProto.AttributeType.
};
/// Fields of TensorProto.
enum class tensor_field : protozero::pbf_tag_type {
  dims = 1,            ///< Repeated int64: the shape.
  data_type = 2,       ///< TensorProto.DataType.
  segment = 3,         ///< Part of a tensor; skipped by the reader.
  float_data = 4,      ///< Elements of float32.
  int32_data = 5,      ///< Elements of integers and floats of up to 32 bits.
  string_data = 6,     ///< Elements of strings.
  int64_data = 7,      ///< Elements of int64.
  name = 8,            ///< Name of the tensor.
  raw_data = 9,        ///< Bytes of all elements, little-endian.
  double_data = 10,    ///< Elements of float64.
  uint64_data = 11,    ///< Elements of uint32 and uint64.
  external_data = 13,  ///< Repeated key/value pairs: where the bytes are.
  data_location = 14,  ///< 1 if the bytes are in another file.
};
/// Fields of ValueInfoProto.
enum class value_field : protozero::pbf_tag_type {
  name = 1,  ///< Name of the value.
  type = 2   ///< TypeProto.
};
/// Fields of TypeProto.
enum class type_field : protozero::pbf_tag_type {
  tensor_type = 1,  ///< TypeProto.Tensor.
  denotation = 6    ///< What the value means, such as "IMAGE".
};
/// Fields of TypeProto.Tensor.
enum class tensor_type_field : protozero::pbf_tag_type {
  elem_type = 1,  ///< TensorProto.DataType.
  shape = 2       ///< TensorShapeProto.
};
/// Fields of TensorShapeProto.
enum class shape_field : protozero::pbf_tag_type {
  dim = 1  ///< Repeated TensorShapeProto.Dimension.
};
/// Fields of TensorShapeProto.Dimension.
enum class dim_field : protozero::pbf_tag_type {
  value = 1,  ///< Fixed extent.
  param = 2   ///< Name of an open extent.
};

}  // namespace onnx

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP
