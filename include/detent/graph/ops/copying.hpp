// SPDX-License-Identifier: BSD-3-Clause
// Copies elements of any type, of which only the size is known: in nested loops with steps, and by
// maps of indices along axes.
#ifndef DETENT_GRAPH_OPS_COPYING_HPP
#define DETENT_GRAPH_OPS_COPYING_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/kernels/definitions/transposition.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// For each axis of a row-major tensor that is not empty, the number of elements from one index to
/// the next.
[[nodiscard]] inline std::vector<std::ptrdiff_t> row_major_steps(const shape& dims) {
  std::vector<std::ptrdiff_t> steps(dims.size());
  std::ptrdiff_t step = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    steps[i] = step;
    step *= dims[i];
  }
  return steps;
}

/// The product of dimensions [first, last) of a tensor that is not empty.
[[nodiscard]] inline std::size_t product(const shape& dims, std::size_t first, std::size_t last) {
  std::size_t count = 1;
  for (std::size_t i = first; i < last; ++i) {
    count *= static_cast<std::size_t>(dims[i]);
  }
  return count;
}

namespace movement {

/// An element of which only the size is known. Elements are read and written with memcpy, which
/// asks for no alignment and no type and compiles to a plain load or store.
template <std::size_t Size>
struct element {
  std::byte bytes[Size];
};
template <class T>
[[nodiscard]] T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

/// Calls f.operator()<T>() with the unsigned integer type of `size` bytes; returns false without a
/// call if there is none.
template <class Function>
bool with_unit(std::size_t size, const Function& f) {
  switch (size) {
    case 1:
      f.template operator()<std::uint8_t>();
      return true;
    case 2:
      f.template operator()<std::uint16_t>();
      return true;
    case 4:
      f.template operator()<std::uint32_t>();
      return true;
    case 8:
      f.template operator()<std::uint64_t>();
      return true;
    default:
      return false;
  }
}

/// Copies of fewer bytes run on the calling thread, because waking others would cost more. Larger
/// ones are divided into at most `parallel_parts` parts.
inline constexpr std::size_t parallel_bytes = std::size_t{1} << 18;
inline constexpr std::size_t parallel_parts = 16;

}  // namespace movement

/// Writes `count` copies of one element.
inline void fill_elements(std::byte* out, std::size_t count, const std::byte* value,
                          std::size_t element_size) {
  const bool done = movement::with_unit(element_size, [&]<class T>() {
    const T v = movement::load<T>(value);
    for (std::size_t i = 0; i < count; ++i) {
      movement::store(out + i * sizeof(T), v);
    }
  });
  for (std::size_t i = 0; !done && i < count; ++i) {
    std::memcpy(out + i * element_size, value, element_size);
  }
}

/// One loop of a copy: how often it runs, and how far source and destination move each time.
struct copy_loop {
  std::size_t count;
  std::ptrdiff_t in_step;
  std::ptrdiff_t out_step;
};

