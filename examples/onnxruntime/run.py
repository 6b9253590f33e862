#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs an ONNX model in ONNX Runtime with detent's kernels, and without them, and compares.

    run.py MODEL.onnx --provider libdetent_onnxruntime.so [--threads N] [--option KEY=VALUE]...

Needs onnxruntime 1.23 or later and numpy. A session with the provider is made as any other: register the library once,
find its device, and add the device to the session's options. The rest of a program stays as it is. Prints how many nodes
the provider claimed, the largest difference of each output, and the time of a run with and without the provider."""
import argparse
import pathlib
import sys
import tempfile
import time

import numpy as np
import onnxruntime

NAME = "DetentExecutionProvider"
TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
         "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int32)": np.int32, "tensor(int64)": np.int64,
         "tensor(bool)": np.bool_}


def find_device(library):
    """Registers the library and returns the device that stands for its provider."""
    onnxruntime.register_execution_provider_library("detent", str(pathlib.Path(library).resolve()))
    return next(device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME)


def make_session(model, device=None, threads=1, options=None):
    """A session with the provider, or without it if there is no device."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    if device is not None:
        settings.add_provider_for_devices([device], {key: str(value) for key, value in (options or {}).items()})
        return onnxruntime.InferenceSession(str(model), settings)
    return onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])


def random_inputs(session, generator, batch=1):
    """Inputs of the declared types and shapes; open dimensions are `batch`."""
    inputs = {}
    for value in session.get_inputs():
        if value.type not in TYPES:
            sys.exit(f"input '{value.name}' is {value.type}, for which there are no random values")
        shape = [extent if isinstance(extent, int) else batch for extent in value.shape]
        kind = np.dtype(TYPES[value.type])
        if kind.kind == "f":
            inputs[value.name] = generator.standard_normal(shape).astype(kind)
        else:
            ends = (0, 2) if kind.kind == "b" else (np.iinfo(np.int8).min if kind.kind == "i" else 0, 128)
            inputs[value.name] = generator.integers(*ends, shape).astype(kind)
    return inputs


def compare(ours, theirs):
    """The largest difference of two arrays of one shape, NaN where only one has it."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("nan")
    if ours.size == 0 or ours.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(ours, theirs) else float("nan")
    difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    return float(np.max(np.where(np.isnan(ours.astype(np.float64)) & np.isnan(theirs.astype(np.float64)), 0, difference)))


def median_seconds(session, inputs, count):
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        session.run(None, inputs)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--provider", required=True, metavar="LIBRARY")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    device = find_device(arguments.provider)
    options = dict(option.split("=", 1) for option in arguments.option)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.txt"
        fast = make_session(arguments.model, device, arguments.threads, {"report": report, **options})
        print(report.read_text().splitlines()[0] if report.exists() else "nothing was asked of the provider")
    plain = make_session(arguments.model, None, arguments.threads)
    inputs = random_inputs(plain, np.random.default_rng(0))
    for value, ours, theirs in zip(plain.get_outputs(), fast.run(None, inputs), plain.run(None, inputs)):
        print(f"output '{value.name}': largest difference {compare(ours, theirs):g}, largest value {np.max(np.abs(theirs), initial=0):g}")
    times = [[median_seconds(session, inputs, 50) for session in (fast, plain)] for _ in range(3)]
    ours, theirs = np.median(times, axis=0)
    print(f"{ours * 1e6:.1f} us with detent, {theirs * 1e6:.1f} us without, ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
