// SPDX-License-Identifier: BSD-3-Clause
// The field numbers of onnx.proto, for its reader and its writer.
#ifndef DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP
#define DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP

#include <protozero/types.hpp>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace onnx {

enum class model_field : protozero::pbf_tag_type {
  ir_version = 1,
  producer_name = 2,
  producer_version = 3,
  doc_string = 6,
  graph = 7,
  opset_import = 8,
  metadata_props = 14,
  functions = 25,
};
enum class opset_field : protozero::pbf_tag_type { domain = 1, version = 2 };
enum class entry_field : protozero::pbf_tag_type { key = 1, value = 2 };
enum class graph_field : protozero::pbf_tag_type {
  node = 1,
  name = 2,
  initializer = 5,
  input = 11,
  output = 12,
  value_info = 13,
  sparse_initializer = 15,
};
enum class function_field : protozero::pbf_tag_type { name = 1, domain = 10 };
enum class node_field : protozero::pbf_tag_type {
  input = 1,
  output = 2,
  name = 3,
  op_type = 4,
  attribute = 5,
  domain = 7,
  overload = 8,
};
enum class attribute_field : protozero::pbf_tag_type {
  name = 1,
  f = 2,
  i = 3,
  s = 4,
  t = 5,
  g = 6,
  floats = 7,
  ints = 8,
  strings = 9,
  tensors = 10,
  graphs = 11,
  type = 20,
};
enum class tensor_field : protozero::pbf_tag_type {
  dims = 1,
  data_type = 2,
  segment = 3,
  float_data = 4,
  int32_data = 5,
  string_data = 6,
  int64_data = 7,
  name = 8,
  raw_data = 9,
  double_data = 10,
  uint64_data = 11,
  external_data = 13,
  data_location = 14,
};
enum class value_field : protozero::pbf_tag_type { name = 1, type = 2 };
enum class type_field : protozero::pbf_tag_type { tensor_type = 1 };
enum class tensor_type_field : protozero::pbf_tag_type { elem_type = 1, shape = 2 };
enum class shape_field : protozero::pbf_tag_type { dim = 1 };
enum class dim_field : protozero::pbf_tag_type { value = 1, param = 2 };

}  // namespace onnx

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ONNX_FIELDS_HPP
