// SPDX-License-Identifier: BSD-3-Clause
// Every observer, per tensor and per channel, symmetric and asymmetric, of every input format:
// against plain loops, and against itself with the data split and merged in other ways.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::any_observer;
using detent::error_kind;
using detent::make_observer;
using detent::observer_options;
using detent::quant_scheme;
using detent::scale_solution;
using detent::tensor_view;
using detent::value_range;
using test::check_error;
using test::random_source;

using real = long double;
using floats = std::vector<float>;

/// The batches that one observer sees, flattened in order, with rows of one length.
struct plain_data {
  std::vector<floats> batches;
  std::size_t row = 1;

  [[nodiscard]] floats all() const {
    floats values;
    for (const floats& b : batches) {
      values.insert(values.end(), b.begin(), b.end());
    }
    return values;
  }
};

value_range plain_range(const floats& x) {
  return {*std::min_element(x.begin(), x.end()) + 0.0F,
          *std::max_element(x.begin(), x.end()) + 0.0F};
}

/// Of sorted values, that which `rank` (from 1) says.
std::size_t plain_rank(double fraction, std::size_t n) {
  const double rank = std::ceil(fraction * static_cast<double>(n));
  return static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(n)));
}

bool near(float a, float b, double share) {
  return std::fabs(static_cast<double>(a) - static_cast<double>(b)) <=
         share * std::max(std::fabs(static_cast<double>(a)), std::fabs(static_cast<double>(b))) +
             1e-30;
}

real power_error(const floats& x, detent::quant_params p, detent::grid levels, double power) {
  real sum = 0.0L;
  for (const float value : x) {
    const real k = std::clamp(std::nearbyint(static_cast<real>(value) / p.scale),
                              static_cast<real>(levels.qmin - p.zero_point),
                              static_cast<real>(levels.qmax - p.zero_point));
    const real e = static_cast<real>(value) - k * p.scale;
    sum += power == 2.0 ? e * e : std::pow(std::fabs(e), static_cast<real>(power));
  }
  return sum / static_cast<real>(x.size());
}
real squared_error(const floats& x, detent::quant_params p, detent::grid levels) {
  return power_error(x, p, levels, 2.0);
}

/// Rows of which the order of the two largest survives for sure, by the published inequalities.
std::size_t rows_kept(const plain_data& d, float scale, bool symmetric, std::int32_t cap) {
  std::size_t kept = 0;
  for (const floats& batch : d.batches) {
    for (std::size_t r = 0; r < batch.size(); r += d.row) {
      floats row(batch.begin() + static_cast<std::ptrdiff_t>(r),
                 batch.begin() + static_cast<std::ptrdiff_t>(r + d.row));
      for (float& value : row) {
        value = symmetric ? std::fabs(value) : value;
      }
      std::sort(row.begin(), row.end(), std::greater<>());
      const double first = row[0];
      const bool alone = row.size() < 2;
      const double second = alone ? 0.0 : std::max(static_cast<double>(row[1]), 0.0);
      const double low = second / (cap - 0.51);
      const double high = alone ? std::numeric_limits<double>::infinity() : 2.0 * (first - second);
      kept += first > 0.0 && cap > 0 && low < high && low <= static_cast<double>(scale) &&
                      static_cast<double>(scale) <= high
                  ? 1U
                  : 0U;
    }
  }
  return kept;
}

/// What an observer of that name should say of the data.
void check_against_plain(const std::string& name, const plain_data& d, quant_scheme scheme,
                         const any_observer& observer, const observer_options& options) {
  const floats x = d.all();
  floats sorted = x;
  std::sort(sorted.begin(), sorted.end());
  floats absolute = x;
  for (float& value : absolute) {
    value = std::fabs(value);
  }
  std::sort(absolute.begin(), absolute.end());
  const scale_solution s = observer.finalize(scheme);
  const value_range seen = plain_range(x);
  detent::histogram h;
  h.observe(std::span<const float>(x));

  if (name == "minmax") {
    CHECK(s.params == params_from_range(seen, scheme));
  } else if (name == "percentile" || name == "absolute_percentile") {
    const std::size_t rank = plain_rank(options.percentile.value() / 100.0, x.size());
    const float q = absolute[rank - 1];
    const value_range exact = scheme.symmetric || name == "absolute_percentile"
                                  ? value_range{std::max(std::min(seen.lower, 0.0F), -q),
                                                std::min(std::max(seen.upper, 0.0F), q)}
                                  : value_range{sorted[x.size() - rank], sorted[rank - 1]};
    if (options.exact_percentile) {
      CHECK(s.params == params_from_range(exact, scheme));
    } else {
      const auto* held = observer.target<detent::percentile_observer>();
      REQUIRE(held != nullptr);
      const value_range r = held->range(scheme.symmetric);
      CHECK(r.lower <= exact.lower);
      CHECK(r.upper >= exact.upper);
      CHECK(near(r.lower, exact.lower, 1.0 / 511.0));
      CHECK(near(r.upper, exact.upper, 1.0 / 511.0));
      CHECK(s.params == params_from_range(r, scheme));
    }
  } else if (name == "kl") {
    detent::count_histogram counts;
    counts.observe(std::span<const float>(x));
    CHECK(s.params == kl(counts.bins(), counts.range(), scheme).params);
  } else if (name == "mse") {
    const scale_solution exact = detent::exact_mse(x, scheme);
    const auto error = static_cast<double>(squared_error(x, s.params, scheme.levels));
    const double slack = static_cast<double>(absolute.back()) * absolute.back() * 1e-12;
    CHECK(error <= s.evidence.objective * (1.0 + 1e-9) + slack);
    CHECK(s.evidence.lower_bound <= exact.evidence.objective + slack);
    CHECK(error >= exact.evidence.lower_bound - slack);
  } else if (name == "lp") {
    const scale_solution exact = detent::lp_norm(x, scheme, {.p = options.p});
    const auto error = static_cast<double>(power_error(x, s.params, scheme.levels, options.p));
    const double slack = std::pow(static_cast<double>(absolute.back()) * 1e-6, options.p);
    CHECK(error <= s.evidence.objective * (1.0 + 1e-9) + slack);
    CHECK(s.evidence.lower_bound <= exact.evidence.objective + slack);
    CHECK(error >= exact.evidence.lower_bound - slack);
    CHECK(s.evidence.method == (options.p == 2.0 ? "exact_mse" : "lp_norm"));
  } else if (name == "grid_mse") {
    CHECK(s.params == grid_mse(detent::distribution(h), scheme).params);
    CHECK(near(static_cast<float>(s.evidence.objective),
               static_cast<float>(squared_error(x, s.params, scheme.levels)), 0.3));
  } else if (name == "octav") {
    CHECK(s.params == octav(detent::distribution(h), scheme).params);
  } else if (name == "aciq") {
    CHECK(s.params == aciq(detent::distribution(h), scheme).params);
  } else if (name == "constant") {
    CHECK(s.params == detent::quant_params{});
  } else if (name == "moving_average") {
    double lower = 0.0;
    double upper = 0.0;
    for (std::size_t i = 0; i < d.batches.size(); ++i) {
      const value_range b = plain_range(d.batches[i]);
      lower = i == 0 ? b.lower
                     : (1.0 - options.moving_constant) * lower + options.moving_constant * b.lower;
      upper = i == 0 ? b.upper
                     : (1.0 - options.moving_constant) * upper + options.moving_constant * b.upper;
    }
    const auto p =
        params_from_range({static_cast<float>(lower), static_cast<float>(upper)}, scheme);
    CHECK(near(s.params.scale, p.scale, 1e-6));
    CHECK(s.params.zero_point == p.zero_point);
  } else if (name == "isotone") {
    std::int32_t cap = scheme.levels.qmax - s.params.zero_point;
    const std::size_t rows = x.size() / d.row;
    const auto certain = static_cast<std::size_t>(
        std::llround((1.0 - s.evidence.objective) * static_cast<double>(rows)));
    const auto bound = static_cast<std::size_t>(
        std::llround((1.0 - s.evidence.lower_bound) * static_cast<double>(rows)));
    CHECK(rows_kept(d, s.params.scale, scheme.symmetric, cap) >= certain);
    // No other scale keeps more than the bound says; the best ones begin where a row's do.
    std::size_t most = 0;
    for (const floats& batch : d.batches) {
      for (std::size_t r = 0; r < batch.size(); r += d.row) {
        floats row(batch.begin() + static_cast<std::ptrdiff_t>(r),
                   batch.begin() + static_cast<std::ptrdiff_t>(r + d.row));
        for (float& value : row) {
          value = scheme.symmetric ? std::fabs(value) : value;
        }
        std::sort(row.begin(), row.end(), std::greater<>());
        const double second = row.size() < 2 ? 0.0 : std::max(static_cast<double>(row[1]), 0.0);
        auto begin = static_cast<float>(second / (cap - 0.51));
        begin = std::nextafter(std::nextafter(begin, 1e30F), 1e30F);
        most = std::max(most, rows_kept(d, begin, scheme.symmetric, cap));
      }
    }
    CHECK(most <= bound);
    CHECK(static_cast<double>(certain) >= 0.9 * static_cast<double>(most));
  } else {
    // Means and medians of the samples' ends.
    floats lower;
    floats upper;
    for (const floats& batch : d.batches) {
      lower.push_back(plain_range(batch).lower);
      upper.push_back(plain_range(batch).upper);
    }
    std::sort(lower.begin(), lower.end());
    std::sort(upper.begin(), upper.end());
    const bool outliers = name.find("no_outliers") != std::string::npos;
    const std::size_t cut = outliers && lower.size() > 2 ? 1 : 0;  // 1e-4 of them, rounded up
    const auto expected = [&](const floats& ends) {
      if (name.find("median") == 0) {
        return ends[(ends.size() + 1) / 2 - 1];
      }
      REQUIRE(name.find("mean") == 0);
      real sum = 0.0L;
      for (std::size_t i = cut; i < ends.size() - cut; ++i) {
        sum += static_cast<real>(ends[i]);
      }
      return static_cast<float>(sum / static_cast<real>(ends.size() - 2 * cut));
    };
    const auto* held = observer.target<detent::sample_range_observer>();
    REQUIRE(held != nullptr);
    const float scale_of_ends = std::max(std::fabs(lower.front()), std::fabs(upper.back()));
    CHECK(std::fabs(held->range().lower - expected(lower)) <= scale_of_ends / 500.0F);
    CHECK(std::fabs(held->range().upper - expected(upper)) <= scale_of_ends / 500.0F);
    CHECK(s.params == params_from_range(held->range(), scheme));
  }
}

