// SPDX-License-Identifier: BSD-3-Clause
// The configurations that one quantizer may have in place of several, by NNCF's rules.
#ifndef DETENT_GRAPH_NNCF_COMMON_OPTIONS_HPP
#define DETENT_GRAPH_NNCF_COMMON_OPTIONS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/nncf/operator_traits.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// NNCF's QuantizerPropagationRule: what becomes of the quantizers below a result with several
/// users.
enum class propagation_rule : std::uint8_t {
  do_not_merge_branches,       ///< They stay.
  merge_if_all_branches_same,  ///< They become one if they may have the same configurations.
  merge_with_potential_requantization,  ///< They become one; stricter ones stay as well.
  merge_all_in_one                      ///< They become one if they have a configuration in common.
};

namespace detail {

/// Whether two lists hold the same configurations, in any order.
[[nodiscard]] inline bool same_options(const configs& a, const configs& b) {
  return a.size() == b.size() && std::is_permutation(a.begin(), a.end(), b.begin());
}

/// Whether quantizing again with `a` after `b` makes sense.
[[nodiscard]] inline bool may_requantize(const quantizer_config& a, const quantizer_config& b) {
  return a.bits <= b.bits && !(!a.symmetric && b.symmetric) && !(!a.is_signed && b.is_signed) &&
         !(a.is_signed == true && b.is_signed == false) && a.narrow_range == b.narrow_range;
}

/// Whether a quantizer with configuration `c` may serve one that may have `options`.
[[nodiscard]] inline bool allows(const configs& options, const quantizer_config& c,
                                 propagation_rule rule) {
  if (std::find(options.begin(), options.end(), c) != options.end()) {
    return true;
  }
  return rule == propagation_rule::merge_with_potential_requantization &&
         std::all_of(options.begin(), options.end(),
                     [&](const quantizer_config& o) { return may_requantize(o, c); });
}

/// Whether `a` is better than `b`: more bits, then one scale for the tensor, then a symmetric
/// range.
[[nodiscard]] inline bool is_preferred(const quantizer_config& a, const quantizer_config& b) {
  if (a.bits != b.bits) {
    return a.bits > b.bits;
  }
  if (a.per_channel != b.per_channel) {
    return b.per_channel;
  }
  return a.symmetric && !b.symmetric;
}

/// The configurations that one quantizer for several may have, the one that these prefer first.
/// `all` has the configurations that each of them may have, and is not empty.
[[nodiscard]] inline configs common_options(const std::vector<const configs*>& all,
                                            propagation_rule rule) {
  if (rule == propagation_rule::do_not_merge_branches) {
    return {};
  }
  if (rule == propagation_rule::merge_if_all_branches_same) {
    const bool same = std::all_of(all.begin(), all.end(), [&](const configs* options) {
      return same_options(*options, *all.front());
    });
    return same ? *all.front() : configs();
  }
  std::size_t longest = 0;
  for (const configs* options : all) {
    longest = (std::max)(longest, options->size());
  }
  configs seen;
  std::vector<std::pair<std::size_t, quantizer_config>> ranked;
  for (const configs* own : all) {
    for (const quantizer_config& c : *own) {
      if (std::find(seen.begin(), seen.end(), c) != seen.end()) {
        continue;
      }
      seen.push_back(c);
      std::size_t rank = 0;
      bool allowed = true;
      for (const configs* options : all) {
        const auto found = std::find(options->begin(), options->end(), c);
        allowed = allowed && allows(*options, c, rule);
        rank += found == options->end() ? longest + 1
                                        : static_cast<std::size_t>(found - options->begin());
      }
      if (allowed) {
        ranked.emplace_back(rank, c);
      }
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : is_preferred(a.second, b.second);
  });
  configs common;
  for (const auto& [rank, c] : ranked) {
    common.push_back(c);
  }
  return common;
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_COMMON_OPTIONS_HPP
