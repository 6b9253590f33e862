// SPDX-License-Identifier: BSD-3-Clause
// Limits on what a model file may contain.
#ifndef DETENT_GRAPH_MODEL_READ_LIMITS_HPP
#define DETENT_GRAPH_MODEL_READ_LIMITS_HPP

#include <cstddef>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What a model may contain that is read from a file. A file that exceeds a limit is rejected with
/// bad_file. The defaults leave room for large models: a small file that refers to the same
/// external data again and again, or that consists of empty nodes, would need far more memory than
/// its own size without them. Elements that are mapped rather than read take no memory, but count
/// as if they did: whoever copies them later needs it. Ranks are limited by max_tensor_rank, nested
/// sub-graphs by max_body_depth.
struct read_limits {
  /// The largest size of one tensor in memory, in bytes. Default: 16 GiB.
  std::size_t max_tensor_bytes = std::size_t{16} << 30U;
  /// The largest size of all tensors of the file together in memory, in bytes. Default: 64 GiB.
  std::size_t max_constant_bytes = std::size_t{64} << 30U;
  /// The largest number of nodes, those of sub-graphs included. Default: one million.
  std::size_t max_nodes = 1000000;
  /// Whether external data may stay in its file, mapped into memory, where the system can do that
  /// (mapped_file). If another process makes the file shorter while a model or a copy of its
  /// tensors lives, the process ends by SIGBUS; without mapping, files are read once and may
  /// change.
  bool map_external_data = true;
  /// Whether a model may have external data: if not, no file is read but the model's own.
  bool allow_external_data = true;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_READ_LIMITS_HPP
