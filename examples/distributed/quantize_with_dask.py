#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Calibration on a Dask cluster: tasks observe parts of the samples, their states come back, and the model is
quantized here. It has the same bytes for any number of parts and workers.

    quantize_with_dask.py MODEL.onnx SAMPLES.npy OUT.onnx [--method kl] [--parts 8] [--scheduler HOST:PORT]

Workers need the program `detent`, the model and the samples under the same paths, for example on a network file
system; only states travel. A task that dies is run again, on another worker if need be. Without --scheduler, a
cluster of --workers processes is made on this machine.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from dask.distributed import Client, LocalCluster


def detent(program, *arguments):
    """Runs the program and returns what it prints; its message becomes the message of the error."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{program} ended with {done.returncode}")
    return done.stdout


def observe(program, model, samples, part, options, first_round=None):
    """Observes the samples A up to, not including, B of `part`, on a worker. Returns the bytes of the state.
    `first_round` is the merged state of the first round; with it, this is the second one."""
    with tempfile.TemporaryDirectory() as folder:
        state = pathlib.Path(folder, "part.states")
        earlier = []
        if first_round is not None:
            before = pathlib.Path(folder, "first.states")
            before.write_bytes(first_round)
            earlier = ["--states", before]
        detent(program, "observe", model, "--calib", samples, "--samples", f"{part[0]}:{part[1]}", *earlier,
               *options, "-o", state)
        return state.read_bytes()


def merge(program, model, states, options):
    """Merges states, on a worker or here. Returns the bytes of the merged one, and the rounds that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, state in enumerate(states):
            files.append(pathlib.Path(folder, f"{i}.states"))
            files[-1].write_bytes(state)
        merged = pathlib.Path(folder, "merged.states")
        said = json.loads(detent(program, "observe", model, "--states", *files, *options, "--json", "-o", merged))
        return merged.read_bytes(), said["rounds"]


def observe_all(client, arguments, parts, options, first_round=None):
    """The merged state of all parts."""
    if first_round is not None:
        first_round = client.scatter(first_round, broadcast=True)
    tasks = [client.submit(observe, arguments.detent, arguments.model, arguments.samples, part, options, first_round,
                           retries=arguments.retries, pure=False) for part in parts]
    return merge(arguments.detent, arguments.model, client.gather(tasks), options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--method", default="minmax", help="how ranges of activations are found")
    parser.add_argument("--bias-correction", choices=["none", "fast"], default="none")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--retries", type=int, default=3, help="how often a task that dies is run again")
    parser.add_argument("--detent", default="detent", help="the program")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--scheduler", help="address of a Dask scheduler")
    where.add_argument("--workers", type=int, default=2, help="processes on this machine")
    arguments = parser.parse_args()
    for name in ("model", "samples", "output"):
        setattr(arguments, name, getattr(arguments, name).resolve())

    count = np.load(arguments.samples, mmap_mode="r").shape[0]
    ends = [count * i // arguments.parts for i in range(arguments.parts + 1)]
    parts = [part for part in zip(ends, ends[1:]) if part[0] < part[1]]
    options = ["--method", arguments.method]
    with tempfile.TemporaryDirectory() as folder, \
            (Client(arguments.scheduler) if arguments.scheduler else
             Client(LocalCluster(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=None))) as client:
        state, rounds = observe_all(client, arguments, parts, options)
        if rounds == 2:
            state, _ = observe_all(client, arguments, parts, options, state)
        file = pathlib.Path(folder, "all.states")
        file.write_bytes(state)
        print(detent(arguments.detent, "quantize", arguments.model, "--states", file, "--bias-correction",
                     arguments.bias_correction, "-o", arguments.output), end="")


if __name__ == "__main__":
    main()
