// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of 8-bit matrix products, and of the pool of threads that they run on. Products report
// the mean GOPS, and the share of the instruction peak that the fastest iteration reached; the peak
// is probed in the same run. The best iteration is compared with the best probe, because a
// neighbour on the same core takes cache and issue slots from both at random.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>
#include <detent/prepared_product.hpp>

#include "limits.hpp"
#if DETENT_BENCH_ONEDNN
#include <omp.h>

#include "onednn.hpp"
#endif

namespace {

/// How weights are distributed: normally, with each column scaled to -127..127; or evenly over all
/// numbers of int8, whose sums of two products leave 16 bits more often.
enum class spread { normal, even };

struct operands {
  std::size_t m, n, k;
  std::vector<std::int8_t> weights;
  std::mt19937 random{1};

  explicit operands(const benchmark::State& state, spread distribution = spread::normal)
      : m(static_cast<std::size_t>(state.range(0))),
        n(static_cast<std::size_t>(state.range(1))),
        k(static_cast<std::size_t>(state.range(2))),
        weights(k * n) {
    if (distribution == spread::even) {
      for (std::int8_t& w : weights) {
        w = static_cast<std::int8_t>(random());
      }
      return;
    }
    std::normal_distribution<float> normal;
    std::vector<float> values(k);
    for (std::size_t j = 0; j < n; ++j) {
      float largest = 0.0F;
      for (float& v : values) {
        v = normal(random);
        largest = (std::max)(largest, std::fabs(v));
      }
      for (std::size_t i = 0; i < k; ++i) {
        weights[i * n + j] = static_cast<std::int8_t>(std::lrint(values[i] / largest * 127.0F));
      }
    }
  }
  [[nodiscard]] detent::packed_weights pack() const {
    return detent::pack_weights({weights.data(), k, n});
  }
};

template <class Run>
void measure(benchmark::State& state, const operands& o, detent::target target, std::size_t threads,
             const Run& run) {
  const double peak = detent_bench::integer_peak_gops(target) * static_cast<double>(threads);
  double best = std::numeric_limits<double>::infinity();
  run();  // on some targets, the first run prepares the weights
  for (auto _ : state) {
    const double start = detent_bench::seconds_now();
    run();
    benchmark::ClobberMemory();
    best = (std::min)(best, detent_bench::seconds_now() - start);
  }
  const double operations = 2.0 * static_cast<double>(o.m * o.n * o.k);
  state.counters["GOPS"] =
      benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["best_share_of_peak"] = operations * 1e-9 / best / peak;
}

/// Compares 100 random elements of the output with right(row, column), the value that should be
/// there.
template <class T, class Right>
void validate(benchmark::State& state, operands& o, const std::vector<T>& c, const Right& right) {
  for (int i = 0; i < 100; ++i) {
    const std::size_t row = o.random() % o.m;
    const std::size_t column = o.random() % o.n;
    if (c[row * o.n + column] != right(row, column)) {
      state.SkipWithError("wrong result");
      return;
    }
  }
}

/// A is the type of the left side, and T the type of the output. make(operands, left side, output)
/// measures a product; then the output is validated.
template <class A, class T, class Make>
void gemm(benchmark::State& state, detent::target target, const Make& make,
          spread weights = spread::normal) {
  detent::set_target(target);
  operands o(state, weights);
  std::vector<A> a(o.m * o.k);
  for (auto& v : a) {
    v = static_cast<A>(o.random());
  }
  std::vector<T> c(o.m * o.n);
  make(o, a, c);
  validate(state, o, c, [&](std::size_t row, std::size_t column) {
    const auto acc = static_cast<std::int32_t>(detent::reference::dot(
        &a[row * o.k], &o.weights[column], static_cast<std::ptrdiff_t>(o.n), o.k, 7, 0, 0));
    if constexpr (std::is_same_v<T, std::uint8_t>) {
      return detent::reference::requantize(acc, 1.0F / 4096.0F, 3, detent::full_grid<T>);
    } else {
      return static_cast<T>(acc);
    }
  });
}

/// detent's product on kThreads threads. With several threads, shares are those of the peak of as
/// many cores, and times are times of the clock.
template <class A, class T, std::size_t kThreads = 1, spread kWeights = spread::normal>
void gemm(benchmark::State& state, detent::target target) {
  const auto make = [&](operands& o, std::vector<A>& a, std::vector<T>& c) {
    const detent::packed_weights weights = o.pack();
    const detent::matrix_view<const A> lhs(a.data(), o.m, o.k);
    const detent::matrix_view<T> out(c.data(), o.m, o.n);
    const detent::epilogue_options options{.lhs_zero_point = 7, .output = {4096.0F, 3}};
    detent::thread_pool pool(kThreads);
    const detent::parallel_for parallel = kThreads > 1 ? pool.parallel() : nullptr;
    measure(state, o, target, kThreads,
            [&] { detent::gemm(lhs, weights, out, options, parallel); });
    if (target == detent::target::avx2 || target == detent::target::avx512) {
      state.counters["corrected_pairs"] = static_cast<double>(weights.corrected_pairs());
    }
  };
  gemm<A, T>(state, target, make, kWeights);
}

/// The product of detent, of weights and options that were prepared once. time(operands, product)
/// measures it.
template <class A, class T, class Time>
void prepared(benchmark::State& state, detent::target target, const Time& time) {
  gemm<A, T>(state, target, [&](operands& o, std::vector<A>& a, std::vector<T>& c) {
    const detent::packed_weights weights = o.pack();
    const detent::prepared_product<A, T> product(weights,
                                                 {.lhs_zero_point = 7, .output = {4096.0F, 3}});
    const detent::matrix_view<const A> lhs(a.data(), o.m, o.k);
    const detent::matrix_view<T> out(c.data(), o.m, o.n);
    time(o, [&] { product.run(lhs, out); });
  });
}
template <class A, class T>
void prepared(benchmark::State& state, detent::target target) {
  prepared<A, T>(state, target,
                 [&](const operands& o, const auto& run) { measure(state, o, target, 1, run); });
}

/// A product of one row, whose weights stay in the second-level cache: nanoseconds, how fast the
/// weights are read, and how fast plain loads read as many bytes. Calls are timed in groups,
/// because to read the clock takes as long as a small product.
void single_row(benchmark::State& state, detent::target target) {
  constexpr int group = 32;
  prepared<std::uint8_t, std::uint8_t>(state, target, [&](const operands& o, const auto& run) {
    const std::size_t bytes = o.n * o.k;
    double limit = detent_bench::memory_gb_per_s(1, 0, bytes);
    double best = std::numeric_limits<double>::infinity();
    for (auto _ : state) {
      const double start = detent_bench::seconds_now();
      for (int i = 0; i < group; ++i) {
        run();
        benchmark::ClobberMemory();
      }
      best = (std::min)(best, (detent_bench::seconds_now() - start) / group);
    }
    limit = (std::max)(limit, detent_bench::memory_gb_per_s(1, 0, bytes));
    state.counters["nanoseconds"] = best * 1e9;
    if (limit > 0.0) {  // else the weights are too small to be read for long, or there is no probe
      const double rate = static_cast<double>(bytes) * 1e-9 / best;
      state.counters["GB_per_s"] = rate;
      state.counters["read_limit"] = limit;
      state.counters["share_of_limit"] = rate / limit;
    }
  });
}

#if DETENT_BENCH_ONEDNN
/// oneDNN's product, with the target's instructions at most.
template <class A, class T>
void onednn_gemm(benchmark::State& state, detent::target target) {
  gemm<A, T>(state, target, [&](operands& o, std::vector<A>& a, std::vector<T>& c) {
    detent_bench::onednn_matmul peer(o.m, o.n, o.k, a.data(), o.weights.data(), c.data(), 7,
                                     1.0F / 4096.0F, 3);
    measure(state, o, target, 1, [&] { peer.run(); });
  });
}
#endif

void dynamic_linear(benchmark::State& state, detent::target target) {
  detent::set_target(target);
  operands o(state);
  std::normal_distribution<float> normal;
  std::vector<float> a(o.m * o.k);
  for (auto& v : a) {
    v = normal(o.random);
  }
  const detent::packed_weights weights = o.pack();
  std::vector<float> c(o.m * o.n);
  const detent::matrix_view<const float> lhs(a.data(), o.m, o.k);
  const detent::matrix_view<float> out(c.data(), o.m, o.n);
  measure(state, o, target, 1, [&] { detent::dynamic_linear(lhs, weights, out); });
  std::vector<std::uint8_t> q(o.k);
  validate(state, o, c, [&](std::size_t row, std::size_t column) {
    const std::span<const float> x(&a[row * o.k], o.k);
    const detent::quant_params p = detent::dynamic_quantize<std::uint8_t>(x, q);
    const auto acc = static_cast<std::int32_t>(detent::reference::dot(
        q.data(), &o.weights[column], static_cast<std::ptrdiff_t>(o.n), o.k, p.zero_point, 0, 0));
    return static_cast<float>(acc) * p.scale;
  });
}

/// A product with 4-bit weights, which have a scale for each group of kGroup rows of a column, or,
/// if kGroup is 0, for each column.
template <std::size_t kGroup>
void gemm_int4(benchmark::State& state, detent::target target) {
  detent::set_target(target);
  operands o(state);
  for (std::int8_t& w : o.weights) {
    w = static_cast<std::int8_t>(w / 16);
  }
  std::vector<std::uint8_t> a(o.m * o.k);
  for (auto& v : a) {
    v = static_cast<std::uint8_t>(o.random());
  }
  const std::size_t group = kGroup == 0 ? o.k : kGroup;
  const std::vector<float> scales((o.k + group - 1) / group * o.n, 0.25F);
  const std::vector<std::int32_t> zero_points(scales.size());
  const detent::packed_int4_weights weights = detent::pack_int4_weights(
      {o.weights.data(), o.k, o.n},
      {.group_size = kGroup, .scales = {scales.data(), scales.size() / o.n, o.n}});
  std::vector<float> c(o.m * o.n);
  const detent::matrix_view<const std::uint8_t> lhs(a.data(), o.m, o.k);
  const detent::matrix_view<float> out(c.data(), o.m, o.n);
  measure(state, o, target, 1, [&] { detent::gemm(lhs, weights, out, {.lhs_zero_point = 7}); });
  validate(state, o, c, [&](std::size_t row, std::size_t column) {
    const auto n = static_cast<std::ptrdiff_t>(o.n);
    return detent::reference::grouped_dot(&a[row * o.k], &o.weights[column], n, o.k, group, 7,
                                          &scales[column], &zero_points[column], n);
  });
}

/// The time of a parallel_for of two tasks on a pool of two threads, right after the one before or
/// after a sleep of 1 ms. Tasks that meet wait for each other, so that both threads must be awake;
/// of empty tasks, the calling thread may do both.
void two_tasks(benchmark::State& state, bool meet, bool sleeps) {
  detent::thread_pool pool(2);
  const detent::parallel_for parallel = pool.parallel();
  std::atomic<std::size_t> begun{0};
  std::size_t expected = 0;
  const std::function<void(std::size_t)> task = [&](std::size_t) {
    ++begun;
    while (meet && begun < expected) {
      std::this_thread::yield();
    }
  };
  std::vector<double> times;
  for (auto _ : state) {
    if (sleeps) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    expected += 2;
    const double start = detent_bench::seconds_now();
    parallel(2, task);
    times.push_back(detent_bench::seconds_now() - start);
  }
  if (begun != expected) {
    state.SkipWithError("not every task was run once");
    return;
  }
  const auto median = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), median, times.end());
  state.counters["microseconds"] = *median * 1e6;
}

struct kernel {
  const char* name;
  void (*run)(benchmark::State&, detent::target);
  bool real_time = false;  // rates use the time of the clock, not that of the calling thread
};

using shapes_of_products = std::vector<std::array<std::int64_t, 3>>;  // M, N, K

const shapes_of_products common_shapes{{1, 768, 768},    {1, 4096, 4096},   {8, 4096, 4096},
                                       {32, 4096, 4096}, {128, 768, 768},   {128, 768, 3072},
                                       {3136, 64, 576},  {784, 128, 1152},  {196, 256, 2304},
                                       {127, 513, 333},  {1024, 1024, 1024}};
const shapes_of_products few_rows{{1, 768, 768}, {2, 768, 768}, {3, 768, 768}, {4, 768, 768},
                                  {5, 768, 768}, {6, 768, 768}, {7, 768, 768}, {8, 768, 768},
                                  {1, 256, 256}, {1, 64, 64},   {7, 256, 256}};
// Weights that fit the second-level cache, and not the first-level one.
const shapes_of_products single_rows{{1, 384, 384},  {1, 1536, 384}, {1, 384, 1536}, {1, 512, 512},
                                     {1, 1024, 512}, {1, 512, 1024}, {1, 2048, 256}, {1, 256, 2048},
                                     {1, 3072, 256}, {1, 256, 3072}, {1, 768, 768}};
const shapes_of_products small_threaded_shapes{{128, 16, 16},  {128, 64, 64},   {197, 64, 64},
                                               {128, 128, 32}, {256, 128, 128}, {64, 256, 256},
                                               {8, 256, 256},  {16, 768, 768},  {1, 768, 768}};
const shapes_of_products threaded_shapes{
    {8, 4096, 4096}, {32, 4096, 4096}, {128, 3072, 768}, {128, 768, 3072},   {512, 3072, 768},
    {3136, 64, 576}, {784, 128, 1152}, {196, 256, 2304}, {1024, 1024, 1024}, {2048, 2048, 2048}};
#if DETENT_BENCH_ONEDNN
const shapes_of_products peer_shapes{
    {1, 768, 768},    {1, 4096, 4096},  {8, 4096, 4096},    {32, 4096, 4096},   {128, 768, 768},
    {128, 3072, 768}, {128, 768, 3072}, {512, 3072, 768},   {3136, 64, 576},    {784, 128, 1152},
    {196, 256, 2304}, {127, 513, 333},  {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}};
const shapes_of_products signed_shapes{
    {128, 768, 768}, {128, 768, 3072}, {196, 256, 2304}, {1024, 1024, 1024}};
// Heads of attention, 1x1 convolutions of small images, and other products of a few microseconds.
const shapes_of_products small_shapes = {
    {8, 8, 8},      {16, 16, 16},   {24, 24, 24},   {32, 32, 32},    {48, 48, 48},
    {64, 64, 64},   {77, 77, 77},   {96, 96, 96},   {128, 128, 128}, {197, 197, 197},
    {8, 64, 64},    {8, 256, 256},  {16, 64, 128},  {16, 256, 64},   {24, 96, 32},
    {24, 197, 77},  {32, 64, 16},   {32, 8, 256},   {48, 256, 64},   {48, 64, 256},
    {48, 16, 96},   {64, 128, 64},  {64, 32, 256},  {64, 8, 64},     {77, 64, 77},
    {77, 77, 64},   {77, 24, 256},  {96, 24, 96},   {96, 96, 24},    {128, 64, 128},
    {128, 128, 64}, {128, 128, 32}, {128, 32, 128}, {128, 16, 16},   {197, 64, 197},
    {197, 197, 64}, {197, 32, 24},  {256, 256, 64}, {256, 64, 256},  {256, 8, 48}};
