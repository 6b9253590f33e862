// SPDX-License-Identifier: BSD-3-Clause
// The bytes of an .npy file: read, write, read again as a whole and along each axis.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <detent/graph/model/files.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/sample_axis.hpp>
#include <detent/graph/model/tensor.hpp>

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace graph = detent::graph;
  const std::string path = fuzz::as_file({data, size}, ".npy");
  graph::tensor t;
  if (fuzz::harmless("read", [&] { t = graph::read_npy(path); })) {
    fuzz::harmless("write", [&] {
      graph::write_npy(path, t);
      const graph::tensor again = graph::read_npy(path);
      if (!again.has_form_of(t) ||
          (t.bytes() > 0 && std::memcmp(again.raw(), t.raw(), t.bytes()) != 0)) {
        fuzz::finding("a tensor that was written", "is another one when read");
      }
      graph::npy_file file(path);
      for (std::size_t axis = 0; axis < t.rank() && axis < 4; ++axis) {
        const auto all = static_cast<std::size_t>(t.dim(axis));
        const graph::tensor part = file.read_slice(axis, all / 3, all / 2);
        const graph::tensor expected = graph::slice_samples(t, all / 3, all / 2, axis);
        if (!part.has_form_of(expected) ||
            (part.bytes() > 0 && std::memcmp(part.raw(), expected.raw(), part.bytes()) != 0)) {
          fuzz::finding("a slice of a file", "is not that of its tensor");
        }
      }
    });
  }
  return 0;
}
