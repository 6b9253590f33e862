// SPDX-License-Identifier: BSD-3-Clause
// Saved packed weights of 8 and 4 bits: changed as in states_fuzz.cpp, loaded, and multiplied on
// every target. All targets must give the same products. Saved filters, too: what is loaded must
// save the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/gemm.hpp>
#include <detent/int4_weights.hpp>
#include <detent/pack.hpp>
#include <detent/packed_filters.hpp>

#include "envelope.hpp"
#include "fuzz_target.hpp"

namespace {

/// The products of three rows with the weights, the same on every target.
template <class Out, class Weights>
void multiply(fuzz::numbers& in, const Weights& w) {
  if (w.depth() > 4096 || w.columns() > 4096) {
    return;
  }
  std::vector<std::uint8_t> lhs(3 * w.depth());
  for (std::uint8_t& v : lhs) {
    v = in.get<std::uint8_t>();
  }
  std::vector<Out> first;
  for (const detent::target t : detent::available_targets()) {
    detent::set_target(t);
    std::vector<Out> out(3 * w.columns());
    fuzz::harmless("multiply", [&] {
      detent::gemm(detent::matrix_view<const std::uint8_t>(lhs.data(), 3, w.depth()), w,
                   detent::matrix_view<Out>(out.data(), 3, w.columns()), {.lhs_zero_point = 128});
    });
    if (first.empty()) {
      first = out;
    } else if (std::memcmp(first.data(), out.data(), out.size() * sizeof(Out)) != 0) {
      fuzz::finding("products differ", detent::name(t));
    }
  }
}

/// Packs filters, damages their saved form and loads it.
void load_filters(fuzz::numbers& in) {
  detent::filter_shape f;
  f.groups = 1 + in.below(5);
  f.in_channels = f.groups * (1 + in.below(4));
  f.out_channels = f.groups * (1 + in.below(4));
  f.kernel_height = 1 + in.below(3);
  f.kernel_width = 1 + in.below(3);
  std::vector<std::int8_t> values(f.size());
  for (std::int8_t& v : values) {
    v = in.get<std::int8_t>();
  }
  std::vector<std::byte> bytes = detent::packed_filters(f, values).save();
  fuzz::damage(bytes, in, 11);
  detent::packed_filters loaded;
  if (fuzz::harmless("load", [&] { loaded = detent::packed_filters::load(bytes); }) &&
      loaded.save() != bytes) {
    fuzz::finding("loaded filters", "save other bytes");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers in({data, size});
  const auto kind = in.get<std::uint8_t>();
  if (kind >= 192) {
    load_filters(in);
    return 0;
  }
  const bool has_nibbles = kind % 2 != 0;
  const std::size_t depth = in.below(70);
  const std::size_t columns = in.below(70);
  std::vector<std::int8_t> values(depth * columns);
  std::uint32_t state = in.get<std::uint32_t>() | 1U;
  for (std::int8_t& v : values) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<std::int8_t>(has_nibbles ? static_cast<int>(state >> 28U) - 8
                                             : static_cast<int>(state >> 24U) - 128);
  }
  const detent::matrix_view<const std::int8_t> view(values.data(), depth, columns);
  std::vector<std::byte> bytes;
  if (!fuzz::harmless("pack", [&] {
        bytes = has_nibbles ? detent::pack_int4_weights(view, {.group_size = 16}).save()
                            : detent::pack_weights(view).save();
      })) {
    return 0;
  }
  fuzz::damage(bytes, in, 11);
  if (has_nibbles) {
    detent::packed_int4_weights w;
    if (fuzz::harmless("load", [&] { w = detent::packed_int4_weights::load(bytes); })) {
      multiply<float>(in, w);
    }
  } else {
    detent::packed_weights w;
    if (fuzz::harmless("load", [&] { w = detent::packed_weights::load(bytes); })) {
      multiply<std::int32_t>(in, w);
    }
  }
  return 0;
}
