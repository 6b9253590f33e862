// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of elementwise operations. They report the bytes read and written per second, and the
// share of the rate that plain loads and stores of the same bytes reach, which is probed in the
// same run on memory of the same size. Where CMake finds oneDNN, they also report how many times as
// fast as oneDNN an operation is; the iterations of both take turns. All numbers are the best of
// all iterations, because other programs on the machine slow iterations at random.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>

#include "limits.hpp"
#include "quantize_scalar.hpp"
#if DETENT_BENCH_ONEDNN
#include <omp.h>

#include "onednn.hpp"
#endif

namespace {

using detent::packed_span;
using detent::quant_params;
using detent::tensor_view;

/// The number of columns of the matrices.
constexpr std::size_t columns = 1024;

/// The operands of all operations. `bytes` is the size of the float buffer; the others have as many
/// elements.
struct buffers {
  explicit buffers(std::size_t bytes)
      : reals(bytes / sizeof(float)),
        codes(reals.size()),
        accumulators(reals.size()),
        scales(reals.size() / columns),
        zero_points(scales.size()),
        row_sums(scales.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < reals.size(); ++i) {
      reals[i] = normal(random);
      accumulators[i] = static_cast<std::int32_t>(random()) >> 12;
      codes[i] = static_cast<std::uint8_t>(random());
    }
  }
  std::vector<float> reals;
  std::vector<std::uint8_t> codes;
  std::vector<std::int32_t> accumulators;
  // one for each row, written by operations that compute them
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  std::vector<std::int32_t> row_sums;
};

constexpr quant_params params{0.02F, 128};

detent::channel_quant_params channels(std::size_t axis, std::size_t count) {
  detent::channel_quant_params p{axis, std::vector<float>(count), std::vector<std::int32_t>(count)};
  for (std::size_t i = 0; i < count; ++i) {
    p.scales[i] = 0.01F + 0.0001F * static_cast<float>(i % 97);
    p.zero_points[i] = static_cast<std::int32_t>(i % 200);
  }
  return p;
}

detent::block_quant_params blocks(std::size_t count, std::size_t block_size) {
  detent::block_quant_params p{0, block_size, std::vector<float>(count / block_size),
                               std::vector<std::int32_t>(count / block_size)};
  for (std::size_t i = 0; i < p.scales.size(); ++i) {
    p.scales[i] = 0.1F + 0.001F * static_cast<float>(i % 97);
    p.zero_points[i] = static_cast<std::int32_t>(i % 16);
  }
  return p;
}

/// An operation on all elements of the buffers: floats, codes or accumulators.
struct operation {
  std::string name;
  double bytes_read;     // for each element
  double bytes_written;  // for each element
  std::function<void(buffers&)> run;
  /// Computes element i anew, and returns whether run() has written the same.
  std::function<bool(const buffers&, std::size_t)> is_right;
  /// The bytes per element that an earlier pass reads: the data itself, or many parameters.
  double bytes_before = 0;
  /// Makes the function that does the operation on the same memory with another library, if that
  /// has it. The other library's operation has no bias, and no zero points that differ between
  /// channels.
  std::function<std::function<void()>(buffers&)> peer{};
};

#if DETENT_BENCH_ONEDNN
/// oneDNN's form of an operation. It multiplies, so where detent divides by a scale, the multiplier
/// is 1 / scale.
template <class From, class To>
std::function<void()> reorder(const From* from, To* to, std::size_t rows,
                              detent_bench::onednn_scale scale, std::vector<float> multipliers,
                              std::int32_t zero_point = 0, bool from_zero_point = false) {
  const auto made = std::make_shared<detent_bench::onednn_reorder>(
      from, to, rows, columns, scale, std::move(multipliers), zero_point, from_zero_point);
  return [made] { made->run(); };
}

std::vector<float> reciprocals(std::vector<float> scales) {
  for (float& s : scales) {
    s = 1.0F / s;
  }
  return scales;
}
#endif

