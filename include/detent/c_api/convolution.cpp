// SPDX-License-Identifier: BSD-3-Clause
// The C interface's functions on filters and convolutions.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "calls.hpp"

struct detent_filters {
  detent::packed_filters value;
};

using namespace detent_c;  // NOLINT(google-build-using-namespace): this is their only purpose

namespace {

detent::activation_layout layout_of(detent_layout layout, const char* where) {
  require(layout == DETENT_NHWC || layout == DETENT_NCHW, error_kind::invalid_argument, where,
          ": layout ", static_cast<int>(layout), " is neither DETENT_NHWC nor DETENT_NCHW");
  return layout == DETENT_NHWC ? detent::activation_layout::nhwc : detent::activation_layout::nchw;
}

detent::window window_of(const detent_window* window, const char* where) {
  const detent_window given =
      known_fields(&checked(window, where, "window"), &detent_window_init, where);
  detent::window w;
  w.batch = given.batch;
  w.in_height = given.in_height;
  w.in_width = given.in_width;
  w.stride_height = given.stride_height;
  w.stride_width = given.stride_width;
  w.dilation_height = given.dilation_height;
  w.dilation_width = given.dilation_width;
  w.pad_top = given.pad_top;
  w.pad_left = given.pad_left;
  w.pad_bottom = given.pad_bottom;
  w.pad_right = given.pad_right;
  w.input_layout = layout_of(given.input_layout, where);
  w.output_layout = layout_of(given.output_layout, where);
  return w;
}

}  // namespace

extern "C" {

void detent_filter_shape_init(detent_filter_shape* shape) {
  *shape = {};
  shape->size = sizeof *shape;
  shape->groups = 1;
  shape->kernel_height = 1;
  shape->kernel_width = 1;
}

detent_status detent_pack_filters(const detent_filter_shape* shape, const int8_t* weights,
                                  size_t count, const detent_weight_options* options,
                                  detent_filters** filters) {
  return guarded([&] {
    constexpr const char* where = "detent_pack_filters";
    detent_filters*& result = checked(filters, where, "result");
    const detent_filter_shape given =
        known_fields(&checked(shape, where, "shape"), &detent_filter_shape_init, where);
    const detent_weight_options o = known_fields(options, &detent_weight_options_init, where);
    const detent::filter_shape f{given.out_channels, given.in_channels, given.groups,
                                 given.kernel_height, given.kernel_width};
    result = new detent_filters{
        detent::packed_filters(f, std::span(weights, count), weight_options_of(o, where))};
  });
}

void detent_filters_free(detent_filters* filters) { delete filters; }

detent_status detent_filters_shape(const detent_filters* filters, detent_filter_shape* shape) {
  return guarded([&] {
    constexpr const char* where = "detent_filters_shape";
    const detent::filter_shape& f = checked(filters, where, "filters").value.shape();
    write_known_fields(
        &checked(shape, where, "shape"),
        {0, f.out_channels, f.in_channels, f.groups, f.kernel_height, f.kernel_width}, where);
  });
}

detent_status detent_filters_save(const detent_filters* filters, void* buffer, size_t capacity,
                                  size_t* needed) {
  return guarded([&] {
    constexpr const char* where = "detent_filters_save";
    const detent::packed_filters& value = checked(filters, where, "filters").value;
    checked(needed, where, "needed");
    hand_out(value.save(), buffer, capacity, needed, where);
  });
}

detent_status detent_filters_load(const void* bytes, size_t size, detent_filters** filters) {
  return guarded([&] {
    constexpr const char* where = "detent_filters_load";
    detent_filters*& result = checked(filters, where, "result");
    result = new detent_filters{detent::packed_filters::load(bytes_of(bytes, size, where))};
  });
}

void detent_window_init(detent_window* window) {
  *window = {};
  window->size = sizeof *window;
  window->batch = 1;
  window->in_height = window->in_width = 1;
  window->stride_height = window->stride_width = 1;
  window->dilation_height = window->dilation_width = 1;
  window->input_layout = window->output_layout = DETENT_NHWC;
}

detent_status detent_convolution_size(const detent_filters* filters, const detent_window* window,
                                      size_t* out_height, size_t* out_width) {
  return guarded([&] {
    constexpr const char* where = "detent_convolution_size";
    const detent::filter_shape& f = checked(filters, where, "filters").value.shape();
    const detent::window w = window_of(window, where);
    size_t& height = checked(out_height, where, "height");
    size_t& width = checked(out_width, where, "width");
    detent::detail::require_window(f, w);
    height = w.out_height(f);
    width = w.out_width(f);
  });
}

detent_status detent_convolve(const detent_filters* filters, const detent_window* window,
                              detent_type input_type, const void* input, size_t input_size,
                              detent_type output_type, void* output, size_t output_size,
                              const detent_epilogue* epilogue, const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_convolve";
    const detent::packed_filters& f = checked(filters, where, "filters").value;
    const detent::filter_shape& shape = f.shape();
    const detent::window w = window_of(window, where);
    const detent_epilogue e = known_fields(epilogue, &detent_epilogue_init, where);
    require(e.lhs_scales == nullptr && e.lhs_zero_points == nullptr && e.addend == nullptr,
            error_kind::unsupported, where, ": parameters of rows and addends are for detent_gemm");
    detent::epilogue_options o = scalar_options(e);
    o.bias = optional_span(e.bias, shape.out_channels);
    with_byte(input_type, where, [&]<class A>() {
      with_output(output_type, where, [&]<class T>() {
        const std::span<const A> in(static_cast<const A*>(input), input_size);
        const std::span<T> out(static_cast<T*>(output), output_size);
        if (e.residual != nullptr) {
          // The check comes first, so that the extents below do not wrap.
          detent::detail::require_images(shape, w, in, out);
          const std::size_t pixels = w.out_height(shape) * w.out_width(shape);
          const bool planes = w.output_layout == detent::activation_layout::nchw;
          o.residual = {e.residual, w.batch * (planes ? shape.out_channels : pixels),
                        planes ? pixels : shape.out_channels};
        }
        detent::convolve(in, f, w, out, o, parallel_of(parallel));
      });
    });
  });
}

void detent_dynamic_convolution_options_init(detent_dynamic_convolution_options* options) {
  *options = {};
  options->size = sizeof *options;
  options->per_image = 1;
  options->qmin = 0;
  options->qmax = 255;
  options->lower = -std::numeric_limits<float>::infinity();
  options->upper = std::numeric_limits<float>::infinity();
}

detent_status detent_dynamic_convolve(const detent_filters* filters, const detent_window* window,
                                      const float* input, size_t input_size, float* output,
                                      size_t output_size,
                                      const detent_dynamic_convolution_options* options,
                                      const detent_parallel* parallel) {
  return guarded([&] {
    constexpr const char* where = "detent_dynamic_convolve";
    const detent::packed_filters& f = checked(filters, where, "filters").value;
    const detent::window w = window_of(window, where);
    const detent_dynamic_convolution_options given =
        known_fields(options, &detent_dynamic_convolution_options_init, where);
    detent::dynamic_convolution_options o;
    o.per_image = given.per_image != 0;
    o.input_scheme = {{given.qmin, given.qmax}, given.symmetric != 0};
    o.bias = optional_span(given.bias, f.shape().out_channels);
    o.lower = given.lower;
    o.upper = given.upper;
    detent::dynamic_convolve(std::span(input, input_size), f, w, std::span(output, output_size), o,
                             parallel_of(parallel));
  });
}

}  // extern "C"
