// SPDX-License-Identifier: BSD-3-Clause
// A file with samples of an input, .npy or TensorProto, for a model and with a suffix that the
// first bytes choose: read in batches, whose samples must be those of the whole file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/sample_file.hpp>
#include <detent/graph/model/samples.hpp>
#include <detent/graph/model/tensor.hpp>

#include "fuzz_target.hpp"

namespace {

namespace graph = detent::graph;

void require_same(const graph::tensor& a, const graph::tensor& b) {
  if (!a.has_form_of(b) || (a.bytes() > 0 && std::memcmp(a.raw(), b.raw(), a.bytes()) != 0)) {
    fuzz::finding("a sample of a set", "is not that of its file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers choices({data, size});
  const bool is_proto = choices.below(2) == 0;
  const auto rank = static_cast<std::size_t>(choices.get<std::uint8_t>() % 5);
  const auto dims = choices.get<std::uint32_t>();
  const auto suffix = static_cast<int>(choices.get<std::int8_t>() % 8);
  const std::string path = fuzz::as_file(choices.rest(), is_proto ? ".pb" : ".npy");
  const graph::sample_options options{{.max_tensor_bytes = std::size_t{1} << 22U}, "--input "};
  fuzz::harmless("samples", [&] {
    graph::model m;
    graph::value_info input{"x", graph::element_type::undefined, rank < 4, {}, {}, {}};
    // The type of the file, or one to which some types are converted.
    input.type = dims % 3 == 0   ? graph::element_type::f32
                 : dims % 3 == 1 ? graph::element_type::f16
                                 : graph::sample_file(path, input, options.limits).type();
    graph::sample_file file(path, input, options.limits);
    for (std::size_t i = 0; input.has_shape && i < rank; ++i) {
      input.dims.push_back(static_cast<std::int8_t>(dims >> 8U * i));  // negative: open
    }
    m.inputs.push_back(input);
    const std::string text = path + (suffix == 7   ? ""
                                     : suffix == 6 ? ":fixed"
                                                   : ":axis=" + std::to_string(suffix));
    const graph::sample_set samples(m, {text}, options);
    const std::size_t batch = samples.fixed_batch() != 0 ? samples.fixed_batch() : 2;
    for (std::size_t at = 0; at < (std::min)(samples.size(), std::size_t{50}); at += batch) {
      const graph::tensor t = samples.batch(at, batch).at("x");
      const std::size_t real = (std::min)(batch, samples.size() - at);
      const std::size_t rank_of_file = file.dims().size();
      if (rank_of_file == 0 || suffix == 6 || t.rank() != rank_of_file) {
        continue;
      }
      const std::size_t axis = suffix == 7  ? 0
                               : suffix < 0 ? rank_of_file - static_cast<std::size_t>(-suffix)
                                            : static_cast<std::size_t>(suffix);
      require_same(graph::slice_samples(t, 0, real, axis),
                   graph::slice_samples(file.read(), at, real, axis));
    }
  });
  return 0;
}
