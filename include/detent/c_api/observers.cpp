// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on observers and scale solvers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/base/checked_size.hpp>
#include <detent/c_api_observers.h>
#include <detent/observer_registry.hpp>
#include <detent/observers/channels.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/kl.hpp>
#include <detent/solvers/lp_norm.hpp>
#include <detent/solvers/parts.hpp>

#include "calls.hpp"
#include "schemes.hpp"

struct detent_observer {
  std::string name;  // in the registry
  // What save() returned before the observer saw anything: all options that its state depends on.
  std::vector<std::byte> fresh;
  std::variant<detent::any_observer, detent::channel_observer> value;
  bool is_partial = false;
};

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

const std::vector<std::string>& observer_names() {
  static const std::vector<std::string> names = detent::default_observers().names();
  return names;
}

detent::any_observer made(const char* name, const detent_observer_options* options,
                          const char* where) {
  checked(name, where, "name");
  const detent_observer_options o = known_fields(options, &detent_observer_options_init, where);
  detent::observer_options own;
  own.scheme = scheme_of(o.scheme, where);
  if (o.percentile != 0.0) {
    own.percentile = o.percentile;
  }
  own.exact_percentile = o.exact_percentile != 0;
  own.moving_constant = o.moving_constant;
  own.p = o.p;
  own.top_k = o.top_k;
  own.behaviour = o.repaired != 0 ? detent::parity::fixed : detent::parity::as_published;
  own.storage = o.sparse != 0 ? detent::bin_storage::sparse : detent::bin_storage::dense;
  return detent::make_observer(name, own);
}

/// The registry's spelling of a name that made() has accepted.
std::string known_name(const char* name) { return detent::detail::lower_case(name); }

/// The envelope of a saved observer. Its content: u64 length of the registry's name, the name, u64
/// size of detent_observer::fresh, these bytes, and what save() of the C++ observer returns.
/// Observers of several names share a C++ type whose state does not tell them apart, so that only
/// the name does.
constexpr detent::detail::byte_format state_format{"detentcn", 1};

/// The bytes of detent_observer_save().
std::vector<std::byte> saved_state(const detent_observer& observer) {
  detent::detail::byte_writer out(state_format);
  out.put(std::uint64_t{observer.name.size()});
  out.put_array(std::span<const char>(observer.name));
  out.put(std::uint64_t{observer.fresh.size()});
  out.put_array(std::span<const std::byte>(observer.fresh));
  const std::vector<std::byte> state =
      std::visit([](const auto& o) { return o.save(); }, observer.value);
  out.put_array(std::span<const std::byte>(state));
  return std::move(out).finish();
}

/// What save() of the C++ observer returned. Throws bad_file if the bytes are damaged or of an
/// observer of another name or with other options.
std::vector<std::byte> state_for(const detent_observer& observer, std::span<const std::byte> bytes,
                                 const char* where) {
  detent::detail::byte_reader in(bytes, state_format, where);
  std::string name;
  in.get_array(in.get_size(in.rest()), name);
  require(name == observer.name, error_kind::bad_file, where, ": the state is of the kind '", name,
          "', the observer of the kind '", observer.name, "'");
  std::vector<std::byte> read;
  in.get_array(in.get_size(in.rest()), read);
  require(read == observer.fresh, error_kind::bad_file, where,
          ": the state is of an observer with other options");
  in.get_array(in.rest(), read);
  return read;
}

/// Throws invalid_argument if strides lead out of the address space, so that no offset wraps.
void require_reachable(std::span<const std::size_t> shape, const std::ptrdiff_t* strides,
                       const char* where) {
  std::size_t left = detent::detail::largest_size;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto unsigned_stride = static_cast<std::size_t>(strides[i]);
    const std::size_t stride = strides[i] < 0 ? 0 - unsigned_stride : unsigned_stride;
    const std::size_t steps = shape[i] == 0 ? 0 : shape[i] - 1;
    require(steps == 0 || stride <= left / steps, error_kind::invalid_argument, where, ": stride ",
            strides[i], " of dimension ", i, ", whose extent is ", shape[i],
            ", leaves the address space");
    left -= steps * stride;
  }
}

