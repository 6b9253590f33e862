// SPDX-License-Identifier: BSD-3-Clause
// Winograd convolutions, a vector of channels of one tile at a time.

#ifndef DETENT_KERNELS_VECTOR_WINOGRAD_INL_HPP
#define DETENT_KERNELS_VECTOR_WINOGRAD_INL_HPP

#include <algorithm>
#include <cstddef>

#include <detent/kernels/vector/vectors-inl.hpp>
#include <detent/kernels/winograd.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/winograd-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// reference::winograd_input.
HWY_INLINE void winograd_input_line(const float_vector (&d)[4], float_vector (&v)[4]) noexcept {
  v[0] = hn::Sub(d[0], d[2]);
  v[1] = hn::Add(d[1], d[2]);
  v[2] = hn::Sub(d[2], d[1]);
  v[3] = hn::Sub(d[1], d[3]);
}
HWY_INLINE void winograd_input_line(const float_vector (&d)[6], float_vector (&v)[6]) noexcept {
  const float_tag df;
  const auto two = hn::Set(df, 2.0F);
  const auto four = hn::Set(df, 4.0F);
  const auto even = hn::NegMulAdd(four, d[2], d[4]);
  const auto odd = hn::NegMulAdd(four, d[1], d[3]);
  const auto from_4 = hn::Sub(d[4], d[2]);
  const auto from_3 = hn::Sub(d[3], d[1]);
  v[0] = hn::MulAdd(four, hn::Sub(d[0], d[2]), from_4);
  v[1] = hn::Add(even, odd);
  v[2] = hn::Sub(even, odd);
  v[3] = hn::MulAdd(two, from_3, from_4);
  v[4] = hn::NegMulAdd(two, from_3, from_4);
  v[5] = hn::NegMulAdd(four, from_3, hn::Sub(d[5], d[3]));
}

/// reference::winograd_output.
HWY_INLINE void winograd_output_line(const float_vector (&m)[4], float_vector (&y)[2]) noexcept {
  y[0] = hn::Add(hn::Add(m[0], m[1]), m[2]);
  y[1] = hn::Sub(hn::Sub(m[1], m[2]), m[3]);
}
HWY_INLINE void winograd_output_line(const float_vector (&m)[6], float_vector (&y)[4]) noexcept {
  const float_tag df;
  const auto sum_1 = hn::Add(m[1], m[2]);
  const auto difference_1 = hn::Sub(m[1], m[2]);
  const auto sum_2 = hn::Add(m[3], m[4]);
  const auto difference_2 = hn::Sub(m[3], m[4]);
  y[0] = hn::Add(hn::Add(m[0], sum_1), sum_2);
  y[1] = hn::MulAdd(hn::Set(df, 2.0F), difference_2, difference_1);
  y[2] = hn::MulAdd(hn::Set(df, 4.0F), sum_2, sum_1);
  y[3] = hn::Add(hn::MulAdd(hn::Set(df, 8.0F), difference_2, difference_1), m[5]);
}

/// Calls each(load, store, c) for vectors of channels from c on: load(address) and store(vector,
/// address) take a whole vector, or what is left of the channels.
template <class Each>
HWY_INLINE void for_channel_vectors(std::size_t channels, const Each& each) noexcept {
  const float_tag df;
  std::size_t c = 0;
  for (; c + lanes <= channels; c += lanes) {
    each([df](const float* from) HWY_ATTR { return hn::LoadU(df, from); },
         [df](float_vector v, float* to) HWY_ATTR { hn::StoreU(v, df, to); }, c);
  }
  if (c < channels) {
    const std::size_t rest = channels - c;
    each([df, rest](const float* from) HWY_ATTR { return hn::LoadN(df, from, rest); },
         [df, rest](float_vector v, float* to) HWY_ATTR { hn::StoreN(v, df, to, rest); }, c);
  }
}

template <std::size_t kTile>
void winograd_input(const winograd_input_args& a) noexcept {
  constexpr std::size_t side = kTile + 2;
  for (std::size_t tile = 0; tile < a.tiles; ++tile) {
    const float* tile_in = a.in + tile * kTile * a.channels;
    float* tile_out = a.out + tile * a.channels;
    for_channel_vectors(a.channels,
                        [&](const auto& load, const auto& store, std::size_t c) HWY_ATTR {
                          const float* in = tile_in + c;
                          float* out = tile_out + c;
                          float_vector columns[side][side];
                          DETENT_UNROLL for (std::size_t j = 0; j < side; ++j) {
                            float_vector d[side];
                            float_vector v[side];
                            DETENT_UNROLL for (std::size_t i = 0; i < side; ++i) {
                              d[i] = load(in + i * a.line_step + j * a.channels);
                            }
                            winograd_input_line(d, v);
                            DETENT_UNROLL for (std::size_t i = 0; i < side; ++i) {
                              columns[i][j] = v[i];
                            }
                          }
                          DETENT_UNROLL for (std::size_t i = 0; i < side; ++i) {
                            float_vector v[side];
                            winograd_input_line(columns[i], v);
                            DETENT_UNROLL for (std::size_t j = 0; j < side; ++j) {
                              store(v[j], out + (i * side + j) * a.position_step);
                            }
                          }
                        });
  }
}

template <std::size_t kTile>
void winograd_output(const winograd_output_args& a) noexcept {
  constexpr std::size_t side = kTile + 2;
  const float_tag df;
  const auto lower = hn::Set(df, a.lower);
  const auto upper = hn::Set(df, a.upper);
  for (std::size_t tile = 0; tile < a.tiles; ++tile) {
    const float* tile_in = a.in + tile * a.channels;
    const std::size_t first = tile * kTile * a.channels;
    const std::size_t pixels = (std::min)(kTile, a.pixels - tile * kTile);
    for_channel_vectors(
        a.channels, [&](const auto& load, const auto& store, std::size_t c) HWY_ATTR {
          const float* in = tile_in + c;
          const auto bias = load(a.bias + c);
          float_vector columns[kTile][side];
          DETENT_UNROLL for (std::size_t j = 0; j < side; ++j) {
            float_vector m[side];
            float_vector y[kTile];
            DETENT_UNROLL for (std::size_t i = 0; i < side; ++i) {
              m[i] = load(in + (i * side + j) * a.position_step);
            }
            winograd_output_line(m, y);
            DETENT_UNROLL for (std::size_t i = 0; i < kTile; ++i) { columns[i][j] = y[i]; }
          }
          DETENT_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
            if (i < a.lines) {
              float_vector y[kTile];
              winograd_output_line(columns[i], y);
              DETENT_UNROLL for (std::size_t j = 0; j < kTile; ++j) {
                if (j < pixels) {
                  const std::size_t at = first + i * a.line_step + j * a.channels + c;
                  auto sum = hn::Add(y[j], bias);
                  if (a.residual != nullptr) {
                    sum = hn::Add(sum, load(a.residual + at));
                  }
                  store(clamp_ordered(sum, lower, upper), a.out + at);
                }
              }
            }
          }
        });
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
