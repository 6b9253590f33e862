// SPDX-License-Identifier: BSD-3-Clause
// Einsum: sums of products over indices that are named by letters. Two tensors of floats are
// multiplied as matrices by the library's gemm where the equation permits; otherwise floats are
// summed in double, always in the same order.
#ifndef DETENT_GRAPH_OPS_EINSUM_HPP
#define DETENT_GRAPH_OPS_EINSUM_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/computed_floats.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/reduction.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace einsum {

/// An index of the equation: 0 to 51 are the letters in the order of their codes, 52 and above the
/// dimensions of the ellipsis, counted from the last one.
using label = std::size_t;
inline constexpr label first_of_ellipsis = 52;
inline constexpr label label_count = first_of_ellipsis + max_tensor_rank;

/// One side of a comma: the letters before and behind the ellipsis, if there is one.
struct term {
  std::vector<label> before, behind;
  bool has_ellipsis = false;
};

[[nodiscard]] inline bool is_letter(char x) {
  return (x >= 'A' && x <= 'Z') || (x >= 'a' && x <= 'z');
}

[[nodiscard]] inline term parse_term(const operator_context& c, std::string_view text) {
  term t;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 3) == "...") {
      c.require(!t.has_ellipsis, "a term has two ellipses");
      t.has_ellipsis = true;
      i += 2;
      continue;
    }
    c.require(is_letter(text[i]), "the equation holds a character that is no letter");
    const auto letter = static_cast<label>(text[i] <= 'Z' ? text[i] - 'A' : text[i] - 'a' + 26);
    (t.has_ellipsis ? t.behind : t.before).push_back(letter);
  }
  c.require(t.before.size() + t.behind.size() <= max_tensor_rank, "a term has ",
            t.before.size() + t.behind.size(), " letters, the limit is ", max_tensor_rank);
  return t;
}

/// The indices of a tensor of `rank` dimensions, of which the ellipsis stands for `covered`.
[[nodiscard]] inline std::vector<label> labels_of(const term& t, std::size_t covered) {
  std::vector<label> all = t.before;
  for (std::size_t i = covered; i-- > 0;) {
    all.push_back(first_of_ellipsis + i);
  }
  all.insert(all.end(), t.behind.begin(), t.behind.end());
  return all;
}

/// What the equation means for the inputs of the node.
struct plan {
  std::vector<std::vector<label>> operands;
  std::vector<label> output;
  std::vector<label> summed;                       ///< The indices that the output does not have.
  std::array<std::int64_t, label_count> extent{};  ///< Of each index; 0 also if it is not used.
};

/// Notes the extents of the dimensions of one operand. A dimension of 1 is repeated to the extent
/// that the same index has elsewhere.
inline void take_extents(const operator_context& c, const std::vector<label>& labels,
                         const shape& dims, plan& p, std::array<bool, label_count>& known) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    std::int64_t& extent = p.extent[labels[d]];
    if (!known[labels[d]] || extent == 1) {
      extent = dims[d];
      known[labels[d]] = true;
    }
    c.require(dims[d] == extent || dims[d] == 1, "an index has extents ", extent, " and ", dims[d]);
  }
}

[[nodiscard]] inline plan read_plan(const operator_context& c) {
  std::string equation = c.n().get_string("equation", "");
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  plan p;
  std::array<bool, label_count> known{};
  std::array<std::size_t, label_count> uses{};
  std::size_t ellipsis = 0;
  std::string_view rest = std::string_view(equation).substr(0, arrow);
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    const std::size_t comma = rest.find(',');
    c.require((comma == std::string_view::npos) == (i + 1 == c.input_count()),
              "the equation has not one term for each of the ", c.input_count(), " inputs");
    const term t = parse_term(c, rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const shape& dims = c.input(i).dims();
    const std::size_t letters = t.before.size() + t.behind.size();
    c.require(t.has_ellipsis ? letters <= dims.size() : letters == dims.size(), "a term of ",
              letters, " letters for a tensor of shape ", shown(dims));
    c.require(dims.size() <= max_tensor_rank, "a tensor of rank ", dims.size());
    ellipsis = (std::max)(ellipsis, dims.size() - letters);
    p.operands.push_back(labels_of(t, dims.size() - letters));
    take_extents(c, p.operands.back(), dims, p, known);
    for (const label l : p.operands.back()) {
      ++uses[l];
    }
  }
  if (arrow == std::string::npos) {
    p.output = labels_of(term{}, ellipsis);
    for (label l = 0; l < first_of_ellipsis; ++l) {
      if (uses[l] == 1) {
        p.output.push_back(l);
      }
    }
  } else {
    const term t = parse_term(c, std::string_view(equation).substr(arrow + 2));
    p.output = labels_of(t, t.has_ellipsis ? ellipsis : 0);
  }
  std::array<bool, label_count> kept{};
  for (const label l : p.output) {
    c.require(known[l] && !kept[l], "the output has an index twice, or one that no input has");
    kept[l] = true;
  }
  for (label l = 0; l < label_count; ++l) {
    if (known[l] && !kept[l]) {
      p.summed.push_back(l);
    }
  }
  return p;
}

