#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the include graph of the library and fails on any breach of the rules of its rooms.

    structure.py check [ROOT]   prints each breach; exits with 1 if there is one
    structure.py itself [ROOT]  shows that the check sees breaches: copies the tree, breaks a rule, expects a failure

The rules:
  1. Each header stands on a floor (FLOORS, lowest first). It includes headers of its own floor and lower ones only.
  2. No header includes itself, directly or not, and no two rooms include each other. A room is a folder, with the
     header of the same name beside it; a header outside of folders is a room of its own.
  3. Nothing outside include/detent uses detail::, but tests of details.
  4. Nothing but what TOP_LEVEL lists stands at the top.
  5. Other libraries are included only where WHO_INCLUDES says.
  6. Each header beside all.hpp is part of it, so that the single header has everything.
"""
import re
import shutil
import sys
import tempfile
from pathlib import Path

# Folders and single headers of include/detent, from the lowest floor up. A folder stands for what it holds, but for
# folders and headers in it that are listed themselves.
FLOORS = [
    ["version.hpp", "config.hpp"],
    ["error.hpp", "target.hpp", "float_formats.hpp", "parallel.hpp", "simd.hpp", "window.hpp", "c_api.h", "c_api_observers.h", "c_api_plugin.h",
     "c_api_weights.h", "c_api_graph.h"],
    ["types.hpp", "sub_byte.hpp", "base/"],
    ["reference.hpp", "rounding.hpp"],
    ["kernels/"],
    ["kernels/portable/", "kernels/vector/"],
    ["kernels/definitions/"],
    ["dispatch.hpp", "cache_sizes.hpp", "src.hpp", "batch.hpp"],
    ["elementwise/"],
    ["quantize.hpp"],
    ["dynamic_quantize.hpp", "fake_quantize.hpp", "scale_rules.hpp", "bias.hpp", "fixed_point.hpp",
     "quantized_elementwise.hpp", "quantized_transform.hpp", "fused_epilogue.hpp", "row_ranges.hpp", "maxima.hpp"],
    ["power_of_two.hpp", "weights/"],
    ["pack.hpp"],
    ["epilogue.hpp"],
    ["products/"],
    ["gemm.hpp", "images/"],
    ["int4_weights.hpp", "gemm_batch.hpp", "packed_filters.hpp", "convolution.hpp", "prepared_product.hpp"],
    ["dynamic_linear.hpp", "dynamic_convolution.hpp", "fused_gemm.hpp", "fused_convolution.hpp", "winograd.hpp"],
    ["fused_dynamic_linear.hpp"],
    ["statistics/"],
    ["solvers/"],
    ["observers/"],
    ["observers/tools/"],
    ["observer_registry/registry.hpp"],
    ["observer_registry/default_observers.hpp"],
    ["observer_registry.hpp"],
    ["detent.hpp"],
    ["all.hpp", "c_api/"],
    ["graph/model/"],
    ["graph/ops/"],
    ["graph/run/"],
    ["graph/onnx.hpp"],
    ["graph/learn/gradients/"],
    ["graph/src/execution.hpp", "graph/learn/", "graph/rewrite/"],
    ["graph/quantize/"],
    ["graph/ppq/", "graph/nncf/", "graph/inc/"],
    ["graph/configuration/"],
    ["graph/src/", "graph/src.hpp", "runtimes/", "c_api/graph/"],
    ["runtimes/onnxruntime/"],
]
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "cmake", "include", "tests", "bench", "examples", "single_include", "docs",
             "README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "build",
             ".clang-format", ".clang-tidy", ".clangd", ".editorconfig", ".gitattributes", ".gitignore", ".git", ".DS_Store"}
# What is included, as a pattern: the headers of detent that may include it, as patterns of their paths.
WHO_INCLUDES = {
    r"hwy/detect_targets\.h": r"kernels/(target_rows|vector/highway)\.hpp",
    r"hwy/ops/set_macros-inl\.h": r"kernels/vector/for_each_(target|pass)-inl\.hpp",
    r"hwy/.*": r"kernels/vector/highway\.hpp",
    r"xsimd/.*": r"simd\.hpp|batch\.hpp",
    r"Eigen/.*": r"solvers/eigen_views\.hpp",
    r"protozero/.*": r"graph/(onnx|model/onnx_\w+)\.hpp",
    r"yaml-cpp/.*": r"graph/inc/yaml(_values|_evaluation|_training)?\.hpp|graph/configuration/(quantization|ppq_setting)_text\.hpp",
    r"onnxruntime_c_api\.h": r"runtimes/onnxruntime/.*",
    r"(CLI|nlohmann|doctest|benchmark)/.*": r"(?!)",
}
INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.M)


def room_of(header):
    """The folder of a header, or the folder that has the header's name and stands beside it. All headers of the C
    interface, c_api_*.h, belong to the folder of its implementation."""
    if header.startswith("c_api_"):
        return "c_api"
    folder, _, name = header.rpartition("/")
    beside = (folder + "/" if folder else "") + name.rsplit(".", 1)[0]
    return beside if any(other.startswith(beside + "/") for other in room_of.headers) else folder or header


def floor_of(header):
    """The floor of the longest entry that the header matches, or None."""
    best = (-1, None)
    for number, entries in enumerate(FLOORS):
        for entry in entries:
            if header == entry or (entry.endswith("/") and header.startswith(entry)):
                best = max(best, (len(entry), number))
    return best[1]


def cycle_in(edges):
    """A cycle of a graph as a list of its nodes, or an empty list."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return []
        path.append(node)
        for successor in sorted(edges.get(node, ())):
            if found := visit(successor):
                return found
        path.pop()
        done.add(node)
        return []

    for start in sorted(edges):
        if found := visit(start):
            return found
    return []


