// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of the solvers that choose scales, zero points and codes of weights:
//
//   values     millions of weights a second, from the best of all iterations
//   objective  what the solver reached: the mean of the evidence's objectives
//
// Time is that of the thread, so that other work on the machine counts less; where the name says a
// number of threads, it is that of the clock. Results are checked outside of the timed code: a
// solver's objective must not be larger than that of the range's scale or of rounding to nearest,
// and with threads it must be that of one thread.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/all.hpp>

#include "limits.hpp"

namespace {

using detent::distribution;
using detent::quant_scheme;
using detent::scale_solution;

double thread_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
#else
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
#endif
}

std::vector<float> gauss(std::size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  std::generate(x.begin(), x.end(), [&] { return 0.05F * normal(random); });
  return x;
}

quant_scheme scheme_of(std::int32_t bits, bool symmetric) {
  const std::int32_t half = 1 << (bits - 1);
  return symmetric ? quant_scheme{{1 - half, half - 1}, true}
                   : quant_scheme{{-half, half - 1}, false};
}

double best_seconds(benchmark::State& state, const std::function<void()>& run,
                    double (*now)() = thread_seconds) {
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const double start = now();
    run();
    benchmark::ClobberMemory();
    best = std::min(best, now() - start);
  }
  return best;
}

void report(benchmark::State& state, std::size_t values, double seconds, double objective,
            double limit) {
  if (!(objective <= limit * (1.0 + 1e-9))) {
    state.SkipWithError("worse than the range's scale or than rounding to nearest");
    return;
  }
  state.counters["values"] = static_cast<double>(values) * 1e-6 / seconds;
  state.counters["objective"] = objective;
}

/// A solver of `values` weights that shares its work out over a parallel_for and returns its
/// objective.
void on_threads(benchmark::State& state, std::size_t threads, std::size_t values,
                const std::function<double(const detent::parallel_for&)>& solve) {
  detent::thread_pool pool(threads);
  const detent::parallel_for parallel = threads > 1 ? pool.parallel() : nullptr;
  double objective = 0.0;
  const double seconds = best_seconds(
      state, [&] { objective = solve(parallel); }, detent_bench::seconds_now);
  if (objective != solve(nullptr)) {
    state.SkipWithError("not the result of one thread");
    return;
  }
  report(state, values, seconds, objective, objective);
}

using solver = std::function<scale_solution(const distribution&, quant_scheme)>;

/// Channels of n weights, each with its distribution.
void scales(benchmark::State& state, const solver& solve, std::size_t n, quant_scheme scheme,
            bool improves) {
  const std::size_t channels = std::max<std::size_t>(1, (std::size_t{1} << 15) / n);
  const std::vector<float> x = gauss(channels * n);
  const auto channel = [&](std::size_t c) { return std::span<const float>(x).subspan(c * n, n); };
  double objective = 0.0;
  const double seconds = best_seconds(state, [&] {
    objective = 0.0;
    for (std::size_t c = 0; c < channels; ++c) {
      objective += solve(distribution(channel(c)), scheme).evidence.objective;
    }
  });
  double limit = std::numeric_limits<double>::infinity();
  if (improves) {
    limit = 0.0;
    for (std::size_t c = 0; c < channels; ++c) {
      limit += absmax(distribution(channel(c)), scheme).evidence.objective;
    }
  }
  const auto count = static_cast<double>(channels);
  report(state, x.size(), seconds, objective / count, limit / count);
}

using weight_solver = std::function<detent::quantized_weights(
    detent::matrix_view<const float>, const detent::gram_matrix&, const detent::weight_format&)>;

/// A layer of `rows` outputs and `columns` inputs in groups of 128 columns.
void weights(benchmark::State& state, const weight_solver& solve, std::size_t rows,
             std::size_t columns, quant_scheme scheme) {
  const std::vector<float> w = gauss(rows * columns);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const std::size_t samples = 2 * columns;
  std::vector<float> inputs(samples * columns);
  for (std::size_t s = 0; s < samples; ++s) {
    const float common = normal(random);
    for (std::size_t j = 0; j < columns; ++j) {
      inputs[s * columns + j] = normal(random) + 0.5F * common;
    }
  }
  detent::gram_observer observer(columns);
  observer.observe(detent::matrix_view<const float>(inputs.data(), samples, columns));
  const detent::gram_matrix g = observer.finalize();
  const detent::matrix_view<const float> view(w.data(), rows, columns);
  const detent::weight_format format{.scheme = scheme, .group_size = 128};
  detent::quantized_weights q;
  const double seconds = best_seconds(state, [&] { q = solve(view, g, format); });
  report(state, w.size(), seconds, q.evidence.objective / static_cast<double>(rows),
         q.evidence.nearest_objective / static_cast<double>(rows));
}