inline void infer_einsum(operator_context& c) {
  const plan p = read_plan(c);
  shape dims;
  for (const label l : p.output) {
    dims.push_back(p.extent[l]);
  }
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    c.require(c.input(i).type() == c.input(0).type(), "input ", i, " is ", shown(c.input(i).type()),
              ", input 0 is ", shown(c.input(0).type()));
  }
  c.set_output(0, c.input(0).type(), std::move(dims));
}

/// Walks over all values of some indices, the last one fastest, and keeps the offsets of the
/// operands up to date.
class index_walk {
 public:
  /// `steps[i][l]`: by how much index l moves operand i.
  index_walk(const plan& p, const std::vector<label>& labels,
             const std::vector<std::array<std::size_t, label_count>>& steps)
      : at_(labels.size()) {
    for (const label l : labels) {
      extents_.push_back(static_cast<std::size_t>(p.extent[l]));
    }
    for (const auto& step : steps) {
      steps_.emplace_back();
      for (const label l : labels) {
        steps_.back().push_back(step[l]);
      }
    }
  }
  /// The number of values of all indices together.
  [[nodiscard]] std::size_t count() const {
    std::size_t n = 1;
    for (const std::size_t extent : extents_) {
      n *= extent;
    }
    return n;
  }
  /// Moves offsets, which are those of the first values, to the values number `index`.
  void seek(std::size_t index, std::span<std::size_t> offsets) {
    for (std::size_t d = extents_.size(); d-- > 0;) {
      at_[d] = index % extents_[d];
      index /= extents_[d];
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        offsets[i] += at_[d] * steps_[i][d];
      }
    }
  }
  /// Goes to the next values; behind the last it returns to the first.
  void advance(std::span<std::size_t> offsets) {
    for (std::size_t d = extents_.size(); d-- > 0;) {
      const bool wraps = ++at_[d] == extents_[d];
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        offsets[i] += steps_[i][d];
        offsets[i] -= wraps ? extents_[d] * steps_[i][d] : 0;
      }
      if (!wraps) {
        return;
      }
      at_[d] = 0;
    }
  }

 private:
  std::vector<std::size_t> extents_;
  std::vector<std::vector<std::size_t>> steps_;
  std::vector<std::size_t> at_;
};

/// Adds the product of one element of each operand to a sum. The last factor and the sum are
/// joined by std::fma, so that it does not matter whether the compiler contracts.
template <class T>
void add_product(const std::vector<const T*>& operands, std::span<const std::size_t> offsets,
                 reducers::total_of<T>& sum) {
  using total = reducers::total_of<T>;
  total product{1};
  const std::size_t last = operands.size() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    product *= static_cast<total>(operands[i][offsets[i]]);
  }
  const auto factor = static_cast<total>(operands[last][offsets[last]]);
  if constexpr (std::is_integral_v<T>) {
    sum += product * factor;
  } else {
    sum = std::fma(product, factor, sum);
  }
}

template <class T>
void sum_products(const operator_context& c, const plan& p, const std::vector<const T*>& operands,
                  std::span<T> out) {
  std::vector<std::array<std::size_t, label_count>> steps(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const shape& dims = c.input(i).dims();
    const std::vector<std::ptrdiff_t> row_major = row_major_steps(dims);
    steps[i].fill(0);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      // A label that occurs twice in a term walks along a diagonal.
      steps[i][p.operands[i][d]] += dims[d] == 1 ? 0 : static_cast<std::size_t>(row_major[d]);
    }
  }
  const std::size_t products = index_walk(p, p.summed, steps).count();
  for_pieces(c, out.size(), rows_of(cheap_piece, products),
             [&](std::size_t begin, std::size_t end) {
               index_walk outer(p, p.output, steps);
               index_walk inner(p, p.summed, steps);
               std::vector<std::size_t> offsets(operands.size(), 0);
               outer.seek(begin, offsets);
               for (std::size_t i = begin; i < end; ++i) {
                 reducers::total_of<T> sum{};
                 for (std::size_t k = 0; k < products; ++k) {
                   add_product(operands, offsets, sum);
                   inner.advance(offsets);
                 }
                 out[i] = static_cast<T>(sum);
                 outer.advance(offsets);
               }
             });
}

/// The indices of an equation with two operands that is a product of stacks of matrices: those of
/// the stack, of the rows, of the columns, and those that are summed.
struct matrix_labels {
  std::vector<label> stack, rows, columns, inner;
};

