#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What it costs to compile the library: seconds, memory and code size of small translation units.

    build_cost.py [--compiler g++] [--include DIR]... [--rounds N] [--json]
    build_cost.py --check-sizes [--compiler g++] [--include DIR]...    compares sizes of code with SIZE_LIMITS; no times

DIRs hold Highway, xsimd and Eigen where the compiler does not find them by itself (default: build/deps). Beside them the
yardsticks are compiled, in the same run and in turns: one parse with nlohmann/json, and Eigen/Dense. A unit's figures
are the median time and the largest memory of the rounds. Columns "/ json" are ratios to the json unit.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ONE_QUANTIZE = """#include <detent/quantize.hpp>
void f(std::span<const float> x, std::span<std::uint8_t> q) { detent::quantize(x, q, {.scale = 0.1F, .zero_point = 3}); }
"""
ONE_GEMM = """#include <detent/gemm.hpp>
void f(detent::matrix_view<const std::uint8_t> a, const detent::packed_weights& w, detent::matrix_view<float> c) {
  detent::gemm(a, w, c, {.lhs_scale = 0.1F, .lhs_zero_point = 3});
}
"""
JSON = """#include <nlohmann/json.hpp>
int f(const char* text) { return nlohmann::json::parse(text).at("x").get<int>(); }
"""

# name, text or file of the repository, whether it is compiled in separate mode, too
UNITS = [
    ("nlohmann/json, one parse", JSON, False),
    ("Eigen/Dense, included", "#include <Eigen/Dense>\n", False),
    ("quantize.hpp, included", "#include <detent/quantize.hpp>\n", True),
    ("gemm.hpp, included", "#include <detent/gemm.hpp>\n", True),
    ("detent.hpp, included", "#include <detent/detent.hpp>\n", True),
    ("single header, included", '#include "single_include/detent/detent.hpp"\n', True),
    ("one call of quantize", ONE_QUANTIZE, True),
    ("one call of gemm", ONE_GEMM, True),
    ("the README's example", ROOT / "examples/02_gemm.cpp", True),
    ("the graph example", ROOT / "examples/03_calibrate_and_quantize_a_model.cpp", True),
]

# Kilobytes of code and constants that a unit may have, for x86-64.
SIZE_LIMITS = {
    ("one call of quantize", "header-only"): 100,
    ("one call of gemm", "header-only"): 330,
}


def compile_once(command):
    """Seconds and megabytes of one run of the compiler."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"build_cost.py: {' '.join(map(str, command))}\n{message}")
    return time.monotonic() - begin, usage.ru_maxrss / 1024


def text_size(object_file):
    """Bytes of code and constants, as size(1) counts them."""
    return int(subprocess.run(["size", object_file], capture_output=True, text=True, check=True).stdout.split()[6])


def check_sizes(rows):
    too_large = 0
    for unit, limit in SIZE_LIMITS.items():
        kilobytes = rows[unit]["text"] / 1000
        print(f"{', '.join(unit)}: {kilobytes:.1f} KB of code, at most {limit}")
        too_large += kilobytes > limit
    sys.exit(1 if too_large else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", action="append", default=[], metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="REGEX", help="units whose names match")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check-sizes", action="store_true")
    options = parser.parse_args()
    folders = options.include or [ROOT / "build/deps/usr/include", "/usr/include/eigen3"]
    base = [options.compiler, "-std=c++20", "-O2", "-I", ROOT / "include", "-I", ROOT]
    for folder in folders:
        base += ["-isystem", folder]
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for name, source, has_separate in UNITS:
            if not re.search(options.only, name):
                continue
            path = source
            if isinstance(source, str):
                path = Path(folder) / (re.sub(r"\W+", "_", name) + ".cpp")
                path.write_text(source)
            for mode in ["header-only", "separate"] if has_separate else [""]:
                if options.check_sizes and (name, mode) not in SIZE_LIMITS:
                    continue
                flags = ["-DDETENT_SEPARATE_COMPILATION", "-DDETENT_GRAPH_SEPARATE_COMPILATION"] if mode == "separate" else []
                jobs.append(((name, mode), base + flags + ["-c", path, "-o", Path(folder) / "unit.o"]))
        for _ in range(1 if options.check_sizes else options.rounds):
            for key, command in jobs:
                seconds, megabytes = compile_once(command)
                row = rows.setdefault(key, {"seconds": [], "megabytes": 0, "text": 0})
                row["seconds"].append(seconds)
                row["megabytes"] = max(row["megabytes"], megabytes)
                row["text"] = text_size(command[-1])
    if options.check_sizes:
        check_sizes(rows)
        return
    yardstick = rows.get(("nlohmann/json, one parse", ""))
    result = []
    for (name, mode), row in rows.items():
        seconds = statistics.median(row["seconds"])
        ratio = seconds / statistics.median(yardstick["seconds"]) if yardstick else None
        result.append({"unit": name, "mode": mode, "seconds": round(seconds, 2), "to_json": ratio and round(ratio, 2),
                       "megabytes": round(row["megabytes"]), "text_kilobytes": round(row["text"] / 1000, 1)})
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'unit':28}{'mode':13}{'seconds':>8}{'/ json':>8}{'MB':>6}{'text KB':>9}")
    for row in result:
        ratio = f"{row['to_json']:.2f}" if row["to_json"] else ""
        print(f"{row['unit']:28}{row['mode']:13}{row['seconds']:8.2f}{ratio:>8}{row['megabytes']:6}{row['text_kilobytes']:9.1f}")


if __name__ == "__main__":
    main()
