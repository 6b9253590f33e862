// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of observers and solvers:
//
//   histograms  elements per second, and how many times as many that is as those of a plain loop
//               that counts into two tables; the iterations of both take turns
//   ranges      bytes per second, and the share of what plain loads of the same memory reach
//   solvers     milliseconds
//
// All numbers are the best of all iterations. Results are checked outside of the timed code.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/all.hpp>

#include "limits.hpp"

namespace {

enum class data_kind { gauss, relu, student };

std::vector<float> values_of(data_kind kind, std::size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(3.0F);
  std::vector<float> x(n);
  for (float& value : x) {
    value = kind == data_kind::student ? student(random) : normal(random);
    value = kind == data_kind::relu ? std::max(value, 0.0F) : value;
  }
  return x;
}

/// The plain loop that histograms are compared with. The upper 18 bits of a float are its bin;
/// neighbouring elements are counted in two different tables.
void count_plainly(const std::vector<float>& x, std::vector<std::uint32_t>& tables) {
  std::uint32_t* first = tables.data();
  std::uint32_t* second = tables.data() + (std::size_t{1} << 18);
  for (std::size_t i = 0; i + 2 <= x.size(); i += 2) {
    ++first[std::bit_cast<std::uint32_t>(x[i]) >> 14];
    ++second[std::bit_cast<std::uint32_t>(x[i + 1]) >> 14];
  }
}

/// The best times of two functions whose iterations take turns.
struct best_times {
  double ours = std::numeric_limits<double>::infinity();
  double other = std::numeric_limits<double>::infinity();
};
template <class Ours, class Other>
best_times run_in_turn(benchmark::State& state, const Ours& ours, const Other& other) {
  best_times best;
  for (auto _ : state) {
    const double start = detent_bench::seconds_now();
    other();
    benchmark::ClobberMemory();
    const double middle = detent_bench::seconds_now();
    ours();
    benchmark::ClobberMemory();
    best.other = std::min(best.other, middle - start);
    best.ours = std::min(best.ours, detent_bench::seconds_now() - middle);
  }
  return best;
}

void report(benchmark::State& state, double rate, const char* error, double ratio) {
  if (error != nullptr) {
    state.SkipWithError(error);
    return;
  }
  state.counters["rate"] = rate;    // elements or bytes a second / 1e9, or milliseconds
  state.counters["ratio"] = ratio;  // to the plain loop or to the limit; 0 where there is none
}

template <class Histogram>
void histograms(benchmark::State& state, detent::target target, data_kind kind,
                std::size_t threads) {
  detent::set_target(target);
  // One activation of 1 x 64 x 56 x 56 values, or 40 of them if several threads share the work.
  const std::vector<float> x = values_of(kind, std::size_t{64} * 56 * 56 * (threads > 1 ? 40 : 1));
  std::vector<std::uint32_t> tables(std::size_t{2} << 18);
  Histogram h;
  detent::thread_pool pool(threads);
  const detent::parallel_for parallel = pool.parallel();
  std::uint64_t rounds = 0;
  const best_times best = run_in_turn(
      state,
      [&] {
        threads > 1 ? h.observe(x, parallel) : h.observe(std::span<const float>(x));
        ++rounds;
      },
      [&] { count_plainly(x, tables); });
  Histogram once;
  once.observe(std::span<const float>(x));
  const bool right =
      h.count() == rounds * x.size() && h.quantile(0.75).upper == once.quantile(0.75).upper;
  report(state, static_cast<double>(x.size()) * 1e-9 / best.ours, right ? nullptr : "wrong counts",
         best.other / best.ours);
}

void ranges(benchmark::State& state, detent::target target) {
  detent::set_target(target);
  const std::vector<float> x =
      values_of(data_kind::gauss, static_cast<std::size_t>(state.range(0)) / sizeof(float));
  const double limit = detent_bench::memory_gb_per_s(4, 0, x.size());
  detent::min_max_observer observer;
  const best_times best = run_in_turn(
      state, [&] { observer.observe(x); }, [] {});
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  const double rate = static_cast<double>(x.size()) * 4e-9 / best.ours;
  report(state, rate,
         observer.range() == detent::value_range{*least, *most} ? nullptr : "wrong range",
         rate / limit);
}

template <class Observer>
void finalize(benchmark::State& state, data_kind kind, detent::quant_scheme scheme) {
  const std::vector<float> x = values_of(kind, 4000000);
  Observer observer;
  observer.observe(std::span<const float>(x));
  detent::scale_solution s;
  const best_times best = run_in_turn(
      state, [&] { s = observer.finalize(scheme); }, [] {});
  report(state, best.ours * 1e3, s.evidence.count == x.size() ? nullptr : "wrong count", 0.0);
}

/// exact_mse of channels of 4608 weights. The rate is the milliseconds for 512 channels, scaled up
/// from 32 channels for asymmetric schemes. The ratio is the squared error of min/max divided by
/// the least squared error.
void channels(benchmark::State& state, data_kind kind, std::int32_t bits, bool symmetric) {
  const std::size_t count = symmetric ? 512 : 32;
  constexpr std::size_t size = 4608;
  const std::vector<float> x = values_of(kind, count * size);
  const std::int32_t half = 1 << (bits - 1);
  const detent::quant_scheme scheme = symmetric ? detent::quant_scheme{{1 - half, half - 1}, true}
                                                : detent::quant_scheme{{0, 2 * half - 1}, false};
  double exact = 0.0;
  const best_times best = run_in_turn(
      state,
      [&] {
        exact = 0.0;
        for (std::size_t c = 0; c < count; ++c) {
          exact += exact_mse(std::span<const float>(x).subspan(c * size, size), scheme)
                       .evidence.objective;
        }
      },
      [] {});
  double range = 0.0;
  for (std::size_t c = 0; c < count; ++c) {
    const detent::distribution d(std::span<const float>(x).subspan(c * size, size));
    range += absmax(d, scheme).evidence.objective;
  }
  report(state, best.ours * 1e3 * 512.0 / static_cast<double>(count),
         exact <= range ? nullptr : "not the best", range / exact);
}

template <class F>
void add(const std::string& name, const F& f) {
  benchmark::RegisterBenchmark(name.c_str(), f);
}

}  // namespace