/// Observes all batches in all passes.
template <class Observer, class Batches, class Observe>
void run_phases(Observer& observer, const Batches& batches, const Observe& observe) {
  for (std::size_t phase = 0; phase < observer.phases(); ++phase) {
    if (phase != 0) {
      observer.begin_phase(phase);
    }
    for (const auto& batch : batches) {
      observe(batch);
    }
  }
}

/// What a float becomes in a format, and that as a float.
template <class T>
T in_format(float x) {
  if constexpr (detent::float_format<T>) {
    return detent::round_to<T>(x);
  } else {
    return static_cast<T>(x);
  }
}
template <class T>
float as_float(T x) {
  if constexpr (detent::float_format<T>) {
    return to_float(x);
  } else {
    return static_cast<float>(x);
  }
}

template <class T>
void check_format(random_source& random, const char* format) {
  const std::size_t shape[] = {4, 3, 8};
  for (const std::string& name : detent::default_observers().names()) {
    if (name.find('.') != std::string::npos || name == "test_two_phases") {
      continue;  // those have tests of their own
    }
    for (const bool symmetric : {false, true}) {
      for (const bool exact : {false, true}) {
        if (exact && name.find("percentile") == std::string::npos) {
          continue;
        }
        observer_options options;
        options.scheme =
            symmetric ? detent::symmetric<std::int8_t> : detent::asymmetric<std::uint8_t>;
        options.percentile = random.chance(50) ? 99.0 : 90.0;
        options.exact_percentile = exact;
        options.moving_constant = 0.25;
        const double powers[] = {1.0, 1.5, 2.0, 2.4, 3.0, 8.0};
        options.p = powers[random.size(0, 5)];
        options.storage =
            random.chance(50) ? detent::bin_storage::dense : detent::bin_storage::sparse;
        const std::size_t batch_count = random.size(1, 5);
        std::vector<std::vector<T>> batches(batch_count);
        for (auto& batch : batches) {
          const float shift = random.real(-1.0F, 1.0F);
          for (std::size_t i = 0; i < 96; ++i) {
            const float value = random.chance(5) ? 0.0F : random.real(-2.0F, 3.0F) + shift;
            batch.push_back(in_format<T>(value * std::fabs(value)));
          }
        }
        const auto view = [&](const std::vector<T>& batch) {
          return tensor_view<const T>(batch.data(), shape);
        };
        INFO(name, " symmetric ", symmetric, " exact ", exact, " format ", std::string(format));
        // Per tensor.
        any_observer observer = make_observer(name, options);
        run_phases(observer, batches, [&](const auto& batch) { observer.observe(view(batch)); });
        plain_data all;
        all.row = 8;
        for (const auto& batch : batches) {
          floats values;
          for (const T value : batch) {
            values.push_back(as_float(value));
          }
          all.batches.push_back(values);
        }
        check_against_plain(name, all, options.scheme, observer, options);

        // Per channel, along any axis and along two.
        for (const std::vector<std::size_t>& axes :
             {std::vector<std::size_t>{0}, {1}, {2}, {0, 1}, {1, 2}}) {
          detent::channel_observer channels(make_observer(name, options), axes);
          run_phases(channels, batches, [&](const auto& batch) { channels.observe(view(batch)); });
          std::size_t count = 1;
          for (const std::size_t axis : axes) {
            count *= shape[axis];
          }
          REQUIRE(channels.channels().size() == count);
          const auto solutions = channels.solve(options.scheme);
          const auto parameters = channels.finalize(options.scheme);
          for (std::size_t c = 0; c < count; ++c) {
            plain_data part;
            part.row = axes.back() == 2 ? (axes.size() == 2 ? 4 : 3) : 8;
            for (const floats& batch : all.batches) {
              floats values;
              for (std::size_t i = 0; i < 96; ++i) {
                const std::size_t index[] = {i / 24, i / 8 % 3, i % 8};
                std::size_t at = 0;
                for (const std::size_t axis : axes) {
                  at = at * shape[axis] + index[axis];
                }
                if (at == c) {
                  values.push_back(batch[i]);
                }
              }
              part.batches.push_back(values);
            }
            INFO("axes ", axes.front(), "..", axes.back(), " channel ", c);
            check_against_plain(name, part, options.scheme, channels.channels()[c], options);
            CHECK(solutions[c].params.scale == parameters.scales[c]);
            CHECK(solutions[c].params.zero_point == parameters.zero_points[c]);
          }
        }
      }
    }
  }
}

