// SPDX-License-Identifier: BSD-3-Clause
// The clip value of least divergence: every candidate, the long way.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "random.hpp"

namespace {

using detent::count_histogram;
using detent::quant_scheme;
using detent::value_bin;
using test::random_source;

using real = long double;

struct signed_bin {
  real centre = 0.0L, end = 0.0L, width = 0.0L,
       count = 0.0L;  // the centre has the sign, the end has not
};

/// As the formula says, bin by bin.
real divergence(const std::vector<signed_bin>& bins, detent::value_range range, quant_scheme scheme,
                real clip) {
  const real steps = static_cast<real>(scheme.levels.qmax) - scheme.levels.qmin;
  const real bottom = std::min(std::max(-clip, static_cast<real>(range.lower)), 0.0L);
  const real top = std::max(std::min(clip, static_cast<real>(range.upper)), 0.0L);
  const real scale = scheme.symmetric ? clip / std::floor(steps / 2.0L) : (top - bottom) / steps;
  std::map<real, real> mass;  // of levels
  std::map<real, real> extent;
  std::vector<signed_bin> kept;
  real tail[2] = {0.0L, 0.0L};
  real all = 0.0L;
  for (const signed_bin& bin : bins) {
    all += bin.count;
    if (bin.end > clip) {
      tail[bin.centre < 0.0L ? 0 : 1] += bin.count;
      continue;
    }
    kept.push_back(bin);
    const real level = std::copysign(std::floor(std::fabs(bin.centre) / scale + 0.5L), bin.centre);
    mass[level + 0.0L] += bin.count;
    extent[level + 0.0L] += bin.width;
  }
  for (const int side : {0, 1}) {
    signed_bin* last = nullptr;
    for (signed_bin& bin : kept) {
      if ((bin.centre > 0.0L) == (side == 1) &&
          (last == nullptr || std::fabs(bin.centre) > std::fabs(last->centre))) {
        last = &bin;
      }
    }
    if (tail[side] > 0.0L) {
      if (last == nullptr) {
        return std::numeric_limits<real>::infinity();
      }
      last->end = -1.0L - tail[side];  // a mark
    }
  }
  real sum = 0.0L;
  for (const signed_bin& bin : kept) {
    const real level =
        std::copysign(std::floor(std::fabs(bin.centre) / scale + 0.5L), bin.centre) + 0.0L;
    const real p = (bin.count + (bin.end < 0.0L ? -bin.end - 1.0L : 0.0L)) / all;
    const real q = mass[level] / extent[level] * bin.width / all;
    sum += p * std::log(p / q) - p + q;
  }
  return sum;
}

}  // namespace

