#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures one table of the benchmarks, prints it as Markdown, and draws it.

    tables.py TABLE [--build DIR] [--rounds N] [--seconds S] [--target NAME] [--onednn newest] [--only TEXT]
              [--svg FILE]
    tables.py --list

The benchmark programs in DIR/bench (build/release) measure everything --rounds times, in random order, so that what
disturbs the machine for a while meets both sides of a row. A cell shows the median of the rounds and, in brackets, the
best one. A ratio is that of the medians: above 1, detent is faster. The peer oneDNN is that of the system when the
benchmarks are built (Debian's libdnnl-dev); --onednn newest gets the newest one of Debian's mirror and builds what it
needs. --svg draws the medians as bars. --target measures only the rows of this target, and keeps oneDNN to its
instructions; without it, the processor's best target is beside oneDNN. --only measures only the rows whose name holds
TEXT.

Tables of whole models and of accuracy have programs of their own, which --list names."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from html import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Table:
    """What a benchmark program measures, as rows and columns.

    `pattern` matches the names of its benchmarks without what Google Benchmark appends (SUFFIXES); the group "column" is
    the column, and `row` names the row with the other groups. `counter` is the counter in the cells. Without one, the
    columns are counters. With two `columns`, the ratio of the first to the second one is a column, too. Less is better in
    the columns `less`, and more in all others."""

    title: str
    program: str
    pattern: str
    row: str
    counter: str
    unit: str
    columns: tuple = ()
    less: tuple = ()


SUFFIXES = r"/(min_time|iterations):[\d.]+|/real_time"
SHAPE = r"(?P<m>\d+)/(?P<n>\d+)/(?P<k>\d+)"
HISTOGRAM = r"histogram_(?P<what>\w+)/(?P<data>\w+)/threads:(?P<threads>\d)/(?P<column>portable|avx\w+)"
WINOGRAD = r"winograd/(?P<column>\w+)/(?P<target>\w+)/(?P<in>\d+)/(?P<out>\d+)/(?P<size>\d+)"
PEAK = "share of the peak of the multiply-add instruction"

TABLES = {
    "products": Table("Products beside oneDNN", "bench_gemm",
                      rf"beside_onednn/(?P<type>\w+)/(?P<column>detent|onednn)/(?P<target>\w+)/{SHAPE}",
                      "u8 x s8 -> {type}, {m} x {n} x {k}", "best_share_of_peak", PEAK, ("detent", "onednn")),
    "small_products": Table("Small products beside oneDNN", "bench_gemm",
                            rf"small_beside_onednn/(?P<type>\w+)/(?P<column>detent|onednn)/(?P<target>\w+)/{SHAPE}",
                            "u8 x s8 -> {type}, {m} x {n} x {k}", "GOPS", "GOPS", ("detent", "onednn")),
    "products_s8s8": Table("Products of signed left sides beside oneDNN", "bench_gemm",
                           rf"s8s8_beside_onednn/(?P<type>\w+)/(?P<column>detent|onednn)/(?P<target>\w+)/{SHAPE}",
                           "s8 x s8 -> {type}, {m} x {n} x {k}", "best_share_of_peak", PEAK, ("detent", "onednn")),
    "few_rows": Table("Few rows: prepared_product beside gemm()", "bench_gemm",
                      rf"few_rows_(?P<column>prepared|gemm)_u8s8_u8/(?P<target>\w+)/{SHAPE}",
                      "u8 x s8 -> u8, {m} x {n} x {k}, {target}", "GOPS", "GOPS", ("prepared", "gemm")),
    "single_rows": Table("Single rows with weights in the second-level cache", "bench_gemm",
                         rf"single_row/(?P<what>\w+)/(?P<target>\w+)/{SHAPE}",
                         "{what}, {m} x {n} x {k}, {target}", "",
                         "nanoseconds of a call; GB of weights per second beside plain loads of as many bytes",
                         ("nanoseconds", "GB_per_s", "read_limit", "share_of_limit"), ("nanoseconds",)),
    "two_threads": Table("Products on two threads beside one", "bench_gemm",
                         rf"gemm_u8s8_f32_(?P<column>two|one)_threads?/(?P<target>\w+)/{SHAPE}",
                         "u8 x s8 -> f32, {m} x {n} x {k}, {target}", "GOPS", "GOPS", ("two", "one")),
    "two_threads_small": Table("Small products on two threads beside one", "bench_gemm",
                               rf"small_u8s8_f32_(?P<column>two|one)_threads?/(?P<target>\w+)/{SHAPE}",
                               "u8 x s8 -> f32, {m} x {n} x {k}, {target}", "GOPS", "GOPS", ("two", "one")),
    "pool": Table("Two tasks on a pool of two threads", "bench_gemm", r"two_tasks/(?P<tasks>\w+)/(?P<when>\w+)",
                  "{tasks}, {when}", "", "microseconds of a call, the median of 1000", ("microseconds",),
                  ("microseconds",)),
    "targets": Table("Products on every target", "bench_gemm",
                     rf"gemm_u8s8_u8/(?P<weights>normal|even)/(?P<column>\w+)/{SHAPE}",
                     "u8 x s8 -> u8, {m} x {n} x {k}, {weights} weights", "best_share_of_peak", PEAK),
    "dynamic": Table("Products that quantize their left side beside those of 8-bit left sides", "bench_gemm",
                     rf"(?P<column>dynamic_linear|gemm_u8s8_f32)/(?P<target>\w+)/{SHAPE}",
                     "f32 or u8 x s8 -> f32, {m} x {n} x {k}, {target}", "best_share_of_peak", PEAK,
                     ("dynamic_linear", "gemm_u8s8_f32")),
    "convolutions": Table("Convolutions beside oneDNN", "bench_conv",
                          r"beside_onednn/(?P<column>detent|onednn)/(?P<target>\w+)/(?P<shape>\w+)/zero_point:(?P<zero>\d+)",
                          "{shape}, zero point {zero}", "best_share_of_peak", PEAK, ("detent", "onednn")),
    "winograd": Table("Float convolutions by Winograd's algorithm beside direct sums", "bench_winograd", WINOGRAD,
                      "3x3, {in} to {out} channels, {size} x {size} pixels, {target}", "GFLOPS",
                      "GFLOPS of the direct sums", ("tile_4", "direct", "tile_2")),
    "winograd_errors": Table("Errors of float convolutions by Winograd's algorithm beside direct sums", "bench_winograd",
                             WINOGRAD, "3x3, {in} to {out} channels, {size} x {size} pixels, {target}", "error",
                             "root mean square of the error in parts of that of the outputs, times 2^24",
                             less=("tile_4", "direct", "tile_2")),
    "fused": Table("Functors on blocks of results", "bench_fused", rf"fused/{SHAPE}", "{m} x {n} x {k}", "",
                   "time beside the built-in requantization; time of separate passes / fused time, and the limit of that",
                   ("quantize_vs_built_in", "registers_vs_built_in", "squared_relu_gain", "squared_relu_limit",
                    "gelu_gain", "gelu_limit"), ("quantize_vs_built_in", "registers_vs_built_in")),
    "elementwise": Table("Functions of elements on every target", "bench_elementwise",
                         r"(?P<function>[a-z]\w+)/(?P<column>portable|avx\w+)/(?P<count>65536|4194304)",
                         "{function}, {count} elements", "share_of_limit", "share of the speed of plain loads and stores"),
    "histograms": Table("Histograms on every target", "bench_observers",
                        HISTOGRAM, "{what}, {data}, {threads} threads", "rate", "billion values per second"),
    "histogram_ratio": Table("Histograms on every target beside a plain loop on one thread", "bench_observers",
                             HISTOGRAM, "{what}, {data}, {threads} threads", "ratio", "times the speed of the loop"),
    "finalize": Table("From a histogram to a scale", "bench_observers",
                      r"finalize_(?P<method>\w+)/(?P<data>\w+)/(?P<column>symmetric|asymmetric)",
                      "{method}, {data}", "rate", "milliseconds", less=("symmetric", "asymmetric")),
    "solvers": Table("Solvers", "bench_solvers",
                     r"(?P<function>[a-z_0-9]+)/bits:(?P<column>[48])/(?P<shape>.+)",
                     "{function}, {shape}", "values", "million weights per second, by bits"),
    "solvers_two_threads": Table("Solvers on two threads beside one", "bench_solvers",
                                 r"(?P<function>\w+)/threads:(?P<column>[12])/bits:(?P<bits>\d)/(?P<shape>.+)",
                                 "{function}, {bits} bits, {shape}", "values", "million weights per second, by threads",
                                 ("2", "1")),
}

OTHERS = {
    "models": "models.py: whole models in the executor, beside ONNX Runtime",
    "provider": "onnxruntime_provider.py: models in ONNX Runtime, with and without the execution provider",
    "float_operators": "operators.py: single float operators in the executor, beside ONNX Runtime",
    "operators": "beside_onnxruntime.py: products and convolutions of the C interface, beside ONNX Runtime's operators",
    "large_models": "large_models.py: weight-only quantization of a model of 4 GiB, time and memory",
    "training": "training.py: an epoch of quantization-aware training, beside PyTorch",
    "quantizers": "quantizers.py: accuracy of quantized models, beside ONNX Runtime's quantizer",
    "tuners": "tuners.py: the tuner, beside that of Neural Compressor",
    "compilation": "build_cost.py: seconds to compile small units",
}


def run_steps(steps):
    """Runs commands one after the other; the first that fails ends the program with its output."""
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"tables.py: {' '.join(map(str, step))}:\n{done.stdout}{done.stderr}")


