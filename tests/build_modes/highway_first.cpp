// SPDX-License-Identifier: BSD-3-Clause
// Must not compile: header-only mode after Highway.
#include <hwy/highway.h>
// before detent
#include <detent/detent.hpp>
