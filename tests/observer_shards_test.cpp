// SPDX-License-Identifier: BSD-3-Clause
// Observers whose samples are divided among processes: for each of the registry, the state that is
// put together has the bytes of the one that has seen everything.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/observer_registry.hpp>

#include "check_error.hpp"
#include "random.hpp"

namespace {

using detent::any_observer;
using detent::batch_extent;
using detent::error_kind;
using batches = std::vector<std::vector<float>>;

/// An observer of the registry; nothing if it cannot be made for the scheme.
std::vector<any_observer> made(const std::string& name, bool is_symmetric) {
  detent::observer_options options;
  options.scheme = is_symmetric ? detent::symmetric<std::int8_t> : detent::asymmetric<std::uint8_t>;
  try {
    return {detent::make_observer(name, options)};
  } catch (const detent::error&) {
    return {};
  }
}

/// Batches of different ranges: later ones are wider, some are zeros, one is empty.
batches some_batches(test::random_source& r) {
  batches all;
  for (std::size_t i = 0; i < 17; ++i) {
    const float most = 0.1F * static_cast<float>(1 + i * 5 % 17 + i);
    all.push_back(r.reals(r.size(2, 50), -most, 2.0F * most));
  }
  all[3].assign(5, 0.0F);
  all[9].clear();
  return all;
}

/// The state after a save and a load.
any_observer travelled(const any_observer& empty, const any_observer& seen) {
  any_observer loaded = empty;
  loaded.load(seen.save());
  return loaded;
}

any_observer of_all(any_observer o, const batches& all) {
  for (std::size_t phase = 0; phase < o.phases(); ++phase) {
    if (phase > 0) {
      o.begin_phase(phase);
    }
    for (const std::vector<float>& x : all) {
      o.observe(std::span<const float>(x));
    }
  }
  return o;
}

/// Puts the state together from batches, each of which another observer has seen.
any_observer appended(const any_observer& empty, const batches& all) {
  any_observer total = empty;
  any_observer before = empty;
  for (const std::vector<float>& x : all) {
    any_observer one = empty.follows() ? before : empty;
    one.observe(std::span<const float>(x));
    total.append(travelled(empty, one));
    if (empty.follows() && !x.empty()) {
      before.follow(batch_extent::of(x));
    }
  }
  return total;
}

/// Merges observers of every third batch; each of them follows the others.
any_observer merged_after_following(const any_observer& empty, const batches& all) {
  std::vector<any_observer> parts(3, empty);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (i % parts.size() == k) {
        parts[k].observe(std::span<const float>(all[i]));
      } else if (!all[i].empty()) {
        parts[k].follow(batch_extent::of(all[i]));
      }
    }
  }
  any_observer total = travelled(empty, parts[2]);
  total.merge(travelled(empty, parts[0]));
  total.merge(travelled(empty, parts[1]));
  return total;
}

/// Merges observers of every third batch after each phase.
any_observer merged(const any_observer& empty, const batches& all) {
  any_observer begin = empty;
  for (std::size_t phase = 0; phase < empty.phases(); ++phase) {
    if (phase > 0) {
      begin.begin_phase(phase);
    }
    std::vector<any_observer> parts(3, begin);
    for (std::size_t i = 0; i < all.size(); ++i) {
      parts[i % 3].observe(std::span<const float>(all[i]));
    }
    begin = travelled(empty, parts[1]);
    begin.merge(travelled(empty, parts[2]));
    begin.merge(travelled(empty, parts[0]));
  }
  return begin;
}

}  // namespace

TEST_CASE("observers in shards: the bytes of the observer of everything") {
  test::random_source r(441);
  INFO("seed ", r.seed());
  const batches all = some_batches(r);
  std::size_t tested = 0;
  for (const bool is_symmetric : {false, true}) {
    for (const std::string& name : detent::default_observers().names()) {
      for (const any_observer& empty : made(name, is_symmetric)) {
        INFO(name, ", symmetric ", is_symmetric);
        const any_observer expected = of_all(empty, all);
        const any_observer total =
            empty.appends() && (empty.follows() || !empty.merges_in_any_order())
                ? appended(empty, all)
            : empty.follows() ? merged_after_following(empty, all)
                              : merged(empty, all);
        CHECK(total.save() == expected.save());
        ++tested;
      }
    }
  }
  CHECK(tested >= 60);
}

TEST_CASE("observers in shards: merges_in_any_order() is true of just those that do") {
  test::random_source r(442);
  INFO("seed ", r.seed());
  const batches all = some_batches(r);
  constexpr std::size_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
  std::size_t merging = 0;
  std::size_t others = 0;
  for (const std::string& name : detent::default_observers().names()) {
    for (const any_observer& empty : made(name, true)) {
      INFO(name);
      std::vector<any_observer> parts(3, empty);
      any_observer whole = empty;
      for (std::size_t i = 0; i < all.size(); ++i) {
        parts[i % 3].observe(std::span<const float>(all[i]));
        whole.observe(std::span<const float>(all[i]));
      }
      bool does = true;
      for (const auto& order : orders) {
        try {
          any_observer total = parts[order[0]];
          total.merge(parts[order[1]]);
          total.merge(parts[order[2]]);
          does = does && total.save() == whole.save();
        } catch (const detent::error&) {
          does = false;
        }
      }
      CHECK(empty.merges_in_any_order() == does);
      ++(does ? merging : others);
    }
  }
  CHECK(merging >= 15);
  CHECK(others >= 10);
}