def program_of(table, options):
    """The command that runs a table's program."""
    build = pathlib.Path(options.build)
    if options.onednn == "system":
        if not (build / "CMakeCache.txt").exists():
            sys.exit(f"tables.py: {build} has no build: sh tests/run.sh makes one")
        run_steps([["cmake", "--build", build, "--target", table.program]])
        return [build / "bench" / table.program]
    if "oneDNN" not in table.title:
        sys.exit(f"tables.py: {options.table} has no column for oneDNN")
    folder = ROOT / "build/onednn"
    run_steps([["sh", ROOT / "cmake/setup.sh", "--onednn", ROOT / "build"],
               ["cmake", "-S", ROOT, "-B", build, f"-DDETENT_NEWEST_ONEDNN={folder}"],
               ["cmake", "--build", build, "--target", f"{table.program}_newest_onednn"]])
    (loader,) = folder.glob("usr/lib/*/ld-linux-*")
    system = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, env={"PATH": "/sbin:/usr/sbin"}).stdout
    libraries = [loader.parent, *dict.fromkeys(str(pathlib.Path(path).parent) for path in re.findall("=> (/.*)", system))]
    return [loader, "--library-path", ":".join(map(str, libraries)), build / "bench" / f"{table.program}_newest_onednn"]


def choose(listed, table, options):
    """The benchmarks of a program that the table needs, as {name: groups of the pattern}."""
    chosen = {}
    for name in listed:
        found = re.fullmatch(table.pattern, re.sub(SUFFIXES, "", name))
        if found is None or options.only not in table.row.format(**found.groupdict()):
            continue
        if options.target in (None, found.groupdict().get("target"), found.groupdict().get("column")):
            chosen[name] = found.groupdict()
    return chosen


