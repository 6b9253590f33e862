// SPDX-License-Identifier: BSD-3-Clause
// Blocks of the output of a convolution, channels last, with the residual that is added to them.
#ifndef DETENT_IMAGES_OUTPUT_BLOCK_HPP
#define DETENT_IMAGES_OUTPUT_BLOCK_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>

#include <detent/base/aligned.hpp>
#include <detent/config.hpp>
#include <detent/images/planes.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Takes blocks of results where there is no output: called with the first pixel (counted through
/// the batch), the number of pixels, and the results, dense with channels last.
template <class T>
using block_consumer = std::function<void(std::size_t first, std::size_t count, T* results)>;

/// The output of a convolution.
template <class T>
struct convolution_output {
  image_batch<T> images;
  const float* residual = nullptr;  // null, or values to add, in the layout of the output
  bool keeps_values = false;        // whether blocks begin with the values of the output
  const block_consumer<T>* consumer = nullptr;  // if set, it gets all blocks; images have no data

  /// The most pixels of a block that should be computed before they are stored or consumed.
  [[nodiscard]] std::size_t most_pixels() const noexcept {
    constexpr std::size_t budget = 16 * 1024;
    return consumer != nullptr ? (std::max<std::size_t>)(budget / (images.channels * sizeof(T)), 1)
                               : pixels_that_wait<T>(images);
  }
};

/// Some neighbouring pixels of the output, counted through the batch, channels last.
template <class T>
class output_block {
 public:
  output_block(const convolution_output<T>& output, std::size_t first, std::size_t count)
      : first_(first), count_(count), consumer_(output.consumer) {
    if (consumer_ != nullptr) {
      data_ = memory_.lease(count * output.images.channels);
      if (output.keeps_values) {
        std::fill_n(data_, count * output.images.channels, T{});
      }
    } else {
      pixels_.emplace(output.images, first, count, output.keeps_values);
      data_ = pixels_->data();
    }
    if (output.residual != nullptr) {
      residual_.read(output.images.with_data(output.residual), first, count);
    }
  }

  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] T* data() const noexcept { return data_; }
  /// The residual of the block, dense in the order of data(), or null.
  [[nodiscard]] const float* residual() const noexcept { return residual_.data(); }

  /// Transposes the pixels at data() to the output, if they are not there already, or gives them to
  /// the consumer.
  void store() const {
    if (consumer_ != nullptr) {
      (*consumer_)(first_, count_, data_);
    } else {
      pixels_->store();
    }
  }

 private:
  std::size_t first_, count_;
  const block_consumer<T>* consumer_;
  std::optional<output_pixels<T>> pixels_;
  leased_memory<T> memory_;
  T* data_;
  input_pixels<float> residual_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_OUTPUT_BLOCK_HPP