/// Asks for two passes, and says which value it saw last in each.
struct two_phase_observer {
  std::size_t phase = 0;
  float last[2] = {0.0F, 0.0F};
  [[nodiscard]] std::size_t phases() const { return 2; }
  void begin_phase(std::size_t p) { phase = p; }
  void observe(std::span<const float> x) { last[phase] = x.back(); }
  [[nodiscard]] detent::quant_params finalize(quant_scheme /*scheme*/) const {
    return {last[0] + last[1], 0};
  }
};

}  // namespace

TEST_CASE("observers agree with plain loops: name x symmetry x granularity, float") {
  random_source random(1);
  INFO("seed ", random.seed());
  check_format<float>(random, "float");
}
TEST_CASE("observers agree with plain loops: float16, bfloat16, double") {
  random_source random(2);
  INFO("seed ", random.seed());
  check_format<detent::float16>(random, "float16");
  check_format<detent::bfloat16>(random, "bfloat16");
  check_format<double>(random, "double");
}

TEST_CASE("observers do not care how rows are split, ordered, merged, or where they run") {
  random_source random(3);
  INFO("seed ", random.seed());
  for (const std::string& name : detent::default_observers().names()) {
    if (name.find('.') != std::string::npos || name == "moving_average" ||
        name == "test_two_phases") {
      continue;  // whose result is about the order of batches
    }
    for (int round = 0; round < 4; ++round) {
      observer_options options;
      options.scheme =
          round % 2 == 0 ? detent::symmetric<std::int8_t> : detent::asymmetric<std::uint8_t>;
      options.exact_percentile = round >= 2;
      const bool samples = name.find("_minmax") != std::string::npos;
      const std::size_t rows = random.size(1, 60);
      constexpr std::size_t row = 16;
      std::vector<floats> data(rows);
      for (floats& r : data) {
        r = random.reals(row, -3.0F, 5.0F);
        r[random.size(0, row - 1)] *= 100.0F;
      }
      any_observer whole = make_observer(name, options);
      const auto observe = [&](any_observer& o, std::span<const floats> part) {
        floats values;
        for (const floats& r : part) {
          values.insert(values.end(), r.begin(), r.end());
        }
        const std::size_t shape[] = {part.size(), row};
        o.observe(tensor_view<const float>(values.data(), shape));
      };
      // Samples are what they are; other observers see batches of any size.
      const auto observe_all = [&](any_observer& o) {
        if (!samples) {
          observe(o, data);
          return;
        }
        for (const floats& r : data) {
          o.observe(std::span<const float>(r));
        }
      };
      run_phases(whole, std::vector<int>{0}, [&](int) { observe_all(whole); });
      const scale_solution expected = whole.finalize(options.scheme);
      INFO(name, " round ", round, " rows ", rows);
      test::for_each_target([&] {
        for (std::size_t i = data.size(); i > 1; --i) {
          std::swap(data[i - 1], data[random.size(0, i - 1)]);
        }
        std::vector<any_observer> parts(random.size(1, 6), make_observer(name, options));
        for (std::size_t phase = 0; phase < whole.phases(); ++phase) {
          if (phase != 0) {
            // A pass ends when all parts know what the first one found.
            for (std::size_t i = 1; i < parts.size(); ++i) {
              parts[0].merge(parts[i]);
            }
            parts[0].begin_phase(phase);
            for (std::size_t i = 1; i < parts.size(); ++i) {
              parts[i] = parts[0];
            }
          }
          for (std::size_t first = 0; first < rows;) {
            const std::size_t n = samples ? 1 : std::min(rows - first, random.size(1, 20));
            any_observer& part = parts[random.size(0, parts.size() - 1)];
            observe(part, std::span<const floats>(data).subspan(first, n));
            first += n;
          }
        }
        while (parts.size() > 1) {
          const std::size_t a = random.size(0, parts.size() - 2);
          parts[a].merge(parts.back());
          parts.pop_back();
        }
        const scale_solution s = parts[0].finalize(options.scheme);
        CHECK(s.params == expected.params);
        CHECK(s.evidence.objective == expected.evidence.objective);
        CHECK(s.evidence.count == expected.evidence.count);
        if (!(options.exact_percentile && name.find("percentile") != std::string::npos)) {
          CHECK(parts[0].save() == whole.save());
        }
      });
    }
  }
}

TEST_CASE("a moving average follows the order of batches, across merges as well") {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int round = 0; round < 30; ++round) {
    const std::size_t n = random.size(2, 30);
    const std::size_t split = random.size(0, n);
    detent::moving_average_observer whole(0.1);
    detent::moving_average_observer first(0.1);
    detent::moving_average_observer second(0.1);
    for (std::size_t i = 0; i < n; ++i) {
      const floats x = random.reals(9, -1.0F, static_cast<float>(i + 1));
      whole.observe(x);
      (i < split ? first : second).observe(x);
    }
    first.merge(second);
    CHECK(near(first.range().lower, whole.range().lower, 1e-6));
    CHECK(near(first.range().upper, whole.range().upper, 1e-6));
    CHECK(first.count() == whole.count());
  }
  check_error(error_kind::invalid_argument, {"constant", "1.5"},
              [] { detent::moving_average_observer o(1.5); });
  check_error(error_kind::invalid_argument, {"moving_average_observer"}, [] {
    detent::moving_average_observer(0.1).merge(detent::moving_average_observer(0.2));
  });
}

namespace {

/// Options with which every observer can be made; those of other tools that know one kind of scheme
/// know this one.
observer_options saving_options() {
  observer_options options;
  options.scheme = detent::symmetric<std::int8_t>;
  return options;
}

/// Puts a matching checksum behind bytes that were changed on purpose.
void renew_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t sum =
      detent::detail::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i) & 0xFFU);
  }
}

}  // namespace

TEST_CASE("observers come back from their bytes, and damaged bytes do not") {
  random_source random(5);
  INFO("seed ", random.seed());
  const observer_options options = saving_options();
  for (const std::string& name : detent::default_observers().names()) {
    if (name == "test_two_phases") {
      continue;
    }
    const floats x = random.reals(24, -2.0F, 3.0F);
    any_observer observer = make_observer(name, options);
    run_phases(observer, std::vector<int>{0},
               [&](int) { observer.observe(std::span<const float>(x)); });
    const auto saved = observer.save();
    any_observer loaded = make_observer(name, options);
    loaded.load(saved);
    INFO(name);
    CHECK(loaded.save() == saved);
    CHECK(loaded.finalize(options.scheme).params == observer.finalize(options.scheme).params);
    // Where states are long, some of the bytes.
    for (std::size_t i = 0; i < saved.size(); i += 1 + saved.size() / 500) {
      auto damaged = saved;
      damaged[i] ^= std::byte{0x10};
      CHECK_THROWS_AS(loaded.load(damaged), detent::error);
    }
    CHECK(loaded.save() == saved);  // a load that fails changes nothing
    for (std::size_t size = 0; size < saved.size(); size += 7 + saved.size() / 500) {
      CHECK_THROWS_AS(loaded.load(std::span(saved).first(size)), detent::error);
    }
    auto newer = saved;
    newer[8] = std::byte{2};
    renew_checksum(newer);
    check_error(error_kind::unsupported, {"version 2"}, [&] { loaded.load(newer); });
    auto longer = saved;
    longer.insert(longer.end() - 8, std::byte{0});
    longer[16] ^= static_cast<std::byte>((saved.size() - 32) ^ (saved.size() - 31));
    longer[17] ^= static_cast<std::byte>(((saved.size() - 32) ^ (saved.size() - 31)) >> 8);
    renew_checksum(longer);
    check_error(error_kind::bad_file, {}, [&] { loaded.load(longer); });
    CHECK(loaded.save() == saved);
  }
}

