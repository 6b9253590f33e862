// SPDX-License-Identifier: BSD-3-Clause
// Blocks of the output of a convolution, channels last, with the residual that is added to them.
#ifndef DETENT_IMAGES_OUTPUT_BLOCK_HPP
#define DETENT_IMAGES_OUTPUT_BLOCK_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/images/planes.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The output of a convolution.
template <class T>
struct convolution_output {
  image_batch<T> images;
  const float* residual = nullptr;  // null, or values to add, in the layout of the output
  bool keeps_values = false;        // whether blocks begin with the values of the output
};

/// Some neighbouring pixels of the output, counted through the batch, channels last.
template <class T>
class output_block {
 public:
  output_block(const convolution_output<T>& output, std::size_t first, std::size_t count)
      : first_(first), count_(count), pixels_(output.images, first, count, output.keeps_values) {
    if (output.residual != nullptr) {
      residual_.read(output.images.with_data(output.residual), first, count);
    }
  }

  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] T* data() const noexcept { return pixels_.data(); }
  /// The residual of the block, dense in the order of data(), or null.
  [[nodiscard]] const float* residual() const noexcept { return residual_.data(); }

  /// Transposes the pixels at data() to the output, if they are not there already.
  void store() const { pixels_.store(); }

 private:
  std::size_t first_, count_;
  output_pixels<T> pixels_;
  input_pixels<float> residual_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_OUTPUT_BLOCK_HPP
