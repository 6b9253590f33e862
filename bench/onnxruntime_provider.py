#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times models in ONNX Runtime with the library's execution provider and without it.

    onnxruntime_provider.py --provider LIBRARY [--threads N] [--rounds N] [--option KEY=VALUE] MODEL...

A row per model: medians of both in microseconds, their ratio (above 1: the provider is faster), the share of nodes that
it claims, and the largest difference of the outputs, in parts of the largest output. The two sessions take turns in
groups of runs that last 20 ms each; the ratio is the median of the ratios of neighbouring groups. Each session has a
process of its own, because the threads of a session wait for work by spinning, and would take the processors of the
other one; both processes keep to the same N processors, of which one may be slower than another."""
import argparse
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples/onnxruntime"), str(ROOT / "tests/graph")]
import onnxruntime_provider as provider_test
import run as example


def serve(pipe, library, model, threads, options):
    """A process with one session: sends the outputs or why there are none, then answers a number of runs with the
    seconds of one."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    device = example.find_device(library) if library else None
    try:
        session = example.make_session(model, device, threads, options)
        inputs = example.random_inputs(session, np.random.default_rng(1))
        pipe.send(session.run(None, inputs))
    except Exception as problem:  # ONNX Runtime's classes of errors have no base of their own
        pipe.send(str(problem))
        return
    while runs := pipe.recv():
        begin = time.perf_counter()
        for _ in range(runs):
            session.run(None, inputs)
        pipe.send((time.perf_counter() - begin) / runs)


class Side:
    """One of the two sessions, from outside of its process."""

    def __init__(self, *arguments):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(other, *arguments), daemon=True)
        self.process.start()
        other.close()
        self.outputs = self.pipe.recv()

    def seconds(self, runs):
        self.pipe.send(runs)
        return self.pipe.recv()

    def end(self):
        self.pipe.send(0)
        self.process.join()


def measure(model, arguments, folder):
    report = pathlib.Path(folder) / "report.txt"
    given = dict(option.split("=", 1) for option in arguments.option)
    theirs = Side(None, model, arguments.threads, {})
    ours = Side(arguments.provider, model, arguments.threads, {**given, "report": report})
    for side in (theirs, ours):
        if isinstance(side.outputs, str):
            sys.exit(f"{model}: {side.outputs}")
    difference = max(float(np.max(np.abs(e.astype(float) - g), initial=0) / max(1e-30, np.max(np.abs(e), initial=0)))
                     for e, g in zip(theirs.outputs, ours.outputs))
    runs = max(1, int(0.02 / theirs.seconds(3)))
    pairs = [(theirs.seconds(runs), ours.seconds(runs)) for _ in range(arguments.rounds)]
    theirs.end()
    ours.end()
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
    multiprocessing.set_start_method("spawn")
    print(f"{'model':44} {'CPU us':>10} {'ours us':>10} {'ratio':>6} {'claimed':>11} {'difference':>9}")
    with tempfile.TemporaryDirectory() as folder:
        ratios = [measure(model, arguments, folder) for model in arguments.models]
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}, smallest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