def breaches(root):
    """Every breach of the rules, as a sentence."""
    library = root / "include/detent"
    texts = {str(path.relative_to(library)): path.read_text(encoding="utf-8")
             for path in sorted(library.rglob("*")) if path.suffix in (".hpp", ".h", ".cpp")}
    room_of.headers = set(texts)
    sys.setrecursionlimit(10000)
    found, files, rooms = [], {}, {}
    for header, text in texts.items():
        floor = floor_of(header)
        if floor is None:
            found.append(f"{header} stands on no floor: list it, or its folder, in FLOORS")
        for name in INCLUDE.findall(text):
            if not name.startswith("detent/"):
                for what, who in WHO_INCLUDES.items():
                    if re.fullmatch(what, name):
                        if not re.fullmatch(who, header):
                            found.append(f"{header} includes <{name}>, which only {who} may")
                        break
                continue
            other = name.removeprefix("detent/")
            if other not in texts:
                found.append(f"{header} includes <{name}>, which does not exist")
                continue
            # The text of kernels is included by itself, once for each target.
            if not (other == header and header.endswith("-inl.hpp")):
                files.setdefault(header, set()).add(other)
            if room_of(header) != room_of(other):
                rooms.setdefault(room_of(header), set()).add(room_of(other))
            above = floor_of(other)
            if floor is not None and above is not None and above > floor:
                found.append(f"{header} (floor {floor}) includes {other}, which is higher (floor {above})")
    for what, edges in (("headers", files), ("rooms", rooms)):
        if cycle := cycle_in(edges):
            found.append(f"a cycle of {what}: " + " -> ".join(cycle))
    reached, open_ends = set(), ["all.hpp"]
    while open_ends:
        header = open_ends.pop()
        if header not in reached:
            reached.add(header)
            open_ends += files.get(header, ())
    for header in sorted(texts):
        # src.hpp is for the unit that compiles the kernels.
        if header.endswith(".hpp") and "/" not in header and header not in reached and header != "src.hpp":
            found.append(f"{header} is not part of all.hpp, so the single header lacks it")
    for folder in ("examples", "bench"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".h", ".c") and "detent::detail::" in path.read_text(encoding="utf-8"):
                found.append(f"{path.relative_to(root)} uses detent::detail::, which belongs to the library")
            elif path.suffix in (".hpp", ".cpp") and re.search(r"(?<!namespace )\bgraph::detail::", path.read_text(encoding="utf-8")):
                found.append(f"{path.relative_to(root)} uses graph::detail::, which belongs to the library")
    for path in sorted(root.iterdir()):
        # Hidden folders belong to tools and editors.
        if not (path.name in TOP_LEVEL or path.name.startswith("build") or (path.name.startswith(".") and path.is_dir())):
            found.append(f"{path.name} stands at the top level")
    return found


def itself(root):
    """Breaks each rule in a copy of the tree, and expects the check to say so."""
    cases = [
        ("an arrow up", "include/detent/types.hpp", "#include <detent/gemm.hpp>\n", "which is higher"),
        ("a cycle", "include/detent/graph/run/executor_options.hpp", "#include <detent/graph/run/executor.hpp>\n",
         "a cycle of headers"),
        ("a detail outside of the library", "examples/detent/main.cpp", "// detent::detail::round_up\n", "belongs to the library"),
        ("kernels in reference.hpp", "include/detent/reference.hpp", "#include <detent/kernels/panels.hpp>\n", "which is higher"),
        ("Highway elsewhere", "include/detent/gemm.hpp", "#include <hwy/highway.h>\n", "which only"),
        ("a header without a floor", "include/detent/somewhere.hpp", "\n", "stands on no floor"),
        ("a header that is not in the single one", "include/detent/somewhere.hpp", "\n", "the single header lacks it"),
        ("a file at the top", "notes.txt", "\n", "stands at the top level"),
        ("a hidden file at the top", ".trace", "\n", "stands at the top level"),
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy.mkdir()
        for name in ("include", "examples", "bench"):
            shutil.copytree(root / name, copy / name)
        if breaches(copy):
            sys.exit("structure.py: the tree breaks rules already; run `structure.py check`")
        for what, name, text, expected in cases:
            path = copy / name
            before = path.read_text(encoding="utf-8") if path.exists() else None
            path.write_text(text + (before or ""), encoding="utf-8")
            found = breaches(copy)
            good = any(expected in breach for breach in found)
            print(f"{'seen' if good else 'NOT SEEN'}: {what}{': ' + found[0] if found else ''}")
            failed += not good
            if before is None:
                path.unlink()
            else:
                path.write_text(before, encoding="utf-8")
    sys.exit(1 if failed else 0)


def main():
    root = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).resolve().parent.parent)
    if sys.argv[1:2] == ["itself"]:
        itself(root)
    elif sys.argv[1:2] != ["check"]:
        sys.exit(__doc__)
    if found := breaches(root):
        sys.exit("\n".join(found))
    print("the include graph keeps to the rules")


if __name__ == "__main__":
    main()