def run(command, table, options):
    """Runs the program: (groups of the pattern, value of the counter) for each benchmark and round."""
    environment = {**os.environ, **({"DETENT_BENCH_TARGET": options.target} if options.target else {})}

    def output(*arguments):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
        if done.returncode != 0 or not done.stdout:
            sys.exit(f"tables.py: {command[-1]}: {done.stderr.strip() or 'no output'}")
        return done.stdout

    chosen = choose(output("--benchmark_list_tests=true").splitlines(), table, options)
    if not chosen:
        sys.exit(f"tables.py: {command[-1]} has no benchmark for this table, or not for this target and rows; was its "
                 "peer there when it was built?")
    names = "|".join(chosen).replace(".", "[.]")
    cells = {name: [] for name in chosen}  # in the order in which the program lists them, not in that of the rounds
    for measured in json.loads(output(f"--benchmark_filter=^({names})$", f"--benchmark_min_time={options.seconds}",
                                      f"--benchmark_repetitions={options.rounds}", "--benchmark_format=json",
                                      "--benchmark_enable_random_interleaving=true"))["benchmarks"]:
        if measured["run_type"] != "iteration":
            continue  # a mean of the rounds
        if measured.get("error_occurred"):
            sys.exit(f"tables.py: {measured['name']}: {measured['error_message']}")
        groups = chosen[measured["run_name"]]
        if table.counter:
            cells[measured["run_name"]].append((groups, measured[table.counter]))
        else:
            cells[measured["run_name"]] += [({**groups, "column": counter}, measured[counter])
                                            for counter in table.columns if counter in measured]
    return [cell for of_name in cells.values() for cell in of_name]


