// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on elements: quantize, dequantize, requantize, fake quantize.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "calls.hpp"

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

/// Calls f<T>() with the C++ type of an integer type of 16 bits or fewer, packed 4-bit types
/// included.
template <class F>
void with_integer(detent_type type, const char* where, const F& f) {
  switch (type) {
    case DETENT_U8:
      return f.template operator()<std::uint8_t>();
    case DETENT_S8:
      return f.template operator()<std::int8_t>();
    case DETENT_U16:
      return f.template operator()<std::uint16_t>();
    case DETENT_S16:
      return f.template operator()<std::int16_t>();
    case DETENT_U4:
      return f.template operator()<detent::uint4>();
    case DETENT_S4:
      return f.template operator()<detent::int4>();
    default:
      raise_type(type, where,
                 "DETENT_U8, DETENT_S8, DETENT_U16, DETENT_S16, DETENT_U4 or DETENT_S4");
  }
}

/// x rounded once to the format To.
template <class To, class From>
To converted(From x, bool saturate) {
  if constexpr (detent::float_format<From>) {
    return converted<To>(detent::to_float(x), saturate);  // exact
  } else if constexpr (detent::float8_format<To>) {
    return detent::round_to<To>(x, saturate);
  } else if constexpr (detent::float_format<To>) {
    return detent::round_to<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

/// n dense elements to read; their shape is that of the other operand.
template <class Q>
auto integers_to_read(const void* data, std::size_t n) {
  if constexpr (detent::packed_type<Q>) {
    return detent::packed_span<const Q>(
        std::span(static_cast<const std::uint8_t*>(data), detent::packed_size<Q>(n)), n);
  } else {
    return std::span(static_cast<const Q*>(data), n);
  }
}
/// n dense elements to write; their shape is that of the other operand.
template <class Q>
auto integers_to_write(void* data, std::size_t n) {
  if constexpr (detent::packed_type<Q>) {
    return detent::packed_span<Q>(
        std::span(static_cast<std::uint8_t*>(data), detent::packed_size<Q>(n)), n);
  } else {
    return std::span(static_cast<Q*>(data), n);
  }
}

/// The parameters of the channels of a dense tensor, which is viewed as [outer][channels][inner].
class element_params {
 public:
  element_params(const detent_element_params* given, std::size_t n, const char* where)
      : given_(known_fields(given, &detent_element_params_init, where)) {
    const std::size_t channels = given_.channels;
    require(given_.scales != nullptr, error_kind::invalid_argument, where, ": null scales");
    shape_ = channel_shape(n, channels, given_.inner, where);
    params_.axis = 1;
    params_.scales.assign(given_.scales, given_.scales + channels);
    params_.zero_points.resize(channels);
    if (given_.zero_points != nullptr) {
      params_.zero_points.assign(given_.zero_points, given_.zero_points + channels);
    }
  }

  template <class T>
  [[nodiscard]] detent::tensor_view<T> view(T* data) const {
    return {data, std::span<const std::size_t>(shape_)};
  }
  [[nodiscard]] std::span<const std::int32_t> bias() const {
    return optional_span(given_.bias, given_.channels);
  }
  [[nodiscard]] detent::grid levels(detent::grid whole) const {
    return given_.qmin > given_.qmax ? whole : detent::grid{given_.qmin, given_.qmax};
  }
  /// Calls f(parameters), with parameters of the whole tensor if there is one channel, otherwise
  /// with parameters of channels.
  template <class F>
  void with(const F& f) const {
    if (given_.channels == 1) {
      f(detent::quant_params{params_.scales[0], params_.zero_points[0]});
    } else {
      f(params_);
    }
  }

 private:
  detent_element_params given_;
  std::array<std::size_t, 3> shape_{};
  detent::channel_quant_params params_;
};

}  // namespace

extern "C" {

detent_status detent_quantize(const float* x, size_t n, float scale, int32_t zero_point,
                              detent_type type, void* q, const detent_parallel* parallel) {
  return guarded([&] {
    with_byte(type, "detent_quantize", [&]<class Q>() {
      detent::quantize(std::span<const float>(x, n), std::span<Q>(static_cast<Q*>(q), n),
                       {scale, zero_point}, detent::full_grid<Q>,
                       {.parallel = parallel_of(parallel)});
    });
  });
}

detent_status detent_dequantize(detent_type type, const void* q, size_t n, float scale,
                                int32_t zero_point, float* x, const detent_parallel* parallel) {
  return guarded([&] {
    with_byte(type, "detent_dequantize", [&]<class Q>() {
      detent::dequantize(std::span<const Q>(static_cast<const Q*>(q), n), std::span<float>(x, n),
                         detent::quant_params{scale, zero_point},
                         {.parallel = parallel_of(parallel)});
    });
  });
}

detent_status detent_dynamic_quantize(const float* x, size_t n, detent_type type, void* q,
                                      float* scale, int32_t* zero_point,
                                      const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_quantize";
    require(scale != nullptr && zero_point != nullptr, error_kind::invalid_argument, where,
            ": null results");
    with_byte(type, where, [&]<class Q>() {
      const detent::quant_params p = detent::dynamic_quantize<Q>(
          std::span<const float>(x, n), std::span<Q>(static_cast<Q*>(q), n), detent::asymmetric<Q>,
          {.parallel = parallel_of(parallel)});
      *scale = p.scale;
      *zero_point = p.zero_point;
    });
  });
}