TEST_CASE("an observer that was saved and loaded between batches ends as one that was not") {
  random_source random(15);
  INFO("seed ", random.seed());
  const observer_options options = saving_options();
  for (const std::string& name : detent::default_observers().names()) {
    if (name == "test_two_phases") {
      continue;
    }
    std::vector<floats> batches;
    for (int i = 0; i < 4; ++i) {
      const float size = random.real(0.5F, 2.0F + static_cast<float>(i));
      batches.push_back(random.reals(random.size(20, 300), -size, 1.5F * size));
    }
    for (const std::size_t phase : {0U, 1U}) {
      for (std::size_t before = 0; before <= batches.size(); ++before) {
        any_observer whole = make_observer(name, options);
        any_observer parted = make_observer(name, options);
        if (phase >= whole.phases()) {
          continue;
        }
        INFO(name, " phase ", phase, " before batch ", before);
        for (std::size_t at = 0; at < whole.phases(); ++at) {
          if (at != 0) {
            whole.begin_phase(at);
            parted.begin_phase(at);
          }
          for (std::size_t i = 0; i <= batches.size(); ++i) {
            if (at == phase && i == before) {
              any_observer next = make_observer(name, options);
              next.load(parted.save());
              CHECK(next.save() == parted.save());
              parted = next;
            }
            if (i < batches.size()) {
              whole.observe(std::span<const float>(batches[i]));
              parted.observe(std::span<const float>(batches[i]));
            }
          }
        }
        const scale_solution expected = whole.finalize(options.scheme);
        const scale_solution actual = parted.finalize(options.scheme);
        CHECK(actual.params == expected.params);
        CHECK(actual.evidence.objective == expected.evidence.objective);
        CHECK(actual.evidence.count == expected.evidence.count);
        CHECK(parted.save() == whole.save());
      }
    }
  }
}

TEST_CASE("hostile states are refused, or do no harm") {
  random_source random(25);
  INFO("seed ", random.seed());
  const observer_options options = saving_options();
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (const std::string& name : detent::default_observers().names()) {
    if (name == "test_two_phases") {
      continue;
    }
    const floats x = random.reals(40, -2.0F, 3.0F);
    any_observer observer = make_observer(name, options);
    run_phases(observer, std::vector<int>{0},
               [&](int) { observer.observe(std::span<const float>(x)); });
    const auto saved = observer.save();
    for (int round = 0; round < 300; ++round) {
      auto hostile = saved;
      // Most of what matters is at the beginning.
      const std::size_t content = saved.size() - 32;
      const std::size_t places = random.chance(70) ? std::min<std::size_t>(content, 100) : content;
      for (std::size_t i = random.size(1, 3); i > 0; --i) {
        const std::size_t at = 24 + random.size(0, places - 1);
        hostile[at] = random.chance(50)   ? static_cast<std::byte>(random.bits())
                      : random.chance(50) ? std::byte{0xFF}
                                          : std::byte{0};
      }
      renew_checksum(hostile);
      any_observer loaded = make_observer(name, options);
      INFO(name, " round ", round);
      try {
        loaded.load(hostile);
      } catch (const detent::error& e) {
        CHECK(e.kind() == error_kind::bad_file);
        CHECK(std::string(e.what()).size() > 20);
        ++refused;
        continue;
      }
      ++taken;
      CHECK(loaded.save().size() >= 32);
      try {
        loaded.observe(std::span<const float>(x));
        static_cast<void>(loaded.finalize(options.scheme));
      } catch (const detent::error&) {
        // What it has seen may have no range.
      }
    }
  }
  CHECK(refused > 1000);
  CHECK(taken > 100);
}

TEST_CASE("each field of a moving average's state is checked") {
  detent::moving_average_observer seen;
  seen.observe(std::vector<float>{-1.0F, 2.0F});
  const std::vector<std::byte> saved = any_observer(seen).save();
  // Content: the constant, the ends of the first batch, the ends of the average, batches, values.
  enum : std::size_t { constant, first_lower, first_upper, lower, upper, batches, values };
  const auto with = [&](std::size_t field, auto value) {
    std::vector<std::byte> state = saved;
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < 8; ++i) {
      state[state.size() - 8 - 7 * 8 + 8 * field + i] = static_cast<std::byte>(bits >> (8 * i));
    }
    renew_checksum(state);
    return state;
  };
  const auto load = [](const std::vector<std::byte>& state) {
    any_observer loaded{detent::moving_average_observer()};
    loaded.load(state);
    static_cast<void>(loaded.finalize(detent::symmetric<std::int8_t>));
  };
  load(with(constant, 1.0));
  load(with(values, std::uint64_t{1}));
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto refuses = [&](std::size_t field, auto value) {
    INFO("field ", field);
    check_error(error_kind::bad_file, {"moving_average_observer"},
                [&] { load(with(field, value)); });
  };
  for (const double value : {0.0, -0.5, 1.5, nan, infinity}) {
    refuses(constant, value);
  }
  for (const std::size_t field : {first_lower, lower}) {
    for (const double value : {3.0, nan, -infinity, -1e39}) {
      refuses(field, value);
    }
  }
  for (const std::size_t field : {first_upper, upper}) {
    for (const double value : {-3.0, nan, infinity, 1e39}) {
      refuses(field, value);
    }
  }
  refuses(batches, std::uint64_t{3});
  refuses(values, std::uint64_t{0});
}

TEST_CASE("a merge that is refused changes nothing: second passes of percentiles, channels") {
  // Medians and ends of the two are in the same bins, the magnitude of rank 990 is not.
  std::vector<float> v;
  for (int i = 0; i < 1000; ++i) {
    v.push_back(1.0F + 1e-4F * static_cast<float>(i));
  }
  std::vector<float> w = v;
  std::fill(w.begin() + 970, w.end(), 50.0F);
  detent::percentile_observer a({.percentile = 99.0, .exact = true});
  detent::percentile_observer b = a;
  for (const bool second : {false, true}) {
    if (second) {
      a.begin_phase(1);
      b.begin_phase(1);
    }
    a.observe(v);
    b.observe(w);
  }
  const detent::value_range before = a.range(false);
  check_error(error_kind::invalid_argument, {"percentile_observer", "different data"},
              [&] { a.merge(b); });
  CHECK(a.range(false) == before);

  // The number of channels is not fixed by a batch or a merge that is refused.
  detent::channel_observer channels(detent::min_max_observer(), 0);
  const std::size_t three[] = {3, 4};
  check_error(error_kind::invalid_argument, {"channel_observer", "null"},
              [&] { channels.observe(detent::tensor_view<const float>(nullptr, three)); });
  detent::channel_observer others(detent::percentile_observer(), 0);
  const std::vector<float> x(20, 1.0F);
  others.observe(detent::tensor_view<const float>(x.data(), three));
  check_error(error_kind::invalid_argument, {}, [&] { channels.merge(others); });
  CHECK(channels.channels().empty());
  const std::size_t five[] = {5, 4};
  channels.observe(detent::tensor_view<const float>(x.data(), five));
  CHECK(channels.channels().size() == 5);
}