def measure(table, options):
    """What was measured, as {row: {column: [value of each round]}}."""
    rows = {}
    for groups, value in run(program_of(table, options), table, options):
        rows.setdefault(table.row.format(**groups), {}).setdefault(groups["column"], []).append(value)
    return rows


def shown(table, column, values):
    """The median of the rounds, and the best one in brackets."""
    best = min if column in table.less else max
    return f"{statistics.median(values):.3g} ({best(values):.3g})"


def markdown(table, rows):
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    if table.columns:
        columns = [column for column in table.columns if column in columns]
    compared = len(columns) == 2 and bool(table.columns)
    lines = [f"{table.title}: {table.unit}", "",
             "| | " + " | ".join(columns + ["ratio"] * compared) + " |", "|---" * (1 + len(columns) + compared) + "|"]
    ratios = []
    for row, cells in rows.items():
        texts = [shown(table, c, cells[c]) if c in cells else "" for c in columns]
        if compared:
            if len(cells) == 2:
                ratios.append(statistics.median(cells[columns[0]]) / statistics.median(cells[columns[1]]))
            texts.append(f"{ratios[-1]:.2f}" if len(cells) == 2 else "")
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    if ratios:
        below = sum(ratio < 1 for ratio in ratios)
        lines += ["", f"geometric mean of the ratios {statistics.geometric_mean(ratios):.2f}, smallest {min(ratios):.2f}, "
                      f"below 1 in {below} of {len(ratios)} rows"]
    return "\n".join(lines)


def svg(table, rows):
    """A bar for each cell, its row's name at the left and its value at the end."""
    columns = list(table.columns) or list(dict.fromkeys(column for cells in rows.values() for column in cells))
    colours = ("#2563eb", "#94a3b8", "#0f766e", "#b45309", "#7c3aed", "#be123c")
    bar, gap, left, width = 12, 8, 260, 460
    top = 56
    most = max(statistics.median(values) for cells in rows.values() for values in cells.values())
    parts, y = [], top
    for row, cells in rows.items():
        height = bar * len(cells)
        parts.append(f'<text x="{left - 8}" y="{y + height / 2 + 4:g}" text-anchor="end">{escape(row)}</text>')
        for column in (c for c in columns if c in cells):
            value = statistics.median(cells[column])
            length = width * value / most
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 2}" '
                         f'fill="{colours[columns.index(column) % len(colours)]}"/>')
            parts.append(f'<text x="{left + length + 4:.1f}" y="{y + bar - 3}" class="value">{value:.3g}</text>')
            y += bar
        y += gap
    key, x = [], left
    for i, column in enumerate(columns):
        key.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colours[i % len(colours)]}"/>'
                   f'<text x="{x + 14}" y="43">{escape(column)}</text>')
        x += 30 + 8 * len(column)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 70} {y + 8}" font-family="sans-serif" '
        'font-size="11">',
        "<style>text { fill: #1f2937 } .value { font-size: 9px } @media (prefers-color-scheme: dark) "
        "{ text { fill: #e5e7eb } }</style>",
        f'<text x="{left}" y="20" font-size="14">{escape(table.title)}: {escape(table.unit)}</text>', *key, *parts,
        "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=TABLES, metavar="TABLE")
    parser.add_argument("--list", action="store_true", help="the tables that there are")
    parser.add_argument("--build", default=ROOT / "build/release", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="least time of a benchmark")
    parser.add_argument("--target", help="only this one, e.g. avx512_vnni")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--onednn", choices=("system", "newest"), default="system")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    if options.list:
        for name, table in TABLES.items():
            print(f"{name:19} {table.title} ({table.unit})")
        for name, text in OTHERS.items():
            print(f"{name:19} {text}")
        return
    if not options.table:
        parser.error("which table? --list names them")
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    table = TABLES[options.table]
    rows = measure(table, options)
    print(markdown(table, rows))
    if options.svg:
        options.svg.write_text(svg(table, rows))


if __name__ == "__main__":
    main()
