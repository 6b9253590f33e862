// SPDX-License-Identifier: BSD-3-Clause
// Observers that collect a histogram and hand it to a scale solver at the end.
#ifndef DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP
#define DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP

#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/kl.hpp>
#include <detent/solvers/lp_norm.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Collects a histogram of the values; finalize() returns what `Solver{}(histogram, scheme)`
/// returns. `Solver::observer` is the name of the observer in messages. The aliases below name the
/// solvers: kl_observer, mse_observer, grid_mse_observer, octav_observer and aciq_observer.
///
/// The result does not depend on the order of values, batches and merges, nor on the CPU; only that
/// of aciq_observer may differ between C++ libraries, see aciq(). Memory:
/// 252 KiB of counts or 504 KiB with sums, less with sparse storage. Not thread-safe: use one per
/// thread, then merge().
///
/// @code{.cpp}
/// const std::vector<float> first_batch = {-1.0F, 0.5F, 2.0F};
/// const std::vector<float> second_batch = {0.25F, 3.0F};
///
/// detent::mse_observer observer;
/// observer.observe(first_batch);
///
/// detent::mse_observer other;  // for example on another thread
/// other.observe(second_batch);
/// observer.merge(other);
///
/// const detent::scale_solution s = observer.finalize(detent::asymmetric<std::uint8_t>);
/// const detent::quant_params p = s.params;               // scale and zero point
/// const double upper_bound = s.evidence.objective;       // of the mean squared error with p
/// const double lower_bound = s.evidence.lower_bound;     // of that with any parameters
/// @endcode
template <bin_content kContent, class Solver>
class solving_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Makes an observer that has seen nothing and stores its histogram as `storage` says.
  explicit solving_observer(bin_storage storage = bin_storage::dense) : histogram_(storage) {}

  /// Observes one batch. NaN and infinities are counted and make finalize() throw. Throws
  /// invalid_argument for null data, overflow for more than 2^48 values in all.
  void observe(std::span<const float> x) { histogram_.observe(x); }
  /// Observes one batch on several threads, as the histogram does. The result is that of one
  /// thread.
  void observe(std::span<const float> x, const parallel_for& parallel) {
    histogram_.observe(x, parallel);
  }
  /// Observes one batch of any shape and strides. Throws what the other form of observe() throws.
  void observe(tensor_view<const float> x) { histogram_.observe(x); }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws overflow for more than 2^48 values in all.
  void merge(const solving_observer& other) { histogram_.merge(other.histogram_); }
  /// The solver's scale, zero point and evidence. Throws invalid_argument if nothing, a NaN or an
  /// infinity was seen, and what the solver throws for the scheme.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    static_cast<void>(histogram_.range(Solver::observer));  // the error has the observer's name
    return Solver{}(histogram_, scheme);
  }
  /// The histogram of everything observed.
  [[nodiscard]] const basic_histogram<kContent>& histogram() const noexcept { return histogram_; }

  /// Appends the state of the histogram.
  void write(detail::byte_writer& out) const { histogram_.write(out); }
  /// Replaces the state by one that write() appended. Throws bad_file for an impossible state.
  void read(detail::byte_reader& in) { histogram_.read(in); }

 private:
  basic_histogram<kContent> histogram_;
};

namespace detail {
struct solve_kl {
  static constexpr const char* observer = "kl_observer";
  scale_solution operator()(const count_histogram& h, quant_scheme scheme) const {
    return kl(h.bins(), h.range(), scheme);
  }
};
struct solve_mse {
  static constexpr const char* observer = "mse_observer";
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return exact_mse(h, scheme);
  }
};
struct solve_grid_mse {
  static constexpr const char* observer = "grid_mse_observer";
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return grid_mse(distribution(h), scheme);
  }
};
struct solve_octav {
  static constexpr const char* observer = "octav_observer";
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return octav(distribution(h), scheme);
  }
};
struct solve_aciq {
  static constexpr const char* observer = "aciq_observer";
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return aciq(distribution(h), scheme);
  }
};
}  // namespace detail

/// Finds the clip value of least Kullback-Leibler divergence, see kl().
using kl_observer = solving_observer<bin_content::counts, detail::solve_kl>;
/// Finds the parameters of least squared error, see exact_mse(). The evidence bounds the error of
/// the values, of which only bins are known, from both sides.
using mse_observer = solving_observer<bin_content::sums, detail::solve_mse>;
/// Takes the best of a grid of clip values by squared error, see grid_mse(). Bins count with their
/// means.
using grid_mse_observer = solving_observer<bin_content::sums, detail::solve_grid_mse>;
/// Finds the clip value of the OCTAV method, see octav(). Bins count with their means.
using octav_observer = solving_observer<bin_content::sums, detail::solve_octav>;
/// Finds the clip value of the ACIQ method, see aciq(). Bins count with their means.
using aciq_observer = solving_observer<bin_content::sums, detail::solve_aciq>;

/// Collects a histogram and finds the parameters of least L^p error, see lp_norm(). The evidence
/// bounds the error of the values, of which only bins are known, from both sides. Used like the
/// other observers of this file (see solving_observer). Memory: 504 KiB, less with sparse storage.
/// Not thread-safe: use one per thread, then merge().
class lp_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Makes an observer for the exponent `p`. Throws invalid_argument if it is not in 1..8.
  explicit lp_observer(double p = lp_norm_options().p, bin_storage storage = bin_storage::dense)
      : p_(p), histogram_(storage) {
    detail::require_exponent(p, "lp_observer");
  }

  /// The exponent of the error.
  [[nodiscard]] double p() const noexcept { return p_; }

  /// Observes one batch. NaN and infinities are counted and make finalize() throw. Throws
  /// invalid_argument for null data, overflow for more than 2^48 values in all.
  void observe(std::span<const float> x) { histogram_.observe(x); }
  /// Observes one batch on several threads, as the histogram does. The result is that of one
  /// thread.
  void observe(std::span<const float> x, const parallel_for& parallel) {
    histogram_.observe(x, parallel);
  }
  /// Observes one batch of any shape and strides. Throws what the other form of observe() throws.
  void observe(tensor_view<const float> x) { histogram_.observe(x); }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws invalid_argument if `other` has another p, overflow for more than
  /// 2^48 values in all.
  void merge(const lp_observer& other) {
    require(p_ == other.p_, error_kind::invalid_argument, "lp_observer: merging p ", other.p_,
            " into ", p_);
    histogram_.merge(other.histogram_);
  }
  /// What lp_norm() returns for the histogram. Throws invalid_argument if nothing, a NaN or an
  /// infinity was seen, and what lp_norm() throws for the scheme.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    static_cast<void>(histogram_.range("lp_observer"));  // the error has the observer's name
    return lp_norm(histogram_, scheme, {.p = p_});
  }
  /// The histogram of everything observed.
  [[nodiscard]] const detent::histogram& histogram() const noexcept { return histogram_; }

  /// Appends f64 p and the state of the histogram.
  void write(detail::byte_writer& out) const {
    out.put(p_);
    histogram_.write(out);
  }
  /// Replaces the exponent and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    const auto p = in.get<double>();
    detail::require_exponent(p, "lp_observer", error_kind::bad_file);
    histogram_.read(in);
    p_ = p;
  }

 private:
  double p_;
  detent::histogram histogram_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP
