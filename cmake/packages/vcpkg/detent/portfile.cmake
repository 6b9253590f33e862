# An overlay port: vcpkg install detent --overlay-ports=CHECKOUT/cmake/packages/vcpkg
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

# The C interface is a shared library with any triplet: its users need no C++ runtime.
set(VCPKG_POLICY_DLLS_IN_STATIC_LIBRARY enabled)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DDETENT_BUILD_TESTS=OFF
    -DDETENT_BUILD_BENCHMARKS=OFF
    -DDETENT_BUILD_EXAMPLES=OFF
    -DDETENT_BUILD_TOOLS=OFF
    -DDETENT_GRAPH_C=OFF
    -DDETENT_ONNXRUNTIME_INCLUDE_DIR=
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/detent)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
