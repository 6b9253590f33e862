// SPDX-License-Identifier: BSD-3-Clause
// Training data: batches by index, the order of samples, and augmentation against loops of their
// own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/training_data.hpp>

#include "check_graph_error.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::image_augmentation;
using graph::shape;
using graph::tensor;
using graph::training_batch;
using graph::training_data;
using test::check_graph_error;
using test::random_source;

using indices = std::vector<std::size_t>;

tensor floats(shape dims, const std::vector<float>& values) {
  return tensor::of<float>(element_type::f32, std::move(dims), values);
}

tensor integers(shape dims, const std::vector<std::int64_t>& values) {
  return tensor::of<std::int64_t>(element_type::s64, std::move(dims), values);
}

/// first, first + 1, ...
tensor counting(shape dims, float first = 1.0F) {
  std::vector<float> values(graph::element_count(dims));
  std::iota(values.begin(), values.end(), first);
  return floats(std::move(dims), values);
}

std::vector<float> values_of(const tensor& t) {
  const auto values = t.data<float>();
  return {values.begin(), values.end()};
}

/// Images named "x", numbered labels.
training_data images_of(tensor x) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(x.dim(0)));
  std::iota(labels.begin(), labels.end(), std::int64_t{0});
  const auto count = static_cast<std::int64_t>(labels.size());
  return graph::in_memory({{"x", std::move(x)}}, integers({count}, labels));
}

/// The images of a batch after augmentation.
std::vector<float> images(const training_data& data, const image_augmentation& a,
                          const indices& batch, std::uint64_t seed, std::size_t epoch) {
  return values_of(graph::augmented(data, a, seed, epoch).batch(batch).inputs.at("x"));
}

/// Where an image was moved to.
struct placement {
  bool is_mirrored = false;
  std::int64_t down = 0;
  std::int64_t right = 0;
};

/// The pixels of an image, padded, and cut out at a place: the other way to say what a shift is.
std::vector<float> pad_and_cut(std::vector<float> image, std::int64_t channels, std::int64_t height,
                               std::int64_t width, std::int64_t padding, float fill, placement p) {
  const std::int64_t wide = width + 2 * padding;
  const std::int64_t high = height + 2 * padding;
  std::vector<float> out;
  for (std::int64_t c = 0; c < channels; ++c) {
    std::vector<float> padded(static_cast<std::size_t>(wide * high), fill);
    for (std::int64_t y = 0; y < height; ++y) {
      const auto row = image.begin() + (c * height + y) * width;
      if (p.is_mirrored) {
        std::reverse(row, row + width);
      }
      std::copy(row, row + width, padded.begin() + (y + padding) * wide + padding);
    }
    for (std::int64_t y = 0; y < height; ++y) {
      const auto row = padded.begin() + (y + padding - p.down) * wide + padding - p.right;
      out.insert(out.end(), row, row + width);
    }
  }
  return out;
}

/// The placements with at most `shift` pixels that give an image. The images of these tests have no
/// symmetry, so that there is one unless all of the image may be outside.
std::vector<placement> placements_of(const std::vector<float>& found,
                                     const std::vector<float>& image, std::int64_t channels,
                                     std::int64_t height, std::int64_t width, std::int64_t shift,
                                     float fill) {
  std::vector<placement> all;
  for (const bool is_mirrored : {false, true}) {
    for (std::int64_t down = -shift; down <= shift; ++down) {
      for (std::int64_t right = -shift; right <= shift; ++right) {
        const placement p{is_mirrored, down, right};
        if (pad_and_cut(image, channels, height, width, shift, fill, p) == found) {
          all.push_back(p);
        }
      }
    }
  }
  return all;
}

/// SplitMix64 as its authors write it: a state that grows.
class split_mix {
 public:
  explicit split_mix(std::uint64_t state) : state_(state) {}
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// Pearson's statistic of counts that should all be the same, in standard deviations above its
/// mean.
double chi_square_deviation(const std::vector<std::size_t>& counts) {
  const double total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0.0;
  for (const std::size_t count : counts) {
    const double d = static_cast<double>(count) - expected;
    sum += d * d / expected;
  }
  const double freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2.0 * freedom);
}

}  // namespace

// ------------------------------------------------------------------------------------- in memory