int main(int argc, char** argv) {
  using detent::asymmetric;
  using detent::symmetric;
  struct {
    const char* name;
    data_kind kind;
  } const kinds[] = {
      {"gauss", data_kind::gauss}, {"relu", data_kind::relu}, {"student", data_kind::student}};
  for (const detent::target t : detent::available_targets()) {
    const std::string target = detent::name(t);
    for (const auto& kind : {kinds[0], kinds[1]}) {
      for (const std::size_t threads : {1U, 2U}) {
        const std::string rest =
            std::string("/") + kind.name + "/threads:" + std::to_string(threads) + "/" + target;
        add("histogram_counts" + rest, [=, k = kind.kind](benchmark::State& s) {
          histograms<detent::count_histogram>(s, t, k, threads);
        });
        add("histogram_sums" + rest, [=, k = kind.kind](benchmark::State& s) {
          histograms<detent::histogram>(s, t, k, threads);
        });
      }
    }
    for (const std::int64_t bytes : {64 << 10, 4 << 20, 256 << 20}) {
      benchmark::RegisterBenchmark(("min_max/" + target).c_str(), [t](benchmark::State& s) {
        ranges(s, t);
      })->Arg(bytes);
    }
  }
  for (const auto& kind : kinds) {
    for (const bool is_symmetric : {true, false}) {
      const detent::quant_scheme scheme =
          is_symmetric ? symmetric<std::int8_t> : asymmetric<std::uint8_t>;
      const std::string rest =
          std::string("/") + kind.name + (is_symmetric ? "/symmetric" : "/asymmetric");
      add("finalize_kl" + rest,
          [=, k = kind.kind](benchmark::State& s) { finalize<detent::kl_observer>(s, k, scheme); });
      add("finalize_mse" + rest, [=, k = kind.kind](benchmark::State& s) {
        finalize<detent::mse_observer>(s, k, scheme);
      });
      add("finalize_lp" + rest,
          [=, k = kind.kind](benchmark::State& s) { finalize<detent::lp_observer>(s, k, scheme); });
    }
  }
  for (const std::int32_t bits : {8, 4}) {
    for (const bool is_symmetric : {true, false}) {
      for (const auto kind : {data_kind::gauss, data_kind::student}) {
        add(std::string("exact_mse_512x4608/") + (kind == data_kind::gauss ? "gauss" : "student") +
                "/bits:" + std::to_string(bits) + (is_symmetric ? "/symmetric" : "/asymmetric"),
            [=](benchmark::State& s) { channels(s, kind, bits, is_symmetric); });
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