/// Sorts the indices of an equation into `m`. Returns false if it is no product of matrices,
/// because an index is summed in one operand alone, occurs twice in it, or is broadcast.
[[nodiscard]] inline bool as_matrices(const operator_context& c, const plan& p, matrix_labels& m) {
  if (p.operands.size() != 2) {
    return false;
  }
  std::array<std::array<bool, label_count>, 2> has{};
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t d = 0; d < p.operands[i].size(); ++d) {
      const label l = p.operands[i][d];
      if (has[i][l] || c.input(i).dim(d) != p.extent[l]) {
        return false;
      }
      has[i][l] = true;
    }
  }
  for (const label l : p.output) {
    (has[0][l] && has[1][l] ? m.stack : has[0][l] ? m.rows : m.columns).push_back(l);
  }
  m.inner = p.summed;
  return std::all_of(p.summed.begin(), p.summed.end(),
                     [&](label l) { return has[0][l] && has[1][l]; });
}

/// The indices of several lists, one list after the other.
[[nodiscard]] inline std::vector<label> joined(
    std::initializer_list<const std::vector<label>*> lists) {
  std::vector<label> all;
  for (const std::vector<label>* list : lists) {
    all.insert(all.end(), list->begin(), list->end());
  }
  return all;
}

/// Copies floats whose dimensions have the indices `from` so that they have the order `to`.
inline void reorder_labels(const operator_context& c, const plan& p, const float* in,
                           const std::vector<label>& from, const std::vector<label>& to,
                           float* out) {
  std::array<std::ptrdiff_t, label_count> in_steps{};
  std::ptrdiff_t step = 1;
  for (std::size_t i = from.size(); i-- > 0;) {
    in_steps[from[i]] = step;
    step *= p.extent[from[i]];
  }
  std::vector<copy_loop> loops(to.size());
  step = 1;
  for (std::size_t i = to.size(); i-- > 0;) {
    loops[i] = {static_cast<std::size_t>(p.extent[to[i]]), in_steps[to[i]], step};
    step *= p.extent[to[i]];
  }
  copy_elements(reinterpret_cast<const std::byte*>(in), reinterpret_cast<std::byte*>(out),
                sizeof(float), std::move(loops), c.parallel);
}

/// Computes a product of stacks of matrices.
inline void multiply_matrices(const operator_context& c, const plan& p, const matrix_labels& m,
                              std::span<float> out) {
  const auto count = [&](const std::vector<label>& labels) {
    std::size_t n = 1;
    for (const label l : labels) {
      n *= static_cast<std::size_t>(p.extent[l]);
    }
    return n;
  };
  const std::size_t stack = count(m.stack);
  const std::size_t rows = count(m.rows);
  const std::size_t columns = count(m.columns);
  const std::size_t inner = count(m.inner);
  std::pmr::vector<float> left(stack * rows * inner, c.memory);
  std::pmr::vector<float> right(stack * inner * columns, c.memory);
  std::pmr::vector<float> products(out.size(), c.memory);
  reorder_labels(c, p, c.input(0).data<float>().data(), p.operands[0],
                 joined({&m.stack, &m.rows, &m.inner}), left.data());
  reorder_labels(c, p, c.input(1).data<float>().data(), p.operands[1],
                 joined({&m.stack, &m.inner, &m.columns}), right.data());
  for (std::size_t i = 0; i < stack; ++i) {
    const computed_floats factor(
        c, matrix_view<const float>(right.data() + i * inner * columns, inner, columns));
    gemm(matrix_view<const float>(left.data() + i * rows * inner, rows, inner), factor.packed(),
         matrix_view<float>(products.data() + i * rows * columns, rows, columns), {}, *c.parallel);
  }
  reorder_labels(c, p, products.data(), joined({&m.stack, &m.rows, &m.columns}), p.output,
                 out.data());
}

inline void run_einsum(operator_context& c) {
  const plan p = read_plan(c);
  const bool empty =
      std::any_of(p.summed.begin(), p.summed.end(), [&](label l) { return p.extent[l] == 0; });
  for_type(c, wide_types{}, widened(c.input(0).type()), [&]<class T>() {
    fill_output<T>(c, [&](std::span<T> out) {
      if (out.empty() || empty) {
        std::fill(out.begin(), out.end(), T{0});
        return;
      }
      // Each factor is checked against what is left, so the product does not overflow.
      std::size_t products = 1;
      for (const label l : p.summed) {
        const auto extent = static_cast<std::size_t>(p.extent[l]);
        c.require(products <= static_cast<std::size_t>(-1) / extent, "sums of too many products");
        products *= extent;
      }
      c.count_multiply_adds({out.size(), products, c.input_count()});
      if constexpr (std::is_same_v<T, float>) {
        matrix_labels m;
        if (as_matrices(c, p, m)) {
          multiply_matrices(c, p, m, out);
          return;
        }
      }
      std::vector<std::unique_ptr<elements<T>>> converted;
      std::vector<const T*> operands;
      for (std::size_t i = 0; i < c.input_count(); ++i) {
        converted.push_back(std::make_unique<elements<T>>(c, c.input(i)));
        operands.push_back(converted.back()->view().data());
      }
      sum_products(c, p, operands, out);
    });
  });
}

}  // namespace einsum

inline constexpr operator_definition einsum_operators[] = {
    {"", "Einsum", 1, any_number, layout_support::plain, einsum::infer_einsum, einsum::run_einsum,
     true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_EINSUM_HPP