#endif

void add(const kernel& k, detent::target t, const shapes_of_products& shapes) {
  auto* b = benchmark::RegisterBenchmark((std::string(k.name) + "/" + detent::name(t)).c_str(),
                                         [=](benchmark::State& s) { k.run(s, t); });
  if (k.real_time) {
    b->UseRealTime();
  }
  for (const std::array<std::int64_t, 3>& shape : shapes) {
    b->Args({shape[0], shape[1], shape[2]});
  }
}

}  // namespace

int main(int argc, char** argv) try {
#if DETENT_BENCH_ONEDNN
  omp_set_num_threads(1);  // the peer's
#endif
  for (const detent::target t : detent::available_targets()) {
    if (t == detent::target::portable) {
      continue;
    }
    for (const kernel& k :
         {kernel{"gemm_u8s8_s32", gemm<std::uint8_t, std::int32_t>},
          kernel{"gemm_u8s8_u8/normal", gemm<std::uint8_t, std::uint8_t>},
          kernel{"gemm_u8s8_u8/even", gemm<std::uint8_t, std::uint8_t, 1, spread::even>}}) {
      add(k, t, {{1000, 1024, 1024}, {128, 768, 768}, {784, 128, 1152}, {1, 768, 768}});
    }
  }
  for (const detent::target t : detent::available_targets()) {
    if (t < detent::target::avx512_vnni && t != detent::best_target()) {
      continue;
    }
    for (const kernel& k : {kernel{"gemm_u8s8_f32", gemm<std::uint8_t, float>},
                            kernel{"gemm_s8s8_s32", gemm<std::int8_t, std::int32_t>},
                            kernel{"gemm_s8s8_f32", gemm<std::int8_t, float>},
                            kernel{"dynamic_linear", dynamic_linear}}) {
      add(k, t, common_shapes);
    }
    for (const kernel& k :
         {kernel{"few_rows_gemm_u8s8_u8", gemm<std::uint8_t, std::uint8_t>},
          kernel{"few_rows_prepared_u8s8_u8", prepared<std::uint8_t, std::uint8_t>}}) {
      add(k, t, few_rows);
    }
    add({"single_row/weights_from_cache", single_row}, t, single_rows);
    add({"single_row/overhead_of_a_call_at_most", single_row}, t, {{1, 16, 16}});
    for (const kernel& k :
         {kernel{"gemm_u8s8_f32_one_thread", gemm<std::uint8_t, float>, true},
          kernel{"gemm_u8s8_f32_two_threads", gemm<std::uint8_t, float, 2>, true}}) {
      add(k, t, threaded_shapes);
    }
    for (const kernel& k :
         {kernel{"small_u8s8_f32_one_thread", gemm<std::uint8_t, float>, true},
          kernel{"small_u8s8_f32_two_threads", gemm<std::uint8_t, float, 2>, true}}) {
      add(k, t, small_threaded_shapes);
    }
  }
  for (const bool meet : {false, true}) {
    for (const bool sleeps : {false, true}) {
      benchmark::RegisterBenchmark(
          (std::string("two_tasks/") + (meet ? "that_meet" : "empty") +
           (sleeps ? "/after_a_sleep_of_1_ms" : "/right_after_the_call_before"))
              .c_str(),
          [=](benchmark::State& s) { two_tasks(s, meet, sleeps); })
          ->Iterations(1000);
    }
  }
#if DETENT_BENCH_ONEDNN
  // detent and oneDNN one after the other, with shares of the same peak.
  const detent::target beside = detent_bench::target_beside_onednn();
  for (const kernel& k :
       {kernel{"beside_onednn/s32/detent", gemm<std::uint8_t, std::int32_t>},
        kernel{"beside_onednn/s32/onednn", onednn_gemm<std::uint8_t, std::int32_t>},
        kernel{"beside_onednn/f32/detent", gemm<std::uint8_t, float>},
        kernel{"beside_onednn/f32/onednn", onednn_gemm<std::uint8_t, float>},
        kernel{"beside_onednn/u8/detent", gemm<std::uint8_t, std::uint8_t>},
        kernel{"beside_onednn/u8/onednn", onednn_gemm<std::uint8_t, std::uint8_t>}}) {
    add(k, beside, peer_shapes);
  }
  for (const kernel& k :
       {kernel{"s8s8_beside_onednn/s32/detent", gemm<std::int8_t, std::int32_t>},
        kernel{"s8s8_beside_onednn/s32/onednn", onednn_gemm<std::int8_t, std::int32_t>},
        kernel{"s8s8_beside_onednn/f32/detent", gemm<std::int8_t, float>},
        kernel{"s8s8_beside_onednn/f32/onednn", onednn_gemm<std::int8_t, float>}}) {
    add(k, beside, signed_shapes);
  }
  for (const kernel& k :
       {kernel{"small_beside_onednn/s32/detent", prepared<std::uint8_t, std::int32_t>},
        kernel{"small_beside_onednn/s32/onednn", onednn_gemm<std::uint8_t, std::int32_t>},
        kernel{"small_beside_onednn/u8/detent", prepared<std::uint8_t, std::uint8_t>},
        kernel{"small_beside_onednn/u8/onednn", onednn_gemm<std::uint8_t, std::uint8_t>}}) {
    add(k, beside, small_shapes);
  }
#endif
  // 4-bit weights beside 8-bit weights: with one row, where memory is the limit, and with many
  // rows, where instructions are the limit.
  for (const detent::target t : detent::available_targets()) {
    if (t == detent::target::portable) {
      continue;
    }
    if (t == detent::target::avx512_vnni || t == detent::best_target()) {
      for (const kernel& k : {kernel{"gemm_u8s8_f32_memory", gemm<std::uint8_t, float>},
                              kernel{"gemm_u8s4_f32", gemm_int4<0>},
                              kernel{"gemm_u8s4_f32_groups_of_128", gemm_int4<128>}}) {
        add(k, t, {{1, 4096, 4096}, {1, 16384, 16384}});
      }
    }
    for (const kernel& k : {kernel{"gemm_u8s8_f32_many_rows", gemm<std::uint8_t, float>},
                            kernel{"gemm_u8s4_f32_many_rows", gemm_int4<0>},
                            kernel{"gemm_u8s4_f32_groups_of_128_many_rows", gemm_int4<128>}}) {
      add(k, t, {{32, 4096, 4096}, {128, 4096, 4096}, {512, 4096, 4096}});
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
  return 1;
}
