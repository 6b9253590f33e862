#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Records where NNCF places quantizers, with which scales, and how it corrects biases.

    record_nncf.py --shared FOLDER --digits FOLDER --models recorded_nncf.bin --text recorded_nncf.txt

Needs the packages nncf (3.4.0), onnx and onnxruntime. The first file gets the models of nncf_cases.py, each behind
its size as a 32-bit number; the second one a line for each fact:

    case NAME FILE PRESET TYPE SAMPLES LOW HIGH   what was quantized; FILE is - for a model of the first file
    q CONSUMER INPUT VALUE TYPE SCALES ZERO-POINTS    input of the node that makes CONSUMER reads VALUE quantized
    w CONSUMER INPUT COUNT HASH SUM                   weights: number of scales, FNV-1a of their bits, their sum
    b CONSUMER INPUT VALUES                           a bias that was corrected: its first eight values
"""

import argparse
import contextlib
import io
import logging
import pathlib
import struct

import nncf
import nncf_cases as cases
import numpy as np
import onnx
from nncf.common.logging.logger import set_log_level

FILES = [
    ("digits", "digits.onnx", 0, 16),
    ("kws", "kws_dscnn_mlperf.onnx", -48, 80),
    ("resnet8", "resnet8_cifar10_mlperf.onnx", 0, 256),
    ("mnist8", "mnist8_opset13.onnx", 0, 256),
]
# NNCF's SmoothQuant stops with an error at weights that a Reshape makes of a constant.
NNCF_FAILS = {("mnist8", "transformer")}
WAYS = [("performance", "none"), ("mixed", "none"), ("mixed", "transformer")]


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def numbers(values):
    return ",".join(float(v).hex() for v in values)


def facts(model, preset, kind, samples):
    """The lines of one quantized model."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        quantized = nncf.quantize(
            model, nncf.Dataset(samples), preset=nncf.QuantizationPreset(preset),
            model_type=nncf.ModelType.TRANSFORMER if kind == "transformer" else None)
    lines = []
    for (consumer, i), (value, kind, scales, zero_points) in sorted(cases.quantizers_of(quantized, model).items()):
        if value == "weight":
            total = float(np.sum(scales.astype(np.float64))).hex()
            lines.append(f"w {consumer} {i} {len(scales)} {fnv(scales.tobytes())} {total}")
        else:
            lines.append(f"q {consumer} {i} {value} {kind} {numbers(scales)} {','.join(map(str, zero_points))}")
    before = cases.biases_of(model)
    for key, values in sorted(cases.biases_of(quantized).items()):
        if key in before and not np.array_equal(before[key], values):
            lines.append(f"b {key[0]} {key[1]} {numbers(values[:8])}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shared", "digits", "models", "text"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    options = parser.parse_args()
    set_log_level(logging.ERROR)
    made = [(name, "-", make(), low, high) for name, (make, low, high) in cases.CASES.items()]
    with open(options.models, "wb") as out:
        for _, _, model, _, _ in made:
            stored = onnx.ModelProto()
            stored.CopyFrom(model)
            del stored.graph.value_info[:]
            data = stored.SerializeToString()
            out.write(struct.pack("<I", len(data)) + data)
    for name, file, low, high in FILES:
        folder = options.digits if name == "digits" else options.shared / "models"
        made.append((name, file, onnx.load(str(folder / file)), low, high))
    lines = [f"# made by record_nncf.py with NNCF {nncf.__version__}"]
    for name, file, model, low, high in made:
        count = 2 if file != "-" else 3
        samples = cases.samples_of(model, count, low, high)
        for preset, kind in WAYS:
            if (name, kind) in NNCF_FAILS:
                continue
            lines.append(f"case {name} {file} {preset} {kind} {count} {low} {high}")
            lines += facts(model, preset, kind, samples)
    options.text.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
