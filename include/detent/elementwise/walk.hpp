// SPDX-License-Identifier: BSD-3-Clause
// How elementwise operations run (store_policy, execution), and the division of views of any layout
// into blocks for kernels, which take blocks whose columns are dense.
//
// Neighbouring dimensions are merged where the input, the output and the parameters all allow it.
//   - If the last dimension is dense in both operands, it becomes the columns of the blocks and the
//     dimension before it their rows.
//   - Otherwise square tiles are gathered, computed and scattered. Their columns are a dimension in
//     which the input is dense, if there is one. A change of layout thus costs a copy of a tile in
//     the first-level cache.
#ifndef DETENT_ELEMENTWISE_WALK_HPP
#define DETENT_ELEMENTWISE_WALK_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Whether an elementwise operation writes its results through the caches or past them.
enum class store_policy : std::uint8_t {
  automatic,  ///< Streaming for outputs of 32 MiB and more (packed types: 2^25 elements and more),
              ///< which exceed most last-level caches.
  cached,     ///< Ordinary stores: best if the output is read again soon.
  streaming,  ///< Stores that bypass the caches, wherever the layout of the output allows them.
};

/// How an elementwise operation runs. The results do not depend on it.
struct execution {
  parallel_for parallel{};                        ///< Runs the tasks; empty: the calling thread.
  store_policy stores = store_policy::automatic;  ///< How results are written.
};

namespace detail {

/// One dimension of an operation: its extent, and the strides of the input, the output and the
/// parameters, in elements.
struct walk_dimension {
  std::size_t extent = 1;
  std::ptrdiff_t in = 0;
  std::ptrdiff_t out = 0;
  std::ptrdiff_t parameter = 0;
};

/// The dimensions of an operation, from the outermost to the innermost. There may be one more than
/// a view has, because block parameters split an axis in two.
struct walk {
  std::array<walk_dimension, max_rank + 1> dimensions{};
  std::size_t rank = 0;

  void push(walk_dimension d) noexcept { dimensions[rank++] = d; }
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t product = 1;
    for (std::size_t i = 0; i < rank; ++i) {
      product *= dimensions[i].extent;
    }
    return product;
  }

  /// Joins neighbouring dimensions that are one dense dimension in the input, the output and the
  /// parameters, and drops dimensions of extent 1.
  void merge() noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      const walk_dimension& d = dimensions[i];
      if (d.extent == 1) {
        continue;
      }
      const auto extent = static_cast<std::ptrdiff_t>(d.extent);
      if (kept > 0 && dimensions[kept - 1].in == d.in * extent &&
          dimensions[kept - 1].out == d.out * extent &&
          dimensions[kept - 1].parameter == d.parameter * extent) {
        const std::size_t joined = dimensions[kept - 1].extent * d.extent;
        dimensions[kept - 1] = d;
        dimensions[kept - 1].extent = joined;
        continue;
      }
      dimensions[kept++] = d;
    }
    rank = kept;
  }
};

/// Where a block starts in the input, the output and the parameters, in elements.
struct walk_offset {
  std::ptrdiff_t in = 0;
  std::ptrdiff_t out = 0;
  std::ptrdiff_t parameter = 0;

  [[nodiscard]] walk_offset moved(const walk_dimension& d, std::size_t by) const noexcept {
    const auto n = static_cast<std::ptrdiff_t>(by);
    return {in + n * d.in, out + n * d.out, parameter + n * d.parameter};
  }
};

/// A block of rows x columns of elements.
struct walk_block {
  walk_dimension rows;
  walk_dimension columns;
  walk_offset at;
};

/// Number of rows and of columns of a tile that is gathered or scattered.
inline constexpr std::size_t tile_side = 64;
/// Number of elements that a task of a parallel run aims at; a multiple of every SIMD vector and
/// cache line.
inline constexpr std::size_t task_size = std::size_t{1} << 16;

/// Calls f(offset) for every index of the first `dimensions` dimensions of w.
template <class F>
void for_each_offset(const walk& w, std::size_t dimensions, walk_offset at, const F& f) {
  std::array<std::size_t, max_rank + 1> index{};
  while (true) {
    walk_offset here = at;
    for (std::size_t i = 0; i < dimensions; ++i) {
      here = here.moved(w.dimensions[i], index[i]);
    }
    f(here);
    std::size_t i = dimensions;
    while (i > 0 && ++index[i - 1] == w.dimensions[i - 1].extent) {
      index[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

/// Whether all of the output that belongs to an index of one dimension lies before that of the next
/// index.
[[nodiscard]] inline bool is_outermost_in_output(const walk& w, std::size_t dimension) noexcept {
  std::ptrdiff_t last = 0;  // the place of the last element of index 0
  for (std::size_t i = 0; i < w.rank; ++i) {
    const walk_dimension& d = w.dimensions[i];
    if (d.out < 0) {
      return false;
    }
    last += i == dimension ? 0 : static_cast<std::ptrdiff_t>(d.extent - 1) * d.out;
  }
  return last < w.dimensions[dimension].out;
}

/// Calls block(walk_block) for blocks that cover the walk from `start` on, in tasks of e.parallel.
/// If is_direct(rows, columns) is false for the last two dimensions, the columns of the blocks are
/// a dimension in which the input is dense, if there is one, so that neighbours in memory are read
/// together.
///
/// `unit` elements of the output share a byte, which only one task may write. Hence, if they are
/// several, tasks are ranges of the output that begin with a byte; where the layout has no such
/// ranges, there is one task.
template <class IsDirect, class Block>
void run_walk(walk w, walk_offset start, const execution& e, std::size_t unit,
              const IsDirect& is_direct, const Block& block) {
  if (w.size() == 0) {
    return;
  }
  w.merge();
  while (w.rank < 2) {  // at least rows and columns
    w.push(w.dimensions[0]);
    w.dimensions[0] = {};
  }
  const auto begin = w.dimensions.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(w.rank);
  if (!is_direct(w.dimensions[w.rank - 2], w.dimensions[w.rank - 1])) {
    const auto dense =
        std::find_if(begin, end, [](const walk_dimension& d) { return d.in == 1 && d.extent > 1; });
    if (dense != end) {
      std::rotate(dense, dense + 1, end);
    }
  }
  const std::size_t outer = w.rank - 2;
  const auto run = [&](const walk& part, walk_offset at) {
    for_each_offset(part, outer, at, [&](walk_offset here) {
      block(walk_block{part.dimensions[outer], part.dimensions[outer + 1], here});
    });
  };
  const auto split =
      unit > 1
          ? std::max_element(begin, end, [](const auto& a, const auto& b) { return a.out < b.out; })
          : std::find_if(begin, end, [](const walk_dimension& d) { return d.extent > 1; });
  const std::size_t extent = split == end ? 1 : split->extent;
  const std::size_t least = (std::max)(std::size_t{1}, task_size / (w.size() / extent));
  const std::size_t chunk = (least + unit - 1) / unit * unit;  // a whole number of bytes
  const auto dimension = static_cast<std::size_t>(split - begin);
  const bool may_split = unit == 1 || (start.out % static_cast<std::ptrdiff_t>(unit) == 0 &&
                                       is_outermost_in_output(w, dimension));
  if (!e.parallel || chunk >= extent || !may_split) {
    run(w, start);
    return;
  }
  run_parallel(e.parallel, (extent + chunk - 1) / chunk, [&](std::size_t task) {
    walk part = w;
    part.dimensions[dimension].extent = (std::min)(chunk, extent - task * chunk);
    run(part, start.moved(w.dimensions[dimension], task * chunk));
  });
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_ELEMENTWISE_WALK_HPP
