// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes images whose channels are planes (NCHW) block by block: convolutions compute
// channels last.
#ifndef DETENT_IMAGES_PLANES_HPP
#define DETENT_IMAGES_PLANES_HPP

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <detent/base/aligned.hpp>
#include <detent/dispatch.hpp>
#include <detent/kernels/definitions/transposition.hpp>
#include <detent/kernels/transposition.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Whether images have their channels first in a way that matters: with one channel or one pixel
/// both layouts are the same.
[[nodiscard]] inline bool is_planar(activation_layout layout, std::size_t channels,
                                    std::size_t pixels_of_image) noexcept {
  return layout == activation_layout::nchw && channels != 1 && pixels_of_image != 1;
}

/// Transposes a matrix of elements of type T (1, 2 or 4 bytes); does nothing if it is empty.
template <class T>
void transpose(const kernels::transpose_args& a) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4);
  if (a.rows == 0 || a.columns == 0) {
    return;
  }
  using element =
      std::conditional_t<sizeof(T) == 1, std::uint8_t,
                         std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  active<kernels::transposition_kernels<element>>().transpose(a);
}

/// The images of a batch, in either layout.
template <class T>
struct image_batch {
  T* data = nullptr;
  std::size_t channels = 0;
  std::size_t pixels_of_image = 0;
  bool planar = false;

  image_batch(T* images, std::size_t channels_, std::size_t pixels, activation_layout layout)
      : data(images),
        channels(channels_),
        pixels_of_image(pixels),
        planar(is_planar(layout, channels, pixels)) {}

  /// A batch of the same shape and layout with other values.
  template <class U>
  [[nodiscard]] image_batch<U> with_data(U* values) const noexcept {
    return {values, channels, pixels_of_image,
            planar ? activation_layout::nchw : activation_layout::nhwc};
  }

  /// Divides the `count` pixels from `first` on (counted through the batch) into parts that lie in
  /// one image each, and calls visit(plane, done, part) for each part: it has `part` pixels, begins
  /// `done` pixels after `first`, and its first pixel is at `plane` in the plane of the first
  /// channel.
  template <class Visit>
  void for_images(std::size_t first, std::size_t count, const Visit& visit) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t image = (first + done) / pixels_of_image;
      const std::size_t pixel = (first + done) % pixels_of_image;
      const std::size_t part = (std::min)(pixels_of_image - pixel, count - done);
      visit(data + image * channels * pixels_of_image + pixel, done, part);
      done += part;
    }
  }
};

/// Transposes `count` pixels from `first` on, of images whose channels are planes, to `to`,
/// channels last.
template <class T>
void read_planes(const image_batch<T>& images, std::size_t first, std::size_t count,
                 std::remove_const_t<T>* to) {
  images.for_images(first, count, [&](const T* plane, std::size_t done, std::size_t part) {
    kernels::transpose_args t;
    t.from = plane;
    t.from_stride = images.pixels_of_image;
    t.rows = images.channels;
    t.columns = part;
    t.to = to + done * images.channels;
    t.to_stride = images.channels;
    t.line = part;
    t.line_step = part * images.channels;
    transpose<std::remove_const_t<T>>(t);
  });
}

/// Some pixels of the input, channels last: the input itself, or a transposed copy in memory that
/// is leased from the calling thread.
template <class T>
class input_pixels {
 public:
  /// No pixels; data() is null.
  input_pixels() noexcept = default;
  input_pixels(const image_batch<const T>& images, std::size_t first, std::size_t count) {
    read(images, first, count);
  }

  /// Once per object, and only if it has no pixels.
  void read(const image_batch<const T>& images, std::size_t first, std::size_t count) {
    data_ = images.data + first * images.channels;
    if (images.planar) {
      T* memory = memory_.lease(count * images.channels);
      data_ = memory;
      read_planes(images, first, count, memory);
    }
  }

  [[nodiscard]] const T* data() const noexcept { return data_; }

 private:
  leased_memory<T> memory_;
  const T* data_ = nullptr;
};

/// Memory for some pixels of the output, channels last: the output itself, or memory that is leased
/// from the calling thread, from which store() transposes them to the output. With `keeps_values`,
/// the memory begins with the values of the output, so that callers may leave some unwritten.
template <class T>
class output_pixels {
 public:
  output_pixels(const image_batch<T>& images, std::size_t first, std::size_t count,
                bool keeps_values = false)
      : images_(images),
        first_(first),
        count_(count),
        data_(images.data + first * images.channels) {
    if (images.planar) {
      data_ = memory_.lease(count * images.channels);
      if (keeps_values) {
        read_planes(images, first, count, data_);
      }
    }
  }

  [[nodiscard]] T* data() const noexcept { return data_; }

  /// Transposes the pixels at data() to the output, if they are not there already.
  void store() const {
    if (!images_.planar) {
      return;
    }
    images_.for_images(first_, count_, [&](T* plane, std::size_t done, std::size_t part) {
      kernels::transpose_args t;
      t.from = data_ + done * images_.channels;
      t.from_stride = images_.channels;
      t.rows = part;
      t.columns = images_.channels;
      t.to = plane;
      t.to_stride = images_.pixels_of_image;
      t.line = images_.channels;
      t.line_step = images_.channels * images_.pixels_of_image;
      transpose<T>(t);
    });
  }

 private:
  const image_batch<T>& images_;
  std::size_t first_, count_;
  leased_memory<T> memory_;
  T* data_;
};

/// The most pixels of an output that should be computed before they are transposed, so that they
/// stay in the second-level cache; unlimited if nothing is transposed.
template <class T>
[[nodiscard]] std::size_t pixels_that_wait(const image_batch<T>& images) noexcept {
  constexpr std::size_t budget = 256 * 1024;
  return images.planar ? (std::max<std::size_t>)(budget / (images.channels * sizeof(T)), 1)
                       : static_cast<std::size_t>(-1);
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_PLANES_HPP
