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
    tune NAME TYPE SAMPLES JUDGED SUBSET LOW HIGH     tune_hyperparams, for a model of the first file: the numbers of samples
                                                      for calibration, for validation, and of those chosen among both
    t METRIC PARAMETERS                               a model that was measured: NAME=VALUE;... of what was changed, or -
    best PARAMETERS                                   what the search ended with
"""

import argparse
import contextlib
import io
import itertools
import logging
import pathlib
import struct

import nncf
import nncf.quantization.algorithms.hyperparameter_tuner.algorithm as tuner
import nncf_cases as cases
import numpy as np
import onnx
import onnxruntime
from nncf.common.logging.logger import set_log_level

FILES = [
    ("digits", "digits.onnx", 0, 16),
    ("kws", "kws_dscnn_mlperf.onnx", -48, 80),
    ("resnet8", "resnet8_cifar10_mlperf.onnx", 0, 256),
    ("mnist8", "mnist8_opset13.onnx", 0, 256),
]
# NNCF's SmoothQuant stops with an error at weights that a Reshape makes of a constant.
NNCF_FAILS = {("mnist8", "transformer")}
TUNED = [("residual", "none", 4, 8, 5), ("chain", "transformer", 4, 8, 5)]
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


QUANTILES = ["quantile 1e-3", "quantile 1e-4"]
# The texts of the values of each parameter, in the order in which NNCF tries them.
PARAMETERS = {
    "smooth_quant_alphas": ["0.15", "0.25", "0.5", "0.75", "0.95"],
    "quantizer_propagation_rule": ["merge_if_all_branches_same"],
    "preset": ["performance", "mixed"],
    "weights_range_estimator": ["min_max"],
    "activations_range_estimator": [", ".join(p) for p in itertools.product(["min", *QUANTILES], ["max", *QUANTILES])],
    "fast_bias_correction": ["true", "false"],
}


def tuning(model, kind, calibration, judged, subset):
    """The lines of a search for parameters. A model's metric is 1 - the mean of its outputs' absolute errors."""
    def session_of(model):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    session = session_of(model)
    exact = {id(s): session.run(None, s) for s in judged}

    def validate(model, samples):
        session = session_of(model)
        errors = [np.mean([np.mean(np.abs(a.astype(np.float64) - b)) for a, b in zip(exact[id(s)], session.run(None, s))])
                  for s in samples]
        return 1.0 - float(np.mean(errors)), None

    lines, found, grids = [], [], []

    def text(settings):
        names = [k.removeprefix("advanced_parameters:").removesuffix("_params") for k in settings]
        values = [PARAMETERS[n][next(g for g in grids if k in g)[k].index(v)] for n, (k, v) in zip(names, settings.items())]
        return ";".join(f"{n}={v}" for n, v in zip(names, values)) or "-"

    score, find = tuner.HyperparameterTuner._calculate_combination_score, tuner.find_best_combination

    def calculate(self, key, *args, **kwargs):
        is_new = key not in self._calculated_scores
        metric = score(self, key, *args, **kwargs)
        if is_new:
            chosen = {**dict(found), **tuner.create_combinations(grids[-1])[key]}
            lines.append(f"t {metric.hex()} {text(chosen)}")
        return metric

    def find_best(combinations, function, grid):
        grids.append(grid)
        key = find(combinations, function, grid)
        found.extend(combinations[key].items())
        return key

    tuner.HyperparameterTuner._calculate_combination_score, tuner.find_best_combination = calculate, find_best
    # NNCF 3.4 stops at the end if the search has chosen full bias correction, whose samples its trial has used up.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(IndexError):
        nncf.quantize_with_accuracy_control(
            model, nncf.Dataset(calibration), nncf.Dataset(judged), validate, max_drop=0.0, subset_size=subset,
            model_type=nncf.ModelType.TRANSFORMER if kind == "transformer" else None,
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(tune_hyperparams=True, max_num_iterations=1))
    tuner.HyperparameterTuner._calculate_combination_score, tuner.find_best_combination = score, find
    return [*lines, f"best {text(dict(found))}"]


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
    for name, kind, count, judged, subset in TUNED:
        make, low, high = cases.CASES[name]
        model = make()
        samples = cases.samples_of(model, count + judged, low, high)
        lines.append(f"tune {name} {kind} {count} {judged} {subset} {low} {high}")
        lines += tuning(model, kind, samples[:count], samples[count:], subset)
    options.text.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