TEST_CASE("a batch that one channel refuses changes no channel") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float largest = std::numeric_limits<float>::max();
  const std::size_t shape[] = {3, 4};
  const auto view = [&](const std::vector<float>& x) {
    return detent::tensor_view<const float>(x.data(), shape);
  };
  const std::vector<float> good{1, 2, 3, 4, -1, -2, 1, 5, 0, 1, 2, 9};
  int refused = 0;
  for (const std::string& name : detent::default_observers().names()) {
    INFO(name);
    detent::observer_options options;
    options.scheme = detent::symmetric<std::int8_t>;  // ppq.kl has no other
    const detent::channel_observer before((*detent::default_observers().find(name))(options), 0);
    detent::channel_observer channels = before;
    channels.observe(view(good));
    const std::vector<std::byte> first = channels.save();
    for (const float last : {infinity, std::nanf(""), largest}) {
      std::vector<float> bad = good;
      bad[10] = -largest;
      bad[11] = last;
      detent::channel_observer fresh = before;
      bool threw = false;
      try {
        channels.observe(view(bad));
      } catch (const detent::error&) {
        threw = true;
      }
      if (threw) {
        ++refused;
        CHECK(channels.save() == first);
      } else {
        channels.load(first);
      }
      try {
        fresh.observe(view(bad));
      } catch (const detent::error&) {
        CHECK(fresh.channels().empty());
        ++refused;
      }
    }
  }
  CHECK(refused >= 20);
}

TEST_CASE("exact percentiles need their second pass") {
  detent::percentile_observer observer({.percentile = 60.0, .exact = true});
  const std::vector<float> x{1.0F, 2.0F, 3.0F};
  observer.observe(x);
  for (const bool symmetric : {false, true}) {
    check_error(error_kind::invalid_argument, {"percentile_observer", "second pass"},
                [&] { static_cast<void>(observer.range(symmetric)); });
  }
  observer.begin_phase(1);
  observer.observe(x);
  CHECK(observer.range(true).upper == 2.0F);

  // A second pass over other data: fewer values in the bin of the percentile, or more.
  std::vector<float> close;
  for (int i = 1; i <= 100; ++i) {
    close.push_back(1.0F + static_cast<float>(i) * 1.1920929e-7F);
  }
  for (const std::size_t repeats : {std::size_t{1}, std::size_t{2}}) {
    for (const std::size_t left_out : {std::size_t{0}, std::size_t{1}, std::size_t{40}}) {
      detent::percentile_observer o({.percentile = 60.0, .exact = true});
      o.observe(close);
      o.begin_phase(1);
      for (std::size_t k = 0; k < repeats; ++k) {
        o.observe(std::span(close).subspan(left_out));
      }
      if (repeats == 1 && left_out == 0) {
        CHECK(o.range(true).upper == close[59]);
        CHECK(o.range(false) == detent::value_range{close[40], close[59]});
        continue;
      }
      for (const bool symmetric : {false, true}) {
        check_error(error_kind::invalid_argument, {"percentile_observer", "the data of the first"},
                    [&] { static_cast<void>(o.range(symmetric)); });
      }
    }
  }
}

TEST_CASE("isotone needs its second pass, and takes single values") {
  detent::isotone_observer observer;
  const float x[] = {3.0F};
  observer.observe(detent::tensor_view<const float>(x, std::span<const std::size_t>()));
  CHECK(observer.count_rows() == 0);
  check_error(error_kind::invalid_argument, {"isotone_observer", "second pass"},
              [&] { static_cast<void>(observer.finalize(detent::asymmetric<std::uint8_t>)); });
  observer.begin_phase(1);
  check_error(error_kind::invalid_argument, {"isotone_observer", "second pass has not seen"},
              [&] { static_cast<void>(observer.finalize(detent::asymmetric<std::uint8_t>)); });
  observer.observe(detent::tensor_view<const float>(x, std::span<const std::size_t>()));
  CHECK(observer.count_rows() == 1);
  const detent::scale_solution s = observer.finalize(detent::asymmetric<std::uint8_t>);
  CHECK(s.evidence.count == 1);
  CHECK(s.evidence.upper == 3.0F);
  CHECK(s.params == detent::params_from_range({0.0F, 3.0F}, detent::asymmetric<std::uint8_t>));
}

TEST_CASE("isotone: rows that fit all small scales get no scale of almost 0") {
  const auto scale_of = [](const floats& x, std::size_t row, const detent::quant_scheme& scheme) {
    detent::isotone_observer observer({scheme, 1});
    for (std::size_t phase = 0; phase < observer.phases(); ++phase) {
      observer.begin_phase(phase);
      const std::size_t shape[] = {x.size() / row, row};
      observer.observe(detent::tensor_view<const float>(x.data(), shape));
    }
    return observer.finalize(scheme).params.scale;
  };
  const detent::quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  const detent::quant_scheme s8 = detent::symmetric<std::int8_t>;
  // Rows of one value: nothing is clipped.
  const floats column{0.25F, -1.0F, 4.0F, 0.5F};
  CHECK(scale_of(column, 1, u8) == detent::params_from_range({-1.0F, 4.0F}, u8).scale);
  CHECK(scale_of(column, 1, s8) == detent::params_from_range({-1.0F, 4.0F}, s8).scale);
  CHECK(scale_of({-3.0F, -2.0F}, 1, u8) == detent::params_from_range({-3.0F, 0.0F}, u8).scale);
  CHECK(scale_of({0.0F, 0.0F}, 1, u8) == 1.0F);
  // Scores of two classes, of which one is negative: up to twice the least distance.
  CHECK(scale_of({5.0F, -5.0F, -3.0F, 3.0F}, 2, u8) ==
        detent::params_from_range({-5.0F, 5.0F}, u8).scale);
  CHECK(near(scale_of({5.0F, -5.0F, 0.01F, -3.0F}, 2, u8), 0.02F, 0.01));
}

