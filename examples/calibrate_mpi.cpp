// SPDX-License-Identifier: BSD-3-Clause
// Calibration on many machines is a reduction: each process observes its share of the samples, and
// the states of the observers, as their saved bytes, are merged by an operation of MPI's own. The
// result has the same bits for any number of processes.
//
//   mpirun -n 4 calibrate_mpi SAMPLES.npy [METHOD...]
//
// SAMPLES.npy holds floats, first axis = samples; process r of n takes samples r, r + n, and so on.
// The first process prints a line for each method: the parameters for uint8, how many values they
// come from, and a checksum of the state that all of them are merged into.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include <detent/all.hpp>
#include <detent/graph/model/npy.hpp>

namespace {

/// FNV-1a, to show on one line that all runs end with the same bytes.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 14695981039346656037U;
  for (const std::byte b : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 1099511628211U;
  }
  return hash;
}

using detent::any_observer;

/// The states that MPI hands around all have this size: the number of bytes, and the bytes. It is
/// more than any observer of bounded memory needs.
constexpr std::size_t state_size = std::size_t{2} << 20;

/// An observer of the kind that is being merged; operations of MPI take no other arguments.
const any_observer* prototype = nullptr;

void put_state(const any_observer& observer, std::byte* to) {
  const std::vector<std::byte> bytes = observer.save();
  const std::uint64_t size = bytes.size();
  detent::require(size <= state_size - sizeof size, detent::error_kind::overflow, "a state has ",
                  size, " bytes");
  std::memset(to, 0, state_size);
  std::memcpy(to, &size, sizeof size);
  std::memcpy(to + sizeof size, bytes.data(), bytes.size());
}

any_observer get_state(const std::byte* from) {
  std::uint64_t size = 0;
  std::memcpy(&size, from, sizeof size);
  detent::require(size <= state_size - sizeof size, detent::error_kind::bad_file, "a state claims ",
                  size, " bytes");
  any_observer observer = *prototype;
  observer.load(std::span<const std::byte>(from + sizeof size, static_cast<std::size_t>(size)));
  return observer;
}

/// in_out[i] = in_out[i] merged with in[i]; commutes and associates.
void merge_states(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  try {
    for (int i = 0; i < *count; ++i) {
      auto* to = static_cast<std::byte*>(in_out) + static_cast<std::size_t>(i) * state_size;
      any_observer observer = get_state(to);
      observer.merge(
          get_state(static_cast<std::byte*>(in) + static_cast<std::size_t>(i) * state_size));
      put_state(observer, to);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "calibrate_mpi: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int calibrate(int rank, int size, const std::string& path, std::vector<std::string> methods) {
  const detent::graph::tensor samples = detent::graph::read_npy(path);
  detent::require(samples.type() == detent::graph::element_type::f32 && samples.rank() > 1 &&
                      samples.count() > 0,
                  detent::error_kind::invalid_argument, path,
                  ": floats are wanted, first axis = samples");
  const std::span<const float> values = samples.data<float>();
  const std::size_t each = values.size() / static_cast<std::size_t>(samples.dim(0));
  if (methods.empty()) {
    methods = {"minmax", "percentile", "kl", "mse", "octav", "mean_minmax"};
  }
  MPI_Datatype state_type{};
  MPI_Type_contiguous(static_cast<int>(state_size), MPI_BYTE, &state_type);
  MPI_Type_commit(&state_type);
  MPI_Op merge{};
  MPI_Op_create(merge_states, 1, &merge);
  for (const std::string& method : methods) {
    any_observer observer = detent::make_observer(method);
    detent::require(observer.phases() == 1, detent::error_kind::unsupported, "method ", method,
                    " wants two passes, this example makes one");
    detent::require(observer.target<detent::moving_average_observer>() == nullptr,
                    detent::error_kind::unsupported, "method ", method,
                    " depends on the order of samples");
    const any_observer empty = observer;
    prototype = &empty;
    for (auto i = static_cast<std::size_t>(rank); i < values.size() / each;
         i += static_cast<std::size_t>(size)) {
      observer.observe(values.subspan(i * each, each));
    }
    std::vector<std::byte> mine(state_size);
    std::vector<std::byte> all(state_size);
    put_state(observer, mine.data());
    MPI_Reduce(mine.data(), all.data(), 1, state_type, merge, 0, MPI_COMM_WORLD);
    if (rank != 0) {
      continue;
    }
    const any_observer merged = get_state(all.data());
    const detent::scale_solution s = merged.finalize(detent::asymmetric<std::uint8_t>);
    std::printf("%s scale %.9g zero_point %d count %" PRIu64 " state %016" PRIx64 "\n",
                method.c_str(), static_cast<double>(s.params.scale), s.params.zero_point,
                s.evidence.count, checksum(merged.save()));
  }
  MPI_Op_free(&merge);
  MPI_Type_free(&state_type);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 2) {
    if (rank == 0) {
      std::fprintf(stderr, "usage: mpirun -n N calibrate_mpi SAMPLES.npy [METHOD...]\n");
    }
    MPI_Finalize();
    return 2;
  }
  try {
    const int code =
        calibrate(rank, size, argv[1], std::vector<std::string>(argv + 2, argv + argc));
    MPI_Finalize();
    return code;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "calibrate_mpi: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 1;
}
