// SPDX-License-Identifier: BSD-3-Clause
// The arguments of elementwise operations: the types that may hold elements and parameters, their
// checks, and their translation into the dimensions of a walk (walk.hpp).
//
// This is the main header of the folder elementwise/, which prepares the arguments of quantize(),
// dequantize(), requantize() and their relatives and divides the work into blocks for kernels. A
// header of elementwise/ may include base/, kernels/ and the headers with types and threads at the
// top level (types.hpp, error.hpp, float_formats.hpp, sub_byte.hpp, parallel.hpp, dispatch.hpp). It
// does not include the operations that are built on it, such as quantize.hpp.
#ifndef DETENT_ELEMENTWISE_OPERANDS_HPP
#define DETENT_ELEMENTWISE_OPERANDS_HPP

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <type_traits>

#include <detent/base/checked_size.hpp>
#include <detent/dispatch.hpp>
#include <detent/elementwise/walk.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/sub_byte.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Throws invalid_argument unless a scale is positive and finite. The message says with `name`
/// which scale that is.
inline void require_scale(float scale, const char* where, const char* name = "scale") {
  require(std::isfinite(scale) && scale > 0.0F, error_kind::invalid_argument, where, ": ", name,
          " ", scale, " is not a positive finite number");
}
/// Throws invalid_argument unless one of many scales is positive and finite. The message says whose
/// it is, such as "of channel 3".
inline void require_scale_of(const char* owner, std::size_t index, float scale, const char* where) {
  require(std::isfinite(scale) && scale > 0.0F, error_kind::invalid_argument, where, ": scale ",
          scale, " of ", owner, " ", index, " is not a positive finite number");
}

/// The grid of values of the type Q that a caller asks for: full_grid<Q> if it is the default one.
/// Throws invalid_argument if it does not fit Q.
template <class Q>
[[nodiscard]] grid checked_grid(grid levels, const char* where) {
  levels = with_whole_range<Q>(levels);
  require(levels.qmin <= levels.qmax && levels.qmin >= full_grid<Q>.qmin &&
              levels.qmax <= full_grid<Q>.qmax,
          error_kind::invalid_argument, where, ": grid ", levels.qmin, "..", levels.qmax,
          " does not fit ", full_grid<Q>.qmin, "..", full_grid<Q>.qmax);
  return levels;
}
/// The scheme with the grid of checked_grid().
template <class Q>
[[nodiscard]] quant_scheme checked_scheme(quant_scheme scheme, const char* where) {
  return {checked_grid<Q>(scheme.levels, where), scheme.symmetric};
}

inline void require_zero_point(std::int32_t zero_point, grid levels, const char* where) {
  require(zero_point >= levels.qmin && zero_point <= levels.qmax, error_kind::invalid_argument,
          where, ": zero point ", zero_point, " is outside ", levels.qmin, "..", levels.qmax);
}
inline void require_zero_point_of(const char* owner, std::size_t index, std::int32_t zero_point,
                                  grid levels, const char* where) {
  require(zero_point >= levels.qmin && zero_point <= levels.qmax, error_kind::invalid_argument,
          where, ": zero point ", zero_point, " of ", owner, " ", index, " is outside ",
          levels.qmin, "..", levels.qmax);
}

/// Throws invalid_argument for an array that has a size but no data.
template <class T>
void require_data(std::span<const T> values, const char* where, const char* name) {
  require(values.empty() || values.data() != nullptr, error_kind::invalid_argument, where,
          ": null ", name, " with size ", values.size());
}

template <class In, class Out>
void require_spans(std::span<In> in, std::span<Out> out, const char* where) {
  require(in.size() == out.size(), error_kind::shape_mismatch, where, ": input has ", in.size(),
          " elements, output ", out.size());
  require(in.empty() || (in.data() != nullptr && out.data() != nullptr),
          error_kind::invalid_argument, where, ": null data with size ", in.size());
}

// ---------------------------------------------------------------------------------------- operands

template <class T>
struct is_tensor_view : std::false_type {};
template <class T>
struct is_tensor_view<tensor_view<T>> : std::true_type {};
template <class T>
struct is_packed_span : std::false_type {};
template <class T>
struct is_packed_span<packed_span<T>> : std::true_type {};

