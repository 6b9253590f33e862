// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on the library (errors, version, targets), on weights and on
// products.
#include <algorithm>
#include <concepts>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "calls.hpp"

struct detent_weights {
  std::variant<detent::packed_weights, detent::packed_int4_weights> value;
};

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

/// The message of the last failed call of this thread.
std::string& last_error() {
  thread_local std::string message;
  return message;
}

/// Whether products with these weights can write type T: 8-bit weights write every type, 4-bit
/// weights float only.
template <class Weights, class T>
concept multiplies_to = std::same_as<Weights, detent::packed_weights> || std::same_as<T, float>;

/// Throws unsupported if products with these weights cannot write type T.
template <class Weights, class T>
void require_output(detent_type type, const char* where) {
  require(multiplies_to<Weights, T>, error_kind::unsupported, where, ": type ",
          static_cast<int>(type), " is not DETENT_F32, which 4-bit weights multiply to");
}

detent::epilogue_options options_of(const detent_epilogue* epilogue, std::size_t m, std::size_t n,
                                    const char* where) {
  const detent_epilogue e = known_fields(epilogue, &detent_epilogue_init, where);
  detent::epilogue_options o = scalar_options(e);
  o.lhs_scales = optional_span(e.lhs_scales, m);
  o.lhs_zero_points = optional_span(e.lhs_zero_points, m);
  o.bias = optional_span(e.bias, n);
  if (e.residual != nullptr) {
    o.residual = rows_of(e.residual, m, n, e.residual_stride, where);
  }
  if (e.addend != nullptr) {
    o.addend = rows_of(e.addend, m, n, e.addend_stride, where);
  }
  return o;
}

/// The problems of a batch in the size that this library knows.
std::vector<detent_gemm_problem> known_problems(const detent_gemm_problem* problems,
                                                std::size_t count, const char* where) {
  std::vector<detent_gemm_problem> known =
      known_array(problems, count, &detent_gemm_problem_init, where, "problem");
  for (std::size_t i = 0; i < count; ++i) {
    require(known[i].weights != nullptr, error_kind::invalid_argument, where, ": problem ", i,
            " has null weights");
  }
  return known;
}

/// Runs a batch whose weights are all of the class Weights.
template <class Weights, class A, class T>
void run_batch(const std::vector<detent_gemm_problem>& problems, const detent_parallel* parallel,
               const char* where) {
  std::vector<detent::gemm_problem<A, Weights, T>> batch;
  for (const detent_gemm_problem& p : problems) {
    const auto* w = std::get_if<Weights>(&p.weights->value);
    require(w != nullptr, error_kind::unsupported, where, ": problem ", batch.size(), " has ",
            detent_weights_bits(p.weights), "-bit weights, the first one ",
            detent_weights_bits(problems[0].weights), "-bit ones");
    batch.push_back({matrix_view<const A>(static_cast<const A*>(p.a), p.m, w->depth(), p.row_stride,
                                          p.column_stride),
                     w, rows_of(static_cast<T*>(p.c), p.m, w->columns(), p.ldc, where),
                     options_of(p.epilogue, p.m, w->columns(), where)});
  }
  detent::gemm_batch(std::span<const detent::gemm_problem<A, Weights, T>>(batch),
                     parallel_of(parallel));
}

/// The codes of a packed type, one to a byte, as a dense K x N matrix.
template <detent::packed_type Q>
std::vector<typename Q::value_type> unpacked_codes(const void* codes, std::size_t k, std::size_t n,
                                                   std::ptrdiff_t row_stride,
                                                   std::ptrdiff_t column_stride,
                                                   const char* where) {
  require(row_stride >= 0 && column_stride >= 0, error_kind::unsupported, where, ": the strides ",
          row_stride, " and ", column_stride, " of a packed type are negative");
  if (k == 0 || n == 0) {
    return {};
  }
  require(codes != nullptr, error_kind::invalid_argument, where, ": null codes");
  detent::detail::checked_size(where, {k, n});
  const std::size_t size =
      detent::detail::checked_size(where, {k - 1, static_cast<std::size_t>(row_stride)}) +
      detent::detail::checked_size(where, {n - 1, static_cast<std::size_t>(column_stride)}) + 1;
  const detent::packed_span<const Q> from(
      std::span(static_cast<const std::uint8_t*>(codes), detent::packed_size<Q>(size)), size);
  std::vector<typename Q::value_type> values(k * n);
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      values[i * n + j] = from.get(i * static_cast<std::size_t>(row_stride) +
                                   j * static_cast<std::size_t>(column_stride));
    }
  }
  return values;
}

