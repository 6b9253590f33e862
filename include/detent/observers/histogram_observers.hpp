// SPDX-License-Identifier: BSD-3-Clause
// Observers that hand their histogram to a solver.
#ifndef DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP
#define DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP

#include <span>

#include <detent/byte_format.hpp>
#include <detent/observers/histogram.hpp>
#include <detent/solvers/distribution.hpp>
#include <detent/solvers/estimates.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/kl.hpp>
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

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_HISTOGRAM_OBSERVERS_HPP
