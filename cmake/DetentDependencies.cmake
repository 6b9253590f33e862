# Finds the header-only packages that detent can use. Their own CMake packages are not asked: Highway's
# wants its compiled library and xsimd's wants xtl, and detent needs neither; Eigen is treated alike.
#
#   DETENT_HIGHWAY_INCLUDE_DIR, DETENT_XSIMD_INCLUDE_DIR, DETENT_EIGEN_INCLUDE_DIR   cache variables, found or given
#   detent_use_headers(target)   adds them to an INTERFACE target and defines DETENT_WITH_*

include_guard()

find_path(DETENT_HIGHWAY_INCLUDE_DIR hwy/highway.h DOC "Folder that holds hwy/highway.h, version 1.2 or later")
find_path(DETENT_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp DOC "Folder that holds xsimd/xsimd.hpp, version 13 or later")
find_path(DETENT_EIGEN_INCLUDE_DIR Eigen/Core PATH_SUFFIXES eigen3 DOC "Folder that holds Eigen/Core, version 3.4 or later")

# Sets `out` to the version that the macros `major` and `minor` of a header state.
function(detent_header_version header major minor out)
  set(numbers)
  foreach(macro ${major} ${minor})
    file(STRINGS ${header} line REGEX "define[ \t]+${macro}[ \t]+[0-9]+")
    string(REGEX REPLACE ".*${macro}[ \t]+([0-9]+).*" "\\1" number "${line}")
    list(APPEND numbers "${number}")
  endforeach()
  list(JOIN numbers "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

set(DETENT_WITH_HIGHWAY 0)
if(DETENT_HIGHWAY_INCLUDE_DIR)
  detent_header_version(${DETENT_HIGHWAY_INCLUDE_DIR}/hwy/base.h HWY_MAJOR HWY_MINOR highway_version)
  if(highway_version VERSION_GREATER_EQUAL 1.2)
    set(DETENT_WITH_HIGHWAY 1)
  else()
    message(STATUS "detent: Highway ${highway_version} in ${DETENT_HIGHWAY_INCLUDE_DIR} is older than 1.2 and not used")
  endif()
endif()
set(DETENT_WITH_XSIMD 0)
if(DETENT_XSIMD_INCLUDE_DIR)
  detent_header_version(${DETENT_XSIMD_INCLUDE_DIR}/xsimd/config/xsimd_config.hpp XSIMD_VERSION_MAJOR
    XSIMD_VERSION_MINOR xsimd_version)
  if(xsimd_version VERSION_GREATER_EQUAL 13)
    set(DETENT_WITH_XSIMD 1)
  else()
    message(STATUS "detent: xsimd ${xsimd_version} in ${DETENT_XSIMD_INCLUDE_DIR} is older than 13 and not used")
  endif()
endif()
set(DETENT_WITH_EIGEN 0)
if(DETENT_EIGEN_INCLUDE_DIR)
  # World.Major.Minor: what everybody calls 3.4.0 has WORLD 3, MAJOR 4.
  detent_header_version(${DETENT_EIGEN_INCLUDE_DIR}/Eigen/src/Core/util/Macros.h EIGEN_WORLD_VERSION
    EIGEN_MAJOR_VERSION eigen_version)
  if(eigen_version VERSION_GREATER_EQUAL 3.4)
    set(DETENT_WITH_EIGEN 1)
  else()
    message(STATUS "detent: Eigen ${eigen_version} in ${DETENT_EIGEN_INCLUDE_DIR} is older than 3.4 and not used")
  endif()
endif()
option(DETENT_PORTABLE "Use neither Highway nor xsimd" OFF)
if(DETENT_PORTABLE)
  set(DETENT_WITH_HIGHWAY 0)
  set(DETENT_WITH_XSIMD 0)
endif()
if(NOT DETENT_WITH_HIGHWAY)
  message(STATUS "detent: without Highway, the kernels are portable C++")
endif()

function(detent_use_headers target)
  target_compile_definitions(${target} INTERFACE
    DETENT_WITH_HIGHWAY=${DETENT_WITH_HIGHWAY} DETENT_WITH_XSIMD=${DETENT_WITH_XSIMD} DETENT_WITH_EIGEN=${DETENT_WITH_EIGEN})
  foreach(package HIGHWAY XSIMD EIGEN)
    set(folder ${DETENT_${package}_INCLUDE_DIR})
    if(DETENT_WITH_${package} AND NOT folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${folder}>)
    endif()
  endforeach()
endfunction()
