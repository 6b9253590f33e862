// SPDX-License-Identifier: BSD-3-Clause
// Transposes matrices whose elements have 8, 16 or 32 bits.
//
// A small rectangle of the matrix is transposed in vectors v[0], v[1], ..., which hold one row
// each. Interleaving v[i] with v[i + half] for all i, into pairs of vectors, rotates the bits of
// (row, column): the highest bit of the row becomes the lowest bit of the position in memory. After
// as many such steps as the row has bits, the columns stand where the rows did. Instructions
// interleave within 16 bytes; the 128-bit blocks of wider vectors hold other rows, which are
// transposed side by side.

#ifndef DETENT_KERNELS_VECTOR_TRANSPOSE_INL_HPP
#define DETENT_KERNELS_VECTOR_TRANSPOSE_INL_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/transposition.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/transpose-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// Transposes one matrix.
template <class T>
class transposition {
 public:
  HWY_INLINE explicit transposition(const transpose_args& a) noexcept
      : a_(a), from_(static_cast<const T*>(a.from)), to_(static_cast<T*>(a.to)) {}

  HWY_INLINE void run() const noexcept {
    if (a_.rows == 3 && a_.to_stride == 3) {
      return three_rows();
    }
    if (a_.rows == 1 || a_.columns < side) {
      return one_by_one(0, a_.columns);
    }
    rows_from<hn::MaxLanes(hn::ScalableTag<T>{})>(0);
  }

 private:
  /// Columns that are transposed at a time: elements in 16 bytes.
  static constexpr std::size_t side = 16 / sizeof(T);

  /// The place in the output of a column's first element; next() moves on to the next column.
  class place {
   public:
    HWY_INLINE place(const transpose_args& a, T* to, std::size_t column) noexcept
        : step_(a.to_stride),
          line_(a.line),
          gap_(static_cast<std::ptrdiff_t>(a.line_step) -
               static_cast<std::ptrdiff_t>(a.line * a.to_stride)),
          x_(column % a.line),
          to_(to + column / a.line * a.line_step + x_ * step_) {}

    [[nodiscard]] HWY_INLINE T* get() const noexcept { return to_; }
    HWY_INLINE void next() noexcept {
      to_ += step_;
      if (++x_ == line_) {
        x_ = 0;
        to_ += gap_;
      }
    }

   private:
    std::size_t step_, line_;
    std::ptrdiff_t gap_;
    std::size_t x_;
    T* to_;
  };

  /// Transposes the rows from `first` on, kRows at a time as long as there are as many.
  template <std::size_t kRows>
  HWY_INLINE void rows_from(std::size_t first) const noexcept {
    for (; first + kRows <= a_.rows; first += kRows) {
      strip<kRows>(first);
    }
    if (first == a_.rows) {
      return;
    }
    if constexpr (kRows > 2) {
      if (a_.rows < kRows || a_.rows - first <= kRows / 2) {
        return rows_from<kRows / 2>(first);
      }
    }
    // The last kRows rows, some of which have been done before.
    strip<kRows>(a_.rows - kRows);
  }

  /// Transposes kRows rows from `row` on, all columns.
  template <std::size_t kRows>
  HWY_NOINLINE void strip(std::size_t row) const noexcept {
    const T* from = from_ + row * a_.from_stride;
    place to(a_, to_ + row, 0);
    for (std::size_t column = 0; column < a_.columns; column += side) {
      if (column + side > a_.columns) {
        column = a_.columns - side;
        to = place(a_, to_ + row, column);
      }
      block<kRows>(from + column, to);
    }
  }

  /// Transposes a rectangle of kRows x side elements, and moves `to` behind its columns.
  template <std::size_t kRows>
  HWY_INLINE void block(const T* from, place& to) const noexcept {
    constexpr std::size_t vectors = (std::min)(kRows, side);
    constexpr std::size_t width = (std::max)(kRows, side);
    const hn::CappedTag<T, width> d;
    using vector = hn::Vec<hn::CappedTag<T, width>>;
    static_assert(hn::MaxLanes(hn::CappedTag<T, width>{}) == width);
    vector v[vectors];
    DETENT_UNROLL for (std::size_t i = 0; i < vectors; ++i) {
      v[i] = load<width / side>(d, from + i * a_.from_stride);
    }
    constexpr std::size_t steps = std::bit_width(vectors) - 1;
    DETENT_UNROLL for (std::size_t step = 0; step < steps; ++step) {
      vector next[vectors];
      DETENT_UNROLL for (std::size_t i = 0; i < vectors / 2; ++i) {
        next[2 * i] = hn::InterleaveLower(d, v[i], v[i + vectors / 2]);
        next[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + vectors / 2]);
      }
      DETENT_UNROLL for (std::size_t i = 0; i < vectors; ++i) { v[i] = next[i]; }
    }
    DETENT_UNROLL for (std::size_t i = 0; i < vectors; ++i) {
      if constexpr (kRows >= side) {
        hn::StoreU(v[i], d, to.get());
        to.next();
      } else {
        alignas(16) T columns[side];
        hn::Store(v[i], d, columns);
        DETENT_UNROLL for (std::size_t j = 0; j < side; j += kRows) {
          std::memcpy(to.get(), columns + j, kRows * sizeof(T));
          to.next();
        }
      }
    }
  }

  /// Loads a vector of kBlocks 128-bit blocks, each of them `side` rows below the one before.
  template <std::size_t kBlocks, class D>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const noexcept {
    const hn::FixedTag<T, side> d16;
    if constexpr (kBlocks == 1) {
      return hn::LoadU(d, from);
    } else {
      const std::size_t step = side * a_.from_stride;
      hn::Vec<D> v = hn::LoadDup128(d, from);
      v = hn::InsertBlock<1>(v, hn::LoadU(d16, from + step));
      if constexpr (kBlocks == 4) {
        v = hn::InsertBlock<2>(v, hn::LoadU(d16, from + 2 * step));
        v = hn::InsertBlock<3>(v, hn::LoadU(d16, from + 3 * step));
      }
      return v;
    }
  }

  /// Interleaves three rows, as from planes of colours to pixels.
  HWY_INLINE void three_rows() const noexcept {
    const hn::ScalableTag<T> d;
    constexpr std::size_t width = hn::MaxLanes(hn::ScalableTag<T>{});
    for (std::size_t column = 0; column < a_.columns; column += a_.line) {
      const std::size_t count = (std::min)(a_.line, a_.columns - column);
      if (count < width) {
        one_by_one(column, count);
        continue;
      }
      T* to = to_ + column / a_.line * a_.line_step;
      for (std::size_t x = 0; x < count; x += width) {
        x = (std::min)(x, count - width);
        const T* from = from_ + column + x;
        hn::StoreInterleaved3(hn::LoadU(d, from), hn::LoadU(d, from + a_.from_stride),
                              hn::LoadU(d, from + 2 * a_.from_stride), d, to + 3 * x);
      }
    }
  }

  /// Transposes `count` columns from `first` on, element by element.
  HWY_INLINE void one_by_one(std::size_t first, std::size_t count) const noexcept {
    place to(a_, to_, first);
    for (std::size_t column = first; column < first + count; ++column, to.next()) {
      for (std::size_t row = 0; row < a_.rows; ++row) {
        std::memcpy(to.get() + row, from_ + row * a_.from_stride + column, sizeof(T));
      }
    }
  }

  const transpose_args& a_;
  const T* from_;
  T* to_;
};

template <class T>
void transpose(const transpose_args& a) noexcept {
  transposition<T>(a).run();
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
