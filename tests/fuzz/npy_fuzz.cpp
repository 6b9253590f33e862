// SPDX-License-Identifier: BSD-3-Clause
// The bytes of an .npy file: read, write, read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include <detent/graph/model/files.hpp>
#include <detent/graph/model/npy.hpp>
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
    });
  }
  return 0;
}
