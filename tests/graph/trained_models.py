#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains models for quantization and has ONNX Runtime judge what comes out.

    trained_models.py digits --trainer train_digits --detent BINARY --digits FOLDER
    trained_models.py kws    --trainer bench_training_accuracy --detent BINARY --shared FOLDER

digits: examples/digits/train_network.cpp trains the network and quantizes it. kws: the shared network for keywords, at
4 bits, with several splits of the 500 rows into 400 for training and 100 that are held out; training must gain at least
3 points over static quantization in the mean. Each model that was written must classify every held-out sample as it does
in ONNX Runtime, and as accurately as the program says that it does. Exit codes as interoperability.py."""

import argparse
import collections
import pathlib
import subprocess
import sys
import tempfile

import interoperability as judge
import numpy as np


def top1(logits):
    return next(iter(logits.values())).argmax(-1)


def same_classes(tool, path, images, labels):
    """Accuracy in percent by both executors, and how many classes differ."""
    name = judge.onnx.load(str(path)).graph.input[0].name
    ours, theirs = top1(tool.run(path, {name: images})), top1(judge.run_ort(path, {name: images}))
    return 100 * np.mean(ours == labels), 100 * np.mean(theirs == labels), int(np.sum(ours != theirs))


def compare(tool, path, images, labels, said, failures):
    ours, theirs, differ = same_classes(tool, path, images, labels)
    print(f"{path.name:32} top-1 {ours:6.2f} %, in ONNX Runtime {theirs:6.2f} %, {differ} classes differ")
    if differ or abs(ours - said) > 0.006:
        failures.append(f"{path.name}: {differ} classes differ; the program said {said} %")


def run_trainer(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit code {done.returncode}: {done.stderr.strip()}")
    if not judge.is_exact():
        judge.skip("the products of ONNX Runtime are not exact on this processor", may_skip=True)
    return [line.split() for line in done.stdout.splitlines()]


def digits(tool, options, folder):
    failures = []
    images, labels = (np.load(options.digits / f"test_{kind}.npy") for kind in ("images", "labels"))
    said = {}
    for words in run_trainer(options.trainer, options.digits, folder):
        if words[0] == "float:":
            said["float.onnx"] = float(words[1])
        elif words[0] != "weights":
            said[f"w{words[0]}a{words[1]}.static.onnx"] = float(words[2])
            said[f"w{words[0]}a{words[1]}.trained.onnx"] = float(words[3])
    for name, accuracy in said.items():
        compare(tool, folder / name, images, labels, accuracy, failures)
    return failures


def kws(tool, options, folder):
    failures = []
    images = judge.kws_features(options.shared)
    labels = np.loadtxt(options.shared / "data/kws01/labels.txt", dtype=np.int64)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    gains = collections.defaultdict(list)
    model = options.shared / "models/kws_dscnn_mlperf.onnx"
    lines = run_trainer(options.trainer, model, folder / "images.npy", folder / "labels.npy", 100, options.seeds,
                        folder, "4,4")
    for seed, weights, activations, _, static, trained in lines[1:]:
        held_out = np.load(folder / f"{seed}.held_out.npy")
        for kind, said in (("static", static), ("trained", trained)):
            compare(tool, folder / f"{seed}.w{weights}a{activations}.{kind}.onnx", images[held_out], labels[held_out],
                    float(said), failures)
        gains[weights, activations].append(float(trained) - float(static))
    for (weights, activations), points in gains.items():
        print(f"W{weights}A{activations}: training gains {np.mean(points):.1f} points over {len(points)} splits")
        if np.mean(points) < 3:
            failures.append(f"W{weights}A{activations}: training gains only {np.mean(points):.1f} points")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"digits": digits, "kws": kws}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--detent", required=True, help="the binary")
    parser.add_argument("--digits", type=pathlib.Path, help="examples/digits")
    parser.add_argument("--shared", type=pathlib.Path, help="folder that holds models/ and data/")
    parser.add_argument("--seeds", type=int, default=3, help="splits of kws")
    options = parser.parse_args()
    if options.part == "kws" and not (options.shared and (options.shared / "models").is_dir()):
        judge.skip("the shared models are not here")
    with tempfile.TemporaryDirectory() as folder:
        failures = parts[options.part](judge.Tool(options.detent, folder), options, pathlib.Path(folder))
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