TEST_CASE("observers in shards: what they can do") {
  const auto check = [](const char* name, bool merges, bool appends, bool follows) {
    INFO(name);
    const any_observer o = detent::make_observer(name);
    CHECK(o.merges_in_any_order() == merges);
    CHECK(o.appends() == appends);
    CHECK(o.follows() == follows);
  };
  check("minmax", true, false, false);
  check("kl", true, false, false);
  check("isotone", true, false, false);
  check("moving_average", false, true, false);
  check("nncf.minmax", true, true, false);
  check("nncf.mean_minmax", false, true, false);
  check("ppq.isotone", false, true, false);
  check("ppq.mse", true, false, false);
  check("ort.minmax", true, false, false);
  check("ort.percentile", false, false, true);
  check("inc.kl", false, false, true);
  check("torch.histogram", false, true, true);
}

TEST_CASE("observers in shards: what does not go together is refused") {
  using test::check_error;
  const std::vector<float> small = {-1.0F, 0.5F, 0.25F};
  const std::vector<float> large = {-3.0F, 2.0F, 7.0F};
  const auto seen = [](const char* name, const std::vector<float>& x) {
    any_observer o = detent::make_observer(name);
    o.observe(std::span<const float>(x));
    return o;
  };
  any_observer min_max = seen("minmax", small);
  check_error(error_kind::unsupported, {"does not append"},
              [&] { min_max.append(seen("minmax", large)); });
  check_error(error_kind::unsupported, {"does not follow"},
              [&] { min_max.follow(batch_extent::of(large)); });
  any_observer average = seen("moving_average", small);
  check_error(error_kind::invalid_argument, {"another kind"}, [&] { average.append(min_max); });
  for (const char* name : {"ort.entropy", "inc.kl", "ort.percentile", "inc.percentile"}) {
    INFO(name);
    any_observer grown = seen(name, small);
    check_error(error_kind::invalid_argument, {"other batches"},
                [&] { grown.merge(seen(name, large)); });
  }
  any_observer histogram = seen("torch.histogram", large);
  check_error(error_kind::invalid_argument, {"has not followed"},
              [&] { histogram.append(seen("torch.histogram", small)); });
  check_error(error_kind::invalid_argument, {"cannot follow"},
              [&] { histogram.follow(batch_extent::of(small)); });
  // Second phases that follow different first ones.
  any_observer a = seen("ppq.mse", small);
  any_observer b = seen("ppq.mse", large);
  a.begin_phase(1);
  check_error(error_kind::invalid_argument, {"another phase"}, [&] { a.merge(b); });
  b.begin_phase(1);
  check_error(error_kind::invalid_argument, {"another first one"}, [&] { a.merge(b); });
}

TEST_CASE("batch_extent: the range and the least magnitude; nothing else is a batch") {
  const std::vector<float> x = {-2.0F, 0.5F, 3.0F};
  const batch_extent e = batch_extent::of(x);
  CHECK(e.range == detent::value_range{-2.0F, 3.0F});
  CHECK(e.least_magnitude == 0.5F);
  CHECK(e.largest_magnitude() == 3.0F);
  // Saved extents: values of one sign have their least magnitude at an end of the range.
  constexpr detent::detail::byte_format format{"detentxx", 1};
  const auto read = [&](const batch_extent& written) {
    detent::detail::byte_writer out(format);
    written.write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    return batch_extent::read(in);
  };
  for (const batch_extent& good :
       {e, batch_extent{{1.0F, 2.0F}, 1.0F}, batch_extent{{-2.0F, -1.0F}, 1.0F},
        batch_extent{{0.0F, 2.0F}, 0.0F}, batch_extent{{-2.0F, 1.0F}, 2.0F}}) {
    CHECK(read(good) == good);
  }
  for (const batch_extent& bad :
       {batch_extent{{1.0F, 2.0F}, 0.5F}, batch_extent{{1.0F, 2.0F}, 1.5F},
        batch_extent{{-2.0F, -1.0F}, 2.0F}, batch_extent{{-1.0F, 1.0F}, 2.0F}}) {
    test::check_error(error_kind::bad_file, {"batch_extent"},
                      [&] { static_cast<void>(read(bad)); });
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& bad :
       {std::vector<float>(), std::vector<float>{1.0F, std::nanf("")},
        std::vector<float>{-infinity}}) {
    test::check_error(error_kind::invalid_argument, {"batch_extent"},
                      [&] { static_cast<void>(batch_extent::of(bad)); });
  }
}
