// SPDX-License-Identifier: BSD-3-Clause
// The library as one file: copy single_include/detent/detent.hpp into a project, under any name,
// and include it. Nothing else is needed; the results are the same bits with and without Highway.
// Build: g++ -std=c++20 -O2 -Isingle_include/detent examples/04_vendored_single_header.cpp -pthread
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "detent.hpp"

int main() {
  constexpr std::size_t M = 7;
  constexpr std::size_t K = 100;
  constexpr std::size_t N = 33;
  constexpr std::int32_t zero_point = 128;

  // The largest magnitudes there are: pairs of these products do not fit 16 bits.
  std::vector<std::uint8_t> a(M * K);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = i % 5 == 0 ? 0 : 255;
  }
  std::vector<std::int8_t> b(K * N);
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = i % 3 == 0 ? 127 : -128;
  }
  const detent::packed_weights weights = detent::pack_weights({b.data(), K, N});

  // An output of 32-bit integers holds the sums of (a - zero_point) * b themselves.
  std::vector<std::int32_t> sums(M * N);
  detent::gemm(detent::matrix_view(a.data(), M, K), weights, detent::matrix_view(sums.data(), M, N),
               {.lhs_zero_point = zero_point});

  std::size_t wrong = 0;
  for (std::size_t m = 0; m < M; ++m) {
    for (std::size_t n = 0; n < N; ++n) {
      std::int32_t sum = 0;
      for (std::size_t k = 0; k < K; ++k) {
        sum += (a[m * K + k] - zero_point) * b[k * N + n];
      }
      if (sums[m * N + n] != sum) {
        ++wrong;
      }
    }
  }
  std::printf("target %s: %zu of %zu sums are wrong\n", detent::name(detent::active_target()),
              wrong, sums.size());
  return wrong == 0 ? 0 : 1;
}
