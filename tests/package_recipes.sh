#!/bin/sh
# package_recipes.sh [WORK]: runs the recipes of cmake/packages for Conan and vcpkg, without their servers.
#
# Conan comes from pip and runs its whole recipe, with the libraries that detent can do without left out: they would have
# to come from its server. vcpkg's port is run by CMake with functions that do what those of vcpkg do, on the libraries
# that cmake/setup.sh has put into build/deps. Programs are built with what each has packaged, and run.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=${1:-$PWD/build/package_recipes}
rm -rf "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd)

version=$(sed -n 's/^#define DETENT_VERSION_[A-Z]* \([0-9]*\)$/\1/p' include/detent/version.hpp | paste -s -d .)
grep -q "\"version\": \"$version\"" cmake/packages/vcpkg/detent/vcpkg.json ||
  { echo "package_recipes: vcpkg.json is not of version $version" >&2; exit 1; }

echo "package_recipes: vcpkg's port"
cat >"$work/vcpkg.cmake" <<'END'
cmake_minimum_required(VERSION 3.25)
set(CURRENT_PACKAGES_DIR ${WORK}/installed)
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_FILE ${WORK}/vcpkg.log)
endfunction()
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  foreach(type Debug Release)
    set(prefix ${CURRENT_PACKAGES_DIR})
    if(type STREQUAL Debug)
      set(prefix ${CURRENT_PACKAGES_DIR}/debug)
    endif()
    run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${WORK}/${type} -G Ninja -DCMAKE_BUILD_TYPE=${type}
      -DCMAKE_INSTALL_PREFIX=${prefix} -DCMAKE_PREFIX_PATH=${DEPENDENCIES} -DCMAKE_CXX_FLAGS_DEBUG=-O0 ${arg_OPTIONS})
  endforeach()
endfunction()
function(vcpkg_cmake_install)
  foreach(type Debug Release)
    run(${CMAKE_COMMAND} --build ${WORK}/${type} --target install)
  endforeach()
endfunction()
# Moves the configuration to share/NAME, where the prefix is as many folders up as from lib/cmake less one.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
  file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/detent)
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/lib/cmake)
  file(GLOB debug ${CURRENT_PACKAGES_DIR}/debug/${arg_CONFIG_PATH}/*-debug.cmake)
  foreach(file IN LISTS debug)
    file(READ ${file} text)
    string(REPLACE "\${_IMPORT_PREFIX}/lib" "\${_IMPORT_PREFIX}/debug/lib" text "${text}")
    cmake_path(GET file FILENAME name)
    file(WRITE ${CURRENT_PACKAGES_DIR}/share/detent/${name} "${text}")
  endforeach()
  file(GLOB files ${CURRENT_PACKAGES_DIR}/share/detent/*.cmake)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    # As vcpkg does it: the folder of the file is two below the prefix now, not three.
    string(REPLACE "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)"
      "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)" text "${text}")
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()
function(vcpkg_fixup_pkgconfig)
  if(NOT EXISTS ${CURRENT_PACKAGES_DIR}/lib/pkgconfig/detent.pc)
    message(FATAL_ERROR "no detent.pc")
  endif()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(COPY_FILE ${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/detent/copyright)
endfunction()
include(${PORT}/portfile.cmake)
END
dependencies=""
[ ! -d build/deps/usr ] || dependencies=$root/build/deps/usr
cmake -DWORK="$work" -DPORT="$root/cmake/packages/vcpkg/detent" -DDEPENDENCIES="$dependencies" -P "$work/vcpkg.cmake"
cmake -S tests/build_modes/consumers/find_package -B "$work/consumer" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_PREFIX_PATH="$work/installed;$dependencies" >"$work/consumer.log"
cmake --build "$work/consumer" >"$work/consumer.log"
ctest --test-dir "$work/consumer" --output-on-failure

echo "package_recipes: Conan's recipe"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip -q install --disable-pip-version-check "conan>=2"
CONAN_HOME=$work/conan
export CONAN_HOME
PATH=$work/venv/bin:$PATH
conan profile detect --force >"$work/conan.log" 2>&1
conan create cmake/packages/conan --no-remote -s compiler.cppstd=20 -o "detent/*:with_highway=False" -o "detent/*:with_xsimd=False" \
  -o "detent/*:with_eigen=False" >"$work/conan.log" 2>&1 || { tail -n 40 "$work/conan.log" >&2; exit 1; }
grep -E "zero point|Conv|detent/$version" "$work/conan.log" | tail -n 4
echo "package_recipes: both recipes make packages that programs build with"
