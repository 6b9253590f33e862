// SPDX-License-Identifier: BSD-3-Clause
// Quantizers that NNCF's propagation moves through a graph, and counts of them.
#ifndef DETENT_GRAPH_NNCF_MOVING_QUANTIZER_HPP
#define DETENT_GRAPH_NNCF_MOVING_QUANTIZER_HPP

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include <detent/config.hpp>
#include <detent/graph/nncf/operator_traits.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

/// A place of a quantizer: a result of a vertex, or one of its sources.
struct quantizer_place {
  std::size_t vertex = 0;
  std::optional<std::size_t> source = {};  ///< Index of the source; none for the result.
  friend bool operator==(const quantizer_place&, const quantizer_place&) = default;
  friend auto operator<=>(const quantizer_place&, const quantizer_place&) = default;
};

/// A quantizer on its way, or where it has come to stay.
struct moving_quantizer {
  configs options;                   ///< Configurations that it may have, the preferred one first.
  quantizer_place at;                ///< Where it is.
  std::set<std::size_t> serves;      ///< The vertices whose sources it was made for.
  std::set<quantizer_place> passed;  ///< The places that its values reach down to, `at` included.
  std::set<std::size_t> passed_vertices = {};  ///< The vertices that it affects.
  std::set<quantizer_place> entries = {};      ///< The sources by which it reaches them.
  std::size_t steps = 0;                       ///< Number of places that it has moved.
  std::optional<std::size_t> group = {};       ///< Quantizers of a group share scales.
  std::set<std::size_t> stricter = {};         ///< Quantizers that stay below it.
};

/// Quantizers by their numbers, each as often as it was added.
class quantizer_counts {
 public:
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether there is one with a number other than `q`.
  [[nodiscard]] bool has_other(std::size_t q) const {
    return counts_.size() > 1 || (!counts_.empty() && counts_.begin()->first != q);
  }
  void add(std::size_t q) {
    ++counts_[q];
    ++size_;
  }
  void remove_one(std::size_t q) {
    const auto found = counts_.find(q);
    if (found != counts_.end()) {
      --size_;
      if (--found->second == 0) {
        counts_.erase(found);
      }
    }
  }

 private:
  std::map<std::size_t, std::size_t> counts_;
  std::size_t size_ = 0;
};

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_MOVING_QUANTIZER_HPP