/// The element type of an argument; const if the elements cannot be written. Packed types (int4,
/// ...) stand for themselves.
template <class A>
struct argument_element {
  using type = std::remove_reference_t<std::ranges::range_reference_t<A>>;
};
template <class A>
requires(is_tensor_view<std::remove_cvref_t<A>>::value) struct argument_element<A> {
  using type = std::remove_pointer_t<decltype(std::remove_cvref_t<A>::data)>;
};
template <class T>
struct packed_element;
template <class T>
struct packed_element<packed_span<T>> {
  using type = T;
};
template <class A>
requires(is_packed_span<std::remove_cvref_t<A>>::value) struct argument_element<A> {
  using type = typename packed_element<std::remove_cvref_t<A>>::type;
};
template <class A>
using element_of = typename argument_element<A>::type;

template <class A>
concept elementwise_argument = is_tensor_view<std::remove_cvref_t<A>>::value ||
    is_packed_span<std::remove_cvref_t<A>>::value || std::ranges::contiguous_range<A>;

template <class T>
concept real_type = std::same_as<T, float> || float_format<T>;
template <class T>
concept integer_type = quantized_type<T> || packed_type<T>;

template <class A>
concept reals_to_read = elementwise_argument<A> &&
    (real_type<std::remove_const_t<element_of<A>>> ||
     std::same_as<std::remove_const_t<element_of<A>>, double>);
template <class A>
concept reals_to_write = elementwise_argument<A> && real_type<element_of<A>>;
template <class A>
concept integers_to_read = elementwise_argument<A> &&
    (integer_type<std::remove_const_t<element_of<A>>> ||
     std::same_as<std::remove_const_t<element_of<A>>, std::int32_t>);
template <class A>
concept integers_to_write = elementwise_argument<A> && integer_type<element_of<A>>;
template <class A>
concept accumulators_to_read =
    elementwise_argument<A> && std::same_as<std::remove_const_t<element_of<A>>, std::int32_t>;

/// Number of elements of type T in one addressable unit of memory: 1, or more if T is packed.
template <class T>
inline constexpr std::size_t elements_per_unit = 1;
template <packed_type T>
inline constexpr std::size_t elements_per_unit<T> = elements_per_byte<T>;

/// The input or the output of an operation: its memory and its layout.
template <class T>
struct operand {
  using element = std::remove_const_t<T>;
  using storage =
      std::conditional_t<packed_type<element>,
                         std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>,
                         T>;
  storage* data = nullptr;
  std::size_t size = 0;
  std::size_t rank = 1;
  std::array<std::size_t, max_rank> shape{};
  std::array<std::ptrdiff_t, max_rank> strides{};
  bool flat = false;  // one-dimensional and dense: takes the shape of the other operand
};

template <class A>
auto operand_of(A&& a) {
  operand<element_of<A>> o;
  if constexpr (is_tensor_view<std::remove_cvref_t<A>>::value) {
    o.data = a.data;
    o.size = a.size();
    o.rank = a.rank;
    o.shape = a.shape;
    o.strides = a.strides;
  } else {
    o.data = std::ranges::data(a);
    o.size = std::ranges::size(a);
    o.shape[0] = o.size;
    o.strides[0] = 1;
    o.flat = true;
  }
  return o;
}
template <class T>
operand<T> operand_of(packed_span<T> a) {
  operand<T> o;
  o.data = a.data();
  o.size = a.size();
  o.shape[0] = o.size;
  o.strides[0] = 1;
  o.flat = true;
  return o;
}

/// Gives a flat operand the shape of the other operand, dense and row-major.
template <class T, class U>
void take_shape(operand<T>& flat, const operand<U>& other) {
  flat.rank = other.rank;
  flat.shape = other.shape;
  std::ptrdiff_t stride = 1;
  for (std::size_t i = flat.rank; i-- > 0;) {
    flat.strides[i] = stride;
    stride *= static_cast<std::ptrdiff_t>(flat.shape[i]);
  }
}

/// Whether two dense operands share memory.
template <class T, class U>
bool overlap(const operand<T>& in, const operand<U>& out) noexcept {
  const auto bytes = [](const auto& o, std::size_t per_unit) {
    return (o.size + per_unit - 1) / per_unit * sizeof(*o.data);
  };
  const auto in_first = reinterpret_cast<std::uintptr_t>(in.data);
  const auto out_first = reinterpret_cast<std::uintptr_t>(out.data);
  return in.size > 0 && out.size > 0 &&
         in_first < out_first + bytes(out, elements_per_unit<std::remove_const_t<U>>) &&
         out_first < in_first + bytes(in, elements_per_unit<std::remove_const_t<T>>);
}