/// The caller's tensor. Throws invalid_argument for null pointers and sizes that wrap.
template <class T>
detent::tensor_view<const T> tensor_of(const void* data, const std::size_t* shape,
                                       const std::ptrdiff_t* strides, std::size_t rank,
                                       const char* where) {
  require(rank <= detent::max_rank, error_kind::invalid_argument, where, ": rank ", rank,
          " is over ", detent::max_rank);
  require(rank == 0 || shape != nullptr, error_kind::invalid_argument, where, ": null shape");
  const std::span extents(shape, rank);
  const bool is_empty = std::find(extents.begin(), extents.end(), 0U) != extents.end();
  std::size_t product = 1;
  for (const std::size_t extent : extents) {
    product = detent::detail::checked_size(where, {product, extent});
    product = std::max<std::size_t>(product, 1);
  }
  require(is_empty || data != nullptr, error_kind::invalid_argument, where, ": null data");
  if (strides != nullptr && !is_empty) {
    require_reachable(extents, strides, where);
  }
  const auto* values = static_cast<const T*>(data);
  return strides == nullptr ? detent::tensor_view<const T>(values, extents)
                            : detent::tensor_view<const T>(values, extents, {strides, rank});
}

/// Hands out scales, zero points and evidence. The results are checked before anything is written.
void write_solutions(std::span<const detent::scale_solution> solutions, float* scales,
                     std::int32_t* zero_points, detent_scale_evidence* evidence,
                     const char* where) {
  checked(scales, where, "scales");
  checked(zero_points, where, "zero points");
  if (evidence != nullptr) {
    static_cast<void>(known_array(evidence, solutions.size(), &detent_scale_evidence_init, where,
                                  "evidence structure"));
  }
  auto* at = reinterpret_cast<std::byte*>(evidence);
  for (std::size_t i = 0; i < solutions.size(); ++i) {
    scales[i] = solutions[i].params.scale;
    zero_points[i] = solutions[i].params.zero_point;
    if (evidence != nullptr) {
      const detent::scale_evidence& e = solutions[i].evidence;
      auto* const to = reinterpret_cast<detent_scale_evidence*>(at);
      write_known_fields(
          to, {0, e.objective, e.lower_bound, e.count, e.lower, e.upper, e.clipped_fraction},
          where);
      at += to->size;
    }
  }
}

/// The solver of a method. Throws invalid_argument for a value that is no enumerator.
detent::scale_solver solver_of(const detent_scale_options& o, const char* where) {
  switch (o.method) {
    case DETENT_SCALE_ABSMAX:
      return [](const auto& d, auto s) { return detent::absmax(d, s); };
    case DETENT_SCALE_EXACT_MSE:
      return [](const auto& d, auto s) { return detent::exact_mse(d, s); };
    case DETENT_SCALE_LP_NORM:
      return [p = o.p](const auto& d, auto s) { return detent::lp_norm(d, s, {.p = p}); };
    case DETENT_SCALE_GRID_MSE:
      return [steps = o.steps](const auto& d, auto s) {
        return detent::grid_mse(d, s, {.steps = steps});
      };
    case DETENT_SCALE_OCTAV:
      return [](const auto& d, auto s) { return detent::octav(d, s); };
    case DETENT_SCALE_ACIQ_LAPLACE:
      return [](const auto& d, auto s) { return detent::aciq(d, s, detent::aciq_model::laplace); };
    case DETENT_SCALE_ACIQ_GAUSS:
      return [](const auto& d, auto s) { return detent::aciq(d, s, detent::aciq_model::gauss); };
    default:
      detent::raise(
          error_kind::invalid_argument,
          detent::detail::message("detent: ", where, ": method ", static_cast<int>(o.method),
                                  " is no detent_scale_method"));
  }
}

