// SPDX-License-Identifier: BSD-3-Clause
// Random changes of images that leave their class as it is: mirroring and shifting.
#ifndef DETENT_GRAPH_LEARN_IMAGE_AUGMENTATION_HPP
#define DETENT_GRAPH_LEARN_IMAGE_AUGMENTATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/random_numbers.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Which images augmented() changes, and how.
struct image_augmentation {
  std::string input = {};  ///< The input that holds images; empty: the only one that there is.
  double flip = 0.0;       ///< Probability that an image is mirrored, left to right.
  /// An image is moved by -shift..shift pixels along its height and as many along its width, each
  /// number with the same probability. That is also what padding by `shift` pixels on all sides and
  /// cutting out an image of the old size at a random place gives.
  std::size_t shift = 0;
  float fill = 0.0F;  ///< The value of pixels that come in from outside of the image.
};

namespace detail {

/// Throws invalid_argument unless the probability is in [0, 1] and the shift at most 2^30.
inline void require_augmentation(const image_augmentation& a) {
  require(a.flip >= 0.0 && a.flip <= 1.0, error_kind::invalid_argument,
          "image_augmentation: a probability of ", a.flip, " to flip is not in [0, 1]");
  require(a.shift <= std::size_t{1} << 30, error_kind::invalid_argument,
          "image_augmentation: a shift of ", a.shift, " pixels");
}

/// What is done to one image.
struct image_change {
  bool is_mirrored = false;
  std::int64_t down = 0;   // pixels
  std::int64_t right = 0;  // pixels, after mirroring

  image_change(const image_augmentation& a, random_sequence random) {
    is_mirrored = random.chance(a.flip);
    const auto most = static_cast<std::int64_t>(a.shift);
    down = static_cast<std::int64_t>(random.below(2 * a.shift + 1)) - most;
    right = static_cast<std::int64_t>(random.below(2 * a.shift + 1)) - most;
  }

  /// Changes a plane of height x width pixels.
  void apply(std::span<const float> from, std::int64_t height, std::int64_t width, float fill,
             std::span<float> to) const {
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t source_y = y - down;
      float* const row = to.data() + y * width;
      if (source_y < 0 || source_y >= height) {
        std::fill_n(row, width, fill);
        continue;
      }
      const float* const source = from.data() + source_y * width;
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t moved = x - right;
        const bool is_inside = moved >= 0 && moved < width;
        row[x] = is_inside ? source[is_mirrored ? width - 1 - moved : moved] : fill;
      }
    }
  }
};

/// Changed copies of the images of a batch, float32 [images, channels, height, width], where image
/// i is sample indices[i]. The change depends on the seed, the epoch and the index of the sample
/// only. Throws shape_mismatch, naming the input, for another rank or number of images, and
/// invalid_argument for another type.
[[nodiscard]] inline tensor augmented_images(const tensor& images,
                                             std::span<const std::size_t> indices,
                                             const std::string& input, const image_augmentation& a,
                                             std::uint64_t seed, std::size_t epoch) {
  require(images.type() == element_type::f32 && images.has_data(), error_kind::invalid_argument,
          "image_augmentation: input '", input, "' is ", shown(images.type()),
          ", not float32 images");
  require(images.rank() == 4 && static_cast<std::size_t>(images.dim(0)) == indices.size(),
          error_kind::shape_mismatch, "image_augmentation: input '", input, "' has shape ",
          shown(images.dims()), ", not [", indices.size(), ",channels,height,width]");
  if (images.count() == 0) {
    return images;
  }
  const std::int64_t height = images.dim(2);
  const std::int64_t width = images.dim(3);
  const auto plane = static_cast<std::size_t>(height * width);
  const auto channels = static_cast<std::size_t>(images.dim(1));
  const std::uint64_t epoch_seed = derived_seed(seed, random_purpose::augmentation, epoch);
  tensor out = tensor::allocate(element_type::f32, images.dims());
  const std::span<const float> from = images.data<float>();
  const std::span<float> to = out.mutable_data<float>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const image_change change(a, random_sequence(derived_seed(epoch_seed, indices[i])));
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t first = (i * channels + c) * plane;
      change.apply(from.subspan(first, plane), height, width, a.fill, to.subspan(first, plane));
    }
  }
  return out;
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_IMAGE_AUGMENTATION_HPP
