#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the speed of ONNX Runtime's calibration collectors and of detent's histograms, which take turns on the same
kind of data: 100 batches of a ReLU activation of 1 x 64 x 56 x 56, on one thread. Prints CSV: millions of elements per
second, the best of all rounds, and how many times as many detent's are.

  OMP_NUM_THREADS=1 build/venv/bin/python bench/calibrators.py build/release/bench/bench_observers [ROUNDS]
"""

import contextlib
import csv
import io
import subprocess
import sys
import time

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCollector


def collect(method, symmetric, bins):
    random = np.random.default_rng(1)
    batches = [np.maximum(random.standard_normal((1, 64, 56, 56), dtype=np.float32), 0) for _ in range(100)]
    collector = HistogramCollector(method=method, symmetric=symmetric, num_bins=bins, num_quantized_bins=128,
                                   percentile=99.999, scenario="same")
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # the collector prints a line for each batch
        for batch in batches:
            collector.collect({"x": [batch]})
    seconds = time.perf_counter() - start
    assert sum(collector.histogram_dict["x"][0]) > 0
    return sum(b.size for b in batches) / seconds / 1e6


def ours(benchmark, target):
    text = subprocess.run([benchmark, "--benchmark_format=csv", "--benchmark_min_time=0.3",
                           f"--benchmark_filter=histogram_(counts|sums)/relu/threads:1/{target}$"],
                          check=True, capture_output=True, text=True).stdout
    rows = csv.DictReader(io.StringIO(text[text.index("name,"):]))
    return {row["name"].split("/")[0]: float(row["rate"]) * 1000 for row in rows}


def main():
    benchmark = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    listing = subprocess.run([benchmark, "--benchmark_list_tests"], check=True, capture_output=True, text=True).stdout
    target = [name for name in listing.split() if name.startswith("min_max/")][-1].split("/")[1]
    best = {}
    for _ in range(rounds):
        results = {"ort_entropy_128": collect("entropy", False, 128),
                   "ort_percentile_2048": collect("percentile", True, 2048), **ours(benchmark, target)}
        for name, rate in results.items():
            best[name] = max(best.get(name, 0.0), rate)
    peer = max(best["ort_entropy_128"], best["ort_percentile_2048"])
    print("collector,million_elements_per_s,times_the_faster_ort")
    for name, rate in best.items():
        print(f"{name},{rate:.0f},{rate / peer:.2f}")


if __name__ == "__main__":
    main()