/// exact_mse of channels of n weights.
void scales_on_threads(benchmark::State& state, std::size_t threads, std::size_t n,
                       quant_scheme scheme) {
  constexpr std::size_t count = std::size_t{1} << 15;
  const std::vector<float> x = gauss(count);
  const detent::tensor_view<const float> view(x.data(), {count / n, n});
  on_threads(state, threads, count, [&](const detent::parallel_for& parallel) {
    const auto exact = [](const distribution& d, quant_scheme s) { return exact_mse(d, s); };
    double objective = 0.0;
    for (const scale_solution& s : detent::solve_channels(view, 0, scheme, exact, parallel)) {
      objective += s.evidence.objective;
    }
    return objective;
  });
}

void hqq_on_threads(benchmark::State& state, std::size_t threads, std::size_t rows,
                    std::size_t columns, quant_scheme scheme) {
  const std::vector<float> w = gauss(rows * columns);
  const detent::matrix_view<const float> view(w.data(), rows, columns);
  on_threads(state, threads, w.size(), [&](const detent::parallel_for& parallel) {
    return detent::hqq(view, {.scheme = scheme, .group_size = 128}, {}, parallel)
        .evidence.objective;
  });
}

template <class F>
void add(const std::string& name, const F& f) {
  benchmark::RegisterBenchmark(name.c_str(), f);
}

}  // namespace

int main(int argc, char** argv) {
  struct {
    const char* name;
    solver solve;
    bool improves;  // on absmax
  } const solvers[] = {
      {"exact_mse", [](const distribution& d, quant_scheme s) { return exact_mse(d, s); }, true},
      {"octav", [](const distribution& d, quant_scheme s) { return octav(d, s); }, false},
      {"aciq", [](const distribution& d, quant_scheme s) { return aciq(d, s); }, false},
      {"grid_mse", [](const distribution& d, quant_scheme s) { return grid_mse(d, s); }, true},
      {"lp_norm", [](const distribution& d, quant_scheme s) { return lp_norm(d, s); },
       false},  // another objective
  };
  for (const auto& s : solvers) {
    for (const std::int32_t bits : {8, 4}) {
      for (const bool symmetric : {true, false}) {
        for (const std::size_t n : {64U, 512U, 4096U}) {
          add(std::string(s.name) + "/bits:" + std::to_string(bits) +
                  (symmetric ? "/symmetric/" : "/asymmetric/") + std::to_string(n),
              [=](benchmark::State& state) {
                scales(state, s.solve, n, scheme_of(bits, symmetric), s.improves);
              });
        }
      }
    }
  }
  struct {
    const char* name;
    weight_solver solve;
    std::size_t rows;
    std::size_t columns;
    bool symmetric;
  } const weight_solvers[] = {
      {"hqq", [](auto w, const auto&, const auto& f) { return detent::hqq(w, f); }, 64, 1024,
       false},
      {"coordinate_descent",
       [](auto w, const auto& g, const auto& f) { return detent::coordinate_descent(w, g, f); }, 32,
       512, true},
      {"adaround",
       [](auto w, const auto& g, const auto& f) {
         return detent::adaround(w, g, f, {.iterations = 100});
       },
       32, 256, true},
      {"gptq", [](auto w, const auto& g, const auto& f) { return detent::gptq(w, g, f); }, 256, 512,
       true},
  };
  for (const auto& s : weight_solvers) {
    for (const std::int32_t bits : {4, 8}) {
      add(std::string(s.name) + "/bits:" + std::to_string(bits) + "/" + std::to_string(s.rows) +
              "x" + std::to_string(s.columns),
          [=](benchmark::State& state) {
            weights(state, s.solve, s.rows, s.columns, scheme_of(bits, s.symmetric));
          });
    }
  }
  for (const std::int32_t bits : {8, 4}) {
    for (const std::size_t threads : {1U, 2U}) {
      const std::string rest =
          "/threads:" + std::to_string(threads) + "/bits:" + std::to_string(bits);
      for (const bool symmetric : {true, false}) {
        for (const std::size_t n : {64U, 512U, 4096U}) {
          add("exact_mse" + rest + (symmetric ? "/symmetric/" : "/asymmetric/") + std::to_string(n),
              [=](benchmark::State& state) {
                scales_on_threads(state, threads, n, scheme_of(bits, symmetric));
              });
        }
      }
      add("hqq" + rest + "/64x1024", [=](benchmark::State& state) {
        hqq_on_threads(state, threads, 64, 1024, scheme_of(bits, false));
      });
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
