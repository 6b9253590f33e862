// SPDX-License-Identifier: BSD-3-Clause
// The folder weights/ holds what is derived from packed weights for particular kernels. It may
// include base/, kernels/, and the headers config, parallel, reference and types of the folder
// above; pack.hpp includes it.
//
// This file makes the weights for processors without VNNI, whose instruction vpmaddubsw adds the
// products of two neighbouring k (a pair) in 16 bits and saturates. kernels::packed_panels
// documents the layout of the result.
//
// A pair of weights is safe if a0 * b0 + a1 * b1 fits 16 bits for all a of 0..255, which is the
// case if |b0 + b1| <= 128 (see reference::split_pair). There are two freedoms: which k become
// neighbours, and, as a * b = 255 * b + (255 - a) * -b, which k have the signs of their weights
// reversed; with one sign reversed, |b0 - b1| <= 128 is the condition. Within each block of 16 k,
// the code looks for an order and signs that make the pairs safe in all columns of a strip. If a
// pair stays unsafe in a column, the excess of its weights becomes a correction, which is
// multiplied separately. Among normally distributed weights one pair in sixty is unsafe at first,
// and hardly one remains. If many remain, as among evenly distributed weights, pairs are given up.
#ifndef DETENT_WEIGHTS_WEIGHT_PAIRS_HPP
#define DETENT_WEIGHTS_WEIGHT_PAIRS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/config.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// An order of the 16 k of one block: positions 2i and 2i + 1 form a pair.
using pair_order = std::array<std::uint8_t, kernels::block_depth>;

/// unsafe[i][j]: the number of columns in which k number i and k number j would be an unsafe pair.
using unsafe_columns =
    std::array<std::array<std::uint8_t, kernels::block_depth>, kernels::block_depth>;

/// Chooses the pairs of a block, greedily: the k with the fewest safe partners, but at least one,
/// chooses first. A k without a safe partner takes the one that is unsafe in the fewest columns.
inline pair_order choose_pairs(const unsafe_columns& unsafe) noexcept {
  constexpr std::size_t depth = kernels::block_depth;
  std::array<bool, depth> taken{};
  pair_order order{};
  for (std::size_t pair = 0; pair < depth / 2; ++pair) {
    std::size_t first = depth;
    std::size_t fewest = depth;
    for (std::size_t i = 0; i < depth; ++i) {
      if (taken[i]) {
        continue;
      }
      std::size_t partners = 0;
      for (std::size_t j = 0; j < depth; ++j) {
        partners += !taken[j] && j != i && unsafe[i][j] == 0 ? 1U : 0U;
      }
      if (first == depth || (partners > 0 && (fewest == 0 || partners < fewest))) {
        first = i;
        fewest = partners;
      }
    }
    taken[first] = true;
    // Among equally good partners, take the one that is a safe partner of the fewest others.
    std::size_t second = depth;
    std::size_t least = 0;
    for (std::size_t j = 0; j < depth; ++j) {
      if (taken[j]) {
        continue;
      }
      std::size_t others = 0;
      for (std::size_t i = 0; i < depth; ++i) {
        others += !taken[i] && i != j && unsafe[i][j] == 0 ? 1U : 0U;
      }
      const std::size_t cost = unsafe[first][j] * depth + others;
      if (second == depth || cost < least) {
        second = j;
        least = cost;
      }
    }
    taken[second] = true;
    order[2 * pair] = static_cast<std::uint8_t>(first);
    order[2 * pair + 1] = static_cast<std::uint8_t>(second);
  }
  return order;
}

/// Exchanges partners between two pairs as long as that lowers the number of unsafe columns.
inline void exchange_partners(const unsafe_columns& unsafe, pair_order& order) noexcept {
  constexpr std::size_t pairs = kernels::block_depth / 2;
  bool is_better = true;
  while (is_better) {
    is_better = false;
    for (std::size_t i = 0; i < pairs; ++i) {
      for (std::size_t j = i + 1; j < pairs; ++j) {
        std::uint8_t& a = order[2 * i];
        std::uint8_t& b = order[2 * i + 1];
        std::uint8_t& c = order[2 * j];
        std::uint8_t& d = order[2 * j + 1];
        const int now = unsafe[a][b] + unsafe[c][d];
        const int straight = unsafe[a][c] + unsafe[b][d];
        const int crossed = unsafe[a][d] + unsafe[c][b];
        if ((std::min)(straight, crossed) < now) {
          std::swap(straight < crossed ? c : d, b);
          is_better = true;
        }
      }
    }
  }
}