TEST_CASE("kl judges every candidate") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    const int kind = round % 4;
    std::vector<float> x(random.size(1, 800));
    for (float& value : x) {
      real sum = -3.0L;
      for (int i = 0; i < 6; ++i) {
        sum += static_cast<real>(random.real(0.0F, 1.0F));
      }
      value = static_cast<float>(sum);
      if (kind == 1) {
        value = std::max(value, 0.0F);
      } else if (kind == 2) {
        value = value * value * value * 9.0F;
      } else if (kind == 3) {
        value = std::nearbyint(value * 3.0F);
      }
    }
    count_histogram h;
    h.observe(std::span<const float>(x));
    const auto all = h.bins();
    for (const quant_scheme& scheme :
         {quant_scheme{{-7, 7}, true}, quant_scheme{{0, 15}, false}, quant_scheme{{0, 1}, false},
          quant_scheme{{-127, 127}, true}, quant_scheme{{-128, 127}, false}}) {
      // Bins in groups that are not narrower than 1/2048 of the largest magnitude.
      std::map<real, signed_bin> groups;
      real magnitude = static_cast<real>(std::max(-h.range().lower, h.range().upper));
      // Fewer than 10000 values: none may be left beyond.
      const auto has_larger = [&](const value_bin& bin) {
        return static_cast<real>(bin.largest) > magnitude / 2.0L;
      };
      while (magnitude > 0.0L && std::none_of(all.begin(), all.end(), has_larger)) {
        magnitude /= 2.0L;
      }
      const real narrowest = magnitude / 2048.0L;
      for (const value_bin& bin : scheme.symmetric ? magnitudes(all) : all) {
        if (bin.smallest > 0.0F) {
          const real width = std::ldexp(1.0L, std::ilogb(bin.smallest) - 9);
          const real centre = static_cast<real>(bin.smallest) + width / 2.0L;
          const real multiple = std::floor(centre / narrowest);
          const real sign = bin.negative ? -1.0L : 1.0L;
          signed_bin& group = groups[sign * (multiple + 1.0L)];
          if (group.count == 0.0L || width < narrowest) {
            group.width = std::max(width, narrowest);
            group.centre = sign * (width < narrowest ? (multiple + 0.5L) * narrowest : centre);
          }
          group.end = std::max(group.end, static_cast<real>(bin.largest));
          group.count += static_cast<real>(bin.count);
        }
      }
      std::vector<signed_bin> bins;
      for (const auto& [place, group] : groups) {
        bins.push_back(group);
      }
      real least = std::numeric_limits<real>::infinity();
      const int steps = scheme.levels.qmax - scheme.levels.qmin;
      const auto levels = static_cast<std::ptrdiff_t>(scheme.symmetric ? steps / 2 : steps);
      real largest = 0.0L;
      for (const signed_bin& bin : bins) {
        largest = std::max(largest, bin.end);
      }
      const auto is_candidate = [&](real clip) {
        return clip == largest ||
               clip >= std::min(static_cast<real>(levels) / 2048.0L, 1.0L) * magnitude;
      };
      for (const signed_bin& bin : bins) {
        if (is_candidate(bin.end)) {
          least = std::min(least, divergence(bins, h.range(), scheme, bin.end));
        }
      }
      const detent::scale_solution s = kl(all, h.range(), scheme);
      INFO("round ", round, " levels ", scheme.levels.qmax - scheme.levels.qmin, " least ",
           static_cast<double>(least));
      if (bins.empty()) {
        CHECK(s.evidence.objective == 0.0);
        continue;
      }
      CHECK(std::fabs(static_cast<real>(s.evidence.objective) - least) <= 1e-9L);
      CHECK(s.evidence.count == x.size());
      // The parameters are those of a candidate that is as good.
      const real clip =
          scheme.symmetric ? static_cast<real>(s.params.scale) * scheme.levels.qmax : 0.0L;
      if (scheme.symmetric) {
        real nearest = std::numeric_limits<real>::infinity();
        real there = 0.0L;
        for (const signed_bin& bin : bins) {
          if (std::fabs(bin.end - clip) < nearest) {
            nearest = std::fabs(bin.end - clip);
            there = divergence(bins, h.range(), scheme, bin.end);
          }
        }
        CHECK(nearest <= clip * 1e-6L);
        CHECK(std::fabs(there - least) <= 1e-9L);
      }
    }
  }
}

TEST_CASE("kl: floats at their end, grids that are none, no values") {
  const std::vector<float> x = {-std::numeric_limits<float>::max(), 1.0F, 2.0F, 3e38F};
  count_histogram h;
  h.observe(std::span<const float>(x));
  for (const quant_scheme& scheme :
       {detent::symmetric<std::int8_t>, detent::asymmetric<std::uint8_t>}) {
    CHECK(std::isfinite(kl(h.bins(), h.range(), scheme).params.scale));
  }
  test::check_error(detent::error_kind::invalid_argument, {"5..0"}, [&] {
    static_cast<void>(kl(h.bins(), h.range(), {{5, 0}, false}));
  });
  test::check_error(detent::error_kind::invalid_argument, {"no values"}, [&] {
    static_cast<void>(kl({}, {0.0F, 1.0F}, detent::symmetric<std::int8_t>));
  });
}

