// SPDX-License-Identifier: BSD-3-Clause
#include <detent/all.hpp>