template <class T, class U>
void require_same_shape(operand<T>& in, operand<U>& out, const char* where) {
  checked_size(where, std::span(in.shape).first(in.rank));
  checked_size(where, std::span(out.shape).first(out.rank));
  // Before overlap: two null pointers would count as the same memory.
  require((in.size == 0 || in.data != nullptr) && (out.size == 0 || out.data != nullptr),
          error_kind::invalid_argument, where, ": null data with size ",
          in.size != 0 && in.data == nullptr ? in.size : out.size);
  require(!in.flat || !out.flat || !overlap(in, out), error_kind::invalid_argument, where,
          ": input and output overlap");
  if (in.flat || out.flat) {
    require(in.size == out.size, error_kind::shape_mismatch, where, ": input has ", in.size,
            " elements, output ", out.size);
    if (out.flat) {
      take_shape(out, in);
    } else {
      take_shape(in, out);
    }
  }
  require(in.rank == out.rank, error_kind::shape_mismatch, where, ": input has rank ", in.rank,
          ", output ", out.rank);
  for (std::size_t i = 0; i < in.rank; ++i) {
    require(in.shape[i] == out.shape[i], error_kind::shape_mismatch, where, ": dimension ", i,
            " is ", in.shape[i], " in the input, ", out.shape[i], " in the output");
  }
}

// -------------------------------------------------------------------------------------- parameters

/// Parameters of any granularity. The scale and the zero point of element (i0, i1, ...) have the
/// index (sum over d of strides[d] * i_d), with i_d / block_size in place of i_d for d =
/// block_axis.
struct parameter_view {
  const float* scales = nullptr;
  const std::int32_t* zero_points = nullptr;
  std::size_t count = 1;
  std::array<std::ptrdiff_t, max_rank> strides{};
  std::size_t block_axis = max_rank;
  std::size_t block_size = 1;
};

inline parameter_view view_of(const quant_params& p, std::size_t, const auto&, const char*) {
  return {&p.scale, &p.zero_point, 1, {}, max_rank, 1};
}

inline parameter_view view_of(const channel_quant_params& p, std::size_t rank, const auto& shape,
                              const char* where) {
  require(p.axis < rank, error_kind::invalid_argument, where, ": axis ", p.axis,
          " of a tensor of rank ", rank);
  require(p.scales.size() == shape[p.axis] && p.zero_points.size() == shape[p.axis],
          error_kind::shape_mismatch, where, ": ", p.scales.size(), " scales and ",
          p.zero_points.size(), " zero points for ", shape[p.axis], " channels");
  parameter_view v{p.scales.data(), p.zero_points.data(), p.scales.size(), {}, max_rank, 1};
  v.strides[p.axis] = 1;
  return v;
}

inline parameter_view view_of(const block_quant_params& p, std::size_t rank, const auto& shape,
                              const char* where) {
  require(p.axis < rank, error_kind::invalid_argument, where, ": axis ", p.axis,
          " of a tensor of rank ", rank);
  require(p.block_size > 0, error_kind::invalid_argument, where, ": block size 0");
  std::size_t blocks = 1;
  // A block beyond the axis is the whole axis. Offsets are multiples of the size, so it is cut.
  parameter_view v{
      p.scales.data(),
      p.zero_points.data(),
      0,
      {},
      p.axis,
      (std::min)(p.block_size, (std::max)(std::size_t{shape[p.axis]}, std::size_t{1}))};
  for (std::size_t i = rank; i-- > 0;) {
    v.strides[i] = static_cast<std::ptrdiff_t>(blocks);
    blocks *= i == p.axis ? shape[i] / p.block_size + (shape[i] % p.block_size != 0) : shape[i];
  }
  require(p.scales.size() == blocks && p.zero_points.size() == blocks, error_kind::shape_mismatch,
          where, ": ", p.scales.size(), " scales and ", p.zero_points.size(), " zero points for ",
          blocks, " blocks of ", p.block_size, " along axis ", p.axis);
  v.count = blocks;
  return v;
}

/// Checks all scales and zero points. The first pass has no branches, because there may be many
/// parameters and a wrong one is rare; only if it finds one does a second pass raise the error.
inline void require_parameters(const parameter_view& p, grid levels, const char* where) {
  // A tensor can have a parameter for every 32 elements, so this loop has to be short. The bits of
  // a scale are an integer in [1, bits of the largest float] exactly if it is positive and finite.
  // A difference to a bound wraps and sets the highest bit of `wrong` if a value is out of range.
  constexpr auto largest = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max());
  const auto qmin = static_cast<std::uint32_t>(levels.qmin);
  const auto qmax = static_cast<std::uint32_t>(levels.qmax);
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < p.count; ++i) {
    const auto scale = std::bit_cast<std::uint32_t>(p.scales[i]);
    const auto zero_point = static_cast<std::uint32_t>(p.zero_points[i]);
    wrong |= (scale - 1) | (largest - scale) | (zero_point - qmin) | (qmax - zero_point);
  }
  const bool right = wrong >> 31U == 0;
  if (!right && p.count == 1) {
    require_scale(p.scales[0], where);
    require_zero_point(p.zero_points[0], levels, where);
  }
  const char* const owner = p.block_axis == max_rank ? "channel" : "block";
  for (std::size_t i = 0; i < p.count && !right; ++i) {
    require_scale_of(owner, i, p.scales[i], where);
    require_zero_point_of(owner, i, p.zero_points[i], levels, where);
  }
}

