#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times models in ONNX Runtime with the library's execution provider and without it.

    onnxruntime_provider.py --provider LIBRARY [--threads N] [--rounds N] [--option KEY=VALUE] MODEL...

A row per model: medians of both in microseconds, their ratio (above 1: the provider is faster), the share of nodes that
it claims, and the largest difference of the outputs, in parts of the largest output. The two sessions take turns in
groups of runs that last 20 ms each; the ratio is the median of the ratios of neighbouring groups."""
import argparse
import pathlib
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples/onnxruntime"), str(ROOT / "tests/graph")]
import onnxruntime_provider as provider_test
import run as example


def seconds_of(session, inputs, runs):
    begin = time.perf_counter()
    for _ in range(runs):
        session.run(None, inputs)
    return (time.perf_counter() - begin) / runs


def measure(device, model, arguments, folder):
    report = pathlib.Path(folder) / "report.txt"
    given = dict(option.split("=", 1) for option in arguments.option)
    theirs = example.make_session(model, threads=arguments.threads)
    ours = example.make_session(model, device, arguments.threads, {**given, "report": report})
    inputs = example.random_inputs(theirs, np.random.default_rng(1))
    expected, got = theirs.run(None, inputs), ours.run(None, inputs)
    difference = max(float(np.max(np.abs(e.astype(float) - g), initial=0) / max(1e-30, np.max(np.abs(e), initial=0)))
                     for e, g in zip(expected, got))
    once = seconds_of(theirs, inputs, 3)
    runs = max(1, int(0.02 / once))
    pairs = [(seconds_of(theirs, inputs, runs), seconds_of(ours, inputs, runs)) for _ in range(arguments.rounds)]
    ratio = float(np.median([a / b for a, b in pairs]))
    a, b = np.median(pairs, axis=0) * 1e6
    nodes = provider_test.claimed(report)
    print(f"{pathlib.Path(model).stem:44} {a:10.1f} {b:10.1f} {ratio:6.2f} {nodes[0]:5}/{nodes[1]:<5} {difference:9.2e}",
          flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--provider", required=True, metavar="LIBRARY")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    device = example.find_device(arguments.provider)
    print(f"{'model':44} {'CPU us':>10} {'ours us':>10} {'ratio':>6} {'claimed':>11} {'difference':>9}")
    with tempfile.TemporaryDirectory() as folder:
        ratios = [measure(device, model, arguments, folder) for model in arguments.models]
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}, smallest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