TEST_CASE("kl: what is degenerate is defined") {
  count_histogram zeros;
  const float zero[] = {0.0F, 0.0F};
  zeros.observe(std::span<const float>(zero));
  const auto s = kl(zeros.bins(), zeros.range(), detent::asymmetric<std::uint8_t>);
  CHECK(s.params == detent::quant_params{1.0F, 0});
  CHECK(s.evidence.objective == 0.0);
  // A single value needs no clipping.
  count_histogram one;
  const float value[] = {-2.5F};
  one.observe(std::span<const float>(value));
  CHECK(kl(one.bins(), one.range(), detent::symmetric<std::int8_t>).params ==
        params_from_range({-2.5F, 0.0F}, detent::symmetric<std::int8_t>));
  // One value far out among many is clipped, at 4 bits more eagerly than at 8.
  random_source random(3);
  std::vector<float> x = random.reals(100000, -1.0F, 1.0F);
  x[5] = 1000.0F;
  count_histogram h;
  h.observe(std::span<const float>(x));
  const auto clipped = kl(h.bins(), h.range(), detent::symmetric<std::int8_t>);
  CHECK(clipped.params.scale < 2.0F / 127.0F);
  CHECK(clipped.evidence.clipped_fraction > 0.0);
  CHECK(clipped.evidence.clipped_fraction < 0.01);
}

TEST_CASE("kl: a bin that is kept alone is no good distribution") {
  random_source random(4);
  INFO("seed ", random.seed());
  // Values that stay away from zero, as those of a Sigmoid, and a few values, as logits have.
  const std::vector<std::vector<float>> samples{
      random.reals(60000, 0.14F, 0.87F), random.reals(60000, -0.9F, -0.6F),
      random.reals(300, 3.0F, 30.0F),    {0.5F, 4.0F, 7.0F},
      {-20.0F, -19.0F, -18.0F, 3.0F},    random.reals(2000, 100.0F, 101.0F)};
  for (const std::vector<float>& x : samples) {
    for (const quant_scheme scheme :
         {detent::symmetric<std::int8_t>, detent::asymmetric<std::uint8_t>,
          quant_scheme{{0, 15}, false}, quant_scheme{{-7, 7}, true}}) {
      count_histogram h;
      h.observe(std::span<const float>(x));
      const detent::scale_solution s = kl(h.bins(), h.range(), scheme);
      INFO(x.size(), " values from ", x.front(), ", levels ", scheme.levels.qmax);
      CHECK(s.evidence.clipped_fraction < 0.05);
    }
  }
}