/// The body of the functions for dynamic linear layers.
template <class F>
void multiply_dynamically(matrix_view<const F> a, const detent_weights& weights, float* c,
                          std::size_t ldc, const detent_dynamic_linear_options* options,
                          const detent_parallel* parallel, const char* where) {
  const detent_dynamic_linear_options given =
      known_fields(options, &detent_dynamic_linear_options_init, where);
  std::visit(
      [&](const auto& w) {
        detent::dynamic_linear_options o;
        o.per_row = given.per_row != 0;
        o.lhs_scheme = {{given.qmin, given.qmax}, given.symmetric != 0};
        o.lower = given.lower;
        o.upper = given.upper;
        o.bias = optional_span(given.bias, w.columns());
        if (given.residual != nullptr) {
          o.residual = rows_of(given.residual, a.rows, w.columns(), given.residual_stride, where);
        }
        detent::dynamic_linear(a, w, rows_of(c, a.rows, w.columns(), ldc, where), o,
                               parallel_of(parallel));
      },
      weights.value);
}

}  // namespace

extern "C" {

const char* detent_status_name(detent_status status) {
  switch (status) {
    case DETENT_OK:
      return "ok";
    case DETENT_INVALID_ARGUMENT:
      return "invalid argument";
    case DETENT_SHAPE_MISMATCH:
      return "shape mismatch";
    case DETENT_OVERFLOW:
      return "overflow";
    case DETENT_UNSUPPORTED:
      return "unsupported";
    case DETENT_OUT_OF_MEMORY:
      return "out of memory";
    case DETENT_INTERNAL:
      return "internal";
    case DETENT_BAD_FILE:
      return "bad file";
    case DETENT_IO:
      return "io";
    case DETENT_CANCELLED:
      return "cancelled";
  }
  return "unknown";
}

const char* detent_last_error(void) { return last_error().c_str(); }

void detent_set_last_error(const char* message) {
  try {
    last_error() = message == nullptr ? "" : message;
  } catch (...) {
    last_error().clear();
  }
}

#define DETENT_TEXT(x) #x
#define DETENT_VERSION_TEXT(major, minor, patch) \
  DETENT_TEXT(major) "." DETENT_TEXT(minor) "." DETENT_TEXT(patch)
const char* detent_version(void) {
  return DETENT_VERSION_TEXT(DETENT_VERSION_MAJOR, DETENT_VERSION_MINOR, DETENT_VERSION_PATCH);
}

const char* detent_active_target(void) { return detent::name(detent::active_target()); }

detent_status detent_set_target(const char* name) {
  return guarded([&] {
    require(name != nullptr, error_kind::invalid_argument, "detent_set_target: null name");
    for (const detent::target t : detent::compiled_targets()) {
      if (std::string_view(detent::name(t)) == name) {
        detent::set_target(t);
        return;
      }
    }
    require(false, error_kind::invalid_argument, "detent_set_target: no target is called \"", name,
            "\"");
  });
}

void detent_weight_options_init(detent_weight_options* options) {
  *options = {};
  options->size = sizeof *options;
}

detent_status detent_pack_weights(detent_type type, const void* w, size_t k, size_t n,
                                  ptrdiff_t row_stride, ptrdiff_t column_stride,
                                  const detent_weight_options* options, detent_weights** weights) {
  return guarded([&] {
    constexpr const char* where = "detent_pack_weights";
    detent_weights*& result = checked(weights, where, "result");
    const detent_weight_options o = known_fields(options, &detent_weight_options_init, where);
    with_byte(type, where, [&]<class W>() {
      const matrix_view<const W> view(static_cast<const W*>(w), k, n, row_stride, column_stride);
      result = new detent_weights{
          detent::pack_weights(view, weight_options_of(o, where), parallel_of(o.parallel))};
    });
  });
}

void detent_int4_weight_options_init(detent_int4_weight_options* options) {
  *options = {};
  options->size = sizeof *options;
}

detent_status detent_pack_int4_weights(detent_type type, const void* codes, size_t k, size_t n,
                                       ptrdiff_t row_stride, ptrdiff_t column_stride,
                                       const detent_int4_weight_options* options,
                                       detent_weights** weights) {
  return guarded([&] {
    constexpr const char* where = "detent_pack_int4_weights";
    detent_weights*& result = checked(weights, where, "result");
    const detent_int4_weight_options given =
        known_fields(options, &detent_int4_weight_options_init, where);
    const bool dense = given.group_stride == 0 && given.column_stride == 0;
    const std::size_t group_size = given.group_size == 0 ? k : (std::min)(given.group_size, k);
    const std::size_t groups = k == 0 ? 0 : (k - 1) / group_size + 1;
    const auto parameters = [&]<class T>(const T* data) {
      return data == nullptr
                 ? matrix_view<const T>()
                 : matrix_view<const T>(data, groups, n,
                                        dense ? static_cast<std::ptrdiff_t>(n) : given.group_stride,
                                        dense ? 1 : given.column_stride);
    };
    const detent::int4_weight_options o{given.group_size, parameters(given.scales),
                                        parameters(given.zero_points)};
    const auto pack = [&]<class W>(matrix_view<const W> view) {
      result = new detent_weights{detent::pack_int4_weights(view, o, parallel_of(given.parallel))};
    };
    const auto pack_unpacked = [&](const auto& values) { pack(matrix_view(values.data(), k, n)); };
    switch (type) {
      case DETENT_U4:
        return pack_unpacked(
            unpacked_codes<detent::uint4>(codes, k, n, row_stride, column_stride, where));
      case DETENT_S4:
        return pack_unpacked(
            unpacked_codes<detent::int4>(codes, k, n, row_stride, column_stride, where));
      case DETENT_U8:
        return pack(
            matrix_view(static_cast<const std::uint8_t*>(codes), k, n, row_stride, column_stride));
      case DETENT_S8:
        return pack(
            matrix_view(static_cast<const std::int8_t*>(codes), k, n, row_stride, column_stride));
      default:
        raise_type(type, where, "DETENT_U4, DETENT_S4, DETENT_U8 or DETENT_S8");
    }
  });
}

void detent_weights_free(detent_weights* weights) { delete weights; }
size_t detent_weights_depth(const detent_weights* weights) {
  return weights == nullptr ? 0
                            : std::visit([](const auto& w) { return w.depth(); }, weights->value);
}
size_t detent_weights_columns(const detent_weights* weights) {
  return weights == nullptr ? 0
                            : std::visit([](const auto& w) { return w.columns(); }, weights->value);
}
int detent_weights_bits(const detent_weights* weights) {
  if (weights == nullptr) {
    return 0;
  }
  return std::holds_alternative<detent::packed_weights>(weights->value) ? 8 : 4;
}
size_t detent_weights_group_size(const detent_weights* weights) {
  if (weights == nullptr) {
    return 0;
  }
  const auto* int4 = std::get_if<detent::packed_int4_weights>(&weights->value);
  return int4 != nullptr ? int4->group_size() : detent_weights_depth(weights);
}
int64_t detent_weights_accumulator_bound(const detent_weights* weights) {
  if (weights == nullptr) {
    return 0;
  }
  const auto* bytes = std::get_if<detent::packed_weights>(&weights->value);
  return bytes != nullptr ? bytes->certificate().accumulator_bound : 0;
}

detent_status detent_weights_prepare(const detent_weights* weights,
                                     const detent_parallel* parallel) {
  return guarded([&] {
    const auto& value = checked(weights, "detent_weights_prepare", "weights").value;
    if (const auto* bytes = std::get_if<detent::packed_weights>(&value); bytes != nullptr) {
      bytes->prepare(parallel_of(parallel));
    }
  });
}

detent_status detent_weights_save(const detent_weights* weights, void* buffer, size_t capacity,
                                  size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_weights_save";
    const auto& value = checked(weights, where, "weights").value;
    checked(needed, where, "needed");
    hand_out(std::visit([](const auto& w) { return w.save(); }, value), buffer, capacity, needed,
             where);
  });
}

