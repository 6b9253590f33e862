// SPDX-License-Identifier: BSD-3-Clause
#define DETENT_COMPILE_KERNELS
#include "quantization.h"