namespace {

/// The search as defined, in the arithmetic of the solver: no candidate is left out, and sums have
/// the solver's order.
struct plain_side {
  std::vector<double> centre, end, width, count;
  std::vector<double> extent{0.0};
  std::vector<double> information{0.0};
  std::vector<double> values{0.0};  // [i]: in bins before i
};

double plain_log(double x) { return detent::detail::portable_log(x); }
double product(double a, double b) { return detent::detail::rounded_product(a, b); }

std::size_t plain_below(const plain_side& side, double bound, std::size_t last) {
  std::size_t i = 0;
  while (i < last && side.centre[i] < bound) {
    ++i;
  }
  return i;
}

double plain_divergence(const plain_side (&sides)[2], detent::value_range range,
                        quant_scheme scheme, double clip, double total) {
  const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
  const double bottom = std::min(std::max(-clip, static_cast<double>(range.lower)), 0.0);
  const double top = std::max(std::min(clip, static_cast<double>(range.upper)), 0.0);
  const double scale = scheme.symmetric ? clip / std::floor(steps / 2.0) : (top - bottom) / steps;
  std::size_t kept[2];
  double all_clipped = 0.0;
  for (int s = 0; s < 2; ++s) {
    kept[s] = static_cast<std::size_t>(std::count_if(sides[s].end.begin(), sides[s].end.end(),
                                                     [&](double end) { return end <= clip; }));
    all_clipped += sides[s].values.back() - sides[s].values[kept[s]];
  }
  double sum = -all_clipped;
  for (int s = 0; s < 2; ++s) {
    const plain_side& side = sides[s];
    const double tail = side.values.back() - side.values[kept[s]];
    if (tail == 0.0) {
      continue;
    }
    if (kept[s] == 0) {
      return std::numeric_limits<double>::infinity();
    }
    const std::size_t last = kept[s] - 1;
    const double level = std::floor(side.centre[last] / scale + 0.5);
    const std::size_t first = plain_below(side, (level - 0.5) * scale, kept[s]);
    double mass = side.values[kept[s]] - side.values[first];
    double extent = side.extent[kept[s]] - side.extent[first];
    if (level == 0.0) {
      const std::size_t shared = plain_below(sides[1 - s], 0.5 * scale, kept[1 - s]);
      mass += sides[1 - s].values[shared];
      extent += sides[1 - s].extent[shared];
    }
    const double with_tail = side.count[last] + tail;
    sum += product(with_tail, plain_log(with_tail)) -
           product(side.count[last], plain_log(side.count[last]));
    sum -= product(tail, plain_log(side.width[last]) + plain_log(mass / extent));
  }
  std::size_t first[2];
  double mass = 0.0;
  double extent = 0.0;
  for (int s = 0; s < 2; ++s) {
    first[s] = plain_below(sides[s], 0.5 * scale, kept[s]);
    mass += sides[s].values[first[s]];
    extent += sides[s].extent[first[s]];
  }
  sum -= mass > 0.0 ? product(mass, plain_log(mass / extent)) : 0.0;
  for (int s = 0; s < 2; ++s) {
    const plain_side& side = sides[s];
    sum += side.information[kept[s]];
    for (double level = 1.0; first[s] < kept[s]; ++level) {
      const std::size_t next = plain_below(side, (level + 0.5) * scale, kept[s]);
      if (next > first[s]) {
        const double m = side.values[next] - side.values[first[s]];
        sum -= product(m, plain_log(m / (side.extent[next] - side.extent[first[s]])));
      }
      first[s] = next;
    }
  }
  return std::max(sum / total, 0.0);
}

struct plain_result {
  double clip = 0.0;
  double divergence = std::numeric_limits<double>::infinity();
};
plain_result plain_search(const std::vector<value_bin>& all, detent::value_range range,
                          quant_scheme scheme) {
  const std::vector<value_bin> bins = scheme.symmetric ? magnitudes(all) : all;
  double largest = static_cast<double>(std::max(-range.lower, range.upper));
  const auto beyond = [&](double bound) {
    std::uint64_t count = 0;
    for (const value_bin& bin : bins) {
      count += static_cast<double>(bin.largest) > bound ? bin.count : 0;
    }
    return count;
  };
  while (largest > 0.0 && beyond(largest / 2.0) <= beyond(0.0) / 10000) {
    largest /= 2.0;
  }
  const double narrowest = largest / 2048.0;
  const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
  const double levels = scheme.symmetric ? std::floor(steps / 2.0) : steps;
  const double smallest_clip = std::min(levels / 2048.0, 1.0) * largest;
  plain_side sides[2];
  double last_multiple[2] = {-1.0, -1.0};
  const auto add = [&](const value_bin& bin, int s) {
    if (bin.negative != (s == 0) || bin.smallest == 0.0F) {
      return;
    }
    plain_side& side = sides[s];
    const double width = std::ldexp(1.0, std::max(std::ilogb(bin.smallest), -126) - 9);
    const double centre = static_cast<double>(bin.smallest) + 0.5 * width;
    const double multiple = std::floor(centre / narrowest);
    if (multiple == last_multiple[s]) {
      side.end.back() = bin.largest;
      side.count.back() += static_cast<double>(bin.count);
      return;
    }
    last_multiple[s] = multiple;
    side.centre.push_back(width < narrowest ? (multiple + 0.5) * narrowest : centre);
    side.width.push_back(std::max(width, narrowest));
    side.end.push_back(bin.largest);
    side.count.push_back(static_cast<double>(bin.count));
  };
  for (const value_bin& bin : bins) {
    add(bin, 1);
  }
  for (std::size_t i = bins.size(); i-- > 0;) {
    add(bins[i], 0);
  }
  std::vector<double> candidates;
  double total = 0.0;
  for (plain_side& side : sides) {
    for (std::size_t i = 0; i < side.centre.size(); ++i) {
      side.values.push_back(side.values[i] + side.count[i]);
      side.extent.push_back(side.extent[i] + side.width[i]);
      side.information.push_back(side.information[i] +
                                 product(side.count[i], plain_log(side.count[i] / side.width[i])));
      candidates.push_back(side.end[i]);
    }
    total += side.values.back();
  }
  std::sort(candidates.begin(), candidates.end());
  plain_result best;
  if (candidates.empty()) {
    best.divergence = 0.0;
  }
  for (std::size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i] >= smallest_clip || i + 1 == candidates.size()) {
      const double divergence = plain_divergence(sides, range, scheme, candidates[i], total);
      if (divergence < best.divergence) {
        best = {candidates[i], divergence};
      }
    }
  }
  return best;
}

}  // namespace