TEST_CASE("each field of isotone's state is checked") {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  struct fields {
    detent::quant_scheme scheme = detent::asymmetric<std::uint8_t>;
    std::uint8_t second = 1;
    std::int32_t zero_point = 0;
    std::uint64_t rows = 2;
    std::vector<float> begins = {0.25F, 0.5F};
    std::vector<float> ends = {1.0F, 3.0F};
  };
  const auto loaded = [&](const fields& f) {
    detent::detail::byte_writer out(format);
    out.put(f.scheme.levels.qmin);
    out.put(f.scheme.levels.qmax);
    out.put(static_cast<std::uint8_t>(f.scheme.symmetric));
    out.put(f.second);
    out.put(std::uint64_t{1});
    out.put(std::int64_t{-1});
    out.put(f.zero_point);
    out.put(f.rows);
    detent::min_max_observer range;
    range.observe(std::vector<float>{0.0F, 1.0F});
    range.write(out);
    for (const std::vector<float>* values : {&f.begins, &f.ends}) {
      detent::count_histogram h;
      h.observe(std::span<const float>(*values));
      h.write(out);
    }
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    detent::isotone_observer observer;
    observer.read(in);
    return observer;
  };
  const auto refuses = [&](const fields& f) {
    check_error(error_kind::bad_file, {"isotone_observer"}, [&] { static_cast<void>(loaded(f)); });
  };
  CHECK(loaded({}).count_rows() == 2);
  CHECK(loaded({.begins = {1.0F, 3.0F}}).count_rows() == 2);  // intervals of one scale
  refuses({.begins = {1.0F, 3.0F}, .ends = {0.25F, 0.5F}});   // ends before begins
  refuses({.begins = {0.125F, 3.0F}, .ends = {0.25F, 0.5F}});
  refuses({.begins = {0.25F, std::numeric_limits<float>::quiet_NaN()}});
  refuses({.ends = {0.25F, std::numeric_limits<float>::infinity()}});
  refuses({.rows = 1});
  refuses({.scheme = {{0, 65536}, false}});
  refuses({.scheme = {{-1, 0}, true}, .second = 0});
  refuses({.zero_point = 256});
  refuses({.second = 0, .zero_point = 1});
  // A grid without zero, before a zero point is known.
  CHECK(loaded({.scheme = {{1, 255}, false}, .second = 0}).count_rows() == 2);

  // Rows of states are counted up to the end of the counter.
  const fields half{
      .scheme = detent::symmetric<std::int8_t>, .second = 0, .rows = std::uint64_t{1} << 63};
  detent::isotone_observer both = loaded(half);
  both.merge(loaded(half));
  CHECK(both.count_rows() == std::numeric_limits<std::uint64_t>::max());
  const auto s = both.finalize(half.scheme);
  CHECK(std::isfinite(s.evidence.objective));
  CHECK(s.evidence.lower_bound <= s.evidence.objective);
}

TEST_CASE("counters of a moving average and of samples stop at their end") {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto read = [&](auto& observer, const auto& write) {
    detent::detail::byte_writer out(format);
    write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    observer.read(in);
  };
  detent::moving_average_observer average;
  read(average, [](auto& out) {
    for (const double value : {0.5, 1.0, 1.0, 1.0, 1.0}) {
      out.put(value);
    }
    out.put(most);
    out.put(most);
  });
  const detent::moving_average_observer loaded = average;
  average.observe(std::vector<float>{3.0F});
  CHECK(average.range() == detent::value_range{2.0F, 2.0F});
  average.merge(loaded);
  CHECK(average.count() == most);
  CHECK(average.range() == detent::value_range{1.0F, 1.0F});

  detent::sample_range_observer samples(detent::sample_aggregator::mean);
  read(samples, [](auto& out) {
    out.put(static_cast<std::uint8_t>(detent::sample_aggregator::mean));
    out.put(most);
    detent::histogram().write(out);
    detent::histogram().write(out);
  });
  samples.observe(std::vector<float>{1.0F});
  samples.merge(samples);
  CHECK(samples.count() == most);

  // Samples whose upper end is below the lower one.
  for (const floats& upper : {floats{1.0F, 6.0F}, floats{4.0F, 5.0F}}) {
    check_error(error_kind::bad_file, {"sample_range_observer", "ends below"}, [&] {
      read(samples, [&](auto& out) {
        out.put(static_cast<std::uint8_t>(detent::sample_aggregator::mean));
        out.put(std::uint64_t{2});
        detent::histogram ends;
        ends.observe(floats{3.0F, 5.5F});
        ends.write(out);
        detent::histogram others;
        others.observe(upper);
        others.write(out);
      });
    });
  }
}

TEST_CASE("exact percentiles of values of one sign count from the right end") {
  // Values that share a bin of the first pass, so that the second pass decides between them.
  for (const float sign : {1.0F, -1.0F}) {
    floats x;
    for (int i = 0; i < 1000; ++i) {
      x.push_back(sign * (1.0F + static_cast<float>(i) * 1.1920929e-7F));
    }
    detent::percentile_observer o({.percentile = 90.0, .exact = true});
    o.observe(x);
    o.begin_phase(1);
    o.observe(x);
    std::sort(x.begin(), x.end());
    const detent::value_range r = o.range(false);
    INFO("sign ", sign, " range ", r.lower, " ", r.upper);
    CHECK(std::count_if(x.begin(), x.end(), [&](float v) { return v < r.lower; }) == 100);
    CHECK(std::count_if(x.begin(), x.end(), [&](float v) { return v > r.upper; }) == 100);
    // Of the 100 values beyond either end those beyond the end that is not 0 are clipped.
    CHECK(o.finalize(detent::asymmetric<std::uint8_t>).evidence.clipped_fraction == 0.1);
  }
}

TEST_CASE("observers of channels come back from their bytes and merge") {
  random_source random(6);
  INFO("seed ", random.seed());
  const floats x = random.reals(2 * 6 * 5, -2.0F, 3.0F);
  for (const char* name : {"minmax", "mse", "lp", "percentile", "mean_minmax"}) {
    for (const std::size_t axis : {0U, 1U, 2U}) {
      INFO(std::string(name), " axis ", axis);
      observer_options options;
      options.storage = detent::bin_storage::sparse;
      const detent::channel_observer empty(make_observer(name, options), axis);
      detent::channel_observer first = empty;
      detent::channel_observer second = empty;
      detent::channel_observer both = empty;
      detent::thread_pool pool(2);
      const std::size_t shape[] = {2, 6, 5};
      first.observe(tensor_view<const float>(x.data(), shape), pool.parallel());
      second.load(first.save());
      CHECK(second.save() == first.save());
      both.observe(tensor_view<const float>(x.data(), shape));
      both.observe(tensor_view<const float>(x.data(), shape));
      first.merge(second);
      CHECK(first.save() == both.save());
      auto damaged = first.save();
      damaged[damaged.size() / 2] ^= std::byte{1};
      CHECK_THROWS_AS(second.load(damaged), detent::error);
      detent::channel_observer other(make_observer(name, options), (axis + 1) % 3);
      check_error(error_kind::bad_file, {"other axes"}, [&] { other.load(first.save()); });
      check_error(error_kind::shape_mismatch, {"other axes"}, [&] { other.merge(first); });
    }
  }
}

TEST_CASE("isotone keeps the order of more than two") {
  // 0.5, 0.3, 0.15, 0.05: steps of at most 2 * 0.15 keep the first two apart from what follows
  // them.
  const float row[] = {0.05F, 0.3F, 0.5F, 0.15F};
  detent::isotone_observer one({detent::symmetric<std::int8_t>, 1});
  detent::isotone_observer two({detent::symmetric<std::int8_t>, 2});
  one.observe(std::span<const float>(row));
  two.observe(std::span<const float>(row));
  // From L2 / 126.49 on.
  CHECK(
      near(one.finalize(detent::symmetric<std::int8_t>).params.scale, 0.3F / 126.49F, 1.0 / 500.0));
  CHECK(two.finalize(detent::symmetric<std::int8_t>).evidence.objective == 0.0);
  // The same values along another axis of a view, twice.
  float columns[8];
  for (std::size_t i = 0; i < 4; ++i) {
    columns[2 * i] = row[i];
    columns[2 * i + 1] = row[i];
  }
  detent::isotone_observer across({detent::symmetric<std::int8_t>, 1, 0});
  across.observe(tensor_view<const float>(columns, {4, 2}));
  CHECK(across.count_rows() == 2);
  CHECK(across.finalize(detent::symmetric<std::int8_t>).params ==
        one.finalize(detent::symmetric<std::int8_t>).params);
  check_error(error_kind::invalid_argument, {"axis 1", "rank 1"}, [&] {
    detent::isotone_observer o({detent::symmetric<std::int8_t>, 1, 1});
    o.observe(std::span<const float>(row));
  });
  // Of three values with a tie, the first is safe and the second is not.
  const float tie[] = {0.9F, 0.4F, 0.4F};
  detent::isotone_observer tied({detent::symmetric<std::int8_t>, 2});
  tied.observe(std::span<const float>(tie));
  CHECK(tied.finalize(detent::symmetric<std::int8_t>).evidence.objective == 1.0);
  check_error(error_kind::invalid_argument, {"another scheme"},
              [&] { static_cast<void>(one.finalize(detent::asymmetric<std::uint8_t>)); });
  check_error(error_kind::invalid_argument, {"top_k"}, [] {
    detent::isotone_observer o({detent::symmetric<std::int8_t>, 0});
  });
}

