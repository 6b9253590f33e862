// SPDX-License-Identifier: BSD-3-Clause
// Observers that hand their histogram to a solver.
#ifndef DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP
#define DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP

#include <span>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/kl.hpp>
#include <detent/solvers/lp_norm.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Collects a histogram; `Solver{}(histogram, scheme)` is what finalize() returns. Throws as
/// histogram does.
template <bin_content kContent, class Solver>
class solving_observer {
 public:
  explicit solving_observer(bin_storage storage = bin_storage::dense) : histogram_(storage) {}

  void observe(std::span<const float> x) { histogram_.observe(x); }
  void observe(tensor_view<const float> x) { histogram_.observe(x); }
  void merge(const solving_observer& other) { histogram_.merge(other.histogram_); }
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    return Solver{}(histogram_, scheme);
  }
  [[nodiscard]] const basic_histogram<kContent>& histogram() const noexcept { return histogram_; }

  void write(detail::byte_writer& out) const { histogram_.write(out); }
  void read(detail::byte_reader& in) { histogram_.read(in); }

 private:
  basic_histogram<kContent> histogram_;
};

namespace detail {
struct solve_kl {
  scale_solution operator()(const count_histogram& h, quant_scheme scheme) const {
    return kl(h.bins(), h.range(), scheme);
  }
};
struct solve_mse {
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return exact_mse(h, scheme);
  }
};
struct solve_grid_mse {
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return grid_mse(distribution(h), scheme);
  }
};
struct solve_octav {
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return octav(distribution(h), scheme);
  }
};
struct solve_aciq {
  scale_solution operator()(const histogram& h, quant_scheme scheme) const {
    return aciq(distribution(h), scheme);
  }
};
}  // namespace detail

/// kl() of the values.
using kl_observer = solving_observer<bin_content::counts, detail::solve_kl>;
/// exact_mse() of the values' histogram, with bounds of their error.
using mse_observer = solving_observer<bin_content::sums, detail::solve_mse>;
/// grid_mse(), octav() and aciq() of the means of bins.
using grid_mse_observer = solving_observer<bin_content::sums, detail::solve_grid_mse>;
using octav_observer = solving_observer<bin_content::sums, detail::solve_octav>;
using aciq_observer = solving_observer<bin_content::sums, detail::solve_aciq>;

/// lp_norm() of the values' histogram, with bounds of their error.
class lp_observer {
 public:
  /// Throws invalid_argument if `p` is not in 1..8.
  explicit lp_observer(double p = lp_norm_options().p, bin_storage storage = bin_storage::dense)
      : p_(p), histogram_(storage) {
    detail::require_exponent(p, "lp_observer");
  }

  [[nodiscard]] double p() const noexcept { return p_; }

  void observe(std::span<const float> x) { histogram_.observe(x); }
  void observe(tensor_view<const float> x) { histogram_.observe(x); }
  /// Throws invalid_argument for another p.
  void merge(const lp_observer& other) {
    require(p_ == other.p_, error_kind::invalid_argument, "lp_observer: merging p ", other.p_,
            " into ", p_);
    histogram_.merge(other.histogram_);
  }
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    return lp_norm(histogram_, scheme, {.p = p_});
  }
  [[nodiscard]] const detent::histogram& histogram() const noexcept { return histogram_; }

  /// f64 p, and the histogram.
  void write(detail::byte_writer& out) const {
    out.put(p_);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
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
