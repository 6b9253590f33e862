// SPDX-License-Identifier: BSD-3-Clause
// Calibration on many machines as a reduction of MPI: each process runs the float model on its
// share of the samples, and the states of the observers, as their saved bytes, are merged by an
// operation of MPI's own. The quantized model has the same bytes for any number of processes.
//
//   mpirun -n 4 calibrate_mpi MODEL.onnx SAMPLES.npy OUT.onnx [METHOD]
//
// MODEL.onnx has one input, and the first axis of SAMPLES.npy counts its samples. METHOD is an
// observer of the library, "minmax" if there is none. Biases are corrected for the rounding of
// weights. The first process writes OUT.onnx and prints how many samples it has heard of.
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include <detent/error.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/sample_axis.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/calibration_state.hpp>
#include <detent/graph/quantize/static_quantization.hpp>

namespace {

namespace graph = detent::graph;
using graph::calibration_state;

/// The saved state in a buffer: its size, and its bytes. All buffers have the same capacity,
/// because an operation of MPI works on elements of one size.
void put_state(const calibration_state& state, std::span<std::byte> to) {
  const std::vector<std::byte> bytes = state.save();
  const std::uint64_t size = bytes.size();
  detent::require(size <= to.size() - sizeof size, detent::error_kind::overflow, "a state has ",
                  size, " bytes, the buffer ", to.size());
  std::memcpy(to.data(), &size, sizeof size);
  std::memcpy(to.data() + sizeof size, bytes.data(), bytes.size());
}

graph::saved_state get_state(std::span<const std::byte> from) {
  std::uint64_t size = 0;
  std::memcpy(&size, from.data(), sizeof size);
  detent::require(size <= from.size() - sizeof size, detent::error_kind::bad_file,
                  "a state claims ", size, " bytes");
  const auto bytes = from.subspan(sizeof size, static_cast<std::size_t>(size));
  return {"a state", {bytes.begin(), bytes.end()}};
}

/// What is being merged: an operation of MPI takes no other arguments.
const calibration_state* empty_state = nullptr;
std::size_t capacity = 0;

/// in_out[i] = in_out[i] merged with in[i]; commutes and associates, to the bit.
void merge_states(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  try {
    for (int i = 0; i < *count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * capacity;
      const std::span<std::byte> to(static_cast<std::byte*>(in_out) + at, capacity);
      calibration_state state = *empty_state;
      state.merge(get_state(to));
      state.merge(get_state({static_cast<std::byte*>(in) + at, capacity}));
      put_state(state, to);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "calibrate_mpi: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/// The states of all processes, merged; every process gets them.
calibration_state all_merged(const calibration_state& mine) {
  // A merged state is at most as large as the states that it is made of.
  const std::uint64_t own = mine.save().size() + sizeof(std::uint64_t);
  std::uint64_t sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  detent::require(sum <= static_cast<std::uint64_t>(std::numeric_limits<int>::max()),
                  detent::error_kind::overflow, "the states have ", sum, " bytes");
  capacity = static_cast<std::size_t>(sum);
  MPI_Datatype type{};
  MPI_Type_contiguous(static_cast<int>(capacity), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  MPI_Op merge{};
  MPI_Op_create(merge_states, 1, &merge);
  std::vector<std::byte> buffer(capacity);
  std::vector<std::byte> result(capacity);
  put_state(mine, buffer);
  MPI_Allreduce(buffer.data(), result.data(), 1, type, merge, MPI_COMM_WORLD);
  MPI_Op_free(&merge);
  MPI_Type_free(&type);
  calibration_state all = *empty_state;
  all.merge(get_state(result));
  return all;
}

/// The samples first .. last - 1, one in each run.
graph::calibration_source samples_of(const graph::tensor& all, const std::string& input,
                                     std::size_t first, std::size_t last) {
  return [=, next = first]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    if (next == last) {
      next = first;
      return std::nullopt;
    }
    return std::map<std::string, graph::tensor>{{input, graph::slice_samples(all, next++, 1)}};
  };
}

void calibrate(int rank, int size, const std::vector<std::string>& arguments) {
  const graph::model m = graph::read_onnx(arguments[0]);
  detent::require(m.inputs.size() == 1, detent::error_kind::unsupported, arguments[0],
                  ": this example wants a model with one input");
  const graph::tensor samples = graph::read_npy(arguments[1]);
  detent::require(samples.rank() > 0 && samples.dim(0) > 0, detent::error_kind::invalid_argument,
                  arguments[1], " has no samples");
  graph::static_quantization_options options;
  options.method = arguments.size() > 3 ? arguments[3] : "minmax";
  options.bias.kind = graph::bias_correction::fast;
  const calibration_state empty(m, options);
  empty_state = &empty;
  // Process r of n has the r-th of n parts.
  const auto count = static_cast<std::uint64_t>(samples.dim(0));
  const auto part = [&](int r) {
    return static_cast<std::size_t>(count * static_cast<std::uint64_t>(r) /
                                    static_cast<std::uint64_t>(size));
  };
  const std::size_t first = part(rank);
  const std::size_t last = part(rank + 1);
  const graph::calibration_source mine = samples_of(samples, m.inputs[0].name, first, last);
  calibration_state state = empty;
  if (first < last) {
    state.observe(mine, first);
  }
  calibration_state all = all_merged(state);
  if (all.rounds() == 2) {
    all.begin_second_round();
    if (first < last) {
      all.observe(mine, first);
    }
    all = all_merged(all);
  }
  if (rank == 0) {
    graph::write_onnx(graph::static_quantization(m, all, options).result, arguments[2]);
    std::printf("%s: method %s, %" PRIu64 " samples\n", arguments[2].c_str(),
                options.method.c_str(), all.samples());
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4 || argc > 5) {
    if (rank == 0) {
      std::fprintf(stderr,
                   "usage: mpirun -n N calibrate_mpi MODEL.onnx SAMPLES.npy OUT.onnx [METHOD]\n");
    }
    MPI_Finalize();
    return 2;
  }
  try {
    calibrate(rank, size, std::vector<std::string>(argv + 1, argv + argc));
    MPI_Finalize();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "calibrate_mpi: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 1;
}