TEST_CASE("observers have names, in any case; a copy of the registry takes others") {
  CHECK(make_observer("KL").phases() == 1);
  CHECK(make_observer("Percentile").target<detent::percentile_observer>() != nullptr);
  check_error(error_kind::invalid_argument, {"'nothing'", "minmax", "isotone"},
              [] { static_cast<void>(detent::make_observer("nothing")); });
  const auto factory = [](const observer_options&) { return any_observer(two_phase_observer()); };
  detent::observer_registry mine = detent::default_observers();
  mine.add("Test_Two_Phases", [](const observer_options&) { return make_observer("kl"); });
  CHECK(make_observer("test_two_phases", {}, mine).phases() == 1);
  mine.add("TEST_TWO_PHASES", factory);  // replaces it
  check_error(error_kind::invalid_argument, {"no name"}, [&] { mine.add("", factory); });
  check_error(error_kind::invalid_argument, {"no factory"}, [&] { mine.add("x", {}); });
  const auto names = mine.names();
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(std::count(names.begin(), names.end(), "test_two_phases") == 1);
  CHECK(names.size() == detent::default_observers().names().size() + 1);
  CHECK(detent::default_observers().find("test_two_phases") == nullptr);
  check_error(error_kind::invalid_argument, {"'test_two_phases'"},
              [] { static_cast<void>(make_observer("test_two_phases")); });
  any_observer observer = make_observer("test_two_phases", {}, mine);
  CHECK(observer.phases() == 2);
  const float x[] = {1.0F, 2.0F};
  run_phases(observer, std::vector<int>{0},
             [&](int) { observer.observe(std::span<const float>(x)); });
  CHECK(observer.finalize(detent::asymmetric<std::uint8_t>).params.scale == 4.0F);
  check_error(error_kind::unsupported, {"does not merge"}, [&] { observer.merge(observer); });
  check_error(error_kind::unsupported, {"cannot be saved"},
              [&] { static_cast<void>(observer.save()); });
  check_error(error_kind::invalid_argument, {"phase 2 of 2"}, [&] { observer.begin_phase(2); });
  check_error(error_kind::invalid_argument, {"another kind"},
              [&] { observer.merge(detent::make_observer("kl")); });
}

TEST_CASE("other tools' observers are there by name, too") {
  // What they compute is in the parity tests; here, that names lead to them.
  random_source random(7);
  const floats first = random.reals(500, -1.0F, 2.0F);
  const floats second = random.reals(500, -2.0F, 3.0F);
  for (const bool symmetric : {false, true}) {
    const quant_scheme scheme =
        symmetric ? detent::symmetric<std::int8_t> : detent::asymmetric<std::uint8_t>;
    observer_options options;
    options.scheme = scheme;
    const auto by_name = [&](const char* name) {
      any_observer o = make_observer(name, options);
      run_phases(o, std::vector<floats>{first, second},
                 [&](const floats& x) { o.observe(std::span<const float>(x)); });
      return o.finalize(scheme).params;
    };
    const auto by_type = [&](auto o) {
      run_phases(o, std::vector<floats>{first, second},
                 [&](const floats& x) { o.observe(std::span<const float>(x)); });
      return o.finalize(scheme);
    };
    CHECK(by_name("ORT.Entropy") ==
          by_type(detent::ort::entropy_observer({.symmetric = symmetric})));
    CHECK(by_name("ort.percentile") ==
          by_type(detent::ort::percentile_observer({.symmetric = symmetric})));
    CHECK(by_name("inc.kl") == by_type(detent::inc::kl_observer()));
    CHECK(by_name("ppq.mse") == by_type(detent::ppq::mse_observer({.scheme = scheme})));
    CHECK(by_name("nncf.mean_quantile") == by_type([&] {
            auto preset = detent::nncf::mean_quantile;
            preset.use_abs_max = symmetric;
            return detent::nncf::range_observer(preset);
          }()));
    CHECK(by_name("torch.histogram") == by_type(detent::torch::histogram_observer()));
    if (symmetric) {
      CHECK(by_name("ppq.kl") == by_type(detent::ppq::kl_observer({.scheme = scheme})));
    } else {
      check_error(error_kind::unsupported, {"none that is asymmetric"},
                  [&] { static_cast<void>(make_observer("ppq.kl", options)); });
    }
  }
  for (const std::string& name : detent::default_observers().names()) {
    if (name == "test_two_phases") {
      continue;
    }
    observer_options options;
    options.scheme = detent::symmetric<std::int8_t>;
    any_observer o = make_observer(name, options);
    run_phases(o, std::vector<int>{0}, [&](int) { o.observe(std::span<const float>(first)); });
    INFO(name);
    CHECK(o.finalize(options.scheme).params.scale > 0.0F);
  }
}

TEST_CASE("percentiles: what is clipped, what is refused, what lies close together") {
  floats x;
  for (int i = 1; i <= 1000; ++i) {
    x.push_back(static_cast<float>(i));
  }
  for (const bool exact : {false, true}) {
    any_observer o{detent::percentile_observer({.percentile = 99.0, .exact = exact})};
    run_phases(o, std::vector<int>{0}, [&](int) { o.observe(std::span<const float>(x)); });
    // Zero is in the grid, so that nothing is clipped below.
    const double clipped = o.finalize(detent::asymmetric<std::uint8_t>).evidence.clipped_fraction;
    CHECK(clipped <= 0.01);
    CHECK(clipped >= (exact ? 0.01 : 0.007));
  }
  floats close;
  for (int i = 0; i < 1000; ++i) {
    close.push_back(std::nextafter(1.0F, 2.0F) + static_cast<float>(i) * 1.1920929e-7F);
  }
  any_observer o{detent::percentile_observer({.percentile = 90.0, .exact = true})};
  run_phases(o, std::vector<int>{0}, [&](int) { o.observe(std::span<const float>(close)); });
  CHECK(o.finalize(detent::asymmetric<std::uint8_t>).evidence.clipped_fraction ==
        doctest::Approx(0.1).epsilon(0.01));
  detent::percentile_observer low({.percentile = 40.0});
  low.observe(x);
  CHECK(low.finalize(detent::symmetric<std::int8_t>).params.scale > 0.0F);
  check_error(error_kind::invalid_argument, {"40", "not over 50"},
              [&] { static_cast<void>(low.finalize(detent::asymmetric<std::uint8_t>)); });
}