std::vector<operation> operations(const buffers& b) {
  const std::size_t n = b.reals.size();
  const std::size_t rows = n / columns;
  const auto code_is = [](const buffers& s, std::size_t i, quant_params p) {
    return s.codes[i] ==
           detent::reference::quantize(s.reals[i], p, detent::full_grid<std::uint8_t>);
  };
  const auto by_channel = [=](const char* name, std::vector<std::size_t> shape, std::size_t axis) {
    std::size_t inner = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) {
      inner *= shape[i];
    }
    const detent::channel_quant_params p = channels(axis, shape[axis]);
    return operation{name, 4, 1,
                     [=](buffers& s) {
                       detent::quantize(tensor_view<const float>(s.reals.data(), shape),
                                        tensor_view<std::uint8_t>(s.codes.data(), shape), p);
                     },
                     [=, extent = shape[axis]](const buffers& s, std::size_t i) {
                       const std::size_t c = i / inner % extent;
                       return code_is(s, i, {p.scales[c], p.zero_points[c]});
                     }};
  };
  std::vector<operation> all;
  all.push_back({"quantize_u8", 4, 1,
                 [](buffers& s) { detent::quantize(s.reals, s.codes, params); },
                 [=](const buffers& s, std::size_t i) { return code_is(s, i, params); }});
  all.push_back(by_channel("quantize_u8_first_axis", {64, n / 64}, 0));
  all.push_back(by_channel("quantize_u8_middle_axis", {2, 64, n / 128}, 1));
  all.push_back(by_channel("quantize_u8_last_axis", {rows, columns}, 1));
  all.push_back(by_channel("quantize_u8_per_row", {rows, columns}, 0));
  all.push_back(
      {"quantize_s8", 4, 1,
       [](buffers& s) {
         detent::quantize(s.reals,
                          std::span(reinterpret_cast<std::int8_t*>(s.codes.data()), s.codes.size()),
                          quant_params{0.02F, 3});
       },
       [](const buffers& s, std::size_t i) {
         return static_cast<std::int8_t>(s.codes[i]) ==
                detent::reference::quantize(s.reals[i], {0.02F, 3}, detent::full_grid<std::int8_t>);
       }});
  all.push_back({"dequantize_u8", 1, 4,
                 [](buffers& s) { detent::dequantize(s.codes, s.reals, params); },
                 [](const buffers& s, std::size_t i) {
                   return s.reals[i] == detent::reference::dequantize(s.codes[i], params);
                 }});
  const detent::channel_quant_params multipliers = channels(1, columns);
  const std::vector<std::int32_t> bias(columns, 12345);
  all.push_back(
      {"requantize_u8_last_axis_bias", 4, 1,
       [=](buffers& s) {
         detent::requantize(tensor_view<const std::int32_t>(s.accumulators.data(), {rows, columns}),
                            tensor_view<std::uint8_t>(s.codes.data(), {rows, columns}), multipliers,
                            detent::full_grid<std::uint8_t>, bias);
       },
       [=](const buffers& s, std::size_t i) {
         const std::size_t c = i % columns;
         return s.codes[i] == detent::reference::requantize(
                                  s.accumulators[i] + bias[c], multipliers.scales[c],
                                  multipliers.zero_points[c], detent::full_grid<std::uint8_t>);
       }});
  for (const std::size_t group : {std::size_t{32}, std::size_t{128}}) {
    const detent::block_quant_params p = blocks(n, group);
    all.push_back({"quantize_uint4_group_" + std::to_string(group), 4, 0.5,
                   [=](buffers& s) {
                     const std::span<std::uint8_t> bytes(s.codes.data(), n / 2);
                     detent::quantize(s.reals, packed_span<detent::uint4>(bytes, n), p);
                   },
                   [=](const buffers& s, std::size_t i) {
                     const int code = s.codes[i / 2] >> (i % 2 * 4) & 15;
                     return code == detent::reference::quantize(
                                        s.reals[i], {p.scales[i / group], p.zero_points[i / group]},
                                        {0, 15});
                   },
                   8.0 / static_cast<double>(group)});
  }
  all.push_back({"dequantize_uint4", 0.5, 4,
                 [=](buffers& s) {
                   const std::span<const std::uint8_t> bytes(s.codes.data(), n / 2);
                   detent::dequantize(packed_span<const detent::uint4>(bytes, n), s.reals,
                                      quant_params{0.1F, 7});
                 },
                 [](const buffers& s, std::size_t i) {
                   const int code = s.codes[i / 2] >> (i % 2 * 4) & 15;
                   return s.reals[i] == detent::reference::dequantize(code, {0.1F, 7});
                 }});
  all.push_back({"dynamic_quantize_u8", 4, 1,
                 [](buffers& s) { detent::dynamic_quantize(s.reals, std::span(s.codes)); },
                 [](const buffers& s, std::size_t i) {
                   if (i > 0) {
                     return true;
                   }
                   const auto r = detent::reference::min_max(s.reals.data(), s.reals.size());
                   const quant_params p = detent::reference::params_from_range(
                       {r.lower, r.upper}, detent::asymmetric<std::uint8_t>);
                   return s.codes[0] == detent::reference::quantize(
                                            s.reals[0], p, detent::full_grid<std::uint8_t>);
                 },
                 4});
  all.push_back({"dynamic_quantize_u8_per_row", 4, 1,
                 [=](buffers& s) {
                   detent::dynamic_quantize_rows(
                       detent::matrix_view<const float>(s.reals.data(), rows, columns),
                       detent::matrix_view<std::uint8_t>(s.codes.data(), rows, columns),
                       std::span(s.scales), std::span(s.zero_points), std::span(s.row_sums));
                 },
                 [=](const buffers& s, std::size_t i) {
                   const std::size_t row = i / columns;
                   const auto r = detent::reference::min_max(&s.reals[row * columns], columns);
                   const quant_params p = detent::reference::params_from_range(
                       {r.lower, r.upper}, detent::asymmetric<std::uint8_t>);
                   return p.scale == s.scales[row] && p.zero_point == s.zero_points[row] &&
                          code_is(s, i, p);
                 }});
  all.push_back({"min_max", 4, 0,
                 [](buffers& s) {
                   detent::min_max_observer observer;
                   observer.observe(s.reals);
                   benchmark::DoNotOptimize(observer.range());
                 },
                 [](const buffers& s, std::size_t i) {
                   detent::min_max_observer observer;
                   observer.observe(s.reals);
                   return i > 0 || observer.range().upper ==
                                       *std::max_element(s.reals.begin(), s.reals.end());
                 }});
