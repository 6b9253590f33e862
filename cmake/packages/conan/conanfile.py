# SPDX-License-Identifier: BSD-3-Clause
"""Conan 2 recipe of detent, for `conan create cmake/packages/conan` in a checkout."""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


class DetentConan(ConanFile):
    name = "detent"
    description = "INT8 quantization numerics: exact on every input, the same bits on every target"
    license = "BSD-3-Clause"
    topics = ("quantization", "int8", "gemm", "onnx")
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_highway": [True, False], "with_xsimd": [True, False], "with_eigen": [True, False]}
    default_options = {"with_highway": True, "with_xsimd": True, "with_eigen": True}
    package_type = "static-library"  # with the shared library of the C interface beside

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "..", "..", "..", "include/detent/version.hpp"))
        numbers = [re.search(rf"DETENT_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
        self.version = ".".join(numbers)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, ROOT, self.export_sources_folder)

    def requirements(self):
        # Users of the headers compile them.
        if self.options.with_highway:
            self.requires("highway/[>=1.2]", transitive_headers=True)
        if self.options.with_xsimd:
            self.requires("xsimd/[>=13]", transitive_headers=True)
        if self.options.with_eigen:
            self.requires("eigen/[>=3.4]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("BUILD_TESTS", "BUILD_BENCHMARKS", "BUILD_EXAMPLES", "BUILD_TOOLS", "GRAPH_C"):
            toolchain.cache_variables[f"DETENT_{name}"] = False
        # The file of the package, if there is one in the system, is not taken in place of what was asked for.
        toolchain.cache_variables["DETENT_ONNXRUNTIME_INCLUDE_DIR"] = ""
        for package, variable, header in (("highway", "HIGHWAY", "hwy"), ("xsimd", "XSIMD", "xsimd"), ("eigen", "EIGEN", "Eigen")):
            folder = ""
            if self.options.get_safe(f"with_{package}"):
                folders = self.dependencies[package].cpp_info.aggregated_components().includedirs
                folder = next(f for f in folders if os.path.isdir(os.path.join(f, header)))
            toolchain.cache_variables[f"DETENT_{variable}_INCLUDE_DIR"] = folder
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        cmake = CMake(self)
        cmake.install(component="dev")
        cmake.install(component="runtime")
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # find_package() takes detent's own files; the components are for other build systems.
        self.cpp_info.set_property("cmake_find_mode", "none")
        requires = [f"{package}::{package}" for package in ("highway", "xsimd", "eigen") if self.options.get_safe(f"with_{package}")]
        headers = self.cpp_info.components["headers"]
        headers.set_property("pkg_config_name", "detent")
        headers.requires = requires
        headers.libdirs = []
        headers.builddirs = [os.path.join("lib", "cmake", "detent")]
        headers.defines = [f"DETENT_WITH_{package.upper()}={int(bool(self.options.get_safe(f'with_{package}')))}"
                           for package in ("highway", "xsimd", "eigen")]
        if self.settings.os in ("Linux", "FreeBSD"):
            headers.system_libs = ["pthread"]
        kernels = self.cpp_info.components["kernels"]
        kernels.set_property("pkg_config_name", "detent-kernels")
        kernels.libs = ["detent_kernels"]
        kernels.defines = ["DETENT_SEPARATE_COMPILATION"]
        kernels.requires = ["headers"]
        graph = self.cpp_info.components["graph"]
        graph.set_property("pkg_config_name", "detent-graph")
        graph.libs = ["detent_graph"]
        graph.defines = ["DETENT_GRAPH_SEPARATE_COMPILATION"]
        graph.requires = ["kernels"]
        c = self.cpp_info.components["c"]
        c.set_property("pkg_config_name", "detent-c")
        c.libs = ["detent_c"]
