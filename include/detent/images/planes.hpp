// SPDX-License-Identifier: BSD-3-Clause
// Images whose channels are planes (NCHW), block by block: convolutions work channels last.
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

/// Whether images have their channels first: with one channel or one pixel there is no difference.
[[nodiscard]] inline bool is_planar(activation_layout layout, std::size_t channels,
                                    std::size_t pixels_of_image) noexcept {
  return layout == activation_layout::nchw && channels != 1 && pixels_of_image != 1;
}

/// Transposes elements of type T; nothing where there are none.
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

/// Images of a batch, in either layout.
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

  /// Other values of the same shape and layout.
  template <class U>
  [[nodiscard]] image_batch<U> with_data(U* values) const noexcept {
    return {values, channels, pixels_of_image,
            planar ? activation_layout::nchw : activation_layout::nhwc};
  }

  /// Calls visit(plane, done, part) for the parts of `count` pixels from `first` on, counted
  /// through the batch, that lie in one image: `part` of them, `done` after the first, begin at
  /// `plane` of the first channel.
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

/// Transposes some pixels of images whose channels are planes, to memory that has them channels
/// last.
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

/// Some pixels of the input, channels last: where they are, or transposed to memory that the
/// calling thread keeps.
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

/// Memory for some pixels of the output, channels last: where they belong, or memory that the
/// calling thread keeps, from which store() transposes them. With `keeps_values` it holds what the
/// output does, so that not all need to be written.
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

  /// Puts what was written to data() where it belongs.
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

/// The most pixels of an output that should wait at a time to be transposed: they stay in the
/// second-level cache.
template <class T>
[[nodiscard]] std::size_t pixels_that_wait(const image_batch<T>& images) noexcept {
  constexpr std::size_t budget = 256 * 1024;
  return images.planar ? (std::max<std::size_t>)(budget / (images.channels * sizeof(T)), 1)
                       : static_cast<std::size_t>(-1);
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_PLANES_HPP