#if DETENT_BENCH_ONEDNN
  using detent_bench::onednn_scale;
  const auto peer = [&](const char* name, std::function<std::function<void()>(buffers&)> make) {
    for (operation& o : all) {
      if (o.name == name) {
        o.peer = std::move(make);
      }
    }
  };
  peer("quantize_u8", [=](buffers& s) {
    return reorder(s.reals.data(), s.codes.data(), rows, onednn_scale::tensor,
                   reciprocals({params.scale}), params.zero_point);
  });
  peer("quantize_s8", [=](buffers& s) {
    return reorder(s.reals.data(), reinterpret_cast<std::int8_t*>(s.codes.data()), rows,
                   onednn_scale::tensor, reciprocals({0.02F}), 3);
  });
  peer("quantize_u8_last_axis", [=](buffers& s) {
    return reorder(s.reals.data(), s.codes.data(), rows, onednn_scale::column,
                   reciprocals(channels(1, columns).scales));
  });
  peer("quantize_u8_per_row", [=](buffers& s) {
    return reorder(s.reals.data(), s.codes.data(), rows, onednn_scale::row,
                   reciprocals(channels(0, rows).scales));
  });
  peer("dequantize_u8", [=](buffers& s) {
    return reorder(s.codes.data(), s.reals.data(), rows, onednn_scale::tensor, {params.scale},
                   params.zero_point, true);
  });
  peer("requantize_u8_last_axis_bias", [=](buffers& s) {
    return reorder(s.accumulators.data(), s.codes.data(), rows, onednn_scale::column,
                   channels(1, columns).scales);
  });