detent_status detent_dynamic_quantize_rows(const float* x, size_t ldx, size_t m, size_t k,
                                           detent_type type, int symmetric, void* q, size_t ldq,
                                           float* scales, int32_t* zero_points, int32_t* row_sums,
                                           const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_quantize_rows";
    require(m == 0 || (scales != nullptr && zero_points != nullptr), error_kind::invalid_argument,
            where, ": null results");
    with_byte(type, where, [&]<class Q>() {
      detent::dynamic_quantize_rows(rows_of(x, m, k, ldx, where),
                                    rows_of(static_cast<Q*>(q), m, k, ldq, where),
                                    std::span(scales, m), std::span(zero_points, m),
                                    std::span(row_sums, row_sums != nullptr ? m : 0),
                                    symmetric != 0 ? detent::symmetric<Q> : detent::asymmetric<Q>,
                                    {.parallel = parallel_of(parallel)});
    });
  });
}

detent_status detent_params_from_range(float lower, float upper, int32_t qmin, int32_t qmax,
                                       int symmetric, float* scale, int32_t* zero_point) {
  return guarded([&] {
    constexpr const char* where = "detent_params_from_range";
    float& s = checked(scale, where, "scale");
    std::int32_t& z = checked(zero_point, where, "zero point");
    const detent::quant_params p =
        detent::params_from_range({lower, upper}, {{qmin, qmax}, symmetric != 0});
    s = p.scale;
    z = p.zero_point;
  });
}

void detent_element_params_init(detent_element_params* params) {
  *params = {};
  params->size = sizeof *params;
  params->channels = 1;
  params->inner = 1;
  params->qmin = 0;
  params->qmax = -1;
}

detent_status detent_quantize_elements(detent_type x_type, const void* x, size_t n,
                                       detent_type q_type, void* q,
                                       const detent_element_params* params,
                                       const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_quantize_elements";
    const element_params p(&checked(params, where, "parameters"), n, where);
    with_any_real(x_type, where, [&]<class F>() {
      with_integer(q_type, where, [&]<class Q>() {
        p.with([&](const auto& values) {
          detent::quantize(p.view(static_cast<const F*>(x)), integers_to_write<Q>(q, n), values,
                           p.levels(detent::full_grid<Q>), {.parallel = parallel_of(parallel)});
        });
      });
    });
  });
}

detent_status detent_dequantize_elements(detent_type q_type, const void* q, size_t n,
                                         detent_type x_type, void* x,
                                         const detent_element_params* params,
                                         const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dequantize_elements";
    const element_params p(&checked(params, where, "parameters"), n, where);
    const auto dequantize = [&]<class Q>() {
      with_any_real(x_type, where, [&]<class F>() {
        p.with([&](const auto& values) {
          detent::dequantize(integers_to_read<Q>(q, n), p.view(static_cast<F*>(x)), values,
                             {.parallel = parallel_of(parallel)});
        });
      });
    };
    if (q_type == DETENT_S32) {
      dequantize.template operator()<std::int32_t>();
    } else {
      with_integer(q_type, where, dequantize);
    }
  });
}

detent_status detent_requantize(const int32_t* acc, size_t n, detent_type q_type, void* q,
                                const detent_element_params* params,
                                const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_requantize";
    const element_params p(&checked(params, where, "parameters"), n, where);
    with_integer(q_type, where, [&]<class Q>() {
      if constexpr (detent::packed_type<Q>) {
        raise_type(q_type, where, "DETENT_U8, DETENT_S8, DETENT_U16 or DETENT_S16");
      } else {
        p.with([&](const auto& values) {
          detent::requantize(p.view(acc), integers_to_write<Q>(q, n), values,
                             p.levels(detent::full_grid<Q>), p.bias(),
                             {.parallel = parallel_of(parallel)});
        });
      }
    });
  });
}

detent_status detent_fake_quantize(const float* x, size_t n, detent_type q_type, float* y,
                                   const detent_element_params* params) {
  return guarded([&] {
    constexpr const char* where = "detent_fake_quantize";
    const element_params p(&checked(params, where, "parameters"), n, where);
    with_integer(q_type, where, [&]<class Q>() {
      p.with([&](const auto& values) {
        detent::fake_quantize(p.view(x), p.view(y), values, p.levels(detent::full_grid<Q>));
      });
    });
  });
}

detent_status detent_convert_floats(detent_type from_type, const void* from, size_t n,
                                    detent_type to_type, void* to, int saturate) {
  return guarded([&] {
    constexpr const char* where = "detent_convert_floats";
    require(n == 0 || (from != nullptr && to != nullptr), error_kind::invalid_argument, where,
            ": null data with size ", n);
    with_float(from_type, where, [&]<class From>() {
      with_float(to_type, where, [&]<class To>() {
        const std::span<const From> x(static_cast<const From*>(from), n);
        To* const y = static_cast<To*>(to);
        for (std::size_t i = 0; i < n; ++i) {
          y[i] = converted<To>(x[i], saturate != 0);
        }
      });
    });
  });
}

}  // extern "C"