TEST_CASE("training data in memory: a batch has the samples of its indices, in their order") {
  const tensor x = counting({4, 2, 3});
  const tensor flags =
      tensor::of<std::uint8_t>(element_type::u8, {4}, std::vector<std::uint8_t>{9, 8, 7, 6});
  const training_data data =
      graph::in_memory({{"x", x}, {"flags", flags}}, integers({4}, {10, 11, 12, 13}));
  CHECK(data.count == 4);
  const training_batch b = data.batch(indices{2, 0, 2});
  REQUIRE(b.inputs.size() == 2);
  CHECK(b.inputs.at("x").dims() == shape{3, 2, 3});
  CHECK(values_of(b.inputs.at("x")) ==
        std::vector<float>{13, 14, 15, 16, 17, 18, 1, 2, 3, 4, 5, 6, 13, 14, 15, 16, 17, 18});
  const auto chosen = b.inputs.at("flags").data<std::uint8_t>();
  CHECK(std::vector<int>(chosen.begin(), chosen.end()) == std::vector<int>{7, 9, 7});
  CHECK(b.labels.type() == element_type::s64);
  const auto labels = b.labels.data<std::int64_t>();
  CHECK(std::vector<std::int64_t>(labels.begin(), labels.end()) ==
        std::vector<std::int64_t>{12, 10, 12});
  CHECK(data.batch(indices{}).labels.dims() == shape{0});
}

TEST_CASE("training data in memory: targets of any shape, samples without elements") {
  const training_data data =
      graph::in_memory({{"x", floats({2, 0}, {})}}, floats({2, 2}, {1, 2, 3, 4}));
  const training_batch b = data.batch(indices{1});
  CHECK(b.inputs.at("x").dims() == shape{1, 0});
  CHECK(values_of(b.labels) == std::vector<float>{3, 4});
}

TEST_CASE("training data in memory names what does not fit") {
  const auto rejected = [](error_kind kind, std::map<std::string, tensor> inputs,
                           const tensor& labels, std::initializer_list<std::string_view> words) {
    check_graph_error(kind, words,
                      [&] { static_cast<void>(graph::in_memory(std::move(inputs), labels)); });
  };
  const error_kind invalid = error_kind::invalid_argument;
  const tensor two = integers({2}, {0, 1});
  rejected(error_kind::shape_mismatch, {{"x", counting({2, 2})}, {"mask", counting({3, 2})}}, two,
           {"'mask'", "3 samples", "2 labels"});
  rejected(invalid, {}, two, {"2 samples of 0 inputs"});
  rejected(invalid, {{"x", floats({0, 2}, {})}}, integers({0}, {}), {"0 samples"});
  rejected(invalid, {{"x", counting({})}}, two, {"'x'", "[]"});
  rejected(invalid, {{"x", tensor(element_type::f32, {2})}}, two, {"'x'", "no elements"});
  rejected(invalid, {{"x", counting({2})}}, integers({}, {0}), {"labels", "[]"});
  rejected(invalid, {{"x", counting({2})}}, tensor::allocate(element_type::s32, {2}),
           {"int32", "int64 or float32"});
  const training_data data = images_of(counting({2, 1, 1, 1}));
  check_graph_error(invalid, {"sample 2 of 2"}, [&] {
    static_cast<void>(data.batch(indices{0, 2}));
  });
}

// ----------------------------------------------------------------------------------------- order

TEST_CASE("the order of samples is a permutation that depends on seed and epoch") {
  CHECK(graph::shuffled(0, 1, 0).empty());
  CHECK(graph::shuffled(1, 1, 0) == indices{0});
  const indices first = graph::shuffled(100, 1, 0);
  indices sorted = first;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    CHECK(sorted[i] == i);
  }
  CHECK(graph::shuffled(100, 1, 0) == first);
  CHECK(graph::shuffled(100, 1, 1) != first);
  CHECK(graph::shuffled(100, 2, 0) != first);
}

TEST_CASE("the order of samples is this one on every machine") {
  // The seed of an epoch: two outputs of generators that are started from the seed before.
  const auto output = [](std::uint64_t seed, std::uint64_t number) {
    split_mix g(seed);
    for (std::uint64_t i = 0; i < number; ++i) {
      static_cast<void>(g.next());
    }
    return g.next();
  };
  split_mix g(output(output(42, 1), 3));
  indices expected{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::size_t left = 10; left > 1; --left) {
    std::swap(expected[left - 1], expected[g.next() % left]);  // a number this small is not surplus
  }
  CHECK(graph::shuffled(10, 42, 3) == expected);
  CHECK(graph::shuffled(10, 42, 3) == indices{4, 8, 3, 6, 5, 2, 1, 7, 9, 0});
}