#endif
  return all;
}

void measure(benchmark::State& state, detent::target target, std::size_t index) {
  detent::set_target(target);
  buffers b(static_cast<std::size_t>(state.range(0)));
  const operation o = operations(b)[index];
  const auto elements = static_cast<double>(b.reals.size());
  const double bytes = elements * (o.bytes_read + o.bytes_written + o.bytes_before);
  double limit_seconds =
      elements * (o.bytes_read + o.bytes_written) /
      detent_bench::memory_gb_per_s(o.bytes_read, o.bytes_written, b.reals.size());
  if (o.bytes_before > 0) {
    limit_seconds += elements * o.bytes_before /
                     detent_bench::memory_gb_per_s(o.bytes_before, 0, b.reals.size());
  }
  const std::function<void()> peer = o.peer ? o.peer(b) : std::function<void()>();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double best = infinity;
  double peer_best = infinity;
  for (auto _ : state) {
    if (peer) {
      const double start = detent_bench::seconds_now();
      peer();
      benchmark::ClobberMemory();
      peer_best = (std::min)(peer_best, detent_bench::seconds_now() - start);
    }
    const double start = detent_bench::seconds_now();
    o.run(b);
    benchmark::ClobberMemory();
    best = (std::min)(best, detent_bench::seconds_now() - start);
  }
  for (std::size_t i = 0; i < b.reals.size(); i += 1 + b.reals.size() / 1000) {
    if (!o.is_right(b, i)) {
      state.SkipWithError("wrong result");
      return;
    }
  }
  const double rate = bytes * 1e-9 / best;
  state.counters["best_GB_per_s"] = rate;
  state.counters["limit_GB_per_s"] = bytes / limit_seconds;
  state.counters["share_of_limit"] = rate * limit_seconds / bytes;
  state.counters["times_peer"] = peer ? peer_best / best : 0.0;
}

/// The canonical quantizer beside the plain loop over x / scale, compiled at -O2. The loop takes
/// the place of the limit: share_of_limit is how many times as fast as the loop the quantizer is.
/// (For CSV output, counters must have the same names in all benchmarks.)
void times_scalar(benchmark::State& state) {
  buffers b(static_cast<std::size_t>(state.range(0)));
  double scalar = std::numeric_limits<double>::infinity();
  double ours = scalar;
  for (auto _ : state) {
    const double start = detent_bench::seconds_now();
    quantize_scalar(b.reals.data(), b.reals.size(), params.scale, params.zero_point,
                    b.codes.data());
    benchmark::ClobberMemory();
    const double middle = detent_bench::seconds_now();
    detent::quantize(b.reals, b.codes, params);
    benchmark::ClobberMemory();
    scalar = (std::min)(scalar, middle - start);
    ours = (std::min)(ours, detent_bench::seconds_now() - middle);
  }
  const double bytes = static_cast<double>(b.reals.size()) * 5e-9;
  state.counters["best_GB_per_s"] = bytes / ours;
  state.counters["limit_GB_per_s"] = bytes / scalar;
  state.counters["share_of_limit"] = scalar / ours;
  state.counters["times_peer"] = 0.0;
}

}  // namespace

int main(int argc, char** argv) {
#if DETENT_BENCH_ONEDNN
  omp_set_num_threads(1);
#endif
  const std::vector<std::int64_t> sizes = {std::int64_t{64} << 10, std::int64_t{4} << 20,
                                           std::int64_t{256} << 20};
  const std::vector<operation> all = operations(buffers(std::size_t{64} << 10));
  for (const detent::target t : detent::available_targets()) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::int64_t bytes : sizes) {
        benchmark::RegisterBenchmark((all[i].name + '/' + detent::name(t)).c_str(),
                                     [t, i](benchmark::State& s) { measure(s, t, i); })
            ->Arg(bytes);
      }
    }
  }
  benchmark::RegisterBenchmark("quantize_u8_against_scalar", times_scalar)->Arg(sizes[0]);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