/// Divergence is defined on histograms, so that each channel has an observer with one.
std::vector<detent::scale_solution> solve_divergence(detent::tensor_view<const float> x,
                                                     detent::quant_scheme scheme,
                                                     const detent::parallel_for& parallel) {
  detent::channel_observer channels(
      detent::any_observer(detent::kl_observer(detent::bin_storage::sparse)), 1);
  channels.observe(x, parallel);
  return channels.solve(scheme, parallel);
}

}  // namespace

extern "C" {

void detent_scale_evidence_init(detent_scale_evidence* evidence) {
  *evidence = {};
  evidence->size = sizeof *evidence;
}

void detent_observer_options_init(detent_observer_options* options) {
  const detent::observer_options defaults;
  *options = {};
  options->size = sizeof *options;
  options->scheme = {0, 255, 0};
  options->moving_constant = defaults.moving_constant;
  options->p = defaults.p;
  options->top_k = defaults.top_k;
}

size_t detent_observer_name_count(void) {
  std::size_t count = 0;
  static_cast<void>(guarded([&] { count = observer_names().size(); }));
  return count;
}

const char* detent_observer_name(size_t index) {
  return index < detent_observer_name_count() ? observer_names()[index].c_str() : nullptr;
}

detent_status detent_observer_create(const char* name, const detent_observer_options* options,
                                     detent_observer** observer) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_create";
    detent_observer*& result = checked(observer, where, "result");
    detent::any_observer value = made(name, options, where);
    std::vector<std::byte> fresh = value.save();
    result = new detent_observer{known_name(name), std::move(fresh), std::move(value)};
  });
}

detent_status detent_observer_create_channels(const char* name,
                                              const detent_observer_options* options,
                                              const size_t* axes, size_t axis_count,
                                              detent_observer** observer) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_create_channels";
    detent_observer*& result = checked(observer, where, "result");
    checked(axes, where, "axes");
    require(axis_count > 0 && axis_count < detent::max_rank, error_kind::invalid_argument, where,
            ": ", axis_count, " axes are not 1..", detent::max_rank - 1);
    const std::size_t last = *std::max_element(axes, axes + axis_count);
    require(last < detent::max_rank, error_kind::invalid_argument, where, ": axis ", last,
            " is not 0..", detent::max_rank - 1);
    detent::any_observer one = made(name, options, where);
    std::vector<std::byte> fresh = one.save();
    detent::channel_observer value(std::move(one), {axes, axes + axis_count});
    result = new detent_observer{known_name(name), std::move(fresh), std::move(value)};
  });
}

detent_status detent_observer_copy(const detent_observer* observer, detent_observer** copy) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_copy";
    detent_observer*& result = checked(copy, where, "result");
    result = new detent_observer(whole(observer, where, "observer"));
  });
}

void detent_observer_free(detent_observer* observer) { delete observer; }

size_t detent_observer_phases(const detent_observer* observer) {
  return observer == nullptr
             ? 0
             : std::visit([](const auto& o) { return o.phases(); }, observer->value);
}

size_t detent_observer_channels(const detent_observer* observer) {
  if (observer == nullptr) {
    return 0;
  }
  const auto* channels = std::get_if<detent::channel_observer>(&observer->value);
  return channels == nullptr ? 1 : channels->channels().size();
}

detent_status detent_observer_begin_phase(detent_observer* observer, size_t phase) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_begin_phase";
    auto& value = whole(observer, where, "observer").value;
    require(phase < detent_observer_phases(observer), error_kind::invalid_argument, where,
            ": phase ", phase, " of ", detent_observer_phases(observer));
    std::visit([&](auto& o) { o.begin_phase(phase); }, value);
  });
}

detent_status detent_observer_observe(detent_observer* observer, detent_type type, const void* data,
                                      const size_t* shape, const ptrdiff_t* strides, size_t rank,
                                      const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_observe";
    detent_observer& o = whole(observer, where, "observer");
    with_float(type, where, [&]<class T>() {
      const auto x = tensor_of<T>(data, shape, strides, rank, where);
      const detent::parallel_for threads = parallel_of(parallel);
      observe_batch(o, [&] {
        if (auto* channels = std::get_if<detent::channel_observer>(&o.value); channels != nullptr) {
          channels->observe(x, threads);
        } else {
          std::get<detent::any_observer>(o.value).observe(x);
        }
      });
    });
  });
}

