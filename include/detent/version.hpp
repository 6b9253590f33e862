// SPDX-License-Identifier: BSD-3-Clause
// The version of the library. CMake reads the three numbers from this file.
#ifndef DETENT_VERSION_HPP
#define DETENT_VERSION_HPP

/// First number of the version MAJOR.MINOR.PATCH.
#define DETENT_VERSION_MAJOR 0
/// Second number of the version MAJOR.MINOR.PATCH.
#define DETENT_VERSION_MINOR 1
/// Third number of the version MAJOR.MINOR.PATCH.
#define DETENT_VERSION_PATCH 0

#endif  // DETENT_VERSION_HPP
