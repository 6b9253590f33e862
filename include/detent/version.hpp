// SPDX-License-Identifier: BSD-3-Clause
// The version of the library. CMake reads it from here.
#ifndef DETENT_VERSION_HPP
#define DETENT_VERSION_HPP

#define DETENT_VERSION_MAJOR 0
#define DETENT_VERSION_MINOR 1
#define DETENT_VERSION_PATCH 0

#endif  // DETENT_VERSION_HPP
