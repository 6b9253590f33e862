// SPDX-License-Identifier: BSD-3-Clause
// Checks of options and of saved states that the optimizers have in common.
#ifndef DETENT_SOLVERS_OPTIMIZER_CHECKS_HPP
#define DETENT_SOLVERS_OPTIMIZER_CHECKS_HPP

#include <cmath>
#include <cstddef>
#include <span>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Throws invalid_argument unless the rate is positive and finite.
inline void require_learning_rate(double rate, const char* where) {
  require(std::isfinite(rate) && rate > 0.0, error_kind::invalid_argument, where,
          ": a learning rate of ", rate);
}

/// Throws invalid_argument unless the momentum is in [0, 1).
inline void require_momentum(double momentum, const char* where) {
  require(momentum >= 0.0 && momentum < 1.0, error_kind::invalid_argument, where,
          ": a momentum of ", momentum, " is not in [0, 1)");
}

/// Throws invalid_argument unless the weight decay is at least 0 and finite.
inline void require_weight_decay(double decay, const char* where) {
  require(std::isfinite(decay) && decay >= 0.0, error_kind::invalid_argument, where,
          ": a weight decay of ", decay);
}

/// Throws shape_mismatch unless parameters and gradients have `count` elements each.
inline void require_parameters(std::size_t parameters, std::size_t gradients, std::size_t count,
                               const char* where) {
  require(parameters == count && gradients == count, error_kind::shape_mismatch, where, ": ",
          parameters, " parameters and ", gradients, " gradients, not ", count);
}

/// Throws invalid_argument unless a saved state has `size` numbers, all of them finite.
inline void require_saved_numbers(std::span<const double> state, std::size_t size,
                                  const char* where) {
  require(state.size() == size, error_kind::invalid_argument, where, ": a state of ", state.size(),
          " numbers, not ", size);
  for (std::size_t i = 0; i < state.size(); ++i) {
    require(std::isfinite(state[i]), error_kind::invalid_argument, where, ": number ", i,
            " of the state is ", state[i]);
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_OPTIMIZER_CHECKS_HPP