/// The weights of a matrix in the order, with the signs and with the corrections that
/// kernels::packed_panels documents.
class weight_pairs {
 public:
  /// The pairs of an empty matrix.
  weight_pairs() = default;

  /// Makes the pairs of `data`, a depth x columns matrix in the layout of packed_panels::data. The
  /// result does not depend on `parallel`.
  weight_pairs(std::span<const std::int8_t> data, std::size_t depth, std::size_t columns,
               const parallel_for& parallel = {}) {
    using namespace kernels;
    const std::size_t groups = (depth + group_depth - 1) / group_depth;
    const std::size_t blocks = (depth + block_depth - 1) / block_depth;
    const std::size_t panels = (columns + panel_columns - 1) / panel_columns;
    constexpr std::size_t group_size = group_depth * panel_columns;
    constexpr std::size_t panels_of_strip = strip_columns / panel_columns;
    const std::size_t padded_groups = blocks * block_depth / group_depth;
    data_.assign(panels * padded_groups * group_size, 0);
    const std::size_t strips = (panels + panels_of_strip - 1) / panels_of_strip;
    order_.resize(strips * blocks * block_depth);
    complement_.resize(strips * blocks * block_depth);
    offset_.assign(panels * panel_columns, 0);
    first_correction_.assign(panels + 1, 0);
    const auto weight = [&](std::size_t k, std::size_t column) -> std::int8_t {
      return k >= depth ? std::int8_t{0}
                        : data[(column / panel_columns * groups + k / group_depth) * group_size +
                               column % panel_columns * group_depth + k % group_depth];
    };
    std::vector<panel_corrections> corrections(panels);
    run_parallel(parallel, strips, [&](std::size_t strip) {
      std::vector<std::int8_t> block(block_depth * strip_columns);
      const std::size_t first = strip * strip_columns;
      const std::size_t count = (std::min)(strip_columns, columns - first);
      for (std::size_t b = 0; b < blocks; ++b) {
        for (std::size_t k = 0; k < block_depth; ++k) {
          for (std::size_t j = 0; j < count; ++j) {
            block[k * strip_columns + j] = weight(b * block_depth + k, first + j);
          }
        }
        const block_choice choice = choose(block, count);
        const std::size_t first_k = (strip * blocks + b) * block_depth;
        for (std::size_t i = 0; i < block_depth; ++i) {
          order_[first_k + i] = choice.order[i];
          complement_[first_k + i] = choice.is_opposite[i] ? 255 : 0;
        }
        for (std::size_t j = 0; j < count; ++j) {
          std::int8_t* to =
              data_.data() +
              ((first + j) / panel_columns * padded_groups + b * block_depth / group_depth) *
                  group_size +
              (first + j) % panel_columns * group_depth;
          std::uint32_t opposites = 0;
          for (std::size_t i = 0; i < block_depth; ++i) {
            int value = block[choice.order[i] * strip_columns + j];
            if (choice.is_opposite[i]) {
              opposites += static_cast<std::uint32_t>(value);
              value = -value;
            }
            to[i / group_depth * group_size + i % group_depth] = static_cast<std::int8_t>(value);
          }
          offset_[first + j] = static_cast<std::int32_t>(
              static_cast<std::uint32_t>(offset_[first + j]) + 255U * opposites);
        }
      }
      const std::size_t end = (std::min)((strip + 1) * panels_of_strip, panels);
      for (std::size_t panel = strip * panels_of_strip; panel < end; ++panel) {
        for (std::size_t group = 0; group < padded_groups; ++group) {
          corrections[panel].correct(data_.data() + (panel * padded_groups + group) * group_size,
                                     group);
        }
      }
    });
    for (std::size_t panel = 0; panel < panels; ++panel) {
      const panel_corrections& found = corrections[panel];
      correction_group_.insert(correction_group_.end(), found.groups.begin(), found.groups.end());
      corrections_.insert(corrections_.end(), found.values.begin(), found.values.end());
      corrected_ += found.pairs;
      first_correction_[panel + 1] = correction_group_.size();
    }
  }

  /// Forgets the pairs, but not how many need a correction, if a quarter of the groups or more have
  /// one: kernels then multiply the weights as they are, widened to 16 bits, which is faster.
  void forget_if_slow() {
    const std::size_t groups = data_.size() / (kernels::group_depth * kernels::panel_columns);
    if (correction_group_.size() >= (std::max)(groups / 4, std::size_t{1})) {
      const std::size_t corrected = corrected_;
      *this = weight_pairs();
      corrected_ = corrected;
    }
  }

  /// The pointers that kernels read, `data` alone if the pairs are forgotten; it is the array that
  /// they were made of. Valid as long as this object and `data`.
  [[nodiscard]] kernels::packed_panels panels(const std::int8_t* data) const noexcept {
    if (first_correction_.empty()) {
      return {.data = data};
    }
    return {data,
            data_.data(),
            order_.data(),
            complement_.data(),
            offset_.data(),
            first_correction_.data(),
            correction_group_.data(),
            corrections_.data()};
  }
  /// Number of pairs (of one column) that stayed unsafe and so have a correction.
  [[nodiscard]] std::size_t corrected() const noexcept { return corrected_; }

 private:
  /// The order and the signs that are chosen for a block.
  struct block_choice {
    pair_order order{};
    // is_opposite[i]: the weights of k number order[i] have their signs reversed.
    std::array<bool, kernels::block_depth> is_opposite{};
  };

  /// Chooses order and signs of a block. `block` has strip_columns values for each of its k; the
  /// first `columns` of them are used.
  static block_choice choose(const std::vector<std::int8_t>& block, std::size_t columns) noexcept {
    using kernels::block_depth;
    constexpr int limit = 128;
    std::array<bool, block_depth> has_opposite{};  // false with a -128, as 128 is no weight
    for (std::size_t i = 0; i < block_depth; ++i) {
      const std::int8_t* row = block.data() + i * kernels::strip_columns;
      has_opposite[i] = std::find(row, row + columns, std::int8_t{-128}) == row + columns;
    }
    unsafe_columns unsafe{};
    std::array<std::array<bool, block_depth>, block_depth> opposes{};
    bool as_it_is = true;
    for (std::size_t i = 0; i < block_depth; ++i) {
      const std::int8_t* x = block.data() + i * kernels::strip_columns;
      for (std::size_t j = i + 1; j < block_depth; ++j) {
        const std::int8_t* y = block.data() + j * kernels::strip_columns;
        int alike = 0;
        int opposite = 0;
        for (std::size_t c = 0; c < columns; ++c) {
          const int sum = x[c] + y[c];
          const int difference = x[c] - y[c];
          alike += sum > limit || sum < -limit ? 1 : 0;
          opposite += difference > limit || difference < -limit ? 1 : 0;
        }
        const bool better = opposite < alike && (has_opposite[i] || has_opposite[j]);
        opposes[i][j] = opposes[j][i] = better;
        unsafe[i][j] = unsafe[j][i] = static_cast<std::uint8_t>(better ? opposite : alike);
        as_it_is = as_it_is && (alike == 0 || i % 2 != 0 || j != i + 1);
      }
    }
    block_choice choice;
    std::iota(choice.order.begin(), choice.order.end(), std::uint8_t{0});
    if (as_it_is) {
      return choice;
    }
    choice.order = choose_pairs(unsafe);
    exchange_partners(unsafe, choice.order);
    for (std::size_t i = 0; i < block_depth; i += 2) {
      if (opposes[choice.order[i]][choice.order[i + 1]]) {
        choice.is_opposite[has_opposite[choice.order[i]] ? i : i + 1] = true;
      }
    }
    return choice;
  }

  /// The corrections of a panel.
  struct panel_corrections {
    std::vector<std::size_t> groups;
    std::vector<std::int8_t> values;
    std::size_t pairs = 0;

    /// Makes the pairs of a group (of all columns of the panel) safe; what is taken from the
    /// weights becomes a correction of that group.
    void correct(std::int8_t* group_data, std::size_t group) {
      constexpr std::size_t group_size = kernels::group_depth * kernels::panel_columns;
      bool is_corrected = false;
      for (std::size_t i = 0; i < group_size; i += 2) {
        const reference::pair_split split = reference::split_pair(group_data[i], group_data[i + 1]);
        if (split.rest[0] == 0 && split.rest[1] == 0) {
          continue;
        }
        if (!is_corrected) {
          is_corrected = true;
          groups.push_back(group);
          values.resize(values.size() + group_size);
        }
        std::int8_t* correction = values.data() + values.size() - group_size;
        for (std::size_t k = 0; k < 2; ++k) {
          group_data[i + k] = split.safe[k];
          correction[i + k] = split.rest[k];
        }
        ++pairs;
      }
    }
  };

  aligned_vector<std::int8_t> data_;
  std::vector<std::uint8_t> order_;
  std::vector<std::uint8_t> complement_;
  std::vector<std::int32_t> offset_;
  std::vector<std::size_t> first_correction_;
  std::vector<std::size_t> correction_group_;
  aligned_vector<std::int8_t> corrections_;
  std::size_t corrected_ = 0;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_WEIGHTS_WEIGHT_PAIRS_HPP