detent_status detent_observer_merge(detent_observer* observer, const detent_observer* other) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_merge";
    detent_observer& to = whole(observer, where, "observer");
    const detent_observer& added = whole(other, where, "other observer");
    auto& value = to.value;
    const auto& from = added.value;
    require(to.name == added.name, error_kind::invalid_argument, where,
            ": the other observer is of another kind, '", added.name, "', not '", to.name, "'");
    require(value.index() == from.index(), error_kind::invalid_argument, where,
            ": an observer of channels and one of whole tensors do not merge");
    std::visit(
        [&]<class Observer>(Observer& o) {
          // Merged into a copy: a merge that fails half way leaves no trace, and the observer may
          // be merged with itself.
          Observer next = o;
          next.merge(std::get<Observer>(from));
          o = std::move(next);
        },
        value);
  });
}

detent_status detent_observer_finalize(const detent_observer* observer, detent_scheme scheme,
                                       float* scales, int32_t* zero_points,
                                       detent_scale_evidence* evidence, size_t count,
                                       const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_finalize";
    const auto& value = whole(observer, where, "observer").value;
    const detent::quant_scheme s = scheme_of(scheme, where);
    std::vector<detent::scale_solution> solutions;
    if (const auto* channels = std::get_if<detent::channel_observer>(&value); channels != nullptr) {
      solutions = channels->solve(s, parallel_of(parallel));
    } else {
      solutions.push_back(std::get<detent::any_observer>(value).finalize(s));
    }
    require(count == solutions.size(), error_kind::shape_mismatch, where, ": results for ", count,
            " of ", solutions.size(), " channels");
    write_solutions(solutions, scales, zero_points, evidence, where);
  });
}

detent_status detent_observer_save(const detent_observer* observer, void* buffer, size_t capacity,
                                   size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_save";
    const detent_observer& from = whole(observer, where, "observer");
    checked(needed, where, "needed");
    hand_out(saved_state(from), buffer, capacity, needed, where);
  });
}

detent_status detent_observer_load(detent_observer* observer, const void* bytes, size_t size) {
  return guarded([&] {
    constexpr const char* where = "detent_observer_load";
    detent_observer& to = checked(observer, where, "observer");
    const std::vector<std::byte> from = state_for(to, bytes_of(bytes, size, where), where);
    std::visit([&](auto& o) { o.load(from); }, to.value);
    to.is_partial = false;
  });
}

void detent_scale_options_init(detent_scale_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->method = DETENT_SCALE_EXACT_MSE;
  options->scheme = {-127, 127, 1};
  options->p = detent::lp_norm_options().p;
  options->steps = detent::grid_mse_options().steps;
  options->channels = 1;
  options->inner = 1;
}

detent_status detent_solve_scales(const float* x, size_t n, const detent_scale_options* options,
                                  float* scales, int32_t* zero_points,
                                  detent_scale_evidence* evidence,
                                  const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_solve_scales";
    const detent_scale_options o = known_fields(options, &detent_scale_options_init, where);
    const detent::quant_scheme scheme = scheme_of(o.scheme, where);
    require(n > 0, error_kind::invalid_argument, where, ": there are no values");
    checked(x, where, "data");
    const auto shape = channel_shape(n, o.channels, o.inner, where);
    const detent::tensor_view<const float> view(x, std::span(shape));
    const detent::parallel_for threads = parallel_of(parallel);
    const auto solutions =
        o.method == DETENT_SCALE_KL
            ? solve_divergence(view, scheme, threads)
            : detent::solve_channels(view, 1, scheme, solver_of(o, where), threads);
    write_solutions(solutions, scales, zero_points, evidence, where);
  });
}

}  // extern "C"