namespace movement {

/// Drops loops that run once and joins neighbouring loops that together are one longer loop.
/// Returns false if a loop runs zero times, so that there is nothing to copy.
inline bool simplify(std::vector<copy_loop>& loops) {
  std::vector<copy_loop> kept;
  for (const copy_loop& inner : loops) {
    if (inner.count == 0) {
      return false;
    }
    if (inner.count == 1) {
      continue;
    }
    const auto count = static_cast<std::ptrdiff_t>(inner.count);
    if (!kept.empty() && kept.back().in_step == inner.in_step * count &&
        kept.back().out_step == inner.out_step * count) {
      kept.back() = {kept.back().count * inner.count, inner.in_step, inner.out_step};
    } else {
      kept.push_back(inner);
    }
  }
  loops = std::move(kept);
  return true;
}

/// Transposes a piece that fits the cache, out[j][i] = in[i][j] for `rows` i and `columns` j.
/// `in_row` and `out_row` are in bytes.
template <class T>
void transpose_piece(const std::byte* in, std::ptrdiff_t in_row, std::byte* out,
                     std::ptrdiff_t out_row, std::ptrdiff_t rows, std::ptrdiff_t columns) {
  constexpr std::ptrdiff_t size = sizeof(T);
  for (std::ptrdiff_t j = 0; j < columns; ++j) {
    for (std::ptrdiff_t i = 0; i < rows; ++i) {
      store(out + j * out_row + i * size, load<T>(in + i * in_row + j * size));
    }
  }
}

/// Transposes a matrix piece by piece, so that both sides stay in the cache. `in_row` and `out_row`
/// are in bytes.
template <class T>
void transpose_blocks(const std::byte* in, std::ptrdiff_t in_row, std::byte* out,
                      std::ptrdiff_t out_row, std::ptrdiff_t rows, std::ptrdiff_t columns) {
  constexpr std::ptrdiff_t size = sizeof(T);
  if constexpr (size <= 4) {
    if (in_row >= 0 && out_row > 0) {        // kernels take no negative strides
      constexpr std::ptrdiff_t width = 128;  // lines of the output that all rows go to
      const auto& kernels = detent::detail::active<kernels::transposition_kernels<T>>();
      for (std::ptrdiff_t j = 0; j < columns; j += width) {
        const auto count = static_cast<std::size_t>((std::min)(width, columns - j));
        kernels.transpose({.from = in + j * size,
                           .from_stride = static_cast<std::size_t>(in_row / size),
                           .rows = static_cast<std::size_t>(rows),
                           .columns = count,
                           .to = out + j * out_row,
                           .to_stride = static_cast<std::size_t>(out_row / size),
                           .line = count,
                           .line_step = 1});
      }
      return;
    }
  }
  constexpr std::ptrdiff_t side = 16;
  for (std::ptrdiff_t i = 0; i < rows; i += side) {
    const std::ptrdiff_t height = (std::min)(side, rows - i);
    for (std::ptrdiff_t j = 0; j < columns; j += side) {
      transpose_piece<T>(in + i * in_row + j * size, in_row, out + j * out_row + i * size, out_row,
                         height, (std::min)(side, columns - j));
    }
  }
}

template <class T>
void copy_line(const std::byte* in, std::byte* out, const copy_loop& loop) {
  const auto count = static_cast<std::ptrdiff_t>(loop.count);
  if (loop.in_step == 0 && loop.out_step == static_cast<std::ptrdiff_t>(sizeof(T))) {
    fill_elements(out, loop.count, in, sizeof(T));
    return;
  }
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    store(out + i * loop.out_step, load<T>(in + i * loop.in_step));
  }
}

/// A nest of loops that copies `unit` contiguous bytes each time. Its loops come with steps in
/// units and are kept with steps in bytes.
class byte_copy {
 public:
  byte_copy(std::size_t unit, std::vector<copy_loop> loops)
      : unit_(unit), loops_(std::move(loops)) {
    for (copy_loop& l : loops_) {
      l.in_step *= static_cast<std::ptrdiff_t>(unit);
      l.out_step *= static_cast<std::ptrdiff_t>(unit);
    }
    take_contiguous_loop();
    pair_transposed_loops();
  }

  void run(const std::byte* in, std::byte* out, const parallel_for* parallel) const {
    std::size_t bytes = unit_;
    for (const copy_loop& l : loops_) {
      bytes *= l.count;
    }
    if (bytes == 0) {
      return;  // tensors of strings have a shape, but no memory
    }
    if (parallel == nullptr || bytes < parallel_bytes || loops_.empty()) {
      nest(in, out, 0);
      return;
    }
    const copy_loop whole = loops_.front();
    const std::size_t parts = (std::min)(whole.count, parallel_parts);
    detent::detail::run_parallel(*parallel, parts, [&](std::size_t part) {
      const std::size_t begin = whole.count * part / parts;
      byte_copy piece = *this;
      piece.loops_.front().count = whole.count * (part + 1) / parts - begin;
      const auto first = static_cast<std::ptrdiff_t>(begin);
      piece.nest(in + first * whole.in_step, out + first * whole.out_step, 0);
    });
  }

