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
needs. --svg draws the medians as bars. --target leaves out the rows of other targets, and keeps oneDNN to the
instructions of this one; without it, the processor's best target is beside oneDNN. --only leaves out the rows whose
name does not hold TEXT.

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

    `pattern` matches the names of its benchmarks; the group "column" is the column, and `row` names the row with the
    other groups. `counter` is the counter in the cells. With two `columns`, the ratio of the first to the second one is
    a column, too. Without a counter, the columns are counters. `best` chooses the best of several rounds."""

    title: str
    program: str
    pattern: str
    row: str
    counter: str
    unit: str
    columns: tuple = ()
    best: object = max


SHAPE = r"(?P<m>\d+)/(?P<n>\d+)/(?P<k>\d+)"
PEAK = "share of the peak of the multiply-add instruction"

TABLES = {
    "products": Table("Products beside oneDNN", "bench_gemm",
                      rf"beside_onednn/(?P<type>\w+)/(?P<column>detent|onednn)/(?P<target>\w+)/{SHAPE}",
                      "u8 x s8 -> {type}, {m} x {n} x {k}", "best_share_of_peak", PEAK, ("detent", "onednn")),
    "small_products": Table("Small products beside oneDNN", "bench_gemm",
                            rf"small_beside_onednn/(?P<type>\w+)/(?P<column>detent|onednn)/(?P<target>\w+)/{SHAPE}",
                            "u8 x s8 -> {type}, {m} x {n} x {k}", "GOPS", "GOPS", ("detent", "onednn")),
    "few_rows": Table("Few rows: prepared_product beside gemm()", "bench_gemm",
                      rf"few_rows_(?P<column>prepared|gemm)_u8s8_u8/(?P<target>\w+)/{SHAPE}",
                      "u8 x s8 -> u8, {m} x {n} x {k}", "GOPS", "GOPS", ("prepared", "gemm")),
    "two_threads": Table("Products on two threads beside one", "bench_gemm",
                         rf"gemm_u8s8_f32_(?P<column>two|one)_threads?/(?P<target>\w+)/{SHAPE}/real_time",
                         "u8 x s8 -> f32, {m} x {n} x {k}", "GOPS", "GOPS", ("two", "one")),
    "targets": Table("Products on every target", "bench_gemm",
                     rf"gemm_u8s8_u8/(?P<column>\w+)/{SHAPE}",
                     "u8 x s8 -> u8, {m} x {n} x {k}", "best_share_of_peak", PEAK),
    "dynamic": Table("Products whose left side is quantized in the call", "bench_gemm",
                     rf"dynamic_linear/(?P<column>\w+)/{SHAPE}",
                     "f32 x s8 -> f32, {m} x {n} x {k}", "best_share_of_peak", PEAK),
    "convolutions": Table("Convolutions beside oneDNN", "bench_conv",
                          r"beside_onednn/(?P<column>detent|onednn)/(?P<target>\w+)/(?P<shape>\w+)",
                          "{shape}", "best_share_of_peak", PEAK, ("detent", "onednn")),
    "fused": Table("Functors on blocks of results", "bench_fused", rf"fused/{SHAPE}", "{m} x {n} x {k}", "",
                   "time beside the built-in requantization; time of separate passes / fused time",
                   ("quantize_vs_built_in", "squared_relu_gain", "gelu_gain")),
    "elementwise": Table("Functions of elements on every target", "bench_elementwise",
                         r"(?P<function>[a-z]\w+)/(?P<column>portable|avx\w+)/(?P<count>65536|4194304)",
                         "{function}, {count} elements", "share_of_limit", "share of the speed of plain loads and stores"),
    "histograms": Table("Histograms on every target", "bench_observers",
                        r"histogram_(?P<what>\w+)/(?P<data>\w+)/threads:(?P<threads>\d)/(?P<column>portable|avx\w+)",
                        "{what}, {data}, {threads} threads", "rate", "billion values per second"),
    "finalize": Table("From a histogram to a scale", "bench_observers",
                      r"finalize_(?P<method>\w+)/(?P<data>\w+)/(?P<column>symmetric|asymmetric)",
                      "{method}, {data}", "rate", "milliseconds", best=min),
    "solvers": Table("Solvers", "bench_solvers",
                     r"(?P<function>[a-z_0-9]+)/bits:(?P<column>[48])/(?P<shape>.+)",
                     "{function}, {shape}", "values", "million weights per second, by bits"),
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


def extended(pattern):
    """A pattern of Python as an extended regular expression, which the programs take."""
    pattern = re.sub(r"[(][?]P<[a-z]+>", "(", pattern)
    pattern = re.sub(r"\[[^]]*\]", lambda found: found[0].replace(r"\w", "a-zA-Z0-9_").replace(r"\d", "0-9"), pattern)
    return pattern.replace(r"\w", "[a-zA-Z0-9_]").replace(r"\d", "[0-9]")


def run(command, table, options):
    """Runs the program: (groups of the pattern, value of the counter) for each benchmark and round."""
    environment = {**os.environ, **({"DETENT_BENCH_TARGET": options.target} if options.target else {})}
    done = subprocess.run([*command, f"--benchmark_filter=^{extended(table.pattern)}(/min_time:[0-9.]+)?$",
                           f"--benchmark_min_time={options.seconds}", f"--benchmark_repetitions={options.rounds}",
                           "--benchmark_enable_random_interleaving=true", "--benchmark_format=json"],
                          capture_output=True, text=True, env=environment)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"tables.py: {command[-1]}: {done.stderr.strip() or 'no output'}")
    cells = []
    in_order = sorted(json.loads(done.stdout)["benchmarks"],
                      key=lambda measured: (measured["family_index"], measured["per_family_instance_index"]))
    for measured in in_order:
        if measured["run_type"] != "iteration":
            continue  # a mean of the rounds
        found = re.fullmatch(table.pattern, re.sub(r"/(min_time|repeats):[\d.]+", "", measured["run_name"]))
        if measured.get("error_occurred"):
            sys.exit(f"tables.py: {measured['name']}: {measured['error_message']}")
        if found and table.counter:
            cells.append((found.groupdict(), measured[table.counter]))
        elif found:
            cells += [({**found.groupdict(), "column": counter}, measured[counter]) for counter in table.columns]
    return cells


def measure(table, options):
    """What was measured, as {row: {column: [value of each round]}}."""
    command = program_of(table, options)
    rows = {}
    for groups, value in run(command, table, options):
        if options.target and options.target not in (groups.get("target"), groups["column"]):
            continue
        row = table.row.format(**groups)
        if options.only in row:
            rows.setdefault(row, {}).setdefault(groups["column"], []).append(value)
    if not rows:
        sys.exit(f"tables.py: {command[-1]} has no benchmark for this table, or not for this target and rows; was its "
                 "peer there when it was built?")
    return rows


def shown(values, best):
    """The median of the rounds, and the best one in brackets."""
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
        texts = [shown(cells[c], table.best) if c in cells else "" for c in columns]
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
            print(f"{name:16} {table.title} ({table.unit})")
        for name, text in OTHERS.items():
            print(f"{name:16} {text}")
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