TEST_CASE("ranges are never the wrong way round") {
  for (const auto aggregator :
       {detent::sample_aggregator::median, detent::sample_aggregator::mean,
        detent::sample_aggregator::mean_no_outliers, detent::sample_aggregator::narrowest}) {
    detent::sample_range_observer o(aggregator);
    for (const floats& sample : {floats{1.0F, 1.0F}, floats{1.0F, 1.0F}, floats{1.0018F, 4.0F}}) {
      o.observe(sample);
    }
    CHECK(o.range().lower <= o.range().upper);
    CHECK(o.finalize(detent::asymmetric<std::uint8_t>).scale > 0.0F);
  }
  // A percentile that is 50 to quantile_rank(), but over 50.
  for (const bool exact : {false, true}) {
    for (const floats& x : {floats{1.0F, 3.0F}, floats{1.0F, 2.0F, 3.0F}}) {
      any_observer middle{
          detent::percentile_observer({.percentile = std::nextafter(50.0, 100.0), .exact = exact})};
      run_phases(middle, std::vector<int>{0},
                 [&](int) { middle.observe(std::span<const float>(x)); });
      CHECK(middle.finalize(detent::asymmetric<std::uint8_t>).params.scale > 0.0F);
    }
  }
  detent::moving_average_observer average(1.0);
  average.observe(floats{-1.0F, 1e20F});
  average.observe(floats{5.0F, 6.0F});
  CHECK(average.range() == value_range{5.0F, 6.0F});
  // Channels that have seen nothing: no second pass, and views without values make none.
  detent::channel_observer channels(make_observer("isotone"), 1);
  channels.observe(tensor_view<const float>(nullptr, {0, std::size_t{1} << 60}));
  CHECK(channels.channels().empty());
  check_error(error_kind::invalid_argument, {"nothing was observed"},
              [&] { channels.begin_phase(1); });
  check_error(error_kind::invalid_argument, {"grid"}, [] {
    detent::isotone_observer o({{{0x7ffffff0, 0x7fffffff}, true}, 1});
  });
}

TEST_CASE("observers say who they are when they refuse") {
  const std::vector<float> nan = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  for (const auto& observer :
       {std::pair("minmax", "min_max_observer: "), std::pair("percentile", "percentile_observer: "),
        std::pair("absolute_percentile", "percentile_observer: "), std::pair("kl", "kl_observer: "),
        std::pair("mse", " mse_observer: "), std::pair("grid_mse", "grid_mse_observer: "),
        std::pair("octav", "octav_observer: "), std::pair("aciq", "aciq_observer: "),
        std::pair("lp", "lp_observer: "), std::pair("isotone", "isotone_observer: "),
        std::pair("constant", "constant_observer: "),
        std::pair("moving_average", "moving_average_observer: "),
        std::pair("median_minmax", "sample_range_observer: ")}) {
    const char* const name = observer.first;  // clang 14 cannot capture structured bindings
    const char* const says = observer.second;
    INFO(name);
    constexpr auto scheme = detent::symmetric<std::int8_t>;
    const auto made = detent::make_observer(name, {.scheme = scheme});
    test::check_error(detent::error_kind::invalid_argument, {says, "1 of 2 values are NaN"}, [&] {
      detent::any_observer o = made;
      o.observe(std::span<const float>(nan));
      static_cast<void>(o.finalize(scheme));
    });
    if (std::string_view(name) != "constant") {
      test::check_error(detent::error_kind::invalid_argument, {says, "nothing was observed"},
                        [&] { static_cast<void>(made.finalize(scheme)); });
    }
  }
}

TEST_CASE("observers refuse what has no range") {
  const float nan[] = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  for (const std::string& name : detent::default_observers().names()) {
    if (name.find('.') != std::string::npos || name == "constant" || name == "test_two_phases") {
      continue;
    }
    INFO(name);
    any_observer observer = make_observer(name);
    CHECK_THROWS_AS(static_cast<void>(observer.finalize(detent::asymmetric<std::uint8_t>)),
                    detent::error);
    CHECK_THROWS_AS(
        [&] {
          observer.observe(std::span<const float>(nan));
          static_cast<void>(observer.finalize(detent::asymmetric<std::uint8_t>));
        }(),
        detent::error);
  }
  detent::channel_observer channels(detent::make_observer("kl"), 1);
  const float x[] = {1.0F, 2.0F, 3.0F, 4.0F};
  check_error(error_kind::invalid_argument, {"nothing was observed"},
              [&] { static_cast<void>(channels.finalize(detent::asymmetric<std::uint8_t>)); });
  channels.observe(tensor_view<const float>(x, {2, 2}));
  check_error(error_kind::shape_mismatch, {"1 channels after 2"}, [&] {
    channels.observe(tensor_view<const float>(x, {4, 1}));
  });
  check_error(error_kind::invalid_argument, {"axis 1", "rank 1"},
              [&] { channels.observe(tensor_view<const float>(x, {4})); });
  check_error(error_kind::invalid_argument, {"axis 0 after axis 1"}, [&] {
    detent::channel_observer o(detent::make_observer("kl"), {1, 0});
  });
  check_error(error_kind::invalid_argument, {"percentile", "101"},
              [] { detent::percentile_observer o({101.0}); });
  check_error(error_kind::invalid_argument, {"lp_observer", "p 0.5", "1..8"},
              [] { detent::lp_observer o(0.5); });
  check_error(error_kind::invalid_argument, {"lp_observer", "merging p 3 into 2.4"},
              [] { detent::lp_observer().merge(detent::lp_observer(3.0)); });
}

TEST_CASE("observers see the same on any number of threads") {
  random_source random(31);
  INFO("seed ", random.seed());
  std::vector<float> x((std::size_t{1} << 20) + 77);
  for (float& value : x) {
    value = random.real(-3.0F, 5.0F);
  }
  x[x.size() / 2] = 9.0F;
  x[x.size() - 1] = -7.5F;
  const std::span<const float> values(x);
  const auto check = [&](auto observer, const auto& state) {
    auto once = observer;
    once.observe(values);
    const auto expected = state(once);
    for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
      detent::thread_pool pool(threads);
      auto shared = observer;
      shared.observe(values, pool.parallel());
      INFO("threads ", threads);
      CHECK(state(shared) == expected);
    }
    auto alone = observer;
    alone.observe(values, {});
    CHECK(state(alone) == expected);
    auto few = observer;  // too few values for two parts
    few.observe(values.first(1000), detent::thread_pool(2).parallel());
    once = observer;
    once.observe(values.first(1000));
    CHECK(state(few) == state(once));
  };
  const auto histogram_of = [](const auto& o) { return o.histogram().save(); };
  check(detent::mse_observer(), histogram_of);
  check(detent::kl_observer(), histogram_of);
  check(detent::lp_observer(), histogram_of);
  check(detent::min_max_observer(), [](const auto& o) { return o; });
  check(detent::percentile_observer(), [](const auto& o) {
    const detent::quant_params p = o.finalize(detent::asymmetric<std::uint8_t>).params;
    return std::pair(p.scale, p.zero_point);
  });
  x[3] = std::numeric_limits<float>::quiet_NaN();
  detent::min_max_observer with_nan;
  with_nan.observe(values, detent::thread_pool(3).parallel());
  check_error(error_kind::invalid_argument, {"NaN"}, [&] { static_cast<void>(with_nan.range()); });
}