 private:
  /// Makes the innermost loop part of the unit if it is contiguous on both sides.
  void take_contiguous_loop() {
    const auto step = static_cast<std::ptrdiff_t>(unit_);
    if (!loops_.empty() && loops_.back().in_step == step && loops_.back().out_step == step) {
      unit_ *= loops_.back().count;
      loops_.pop_back();
    }
  }
  /// If the output is contiguous along the innermost loop and the input along another, makes these
  /// two the innermost ones, to be walked in square pieces. The order of loops does not change the
  /// result.
  void pair_transposed_loops() {
    const auto step = static_cast<std::ptrdiff_t>(unit_);
    if (loops_.size() < 2 || loops_.back().out_step != step || unit_ > 8) {
      return;
    }
    const auto found = std::find_if(loops_.begin(), loops_.end(),
                                    [step](const copy_loop& l) { return l.in_step == step; });
    if (found != loops_.end()) {
      std::rotate(found, found + 1, loops_.end() - 1);
      transposed_ = std::has_single_bit(unit_);
    }
  }

  void nest(const std::byte* in, std::byte* out, std::size_t depth) const {
    const std::size_t left = loops_.size() - depth;
    if (left == 0) {
      std::memcpy(out, in, unit_);
    } else if (left == 2 && transposed_) {
      transpose(in, out);
    } else if (left > 1) {
      const copy_loop& l = loops_[depth];
      for (std::size_t i = 0; i < l.count; ++i) {
        const auto step = static_cast<std::ptrdiff_t>(i);
        nest(in + step * l.in_step, out + step * l.out_step, depth + 1);
      }
    } else {
      line(in, out);
    }
  }
  void transpose(const std::byte* in, std::byte* out) const {
    const copy_loop& columns = loops_[loops_.size() - 2];  // contiguous in the input
    const copy_loop& rows = loops_.back();                 // contiguous in the output
    with_unit(unit_, [&]<class T>() {
      transpose_blocks<T>(in, rows.in_step, out, columns.out_step,
                          static_cast<std::ptrdiff_t>(rows.count),
                          static_cast<std::ptrdiff_t>(columns.count));
    });
  }
  void line(const std::byte* in, std::byte* out) const {
    const copy_loop& l = loops_.back();
    const bool done = with_unit(unit_, [&]<class T>() { copy_line<T>(in, out, l); });
    for (std::size_t i = 0; !done && i < l.count; ++i) {
      const auto step = static_cast<std::ptrdiff_t>(i);
      std::memcpy(out + step * l.out_step, in + step * l.in_step, unit_);
    }
  }

  std::size_t unit_;
  std::vector<copy_loop> loops_;
  bool transposed_ = false;
};

}  // namespace movement

/// Copies one element in each turn of a nest of loops, outermost loop first; steps are in elements.
/// The loops must not write an element twice.
inline void copy_elements(const std::byte* in, std::byte* out, std::size_t element_size,
                          std::vector<copy_loop> loops, const parallel_for* parallel = nullptr) {
  if (movement::simplify(loops)) {
    movement::byte_copy(element_size, std::move(loops)).run(in, out, parallel);
  }
}

/// Transposes a row-major tensor of shape `in_dims`: axis i of the output is axis permutation[i] of
/// the input.
inline void transpose_bytes(const std::byte* in, std::byte* out, std::size_t element_size,
                            const shape& in_dims, std::span<const std::size_t> permutation,
                            const parallel_for* parallel = nullptr) {
  if (element_count(in_dims) == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in_dims);
  std::vector<copy_loop> loops(in_dims.size());
  std::ptrdiff_t out_step = 1;
  for (std::size_t i = in_dims.size(); i-- > 0;) {
    const std::size_t from = permutation[i];
    loops[i] = {static_cast<std::size_t>(in_dims[from]), in_steps[from], out_step};
    out_step *= in_dims[from];
  }
  copy_elements(in, out, element_size, std::move(loops), parallel);
}

