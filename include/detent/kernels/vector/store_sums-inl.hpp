// SPDX-License-Identifier: BSD-3-Clause
// The epilogue of integer products (integer_epilogue) on vectors: from 32-bit sums to what is
// stored.

#ifndef DETENT_KERNELS_VECTOR_STORE_SUMS_INL_HPP
#define DETENT_KERNELS_VECTOR_STORE_SUMS_INL_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// The epilogue of one vector of columns, which loads once what depends on the columns only.
/// kHasAddend: there is an addend, which only 32-bit outputs have. kHasRows: there are other terms
/// of rows or elements (has_terms_of_rows).
template <integer_output kOutput, bool kHasAddend, bool kHasRows>
class column_epilogue {
 public:
  HWY_INLINE column_epilogue(const integer_epilogue& e, std::size_t column) noexcept
      : column_(column),
        offset_(hn::LoadU(int_tag{}, e.column_offset + column)),
        rhs_zero_point_(load_or_zero(int_tag{}, e.rhs_zero_point, column, e.row_sum != nullptr)),
        column_sum_(load_or_zero(int_tag{}, e.column_sum, column, e.row_zero_point != nullptr)),
        multiplier_(
            load_or_zero(float_tag{}, e.multiplier, column, kOutput != integer_output::s32)),
        bias_(load_or_zero(float_tag{}, e.bias, column, e.bias != nullptr)),
        lower_(hn::Set(float_tag{}, e.lower)),
        upper_(hn::Set(float_tag{}, e.upper)),
        grid_(hn::Set(int_tag{}, e.zero_point), e.qmin, e.qmax) {}

  [[nodiscard]] HWY_INLINE float_vector multiplier() const noexcept { return multiplier_; }

  /// Returns the sums of row `row` with all integer terms but the addend.
  [[nodiscard]] HWY_INLINE int_vector with_terms(const integer_epilogue& e,
                                                 const std::int32_t* sums,
                                                 std::size_t row) const noexcept {
    const int_tag di;
    int_vector v = hn::Add(hn::LoadU(di, sums), offset_);
    if constexpr (kHasRows) {
      if (e.row_sum != nullptr) {
        v = hn::Sub(v, hn::Mul(hn::Set(di, e.row_sum[row]), rhs_zero_point_));
      }
      if (e.row_zero_point != nullptr) {
        v = hn::Sub(v, hn::Mul(hn::Set(di, e.row_zero_point[row]), column_sum_));
      }
    }
    return v;
  }

  /// Stores the results of `count` sums of row `row` at element `index` of c.
  HWY_INLINE void store(const integer_epilogue& e, const std::int32_t* sums, std::size_t row,
                        std::size_t count, void* c, std::size_t index) const noexcept {
    const float_tag df;
    const int_tag di;
    int_vector v = with_terms(e, sums, row);
    if constexpr (kOutput == integer_output::s32) {
      if constexpr (kHasAddend) {
        const std::int32_t* addend = e.addend + row * e.addend_stride + column_;
        v = hn::Add(v, count == lanes ? hn::LoadU(di, addend) : hn::LoadN(di, addend, count));
      }
      store_lanes(v, di, count, static_cast<std::int32_t*>(c) + index);
      return;
    }
    const float_vector sum = hn::ConvertTo(df, v);
    if constexpr (kOutput == integer_output::f32 || kOutput == integer_output::bf16) {
      float_vector m = multiplier_;
      if (kHasRows && e.row_scale != nullptr) {
        m = hn::Mul(hn::Set(df, e.row_scale[row]), m);
      }
      // Without a bias, bias_ is 0, and the rounded sum of the product and 0 is the rounded
      // product.
      float_vector real = hn::MulAdd(sum, m, bias_);
      if (kHasRows && e.residual != nullptr) {
        const float* residual = e.residual + row * e.residual_stride + column_;
        real = hn::Add(real,
                       count == lanes ? hn::LoadU(df, residual) : hn::LoadN(df, residual, count));
      }
      real = clamp_ordered(real, lower_, upper_);
      if constexpr (kOutput == integer_output::f32) {
        store_lanes(real, df, count, static_cast<float*>(c) + index);
      } else {
        const hn::Rebind<std::uint16_t, float_tag> d16;
        store_lanes(to_bfloat16(real), d16, count, static_cast<std::uint16_t*>(c) + index);
      }
    } else {
      // The product of an integer and a finite multiplier is never NaN.
      const int_vector q = grid_.round(grid_.clamp(hn::Mul(sum, multiplier_)));
      using output_type =
          std::conditional_t<kOutput == integer_output::u8, std::uint8_t, std::int8_t>;
      output_type* to = static_cast<output_type*>(c) + index;
      if (count == lanes) {
        store_8bit(q, to);
      } else {
        store_8bit(q, count, to);
      }
    }
  }

