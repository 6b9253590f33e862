// SPDX-License-Identifier: BSD-3-Clause
// Blocks of the output of a convolution, channels last, with what is added to them.
#ifndef DETENT_IMAGES_OUTPUT_BLOCK_HPP
#define DETENT_IMAGES_OUTPUT_BLOCK_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/images/planes.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Where a convolution writes.
template <class T>
struct convolution_output {
  image_batch<T> images;
  const float* residual = nullptr;  // null, or added to the output, whose layout it has
  bool keeps_values = false;        // whether blocks hold what the output does
};

/// Some pixels of the output, counted through the batch.
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
  /// What is added to data(), as dense as that, or null.
  [[nodiscard]] const float* residual() const noexcept { return residual_.data(); }

  /// Puts what was written to data() where it belongs.
  void store() const { pixels_.store(); }

 private:
  std::size_t first_, count_;
  output_pixels<T> pixels_;
  input_pixels<float> residual_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_OUTPUT_BLOCK_HPP