namespace movement {

/// For each index of the output along an axis, the index of the input that it is copied from.
using index_map = std::pmr::vector<std::size_t>;

[[nodiscard]] inline bool is_identity(const index_map& map, std::int64_t in_dim) {
  if (map.size() != static_cast<std::size_t>(in_dim)) {
    return false;
  }
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i] != i) {
      return false;
    }
  }
  return true;
}

/// Copies elements by maps of indices, one for each axis: out[i][j]... =
/// in[maps[0][i]][maps[1][j]]...
class mapped_copy {
 public:
  mapped_copy(std::size_t element_size, const shape& in_dims, std::vector<index_map> maps)
      : unit_(element_size), maps_(std::move(maps)) {
    std::size_t axes = maps_.size();
    while (axes > 0 && is_identity(maps_[axes - 1], in_dims[axes - 1])) {
      unit_ *= static_cast<std::size_t>(in_dims[--axes]);
    }
    maps_.resize(axes);
    in_bytes_.resize(axes);
    out_bytes_.resize(axes);
    std::size_t in = unit_;
    std::size_t out = unit_;
    for (std::size_t i = axes; i-- > 0;) {
      in_bytes_[i] = in;
      out_bytes_[i] = out;
      in *= static_cast<std::size_t>(in_dims[i]);
      out *= maps_[i].size();
    }
    total_bytes_ = out;
  }

  void run(const std::byte* in, std::byte* out, const parallel_for* parallel) const {
    if (total_bytes_ == 0) {
      return;
    }
    std::size_t depth = 0;
    while (depth < maps_.size() && maps_[depth].size() == 1) {
      in += maps_[depth][0] * in_bytes_[depth];
      ++depth;
    }
    if (parallel == nullptr || total_bytes_ < parallel_bytes || depth + 1 >= maps_.size()) {
      nest(in, out, depth);
      return;
    }
    const std::size_t count = maps_[depth].size();
    const std::size_t parts = (std::min)(count, parallel_parts);
    detent::detail::run_parallel(*parallel, parts, [&](std::size_t part) {
      range(in, out, depth, count * part / parts, count * (part + 1) / parts);
    });
  }

 private:
  void nest(const std::byte* in, std::byte* out, std::size_t depth) const {
    if (depth == maps_.size()) {
      std::memcpy(out, in, unit_);
    } else if (depth + 1 == maps_.size()) {
      line(in, out, maps_[depth]);
    } else {
      range(in, out, depth, 0, maps_[depth].size());
    }
  }
  void range(const std::byte* in, std::byte* out, std::size_t depth, std::size_t begin,
             std::size_t end) const {
    const index_map& map = maps_[depth];
    for (std::size_t i = begin; i < end; ++i) {
      std::byte* to = out + i * out_bytes_[depth];
      if (i > begin && map[i] == map[i - 1]) {
        std::memcpy(to, to - out_bytes_[depth], out_bytes_[depth]);
      } else {
        nest(in + map[i] * in_bytes_[depth], to, depth + 1);
      }
    }
  }
  void line(const std::byte* in, std::byte* out, const index_map& map) const {
    const bool done = with_unit(unit_, [&]<class T>() {
      for (std::size_t i = 0; i < map.size(); ++i) {
        store(out + i * sizeof(T), load<T>(in + map[i] * sizeof(T)));
      }
    });
    for (std::size_t i = 0; !done && i < map.size(); ++i) {
      std::memcpy(out + i * unit_, in + map[i] * unit_, unit_);
    }
  }

  std::size_t unit_;
  std::vector<index_map> maps_;
  std::vector<std::size_t> in_bytes_;  // from one index of an axis to the next
  std::vector<std::size_t> out_bytes_;
  std::size_t total_bytes_ = 0;
};

}  // namespace movement

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_COPYING_HPP
