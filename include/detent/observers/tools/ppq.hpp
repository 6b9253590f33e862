// SPDX-License-Identifier: BSD-3-Clause
// The folder observers/tools/ppq/ reproduces the calibration observers of PPQ, per tensor, on a
// CPU: with the same scales to the bit, except where an observer says otherwise. Headers there may
// include observers/tools/ and what that folder may include. This file includes all of them.
//
// A call of observe() stands for one batch. How values are split into batches matters to
// percentile_observer alone.
//
// A batch with a NaN or an infinity makes range() and finalize() throw; PPQ lets it through. An
// empty batch changes nothing; PPQ asserts that there is none. Objects are values and not
// thread-safe; use one per thread.
//
// Source: PPQ 0.6.6, ppq/quantization/observer.
#ifndef DETENT_OBSERVERS_TOOLS_PPQ_HPP
#define DETENT_OBSERVERS_TOOLS_PPQ_HPP

#include <detent/observers/tools/ppq/constant.hpp>
#include <detent/observers/tools/ppq/isotone.hpp>
#include <detent/observers/tools/ppq/kl.hpp>
#include <detent/observers/tools/ppq/min_max.hpp>
#include <detent/observers/tools/ppq/mse.hpp>
#include <detent/observers/tools/ppq/percentile.hpp>

#endif  // DETENT_OBSERVERS_TOOLS_PPQ_HPP