/// Calls f(walk, offset) for the walk over all elements of both operands. With block parameters,
/// the shorter blocks at the end of the axis, if any, are a second walk.
template <class T, class U, class F>
void for_each_walk(const operand<T>& in, const operand<U>& out, const parameter_view& p,
                   const F& f) {
  const auto dimension = [&](std::size_t i) {
    return walk_dimension{in.shape[i], in.strides[i], out.strides[i], p.strides[i]};
  };
  const auto make = [&](std::size_t blocks, std::size_t block_size) {
    walk w;
    for (std::size_t i = 0; i < in.rank; ++i) {
      walk_dimension d = dimension(i);
      if (i != p.block_axis) {
        w.push(d);
        continue;
      }
      const auto elements = static_cast<std::ptrdiff_t>(block_size);
      w.push({blocks, d.in * elements, d.out * elements, d.parameter});
      w.push({block_size, d.in, d.out, 0});
    }
    return w;
  };
  if (p.block_axis >= in.rank) {
    f(make(0, 0), walk_offset{});
    return;
  }
  const std::size_t extent = in.shape[p.block_axis];
  const std::size_t whole = extent / p.block_size;
  if (whole > 0) {
    f(make(whole, p.block_size), walk_offset{});
  }
  if (extent % p.block_size != 0) {
    const walk_dimension d = dimension(p.block_axis);
    const walk_dimension blocks{whole, d.in * static_cast<std::ptrdiff_t>(p.block_size),
                                d.out * static_cast<std::ptrdiff_t>(p.block_size), d.parameter};
    f(make(1, extent % p.block_size), walk_offset{}.moved(blocks, whole));
  }
}

/// The type of whole bytes that holds a value of Q: Q itself, or the value_type of a packed type.
template <class Q>
struct unpacked {
  using type = Q;
};
template <packed_type Q>
struct unpacked<Q> {
  using type = typename Q::value_type;
};
template <class Q>
using unpacked_t = typename unpacked<Q>::type;

/// The address of the unit of memory that holds element i.
template <class T, class S>
S* address(S* data, std::ptrdiff_t i) noexcept {
  return data + i / static_cast<std::ptrdiff_t>(elements_per_unit<T>);
}

/// Element i as a value that arithmetic can use: packed elements are unpacked, and the small float
/// formats are converted to float.
template <class T>
auto load_element(const auto* data, std::ptrdiff_t i) noexcept {
  if constexpr (packed_type<T>) {
    const auto slot = static_cast<std::size_t>(i) % elements_per_unit<T>;
    return unpack_element<T>(*address<T>(data, i), slot);
  } else if constexpr (float_format<T>) {
    return to_float(data[i]);
  } else {
    return data[i];
  }
}
/// Writes element i: the inverse of load_element(). Neighbours in a shared byte keep their values,
/// and small float formats are rounded to.
template <class T, class V>
void store_element(auto* data, std::ptrdiff_t i, V value) noexcept {
  if constexpr (packed_type<T>) {
    const auto slot = static_cast<std::size_t>(i) % elements_per_unit<T>;
    std::uint8_t& byte = *address<T>(data, i);
    const unsigned others = byte & ~pack_element<T>(static_cast<V>(-1), slot);
    byte = static_cast<std::uint8_t>(others | pack_element<T>(value, slot));
  } else if constexpr (float_format<T>) {
    data[i] = detent::round_to<T>(value);
  } else {
    data[i] = value;
  }
}

/// Makes the bits after the last element of a packed span zero, as its format says; does nothing
/// for other arguments.
template <class A>
void clear_padding([[maybe_unused]] const A& a) noexcept {
  if constexpr (is_packed_span<A>::value) {
    using T = typename A::element_type;
    const std::size_t rest = a.size() % elements_per_byte<T>;
    if (rest != 0) {
      std::uint8_t& last = a.data()[a.size_bytes() - 1];
      last = static_cast<std::uint8_t>(last & ((1U << (T::bits * rest)) - 1U));
    }
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_ELEMENTWISE_OPERANDS_HPP