 private:
  template <class D, class T>
  static HWY_INLINE hn::Vec<D> load_or_zero(D d, const T* from, std::size_t column,
                                            bool is_there) noexcept {
    return is_there ? hn::LoadU(d, from + column) : hn::Zero(d);
  }
  template <class V, class D, class T>
  static HWY_INLINE void store_lanes(V v, D d, std::size_t count, T* to) noexcept {
    if (count == lanes) {
      hn::StoreU(v, d, to);
    } else {
      store_part(v, d, to, count);
    }
  }

  std::size_t column_;
  int_vector offset_, rhs_zero_point_, column_sum_;
  float_vector multiplier_, bias_, lower_, upper_;
  grid_vectors grid_;
};

/// Applies the epilogue to `rows` rows of sums, which are sums_stride apart, and stores `columns`
/// results of each. `first` and `column` number the first row and column for the epilogue; `index`
/// is the first element in c.
template <integer_output kOutput, bool kHasAddend, bool kHasRows>
void store_block(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                 std::size_t first, std::size_t rows, std::size_t column, std::size_t columns,
                 void* c, std::size_t index, std::size_t ldc) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  for (std::size_t j = 0; j < columns; j += lanes) {
    const column_epilogue<kOutput, kHasAddend, kHasRows> epilogue(e, column + j);
    const std::int32_t* from = sums + j;
    std::size_t to = index + j;
    std::size_t r = 0;
    if (columns - j >= lanes) {
      for (; r + kRows <= rows; r += kRows) {
        DETENT_UNROLL for (std::size_t i = 0; i < kRows; ++i) {
          epilogue.store(e, from + i * sums_stride, first + r + i, lanes, c, to);
          to += ldc;
        }
        from += kRows * sums_stride;
      }
    }
    const std::size_t count = (std::min)(lanes, columns - j);
    for (; r < rows; ++r, from += sums_stride, to += ldc) {
      epilogue.store(e, from, first + r, count, c, to);
    }
  }
}

/// Whether rows or elements have terms of their own, other than an addend.
[[nodiscard]] HWY_INLINE bool has_terms_of_rows(const integer_epilogue& e) noexcept {
  return e.row_sum != nullptr || e.row_zero_point != nullptr || e.row_scale != nullptr ||
         e.residual != nullptr;
}

/// Returns choose.template operator()<kOutput, kHasAddend, kHasRows>() for the arguments of
/// column_epilogue that an epilogue needs.
template <class Choose>
[[nodiscard]] auto for_terms_of(const integer_epilogue& e, const Choose& choose) noexcept {
  const bool has_rows = has_terms_of_rows(e);
#define DETENT_CHOOSE(output, has_addend)                                            \
  (has_rows ? choose.template operator()<integer_output::output, has_addend, true>() \
            : choose.template operator()<integer_output::output, has_addend, false>())
  switch (e.output) {
    case integer_output::s32:
      return e.addend != nullptr ? DETENT_CHOOSE(s32, true) : DETENT_CHOOSE(s32, false);
    case integer_output::f32:
      return DETENT_CHOOSE(f32, false);
    case integer_output::bf16:
      return DETENT_CHOOSE(bf16, false);
    case integer_output::u8:
      return DETENT_CHOOSE(u8, false);
    case integer_output::s8:
      break;
  }
  return DETENT_CHOOSE(s8, false);
#undef DETENT_CHOOSE
}

/// store_block() for the output type and the terms of the epilogue.
inline void store_sums(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                       std::size_t first, std::size_t rows, std::size_t column, std::size_t columns,
                       void* c, std::size_t index, std::size_t ldc) noexcept {
  const auto store = for_terms_of(e, []<integer_output kOutput, bool kHasAddend, bool kHasRows>() {
    return &store_block<kOutput, kHasAddend, kHasRows>;
  });
  store(e, sums, sums_stride, first, rows, column, columns, c, index, ldc);
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
