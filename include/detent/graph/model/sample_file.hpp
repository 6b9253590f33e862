// SPDX-License-Identifier: BSD-3-Clause
// Reads files that hold values of one input of a model, and compares them with what the model
// declares. Needs protozero.
#ifndef DETENT_GRAPH_MODEL_SAMPLE_FILE_HPP
#define DETENT_GRAPH_MODEL_SAMPLE_FILE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/onnx_tensor.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/sample_axis.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A file with values of one input: an ONNX TensorProto if its name ends with ".pb", otherwise a
/// .npy file. Elements of a .npy file are read only when they are asked for; a TensorProto is read
/// as a whole and kept.
///
/// Integers of 8 and 16 bits become float32 for an input of float32, exactly: images are stored so.
/// Float32 becomes float16 or bfloat16 for an input of that type, rounded half to even. Not
/// thread-safe.
class sample_file {
 public:
  /// Opens a file of values of `input`. Throws what npy_file() or read_onnx_tensor() throws;
  /// unsupported for strings.
  sample_file(std::string path, const value_info& input, const read_limits& limits = {})
      : path_(std::move(path)) {
    if (std::filesystem::path(path_).extension() == ".pb") {
      whole_ = read_onnx_tensor(path_, limits);
      require(whole_.has_data(), error_kind::unsupported, path_, " holds ",
              graph::name(whole_.type()), " elements, which are not read");
    } else {
      npy_.emplace(path_);
    }
    const element_type stored = npy_ ? npy_->type() : whole_.type();
    const bool is_short = stored == element_type::u8 || stored == element_type::s8 ||
                          stored == element_type::u16 || stored == element_type::s16;
    const bool is_half = input.type == element_type::f16 || input.type == element_type::bf16;
    const bool is_converted =
        (is_short && input.type == element_type::f32) || (stored == element_type::f32 && is_half);
    type_ = is_converted ? input.type : stored;
    if (!npy_) {
      whole_ = converted(std::move(whole_));
    }
  }

  /// The path that the file was opened by.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The type of its elements, as they are read.
  [[nodiscard]] element_type type() const noexcept { return type_; }
  /// Its shape.
  [[nodiscard]] const shape& dims() const noexcept { return npy_ ? npy_->dims() : whole_.dims(); }

  /// All elements. Throws what read_npy() throws.
  [[nodiscard]] tensor read() { return npy_ ? converted(npy_->read()) : whole_; }
  /// The indices first .. first + count - 1 of an axis, with all indices of the others. Throws as
  /// npy_file::read_slice().
  [[nodiscard]] tensor read_slice(std::size_t axis, std::size_t first, std::size_t count) {
    return npy_ ? converted(npy_->read_slice(axis, first, count))
                : slice_samples(whole_, first, count, axis);
  }

 private:
  /// Elements of the file in the type in which they are read.
  [[nodiscard]] tensor converted(tensor t) const {
    if (t.type() == type_) {
      return t;
    }
    tensor out = tensor::allocate(type_, t.dims());
    if (type_ == element_type::f32) {
      const auto copy = [&](auto elements) {
        std::copy(elements.begin(), elements.end(), out.mutable_data<float>().begin());
      };
      t.type() == element_type::u8    ? copy(t.data<std::uint8_t>())
      : t.type() == element_type::s8  ? copy(t.data<std::int8_t>())
      : t.type() == element_type::u16 ? copy(t.data<std::uint16_t>())
                                      : copy(t.data<std::int16_t>());
    } else {
      const auto round = [&](float x) {
        return type_ == element_type::f16 ? round_to<float16>(x).bits : round_to<bfloat16>(x).bits;
      };
      std::transform(t.data<float>().begin(), t.data<float>().end(),
                     out.mutable_data<std::uint16_t>().begin(), round);
    }
    return out;
  }

  std::string path_;
  std::optional<npy_file> npy_;
  tensor whole_;  // of a TensorProto
  element_type type_ = element_type::undefined;
};

/// The text by which messages name an input of a model: name, type and shape, for example
/// "'x' float32 [-1,3]".
[[nodiscard]] inline std::string describe_input(const value_info& input) {
  return "'" + input.name + "' " + graph::name(input.type) + " " +
         (input.has_shape ? to_string(input.dims) : "of any shape");
}

/// Checks that a file fits an input of a model: the type, the rank, and all dimensions that the
/// model does not leave open but the one that `sample_axis` names, if any. Throws invalid_argument
/// for another type and shape_mismatch for another shape; both name the file and the input.
inline void require_fit(const value_info& input, const sample_file& file,
                        std::optional<std::size_t> sample_axis) {
  require(input.type == element_type::undefined || input.type == file.type(),
          error_kind::invalid_argument, file.path(), " holds ", graph::name(file.type()),
          ", input '", input.name, "' is ", graph::name(input.type),
          file.type() == element_type::f64 && input.type == element_type::f32
              ? ": save it as .astype('float32')"
              : "");
  const shape& dims = file.dims();
  bool fits = !input.has_shape || input.dims.size() == dims.size();
  for (std::size_t i = 0; fits && input.has_shape && i < dims.size(); ++i) {
    fits = i == sample_axis || input.dims[i] < 0 || input.dims[i] == dims[i];
  }
  if (fits) {
    return;
  }
  const std::string axis =
      sample_axis ? "axis " + std::to_string(*sample_axis) + " counts samples" : "given whole";
  detent::raise(error_kind::shape_mismatch, file.path(), " has shape ", to_string(dims),
                ", input '", input.name, "' ", to_string(input.dims), " (", axis, ", -1: any)");
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLE_FILE_HPP