TEST_CASE(
    "kl: bounds leave out no best candidate, and the larger of equally good clip values wins") {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int round = 0; round < 120; ++round) {
    std::vector<float> x(round % 10 == 9 ? 1 : random.size(1, 1500));
    std::vector<std::uint64_t> counts(x.size(), 1);
    const int kind = round % 8;
    const int steps = random.integer(1, 20);
    // Denormal values, values near the largest float, and others.
    const int exponent = round % 7 == 0 ? -140 : round % 7 == 1 ? 115 : 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float v = random.real(-1.0F, 1.0F) + random.real(-1.0F, 1.0F) + random.real(-1.0F, 1.0F);
      if (kind == 1) {
        v = std::max(v, 0.0F);
      } else if (kind == 2) {
        v = v * v * v;
      } else if (kind == 3) {  // equally good candidates
        v = std::nearbyint(v * static_cast<float>(steps)) / static_cast<float>(steps);
      } else if (kind == 4) {
        v = std::ldexp(v, random.integer(-40, 0));
      } else if (kind == 5) {  // one bin for each power of two
        v = std::ldexp(random.chance(50) ? 1.0F : -1.0F, random.integer(-12, 0));
      } else if (kind == 6) {
        counts[i] = random.bits() >> random.integer(27, 63);
      } else if (kind == 7 && i % 512 == 0) {
        v *= 1000.0F;
      }
      x[i] = std::ldexp(v, exponent);
    }
    count_histogram h;
    h.observe(std::span<const float>(x), std::span<const std::uint64_t>(counts));
    if (h.count() == 0) {
      continue;
    }
    const std::vector<value_bin> bins = h.bins();
    for (const quant_scheme& scheme :
         {quant_scheme{{-1, 1}, true}, quant_scheme{{-7, 7}, true}, quant_scheme{{0, 15}, false},
          quant_scheme{{0, 1}, false}, quant_scheme{{-127, 127}, true},
          quant_scheme{{-128, 127}, false}}) {
      const plain_result plain = plain_search(bins, h.range(), scheme);
      const detent::scale_solution s = kl(bins, h.range(), scheme);
      INFO("round ", round, " steps ", scheme.levels.qmax - scheme.levels.qmin);
      CHECK(s.evidence.objective == plain.divergence);
      const auto clip = static_cast<float>(plain.clip);
      const detent::value_range cut{std::max(std::min(h.range().lower, 0.0F), -clip),
                                    std::min(std::max(h.range().upper, 0.0F), clip)};
      CHECK(s.params == params_from_range(clip > 0.0F ? cut : h.range(), scheme));
    }
  }
}
