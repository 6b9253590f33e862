// SPDX-License-Identifier: BSD-3-Clause
// Samples for calibration: from files, or random ones.
#ifndef DETENT_CLI_CALIBRATION_DATA_HPP
#define DETENT_CLI_CALIBRATION_DATA_HPP

#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/quantize/calibration.hpp>

#include "progress.hpp"
#include "samples.hpp"

namespace detent_cli {

/// A source of samples, batch by batch, which shows each pass on the bar. Both must outlive it.
detent::graph::calibration_source source_of(const sample_set& samples, progress& bar);

/// Limits of random samples.
struct random_limits {
  /// The source gives no more runs than this.
  std::size_t most_runs = (std::numeric_limits<std::size_t>::max)();
  /// The values of one input in one run may have no more bytes than this.
  std::size_t most_bytes = (std::numeric_limits<std::size_t>::max)();
};

/// A source of the random samples that a dataset of type dummy describes, one by one or, if the
/// first axes of inputs fix a batch size, batch by batch: as many as the shapes hold, but at least
/// one. They are made when their turn comes; each pass has the same. Integers are rounded down and
/// saturate. The same seed gives the same samples. Throws invalid_argument if the number of shapes
/// is not that of the model's inputs, or the values of an input in one run have more bytes than
/// the limit; shape_mismatch if the shapes or the batch sizes contradict each other; and
/// unsupported if an input has no numbers.
detent::graph::calibration_source random_source(const model& m,
                                                const detent::graph::inc::dataset& d,
                                                std::uint64_t seed, const random_limits& limits);

}  // namespace detent_cli

#endif  // DETENT_CLI_CALIBRATION_DATA_HPP
