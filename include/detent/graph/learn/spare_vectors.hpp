// SPDX-License-Identifier: BSD-3-Clause
// Vectors of numbers that are used again.
#ifndef DETENT_GRAPH_LEARN_SPARE_VECTORS_HPP
#define DETENT_GRAPH_LEARN_SPARE_VECTORS_HPP

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Vectors that were used and are not needed any more. They save the heap, which gives large blocks
/// back to the system, from getting them again for each node.
class spare_vectors {
 public:
  /// A vector of `count` zeros: one of those given back if one has the place.
  [[nodiscard]] std::vector<double> zeros(std::size_t count) {
    const auto found = vectors_.lower_bound(count);
    if (found == vectors_.end() || found->first > 2 * count) {
      return std::vector<double>(count);
    }
    std::vector<double> taken = std::move(found->second);
    vectors_.erase(found);
    taken.assign(count, 0.0);
    return taken;
  }
  void give_back(std::vector<double> vector) {
    vectors_.emplace(vector.capacity(), std::move(vector));
  }

 private:
  std::multimap<std::size_t, std::vector<double>> vectors_;  // by capacity
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_SPARE_VECTORS_HPP