TEST_CASE("all orders of four samples are about as frequent") {
  const std::uint64_t seed = random_source(331).seed();
  INFO("seed ", seed);
  for (const bool by_epoch : {false, true}) {
    std::map<indices, std::size_t> seen;
    for (std::size_t i = 0; i < 24000; ++i) {
      ++seen[by_epoch ? graph::shuffled(4, seed, i) : graph::shuffled(4, seed + i, 0)];
    }
    REQUIRE(seen.size() == 24);
    std::vector<std::size_t> counts;
    for (const auto& entry : seen) {
      counts.push_back(entry.second);
    }
    CHECK(chi_square_deviation(counts) < 5.0);
  }
}

// ---------------------------------------------------------------------------------- augmentation

TEST_CASE("augmentation: a mirrored image, exactly") {
  const training_data data = images_of(counting({2, 2, 1, 3}));
  CHECK(images(data, {}, {0, 1}, 1, 0) ==
        std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(images(data, {.flip = 1.0}, {1, 0}, 1, 0) ==
        std::vector<float>{9, 8, 7, 12, 11, 10, 3, 2, 1, 6, 5, 4});
  CHECK(values_of(data.batch(indices{0}).inputs.at("x")) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("augmentation: every image is one that padding, mirroring and cutting gives") {
  random_source r(332);
  INFO("seed ", r.seed());
  for (const auto& size_of_image : {std::pair<int, int>{4, 5}, {1, 6}, {7, 3}}) {
    const int height = size_of_image.first;
    const int width = size_of_image.second;
    const tensor x = counting({6, 2, height, width});
    const training_data data = images_of(x);
    const std::vector<float> all = values_of(x);
    const auto size = static_cast<std::ptrdiff_t>(2 * height * width);
    for (const std::size_t shift : {0U, 1U, 2U}) {
      const image_augmentation a{.input = "x", .flip = 0.5, .shift = shift, .fill = -1.0F};
      const std::vector<float> found = images(data, a, {0, 1, 2, 3, 4, 5}, r.bits(), 7);
      for (std::ptrdiff_t i = 0; i < 6; ++i) {
        const std::vector<float> image(all.begin() + i * size, all.begin() + (i + 1) * size);
        const std::vector<float> own(found.begin() + i * size, found.begin() + (i + 1) * size);
        INFO("image ", i, " of ", height, " x ", width, ", shift ", shift);
        const bool can_vanish = static_cast<int>(shift) >= std::min(height, width);
        const auto ways =
            placements_of(own, image, 2, height, width, static_cast<std::int64_t>(shift), -1.0F);
        CHECK((can_vanish ? !ways.empty() : ways.size() == 1));
      }
    }
  }
}

TEST_CASE("augmentation depends on seed, epoch and sample, not on the batch") {
  const training_data data = images_of(counting({8, 1, 5, 6}));
  const image_augmentation a{.flip = 0.5, .shift = 2};
  const std::vector<float> together = images(data, a, {0, 1, 2, 3, 4, 5, 6, 7}, 5, 2);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto begin = together.begin() + static_cast<std::ptrdiff_t>(i * 30);
    const std::vector<float> own(begin, begin + 30);
    CHECK(images(data, a, {i}, 5, 2) == own);
    std::vector<float> twice = own;
    twice.insert(twice.end(), own.begin(), own.end());
    CHECK(images(data, a, {i, i}, 5, 2) == twice);
  }
  CHECK(images(data, a, {0, 1, 2, 3, 4, 5, 6, 7}, 5, 3) != together);
  CHECK(images(data, a, {0, 1, 2, 3, 4, 5, 6, 7}, 6, 2) != together);
}

TEST_CASE("augmentation: each placement comes about as often as its probability says") {
  const std::uint64_t seed = random_source(333).seed();
  INFO("seed ", seed);
  // A bright and a half bright pixel side by side: where they are says what was done.
  const training_data data = images_of(floats({1, 1, 3, 4}, {0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0}));
  constexpr std::size_t draws = 18000;
  std::vector<std::size_t> places(9);
  std::size_t mirrored = 0;
  std::array<std::size_t, 9> mirrored_at{};
  for (std::size_t epoch = 0; epoch < draws; ++epoch) {
    const auto image = images(data, {.flip = 0.25, .shift = 1}, {0}, seed, epoch);
    const auto bright =
        static_cast<std::size_t>(std::find(image.begin(), image.end(), 2.0F) - image.begin());
    const auto half =
        static_cast<std::size_t>(std::find(image.begin(), image.end(), 1.0F) - image.begin());
    REQUIRE(bright < 12);
    REQUIRE(half < 12);
    const std::size_t left = std::min(bright, half);  // 0..2, 4..6 or 8..10
    const std::size_t place = left / 4 * 3 + left % 4;
    ++places[place];
    mirrored += half < bright ? 1U : 0U;
    mirrored_at[place] += half < bright ? 1U : 0U;
  }
  CHECK(chi_square_deviation(places) < 5.0);
  const double deviation = std::sqrt(static_cast<double>(draws) * 0.25 * 0.75);
  CHECK(std::fabs(static_cast<double>(mirrored) - 0.25 * draws) < 5.0 * deviation);
  CHECK(chi_square_deviation({mirrored_at.begin(), mirrored_at.end()}) < 5.0);
}

TEST_CASE("augmentation leaves labels and other inputs alone") {
  const training_data data = graph::in_memory(
      {{"a", counting({2, 1, 1, 2})}, {"b", counting({2, 1, 1, 2})}}, floats({2}, {0.5F, 0.25F}));
  const training_batch b =
      graph::augmented(data, {.input = "b", .flip = 1.0}, 1, 0).batch(indices{1});
  CHECK(values_of(b.inputs.at("a")) == std::vector<float>{3, 4});
  CHECK(values_of(b.inputs.at("b")) == std::vector<float>{4, 3});
  CHECK(values_of(b.labels) == std::vector<float>{0.25F});
  CHECK(graph::augmented(data, {.input = "b"}, 1, 0).count == 2);
  // Shifts that no image can have, and images without pixels.
  const training_data one = images_of(counting({1, 1, 1, 1}));
  const std::vector<float> far = images(one, {.shift = 1000000, .fill = 3.0F}, {0}, 1, 0);
  CHECK(far == std::vector<float>{3.0F});
  CHECK(images(images_of(floats({1, 0, 4294967296, 4294967296}, {})), {.flip = 1.0}, {0}, 1, 0)
            .empty());
}

TEST_CASE("augmentation names what it cannot change") {
  const auto rejected = [](error_kind kind, const training_data& data, const image_augmentation& a,
                           std::initializer_list<std::string_view> words) {
    check_graph_error(
        kind, words, [&] { static_cast<void>(graph::augmented(data, a, 1, 0).batch(indices{0})); });
  };
  const error_kind invalid = error_kind::invalid_argument;
  const training_data good = images_of(counting({2, 1, 1, 2}));
  rejected(invalid, good, {.flip = 1.5}, {"image_augmentation", "probability of 1.5"});
  rejected(invalid, good, {.flip = std::numeric_limits<double>::quiet_NaN()}, {"nan"});
  rejected(invalid, good, {.shift = std::numeric_limits<std::size_t>::max()}, {"shift of"});
  rejected(invalid, good, {.input = "y"}, {"no input 'y'"});
  rejected(error_kind::shape_mismatch, images_of(counting({2, 3})), {}, {"'x'", "[1,3]"});
  rejected(invalid,
           graph::in_memory({{"x", tensor::allocate(element_type::u8, {1, 1, 1, 1})}},
                            integers({1}, {0})),
           {}, {"'x'", "uint8"});
  rejected(invalid,
           graph::in_memory({{"x", counting({1, 1})}, {"y", counting({1, 1})}}, integers({1}, {0})),
           {}, {"no input is named", "2"});
  training_data wrong = good;
  wrong.batch = [](std::span<const std::size_t>) {
    return training_batch{{{"x", counting({3, 1, 1, 1})}}, integers({3}, {0, 0, 0})};
  };
  rejected(error_kind::shape_mismatch, wrong, {}, {"'x'", "[3,1,1,1]", "[1,channels"});
}
