// SPDX-License-Identifier: BSD-3-Clause
// Conversions without copies: Eigen's matrices to views, where the library takes views, and views
// to Eigen's matrices.
//
//     Eigen::MatrixXf w = ...;
//     const auto q = detent::gptq(detent::as_view(w), g);
//     const Eigen::VectorXf y = detent::as_eigen(view) * x;
#ifndef DETENT_SOLVERS_EIGEN_VIEWS_HPP
#define DETENT_SOLVERS_EIGEN_VIEWS_HPP

#include <cstddef>
#include <type_traits>

#include <detent/config.hpp>

#if !DETENT_WITH_EIGEN
#error \
    "detent: eigen_views.hpp needs Eigen (3.4 or later) on the include path and DETENT_WITH_EIGEN=1"
#endif

#include <Eigen/Core>

#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The type that as_eigen() returns: an Eigen::Map with dynamic sizes and strides, const for const
/// T.
template <class T>
using eigen_map = Eigen::Map<
    std::conditional_t<std::is_const_v<T>,
                       const Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic,
                                           Eigen::RowMajor>,
                       Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>,
    Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// The elements of `view` as an Eigen matrix of the same shape; valid as long as the elements are.
/// Throws invalid_argument if a stride is negative, which Eigen does not support.
template <class T>
[[nodiscard]] eigen_map<T> as_eigen(matrix_view<T> view) {
  require(view.row_stride >= 0 && view.column_stride >= 0, error_kind::invalid_argument,
          "as_eigen: the strides are ", view.row_stride, " and ", view.column_stride);
  return eigen_map<T>(
      view.data, static_cast<Eigen::Index>(view.rows), static_cast<Eigen::Index>(view.columns),
      Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(view.row_stride, view.column_stride));
}

/// A view of an Eigen matrix, vector, Map, Ref or block, stored by rows or by columns; valid as
/// long as the elements are. An expression that has no elements in memory does not compile.
template <class Derived>
[[nodiscard]] matrix_view<const typename Derived::Scalar> as_view(
    const Eigen::DenseBase<Derived>& matrix) {
  static_assert(
      (Derived::Flags & Eigen::DirectAccessBit) != 0,
      "detent::as_view: an expression has no elements in memory; eval() it into a matrix");
  const Derived& m = matrix.derived();
  const bool by_rows = Derived::IsRowMajor;
  return {m.data(), static_cast<std::size_t>(m.rows()), static_cast<std::size_t>(m.cols()),
          by_rows ? m.outerStride() : m.innerStride(), by_rows ? m.innerStride() : m.outerStride()};
}
/// Deleted, since the view of a temporary matrix would dangle. Temporary Maps, Refs and blocks are
/// refused with it: give them a name first.
template <class Derived>
void as_view(const Eigen::DenseBase<Derived>&& matrix) = delete;

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_EIGEN_VIEWS_HPP