detent_status detent_weights_load(const void* bytes, size_t size, detent_weights** weights) {
  return guarded([&] {
    constexpr const char* where = "detent_weights_load";
    detent_weights*& result = checked(weights, where, "result");
    const std::span<const std::byte> from = bytes_of(bytes, size, where);
    if (detent::packed_int4_weights::is_saved_form(from)) {
      result = new detent_weights{detent::packed_int4_weights::load(from)};
    } else {
      result = new detent_weights{detent::packed_weights::load(from)};
    }
  });
}

void detent_epilogue_init(detent_epilogue* epilogue) {
  *epilogue = {};
  epilogue->size = sizeof *epilogue;
  epilogue->lhs_scale = 1.0F;
  epilogue->output_scale = 1.0F;
  epilogue->qmin = 0;
  epilogue->qmax = -1;
  epilogue->lower = -std::numeric_limits<float>::infinity();
  epilogue->upper = std::numeric_limits<float>::infinity();
}

detent_status detent_gemm(detent_type a_type, const void* a, size_t lda, size_t m,
                          const detent_weights* weights, detent_type c_type, void* c, size_t ldc,
                          const detent_epilogue* epilogue, const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_gemm";
    std::visit(
        [&]<class W>(const W& w) {
          const detent::epilogue_options o = options_of(epilogue, m, w.columns(), where);
          with_byte(a_type, where, [&]<class A>() {
            with_output(c_type, where, [&]<class T>() {
              require_output<W, T>(c_type, where);
              if constexpr (multiplies_to<W, T>) {
                detent::gemm(rows_of(static_cast<const A*>(a), m, w.depth(), lda, where), w,
                             rows_of(static_cast<T*>(c), m, w.columns(), ldc, where), o,
                             parallel_of(parallel));
              }
            });
          });
        },
        checked(weights, where, "weights").value);
  });
}

void detent_gemm_problem_init(detent_gemm_problem* problem) {
  *problem = {};
  problem->size = sizeof *problem;
  problem->column_stride = 1;
}

detent_status detent_gemm_batch(detent_type a_type, detent_type c_type,
                                const detent_gemm_problem* problems, size_t count,
                                const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_gemm_batch";
    const std::vector<detent_gemm_problem> known = known_problems(problems, count, where);
    if (known.empty()) {
      return;
    }
    std::visit(
        [&]<class W>(const W& /*first*/) {
          with_byte(a_type, where, [&]<class A>() {
            with_output(c_type, where, [&]<class T>() {
              require_output<W, T>(c_type, where);
              if constexpr (multiplies_to<W, T>) {
                run_batch<W, A, T>(known, parallel, where);
              }
            });
          });
        },
        known[0].weights->value);
  });
}

void detent_activation_product_init(detent_activation_product* product) {
  *product = {};
  product->size = sizeof *product;
  product->a_column_stride = 1;
  product->b_column_stride = 1;
  product->b_scale = 1.0F;
}

detent_status detent_multiply_activations(detent_type a_type, detent_type b_type,
                                          detent_type c_type,
                                          const detent_activation_product* products, size_t count,
                                          const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_multiply_activations";
    const std::vector<detent_activation_product> known =
        known_array(products, count, &detent_activation_product_init, where, "product");
    const detent::parallel_for threads = parallel_of(parallel);
    std::vector<detent::packed_weights> sides;
    sides.reserve(known.size());
    with_byte(b_type, where, [&]<class B>() {
      for (const detent_activation_product& p : known) {
        const matrix_view<const B> b(static_cast<const B*>(p.b), p.k, p.n, p.b_row_stride,
                                     p.b_column_stride);
        sides.push_back(detent::pack_weights(
            b, {std::span(&p.b_scale, 1), std::span(&p.b_zero_point, 1), {}}, threads));
      }
    });
    with_byte(a_type, where, [&]<class A>() {
      with_output(c_type, where, [&]<class T>() {
        std::vector<detent::gemm_problem<A, detent::packed_weights, T>> batch;
        for (std::size_t i = 0; i < known.size(); ++i) {
          const detent_activation_product& p = known[i];
          batch.push_back({matrix_view<const A>(static_cast<const A*>(p.a), p.m, p.k,
                                                p.a_row_stride, p.a_column_stride),
                           &sides[i], rows_of(static_cast<T*>(p.c), p.m, p.n, p.ldc, where),
                           options_of(p.epilogue, p.m, p.n, where)});
        }
        detent::gemm_batch(
            std::span<const detent::gemm_problem<A, detent::packed_weights, T>>(batch), threads);
      });
    });
  });
}

void detent_dynamic_linear_options_init(detent_dynamic_linear_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->per_row = 1;
  options->qmin = 0;
  options->qmax = 255;
  options->lower = -std::numeric_limits<float>::infinity();
  options->upper = std::numeric_limits<float>::infinity();
}

detent_status detent_dynamic_linear(const float* a, size_t lda, size_t m,
                                    const detent_weights* weights, float* c, size_t ldc,
                                    const detent_dynamic_linear_options* options,
                                    const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_linear";
    const detent_weights& w = checked(weights, where, "weights");
    multiply_dynamically(rows_of(a, m, detent_weights_depth(&w), lda, where), w, c, ldc, options,
                         parallel, where);
  });
}

detent_status detent_dynamic_linear_strided(detent_type a_type, const void* a, ptrdiff_t row_stride,
                                            ptrdiff_t column_stride, size_t m,
                                            const detent_weights* weights, float* c, size_t ldc,
                                            const detent_dynamic_linear_options* options,
                                            const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_linear_strided";
    const detent_weights& w = checked(weights, where, "weights");
    with_real(a_type, where, [&]<class F>() {
      multiply_dynamically(
          matrix_view<const F>(static_cast<const F*>(a), m, detent_weights_depth(&w), row_stride,
                               column_stride),
          w, c, ldc, options, parallel, where);
    });
  });
}

}  // extern "C"
