// SPDX-License-Identifier: BSD-3-Clause
// Sums of products that are exact in double, such as those of doubles that were floats. Whether a
// compiler fuses such a product with an addition does not matter.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_EXACT_PRODUCTS_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_EXACT_PRODUCTS_HPP

#include <cstddef>
#include <cstring>
#include <span>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

#if (defined(__GNUC__) || defined(__clang__)) && (DETENT_ARCH_X86_64 || defined(__aarch64__))
/// Two doubles in a register of their own.
typedef double double_pair
    __attribute__((vector_size(16)));  // NOLINT: an alias loses the attribute
#else
/// Two doubles.
struct double_pair {
  double values[2];
  double operator[](std::size_t i) const { return values[i]; }
  double_pair& operator+=(const double_pair& other) {
    values[0] += other[0];
    values[1] += other[1];
    return *this;
  }
  friend double_pair operator*(const double_pair& a, const double_pair& b) {
    return {{a[0] * b[0], a[1] * b[1]}};
  }
};
#endif

[[nodiscard]] inline double_pair load_pair(const double* from) {
  double_pair pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

/// For each of `Taps` offsets t, adds to sums[t] the sum of a[i] * b[offsets[t] + i] over n
/// elements. It is made in four parts, element i in part i % 4 but for the last n % 4 elements,
/// which are in part 0; the parts p are added as (p[0] + p[1]) + (p[2] + p[3]).
template <std::size_t Taps>
void add_dots(std::size_t n, const double* a, const double* b, const std::size_t* offsets,
              double* sums) {
  double_pair low[Taps]{};
  double_pair high[Taps]{};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const double_pair a_low = load_pair(a + i);
    const double_pair a_high = load_pair(a + i + 2);
    for (std::size_t t = 0; t < Taps; ++t) {
      low[t] += a_low * load_pair(b + offsets[t] + i);
      high[t] += a_high * load_pair(b + offsets[t] + i + 2);
    }
  }
  for (std::size_t t = 0; t < Taps; ++t) {
    double first = low[t][0];
    for (std::size_t k = i; k < n; ++k) {
      first += a[k] * b[offsets[t] + k];
    }
    sums[t] += (first + low[t][1]) + (high[t][0] + high[t][1]);
  }
}

/// Adds the dot products of n elements of `a` with those of `b` from each offset on to `sums`, as
/// add_dots() of a single one does.
inline void add_all_dots(std::size_t n, const double* a, const double* b,
                         std::span<const std::size_t> offsets, double* sums) {
  std::size_t t = 0;
  for (; t + 3 <= offsets.size(); t += 3) {
    add_dots<3>(n, a, b, offsets.data() + t, sums + t);
  }
  for (; t < offsets.size(); ++t) {
    add_dots<1>(n, a, b, offsets.data() + t, sums + t);
  }
}

/// sum[i] += factors[t] * values[i - offsets[t]] for n elements and all offsets t, which are added
/// in their order. `values` must be readable from the largest offset before its begin on.
inline void add_shifted(std::size_t n, const float* factors, std::span<const std::size_t> offsets,
                        const double* values, double* sum) {
  constexpr std::size_t pairs = 4;
  std::size_t i = 0;
  for (; i + 2 * pairs <= n; i += 2 * pairs) {
    double_pair sums[pairs];
    std::memcpy(sums, sum + i, sizeof sums);
    for (std::size_t t = 0; t < offsets.size(); ++t) {
      const auto factor = static_cast<double>(factors[t]);
      const double_pair both{factor, factor};
      const double* from = values + i - offsets[t];
      for (std::size_t k = 0; k < pairs; ++k) {
        sums[k] += both * load_pair(from + 2 * k);
      }
    }
    std::memcpy(sum + i, sums, sizeof sums);
  }
  for (; i < n; ++i) {
    for (std::size_t t = 0; t < offsets.size(); ++t) {
      sum[i] += static_cast<double>(factors[t]) * *(values + i - offsets[t]);
    }
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_EXACT_PRODUCTS_HPP
