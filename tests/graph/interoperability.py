#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Judges the command line tool by ONNX Runtime: the same model and data must give the same result.

    interoperability.py PART --detent BINARY --digits FOLDER [--shared FOLDER]

    digits      the network in examples/digits: float, and quantized by us
    operators   small models of one or a few operators, see operator_cases.py
    quantizers  the digits network as ONNX Runtime's quantizers write it
    models      the shared models, float, and quantized by us
    peers       the shared models that TFLite quantized
    versions    small models and the shared ones, quantized by us, in older releases of ONNX Runtime
    conformance ONNX's node tests, of the shared folder

Exit codes: 0 agrees, 1 disagrees, 77 skipped: a thing that is needed is missing (with CI=true that is 1, unless
it is the processor that lacks something).

A quantized result is compared in steps: the scale of the DequantizeLinear that makes the output or, if
the output is made by a float operator behind it, 1/255 of the range of the output over the data. In place
of what a final Softmax makes, its input is compared.

A whole model multiplies differences: one integer that falls to the other side of a tie moves others behind
it. So each integer that we compute is also compared with real arithmetic on the integers before it, as the
QDQ graph defines it; both programs may differ from that only where float rounding decides a tie.
"""

import argparse
import collections
import functools
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def skip(message, may_skip=False):
    """What CI provides must not be missing there; a processor it may not have may be."""
    print("skipped: " + message)
    sys.exit(1 if os.environ.get("CI") == "true" and not may_skip else 77)


try:
    import numpy as np
    import onnx
    import onnx.reference
    import onnxruntime
    from onnx import numpy_helper
    from onnx.reference.ops import op_conv_transpose
except ImportError as missing:
    skip(f"no Python with numpy, onnx and onnxruntime here ({missing})")

import onnxruntime_versions
import operator_cases

onnxruntime.set_default_logger_severity(4)


# ------------------------------------------------------------------------------------ the two sides


@functools.lru_cache(None)
def is_exact(release=None):
    """Whether ONNX Runtime's products of u8 and s8 are exact on this processor: otherwise it is no judge. `release` is
    another one than the one that is imported."""
    with tempfile.TemporaryDirectory() as folder:
        exact = onnxruntime_versions.multiplies_exactly(release, pathlib.Path(folder))
    if not exact:
        print(f"ONNX Runtime {release or onnxruntime.__version__} multiplies 8-bit integers wrongly on this processor: "
              "it does not judge")
    return exact


def run_ort(model, feeds, optimize=True):
    """The outputs by name. Models with a fixed batch of one are run sample by sample."""
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    declared = {i.name: i.shape for i in session.get_inputs()}
    count = max((len(v) for k, v in feeds.items() if declared[k][:1] == [1]), default=1)
    if count == 1:
        return dict(zip(names, session.run(None, feeds)))
    runs = [session.run(None, {k: v[i : i + 1] for k, v in feeds.items()}) for i in range(count)]
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*runs))}


def run_exactly(tool, model, feeds):
    """What run_ort() returns where ONNX Runtime is exact, elsewhere what the tool computes."""
    return run_ort(model, feeds) if is_exact() else tool.run(model, feeds)


class Tool:
    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = pathlib.Path(folder)

    def __call__(self, *arguments):
        command = [self.binary, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def save(self, name, feeds):
        """[NAME=]X.npy arguments."""
        arguments = []
        for i, (key, value) in enumerate(feeds.items()):
            path = self.folder / f"{name}_{i}.npy"
            np.save(path, np.ascontiguousarray(value))
            arguments.append(f"{key}={path}")
        return arguments

    def run(self, model, feeds):
        out = self.folder / "outputs"
        inputs = [a for text in self.save("input", feeds) for a in ("--input", text)]
        self("run", model, *inputs, "-o", out)
        names = [output.name for output in onnx.load(str(model)).graph.output]
        return {name: np.load(out / (name.replace("/", "_") + ".npy")) for name in names}


# ------------------------------------------------------------------------------------------- models


def smooth_images(seed, count, channels, height, width, low, high):
    """Low-frequency noise between `low` and `high`: sums of a few waves, as images mostly are."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    images = np.zeros((count, channels, height, width))
    for image in images.reshape(-1, height, width):
        for _ in range(12):
            fy, fx = random.uniform(-8, 8, 2)
            image += random.normal() * np.cos(2 * np.pi * (fy * y + fx * x + random.uniform()))
    least = images.min(axis=(1, 2, 3), keepdims=True)
    most = images.max(axis=(1, 2, 3), keepdims=True)
    return (low + (high - low) * (images - least) / (most - least)).astype(np.float32)


def kws_features(shared):
    stored = np.fromfile(shared / "data/kws01/features.i8", np.int8).reshape(-1, 1, 49, 10)
    return ((stored.astype(np.float32) - 83) * np.float32(0.5847029)).astype(np.float32)


def spectra(seed, count):
    """What the autoencoder sees: 5 frames of 128 bands in decibels, alike in time."""
    random = np.random.default_rng(seed)
    bands = smooth_images(seed, count, 1, 5, 128, -35.0, 5.0).reshape(count, 640)
    return (bands + random.normal(0, 1, bands.shape)).astype(np.float32)


def load_models(shared, times=1):
    """Name, file, samples for calibration, samples to judge by. Of what is made here, `times` as many."""
    kws = kws_features(shared)

    def images(seed, count, *rest):
        return smooth_images(seed, times * count, *rest)

    models = [
        ("kws", "kws_dscnn_mlperf", kws[:100], kws),
        ("resnet8", "resnet8_cifar10_mlperf", images(1, 16, 3, 32, 32, 0, 255), images(2, 64, 3, 32, 32, 0, 255)),
        ("mnist8", "mnist8_opset13", images(3, 16, 1, 28, 28, 0, 255), images(4, 64, 1, 28, 28, 0, 255)),
        ("autoencoder", "ad_autoencoder_mlperf", spectra(5, 32 * times), spectra(6, 64 * times)),
        ("ultraface", "ultraface_slim_320", images(7, 4, 3, 240, 320, -1, 1), images(8, 4, 3, 240, 320, -1, 1)),
        ("yunet", "yunet_n_320_320", images(9, 4, 3, 320, 320, 0, 255), images(10, 4, 3, 320, 320, 0, 255)),
    ]
    return [(name, shared / "models" / f"{file}.onnx", *data) for name, file, *data in models]


def with_input_name(model, samples):
    graph = onnx.load(str(model)).graph
    constants = {t.name for t in graph.initializer}
    (name,) = [v.name for v in graph.input if v.name not in constants]
    return {name: samples}


# ---------------------------------------------------------------------------------------- judgement

MOVES = {"Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool"}


def expose_logits(model, folder):
    """A copy of the model whose outputs that Softmax makes are joined by what goes into the Softmax.

    Softmax makes many steps of one step of its input, so its input is what is judged."""
    proto = onnx.load(str(model))
    makers = {name: node for node in proto.graph.node for name in node.output}
    logits = {}
    for output in list(proto.graph.output):
        maker = makers.get(output.name)
        while maker is not None and maker.op_type in MOVES | {"QuantizeLinear", "DequantizeLinear"}:
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "Softmax":
            logits[output.name] = maker.input[0]
            float32 = onnx.TensorProto.FLOAT
            proto.graph.output.append(onnx.helper.make_tensor_value_info(maker.input[0], float32, None))
    path = folder / (model.name.removesuffix(".onnx") + ".logits.onnx")
    onnx.save(proto, str(path))
    return path, logits


def steps_of(model, outputs):
    """One quantization step of each output, see the top of this file."""
    graph = onnx.load(str(model)).graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    steps = {}
    for name, values in outputs.items():
        maker = makers.get(name)
        while maker is not None and maker.op_type in MOVES:
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[1] in constants:
            steps[name] = float(constants[maker.input[1]])
        else:
            steps[name] = float(values.max() - values.min()) / 255
    return steps


class ConvTranspose(op_conv_transpose.ConvTranspose):
    """As the operator is defined. onnx.reference divides the weights of groups by the number of outputs, not of inputs."""

    def _run(self, x, w, b=None, group=None, **attributes):
        of_one, none = super()._run, itertools.repeat(None)
        parts = zip(np.split(x, group, 1), np.split(w, group, 0), none if b is None else np.split(b, group))
        return (np.concatenate([of_one(*part, group=1, **attributes)[0] for part in parts], 1),)


class Layers:
    """What real arithmetic (double, by onnx.reference) makes of each quantized tensor's predecessors."""

    # Ties that float arithmetic may decide otherwise: as far off as a few roundings of 2^-24 of the largest
    # value of a tensor. Of the value itself would not do: terms that cancel are larger than their sum.
    TIE = 5e-7

    def __init__(self, model, folder):
        proto = onnx.load(str(model))
        constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        nodes = [n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
        tensor = onnx.helper.make_tensor_value_info
        types = {n.output[0]: onnx.helper.np_dtype_to_tensor_dtype(constants[n.input[2]].dtype) for n in nodes}
        self.scales = {n.output[0]: float(constants[n.input[1]]) for n in nodes}
        self.before = {n.output[0]: n.input[0] for n in nodes}

        exposed = onnx.ModelProto()
        exposed.CopyFrom(proto)
        there = {o.name for o in proto.graph.output}
        exposed.graph.output.extend(tensor(q, types[q], None) for q in types if q not in there)
        self.path = folder / (model.name.removesuffix(".onnx") + ".layers.onnx")
        onnx.save(exposed, str(self.path))

        # The quantized tensors become inputs, what was quantized becomes outputs, floats become doubles.
        graph = proto.graph
        for t in graph.initializer:
            if t.data_type == onnx.TensorProto.FLOAT:
                t.CopyFrom(numpy_helper.from_array(constants[t.name].astype(np.float64), t.name))
        del graph.value_info[:], graph.output[:]
        for value in graph.input:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        for node in graph.node:
            if node.op_type == "QuantizeLinear" and node.output[0] in types:
                node.output[0] += ".exact"
        for q in types:
            graph.input.append(tensor(q, types[q], None))
            graph.output.append(tensor(q + ".exact", types[q], None))
            graph.output.append(tensor(self.before[q], onnx.TensorProto.DOUBLE, None))
        # onnx.reference has these operators from a later version on; their meaning is the same.
        proto.opset_import[0].version = max(21, proto.opset_import[0].version)
        self.exact = onnx.reference.ReferenceEvaluator(proto, new_ops=[ConvTranspose])

    def differences(self, feeds, outputs):
        """(values, of them not equal, of these not by a tie) in the quantized tensors of a run of self.path."""
        values = unequal = wrong = 0
        for i in range(max(map(len, feeds.values()))):
            inputs = {k: v[i : i + 1].astype(np.float64) for k, v in feeds.items()}
            inputs |= {q: outputs[q][i : i + 1] for q in self.scales}
            exact = dict(zip(self.exact.output_names, self.exact.run(None, inputs)))
            for q, scale in self.scales.items():
                off = np.abs(exact[q + ".exact"].astype(int) - inputs[q].astype(int))
                real = exact[self.before[q]] / scale
                to_tie = np.abs(real - np.floor(real) - 0.5)
                tie = (off == 1) & (to_tie <= self.TIE * max(np.abs(real).max(), 1.0))
                values += off.size
                unequal += np.count_nonzero(off)
                wrong += np.count_nonzero(off) - np.count_nonzero(tie)
        return values, unequal, wrong


class Table:
    """Lines of what was compared, and what of it is wrong."""

    def __init__(self):
        self.failures = []
        print(f"{'model':36} {'outputs':>7} {'values':>8} {'equal %':>8} {'<= 1 step %':>11} {'most steps':>10}")

    def fail(self, message):
        self.failures.append(message)

    def compare_float(self, label, actual, expected, limit=1e-3):
        worst, where = 0.0, ""
        for name, values in expected.items():
            if actual[name].shape != values.shape or actual[name].dtype != values.dtype:
                self.fail(f"{label}: output {name} is {actual[name].dtype}{actual[name].shape}, "
                          f"not {values.dtype}{values.shape}")
                return
            error = np.abs(actual[name].astype(float) - values).max() / max(np.abs(values).max(), 1e-30)
            if not error <= worst:
                worst, where = float(error), name
        values = sum(v.size for v in expected.values())
        print(f"{label:36} {len(expected):7} {values:8}   largest error / largest value {worst:.2e}")
        if not worst <= limit:
            self.fail(f"{label}: error of {worst:.2e} in output {where}, allowed is {limit}")

    def compare_quantized(self, label, model, actual, expected, logits, within=0.99, most=3):
        """At least `within` of the elements of each output are within a step, none is further off than `most`."""
        steps = steps_of(model, expected)
        distances = []
        for name, values in expected.items():
            if name in logits:
                continue
            if actual[name].shape != values.shape:
                self.fail(f"{label}: output {name} is {actual[name].shape}, not {values.shape}")
                return
            distance = np.abs(actual[name].astype(float) - values) / max(steps[name], 1e-30)
            distances.append(distance.ravel())
            # A step is exact up to the rounding of the float that it is multiplied by.
            if distance.max() > most + 0.01:
                self.fail(f"{label}: output {name} is {distance.max():.2f} steps off")
            if (distance <= 1.01).mean() < within:
                self.fail(f"{label}: only {100 * (distance <= 1.01).mean():.2f} % of output {name} "
                          "are within a step")
        all_of_them = np.concatenate(distances)
        print(f"{label:36} {len(distances):7} {all_of_them.size:8} {100 * (all_of_them < 0.01).mean():8.2f} "
              f"{100 * (all_of_them <= 1.01).mean():11.3f} {all_of_them.max():10.2f}")

    def compare_layers(self, label, model, tool, feeds):
        """Every quantized tensor, for the first samples, against real arithmetic on what it is made of."""
        feeds = {k: v[:16] for k, v in feeds.items()}
        layers = Layers(model, tool.folder)
        values, unequal, wrong = layers.differences(feeds, tool.run(layers.path, feeds))
        print(f"{label:36} {len(layers.scales):7} {values:8}   quantized values: {unequal} not as in real arithmetic, "
              f"{wrong} of them not by a tie")
        if wrong:
            self.fail(f"{label}: {wrong} quantized values differ from real arithmetic, and not by a tie")

    def compare_top1(self, label, actual, expected, least, decided=slice(None)):
        """Of the samples that are `decided`, if not all are."""
        a, e = (next(iter(outputs.values())) for outputs in (actual, expected))
        same = (a.argmax(1) == e.argmax(1))[decided].mean()
        print(f"{label:36} top-1 agreement {100 * same:.2f} %")
        if same < least:
            self.fail(f"{label}: top-1 agrees on {100 * same:.2f} %, expected is {100 * least} %")

    def verdict(self):
        for message in self.failures:
            print("FAILED " + message)
        return 1 if self.failures else 0


FORMS = [("qdq", "u8"), ("qdq", "s8"), ("qoperator", "u8"), ("qoperator", "s8"), ("integerops", "u8")]


def check_model(tool, table, name, model, calibration, samples, top1=None):
    """The model as it is, and as we quantize it, in both programs."""
    feeds = with_input_name(model, samples)
    expected = run_ort(model, feeds)
    table.compare_float(f"{name} float32", tool.run(model, feeds), expected)

    calibration_files = tool.save("calibration", with_input_name(model, calibration))
    calib = [a for text in calibration_files for a in ("--calib", text)]
    for granularity, (format, activations) in itertools.product(("per-channel", "per-tensor"), FORMS):
        label = f"{name} {format} {activations} {granularity}"
        quantized = tool.folder / (label.replace(" ", ".") + ".onnx")
        # What the tool chooses by itself, and plain ranges: the arithmetic is the same.
        measured = (granularity, format, activations) == ("per-channel", "qdq", "u8")
        method = [] if measured or format == "integerops" else ["--method", "minmax"]
        tool("quantize", model, "-o", quantized, "--granularity", granularity, "--format", format, "--activations",
             activations, *method, *calib)
        if format == "qdq":  # com.microsoft has no schemas there
            onnx.checker.check_model(str(quantized), full_check=True)
        judge = run_ort(quantized, feeds)  # it must run the file as it is
        own = tool.run(quantized, feeds)
        if not is_exact():
            print(f"{label}: not compared")
            continue
        exposed, logits = expose_logits(quantized, tool.folder)
        if logits:
            own, judge = tool.run(exposed, feeds), run_ort(exposed, feeds)
        table.compare_quantized(label, exposed, own, judge, logits)
        if format == "qdq" and activations == "u8":
            table.compare_layers(label, quantized, tool, feeds)
        if top1 is not None:
            table.compare_top1(label, own, judge, top1)


def digits(tool, table, options):
    folder = options.digits
    calibration, samples = np.load(folder / "calibration_images.npy"), np.load(folder / "test_images.npy")
    check_model(tool, table, "digits", folder / "digits.onnx", calibration, samples, top1=0.995)
    # A step of few bits is large, so that one tie that falls to the other side is seen in the outputs: layers are compared.
    feeds = with_input_name(folder / "digits.onnx", samples)
    (text,) = tool.save("calibration", with_input_name(folder / "digits.onnx", calibration))
    for activations in ("u8", "s8"):
        label = f"digits qdq {activations} 4 bits"
        quantized = tool.folder / (label.replace(" ", ".") + ".onnx")
        tool("quantize", folder / "digits.onnx", "-o", quantized, "--bits", "4", "--activation-bits", "4", "--activations",
             activations, "--calib", text)
        onnx.checker.check_model(str(quantized), full_check=True)
        if is_exact():
            table.compare_layers(label, quantized, tool, feeds)
            table.compare_top1(label, tool.run(quantized, feeds), run_ort(quantized, feeds), 0.99)


    external_data(tool, table, folder / "digits.onnx", feeds, text)


def external_data(tool, table, model, feeds, calibration):
    """Quantized models with their constants in a second file, which ONNX Runtime reads, too."""
    for form in ("qdq", "integerops", "matmulnbits"):
        given = ["--calib", calibration, "--method", "minmax"] if form == "qdq" else []
        paths = [tool.folder / f"{kind}.{form}.onnx" for kind in ("one", "two")]
        tool("quantize", model, "-o", paths[0], "--format", form, *given)
        tool("quantize", model, "-o", paths[1], "--format", form, "--external-data-from", 1, *given)
        written = onnx.load(str(paths[1]), load_external_data=False).graph.initializer
        if not any(t.data_location == onnx.TensorProto.EXTERNAL for t in written):
            table.fail(f"external data {form}: there is none")
        for t in written:
            where = {e.key: e.value for e in t.external_data}
            if where and (where["location"] != paths[1].name + ".data" or int(where["offset"]) % 4096 != 0):
                table.fail(f"external data {form}: tensor {t.name} is at {where}")
        if form == "qdq":
            onnx.checker.check_model(str(paths[1]), full_check=True)
        one, two = (run_ort(path, feeds) for path in paths)
        table.compare_float(f"external data {form}", two, one, 0.0)
        table.compare_float(f"external data {form}, read by us", tool.run(paths[1], feeds), tool.run(paths[0], feeds), 0.0)


def models(tool, table, options):
    for name, model, calibration, samples in load_models(options.shared):
        check_model(tool, table, name, model, calibration, samples, top1=0.995 if name == "kws" else None)


def methods(tool, table, options):
    """Keyword spotting with every way to find ranges: accuracy on samples that calibration has not seen, in ONNX
    Runtime where it does not saturate."""
    name, model, calibration, samples = load_models(options.shared)[0]
    labels = np.loadtxt(options.shared / "data/kws01/labels.txt", dtype=np.int64)[len(calibration):]
    samples = samples[len(calibration):]
    files = [a for text in tool.save("calibration", with_input_name(model, calibration)) for a in ("--calib", text)]
    feeds = with_input_name(model, samples)

    def accuracy(outputs):
        scores = next(iter(outputs.values())).reshape(len(samples), -1)
        return 100.0 * float((scores.argmax(1) == labels).mean())

    exact = accuracy(run_ort(model, feeds))
    print(f"{name} float32: {exact:.2f} %")
    refused = subprocess.run([tool.binary, "quantize", model, "-o", "x", "--method", "?"], capture_output=True, text=True)
    known = refused.stderr.splitlines()[0].split("there are ")[1].split(", ")
    for method in known:
        if method.endswith("constant"):
            continue  # scale 1 whatever the data
        quantized = tool.folder / f"{name}.{method}.onnx"
        tool("quantize", model, "-o", quantized, "--method", method, *files)
        ours = accuracy(tool.run(quantized, feeds))
        judge = accuracy(run_ort(quantized, feeds)) if is_exact() else ours
        print(f"{name} {method}: {ours:.2f} %, in ONNX Runtime {judge:.2f} %")
        if min(ours, judge) < exact - 1.5:
            table.fail(f"{name} {method}: {min(ours, judge):.2f} %, float32 {exact:.2f} %")


def peers(tool, table, options):
    if not is_exact():
        skip("the products of ONNX Runtime are not exact on this processor", may_skip=True)
    for name, model, _, samples in load_models(options.shared)[:2]:
        peer = model.with_suffix(".peer_tflite_qdq.onnx")
        feeds = with_input_name(peer, samples)
        exposed, logits = expose_logits(peer, tool.folder)
        expected, own = run_ort(exposed, feeds), tool.run(exposed, feeds)
        table.compare_layers(f"{name} TFLite", peer, tool, feeds)
        # Where a dozen ties of millions fall otherwise, the rest of resnet8 turns that into up to 2 % of its logits
        # that are more than a step away, with ONNX Runtime's optimizations and without them too. That is asked of us.
        unoptimized = run_ort(exposed, feeds, optimize=False)
        steps = steps_of(exposed, expected)
        away = [np.abs(unoptimized[k].astype(float) - expected[k]) / steps[k] for k in logits.values()]
        within = min((d <= 1.01).mean() for d in away)
        table.compare_quantized(f"{name} TFLite", exposed, own, expected, logits, min(0.99, within))
        # Of two classes whose logits are one step apart a tie somewhere in the network takes either one.
        (scores,) = logits.values()
        best = np.sort(expected[scores], axis=1)[:, -2:]
        decided = best[:, 1] - best[:, 0] > 1.5 * steps[scores]
        if decided.mean() < 0.75:
            table.fail(f"{name} TFLite: only {100 * decided.mean():.1f} % of the samples have a clear winner")
        table.compare_top1(f"{name} TFLite", own, expected, 0.995, decided)


def multiplies_bytes(model):
    """Whether ONNX Runtime multiplies 8-bit integers in a model: in operators for that, and between Q/DQ nodes."""
    operators = {node.op_type for node in model.graph.node}
    return bool(operators & {"ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger",
                             "MatMulIntegerToFloat", "QGemm", "QLinearConv", "QLinearMatMul"}) or (
        "DequantizeLinear" in operators and bool(operators & {"Conv", "Gemm", "MatMul"}))


def operators(tool, table, options):
    """Every case that ONNX Runtime takes becomes a node test for `detent conformance`."""
    folder = tool.folder / "operators"
    labels = {}
    refused = collections.Counter()
    inexact = 0
    for i, case in enumerate(operator_cases.all_cases()):
        if not is_exact() and multiplies_bytes(case.model):
            inexact += 1
            continue
        label = f"opset {case.opset}: {case.label}"
        path = folder / f"{i:05}"
        data = path / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(case.model, str(path / "model.onnx"))
        try:
            expected = run_ort(path / "model.onnx", case.inputs)
        except Exception as e:  # of classes of its own
            refused[case.model.graph.node[0].op_type] += 1
            if options.verbose:
                print(f"not judged: {label}: {str(e).splitlines()[0]}")
            shutil.rmtree(path)
            continue
        for output in case.model.graph.output:  # `detent conformance` wants to know their types
            dtype = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(expected[output.name]).dtype)
            output.type.tensor_type.elem_type = dtype
        onnx.save(case.model, str(path / "model.onnx"))
        for kind, values in (("input", case.inputs), ("output", expected)):
            for k, (name, array) in enumerate(values.items()):
                proto = numpy_helper.from_array(np.asarray(array), name)
                (data / f"{kind}_{k}.pb").write_bytes(proto.SerializeToString())
        labels[str(path)] = label
    done = subprocess.run([tool.binary, "conformance", folder, "--json"], capture_output=True, text=True)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        table.fail(f"detent conformance: exit code {done.returncode}: {done.stderr.strip()}")
        return
    print(f"{len(labels)} models: {result['passed']} agree, {result['failed']} do not, {result['skipped']} are "
          f"not supported; {refused.total()} more are not judged, ONNX Runtime refuses them: "
          + ", ".join(f"{op} {n}" for op, n in refused.most_common()))
    if inexact:
        print(f"{inexact} models multiply 8-bit integers and are not judged on this processor")
    for entry in result["cases"]:
        table.fail(f"{labels[entry['folder']]}: {entry['result']}: {entry['reason']}")
    control_flow(tool, table)
    upsampling(tool, table)
    padding(tool, table)


def control_flow_model():
    """Layers around an If and a Loop, whose sub-graphs have layers, too, and capture activations and weights."""
    helper, quarters = onnx.helper, operator_cases.quarters
    value = lambda name, type=onnx.TensorProto.FLOAT, shape=None: helper.make_tensor_value_info(name, type, shape)
    node = helper.make_node
    smooth = helper.make_graph([node("AveragePool", ["a"], ["t"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])], "smooth", [],
                               [value("t")])
    mixed = helper.make_graph([node("Conv", ["a", "w2"], ["b"]), node("Add", ["b", "a"], ["e"])], "mixed", [], [value("e")])
    step = helper.make_graph(
        [node("MatMul", ["v", "inner"], ["p"]), node("Add", ["p", "f"], ["q"]), node("Tanh", ["q"], ["v2"]),
         node("Identity", ["go"], ["go2"])],
        "step", [value("i", onnx.TensorProto.INT64, []), value("go", onnx.TensorProto.BOOL, []), value("v")],
        [value("go2", onnx.TensorProto.BOOL, []), value("v2")],
        [numpy_helper.from_array(quarters(241, 24, 24) / 32, "inner")])
    nodes = [node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["a"]),
             node("ReduceMean", ["x"], ["mean"], keepdims=0), node("Greater", ["mean", "zero"], ["bright"]),
             node("If", ["bright"], ["chosen"], then_branch=smooth, else_branch=mixed),
             node("Conv", ["chosen", "w2"], ["d"], strides=[2, 2]), node("Flatten", ["d"], ["flat"]),
             node("MatMul", ["flat", "w3"], ["f"]), node("Loop", ["trips", "", "f"], ["looped"], body=step),
             node("MatMul", ["looped", "w4"], ["y"])]
    constants = {"w1": quarters(242, 8, 3, 3, 3) / 16, "b1": quarters(243, 8) / 16, "w2": quarters(244, 8, 8, 1, 1) / 16,
                 "w3": quarters(245, 128, 24) / 16, "w4": quarters(246, 24, 10) / 4, "zero": np.array(0, np.float32),
                 "trips": np.array(3, np.int64)}
    graph = helper.make_graph(nodes, "control_flow", [value("x", shape=[1, 3, 8, 8])], [value("y", shape=[1, 10])],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def control_flow(tool, table):
    """A model with sub-graphs: float, and quantized by us in every form."""
    model = tool.folder / "control_flow.onnx"
    onnx.save(control_flow_model(), str(model))
    feeds = {"x": smooth_images(240, 48, 3, 8, 8, -1.0, 1.0)}
    assert 8 < (feeds["x"].mean((1, 2, 3)) > 0).sum() < 40  # both branches
    exact = run_ort(model, feeds)
    table.compare_float("control flow", tool.run(model, feeds), exact, 1e-5)
    files = [a for text in tool.save("calibration", feeds) for a in ("--calib", text)]
    written = {"QuantizeLinear", "QLinearConv", "ConvInteger", "MatMulNBits"}
    for form, activations in [*FORMS, ("matmulnbits", None)]:
        label = f"control flow {form} {activations or ''}".strip()
        path = tool.folder / (label.replace(" ", "_") + ".onnx")
        arguments = ["--activations", activations] if activations else ["--bits", 8, "--block-size", 16]
        tool("quantize", model, "-o", path, "--format", form, *arguments, *(files if activations else ()))
        if written.isdisjoint(n.op_type for n in onnx.load(str(path)).graph.node):
            table.fail(f"{label}: nothing is quantized")
        own = tool.run(path, feeds)
        table.compare_float(label + ", float", own, exact, 0.1)
        if is_exact():
            table.compare_quantized(label, path, own, run_ort(path, feeds), {})


def upsampling_model():
    """ConvTranspose in the forms that decoders have: overlapping kernels or not, groups, with and without a bias."""
    helper, node, random = onnx.helper, onnx.helper.make_node, np.random.default_rng(247)
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 6, 2, 2), "w2": (6, 2, 3, 3), "w3": (4, 3, 4, 4), "b0": (8,), "b1": (6,), "b2": (4,)}
    constants = {k: (random.normal(size=s) / 3).astype(np.float32) for k, s in shapes.items()}
    constants["w2"][:, 1] *= 8  # channels that differ
    nodes = [node("Conv", ["x", "w0", "b0"], ["c0"], "down", strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", ["c0"], ["r0"]),
             node("ConvTranspose", ["r0", "w1", "b1"], ["c1"], "up1", strides=[2, 2]), node("Relu", ["c1"], ["r1"]),
             node("ConvTranspose", ["r1", "w2", "b2"], ["c2"], "up2", group=2, pads=[1, 1, 1, 1]),
             node("ConvTranspose", ["c2", "w3"], ["y"], "up3", strides=[2, 2], pads=[1, 1, 1, 1])]
    graph = helper.make_graph(nodes, "upsampling", [value("x", ["N", 3, 8, 8])], [value("y", ["N", 3, 16, 16])],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def upsampling(tool, table):
    """Transposed convolutions: float, and quantized by us in every form, with their weights and biases."""
    model = tool.folder / "upsampling.onnx"
    onnx.save(upsampling_model(), str(model))
    samples = smooth_images(248, 32, 3, 8, 8, -1.0, 1.0)
    check_model(tool, table, "upsampling", model, samples, samples)
    exact = run_ort(model, {"x": samples})
    for granularity in ("per-channel", "per-tensor"):
        path = tool.folder / f"upsampling.qdq.u8.{granularity}.onnx"
        proto = onnx.load(str(path))
        makers = {name: n.op_type for n in proto.graph.node for name in n.output}
        inputs = [makers.get(name) for n in proto.graph.node if n.op_type == "ConvTranspose" for name in n.input]
        if len(inputs) < 8 or set(inputs) != {"DequantizeLinear"}:  # bias correction may add one
            table.fail(f"upsampling {granularity}: the inputs of ConvTranspose are made by {inputs}")
        table.compare_float(f"upsampling {granularity}, float", tool.run(path, {"x": samples}), exact, 0.05)


def padding(tool, table):
    """A Pad that lists its dimensions, between quantized convolutions. With its default options, ONNX Runtime moves a
    Transpose through it as if it had pads for all dimensions, and fails while it loads the model."""
    helper, node, random = onnx.helper, onnx.helper.make_node, np.random.default_rng(249)
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    constants = {"w0": random.normal(size=(8, 3, 3, 3)) / 5, "w1": random.normal(size=(4, 8, 3, 3)) / 8}
    constants = {k: v.astype(np.float32) for k, v in constants.items()}
    constants.update(pads=np.array([1, 2, 0, 1], np.int64), axes=np.array([-1, 2], np.int64))
    nodes = [node("Conv", ["x", "w0"], ["a"]), node("Relu", ["a"], ["b"]), node("Pad", ["b", "pads", "", "axes"], ["c"]),
             node("Conv", ["c", "w1"], ["y"])]
    graph = helper.make_graph(nodes, "padding", [value("x", ["N", 3, 8, 8])], [value("y", ["N", 4, 7, 5])],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = tool.folder / "padding.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(model))
    samples = smooth_images(250, 16, 3, 8, 8, -1.0, 1.0)
    check_model(tool, table, "padding", model, samples, samples)


def conformance(tool, table, options):
    """ONNX's own node tests."""
    done = subprocess.run([tool.binary, "conformance", options.shared / "conformance", "--json"],
                          capture_output=True, text=True)
    result = json.loads(done.stdout)
    print(f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped")
    for entry in result["cases"]:
        print(f"{entry['result']}: {entry['folder']}: {entry['reason']}")
    # ONNX 1.22 defined what LpNormalization makes of zeros, and this case was made before: its expected value is NaN.
    superseded = {"test_l2normalization_axis_0": r"is 0, expected -?nan"}
    failed = [entry for entry in result["cases"] if entry["result"] == "FAILED"]
    wrong = [entry for entry in failed
             if not re.search(superseded.get(pathlib.Path(entry["folder"]).name, "(?!)"), entry["reason"])]
    if wrong or result["failed"] != len(failed) or done.returncode != (1 if failed else 0):
        table.fail(f"{len(wrong)} node tests, exit code {done.returncode}")


def quantizers(tool, table, options):
    """What ONNX Runtime's own quantizers make of the digits network."""
    if not is_exact():
        skip("the products of ONNX Runtime are not exact on this processor", may_skip=True)
    from onnxruntime import quantization as q
    from onnxruntime.quantization import shape_inference

    logging.disable(logging.WARNING)
    samples = np.load(options.digits / "test_images.npy")
    calibration = np.load(options.digits / "calibration_images.npy")
    model = tool.folder / "digits.prepared.onnx"
    shape_inference.quant_pre_process(str(options.digits / "digits.onnx"), str(model), skip_symbolic_shape=True)
    (name,) = with_input_name(model, samples)

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            self.samples = iter(calibration)

        def get_next(self):
            sample = next(self.samples, None)
            return None if sample is None else {name: sample[None]}

    def judge(label, path):
        feeds = {name: samples}
        try:
            expected, own = run_ort(path, feeds), tool.run(path, feeds)
        except RuntimeError as e:
            table.fail(f"{label}: {e}")
            return
        table.compare_quantized(label, path, own, expected, {})
        table.compare_top1(label, own, expected, 0.99)

    types = {"u8": q.QuantType.QUInt8, "s8": q.QuantType.QInt8}
    for format, per_channel, (x, y) in itertools.product(
            (q.QuantFormat.QDQ, q.QuantFormat.QOperator), (False, True), (("u8", "s8"), ("u8", "u8"), ("s8", "s8"))):
        label = f"{format} {x}{y} {'per channel' if per_channel else 'per tensor'}"
        path = tool.folder / (label.replace(" ", "_") + ".onnx")
        try:
            q.quantize_static(str(model), str(path), Reader(), quant_format=format, per_channel=per_channel,
                              activation_type=types[x], weight_type=types[y])
            run_ort(path, {name: samples[:1]})
        except Exception as e:  # of classes of its own
            print(f"{label}: not judged: {str(e).splitlines()[0]}")
            continue
        judge(label, path)
    for y, per_channel in itertools.product(("u8", "s8"), (False, True)):
        label = f"dynamic {y} {'per channel' if per_channel else 'per tensor'}"
        path = tool.folder / (label.replace(" ", "_") + ".onnx")
        q.quantize_dynamic(str(model), str(path), per_channel=per_channel, weight_type=types[y],
                           op_types_to_quantize=["MatMul", "Gemm", "Conv"])
        judge(label, path)


def relu6_model():
    """A small MobileNet: depthwise layers, residuals, and Clip(0, 6) behind most layers, which many values reach."""
    helper, random = onnx.helper, np.random.default_rng(301)
    nodes, constants = [], {"zero": np.float32(0), "six": np.float32(6)}

    def convolution(x, i, inputs, outputs, size, group=1, stride=1, clips=True):
        scale = 3.5 * np.sqrt(2 / (inputs // group * size * size))
        constants[f"w{i}"] = (random.normal(size=(outputs, inputs // group, size, size)) * scale).astype(np.float32)
        constants[f"b{i}"] = random.normal(0.3, 0.3, outputs).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", group=group,
                                      strides=[stride] * 2, pads=[size // 2] * 4))
        if not clips:
            return f"c{i}"
        nodes.append(helper.make_node("Clip", [f"c{i}", "zero", "six"], [f"r{i}"], f"relu6_{i}"))
        return f"r{i}"

    x = convolution("x", 0, 3, 16, 3, stride=2)
    x = residual = convolution(convolution(x, 1, 16, 16, 3, group=16), 2, 16, 8, 1, clips=False)
    x = convolution(convolution(convolution(x, 3, 8, 48, 1), 4, 48, 48, 3, group=48), 5, 48, 8, 1, clips=False)
    nodes.append(helper.make_node("Add", [x, residual], ["sum"], "add"))
    x = convolution("sum", 6, 8, 64, 1)
    constants["w"] = (random.normal(size=(10, 64)) / 5).astype(np.float32)
    nodes += [helper.make_node("GlobalAveragePool", [x], ["mean"], "mean"),
              helper.make_node("Flatten", ["mean"], ["flat"], "flat"),
              helper.make_node("Gemm", ["flat", "w"], ["y"], "gemm", transB=1)]
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "relu6", [value("x", ["N", 3, 32, 32])], [value("y", ["N", 10])],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def transposes_model():
    """Two transposed operands of a Gemm, one of them an output through an Identity. ONNX Runtime's fusion of Transpose
    and Gemm loses an operand that is an output, in most releases even with the Identity if both are transposed."""
    helper, node = onnx.helper, onnx.helper.make_node
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    nodes = [node("Transpose", ["x"], ["t"]), node("Gemm", ["t", "w"], ["c"]), node("Transpose", ["c"], ["y"]),
             node("Identity", ["t"], ["z"])]
    weights = operator_cases.quarters(302, 16, 24) / 8
    graph = helper.make_graph(nodes, "transposes", [value("x", [16, 40])], [value("y", [24, 40]), value("z", [40, 16])],
                              [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def lstm_model():
    """A recurrent layer in both directions, and a product behind it."""
    helper, node, random = onnx.helper, onnx.helper.make_node, np.random.default_rng(306)
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    constants = {"w": (2, 32, 12), "r": (2, 32, 8), "b": (2, 64), "v": (8, 5)}
    nodes = [node("LSTM", ["x", "w", "r", "b"], ["states"], "lstm", hidden_size=8, direction="bidirectional"),
             node("MatMul", ["states", "v"], ["y"], "product")]
    graph = helper.make_graph(nodes, "lstm", [value("x", [7, "N", 12])], [value("y", [7, 2, "N", 5])],
                              [numpy_helper.from_array((random.normal(size=s) / 3).astype(np.float32), k) for k, s in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)


def around_model():
    """Layers around an operator that we do not know."""
    helper, node = onnx.helper, onnx.helper.make_node
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    nodes = [node("MatMul", ["x", "v"], ["a"]), node("Inverse", ["a"], ["b"], domain="com.microsoft"),
             node("MatMul", ["b", "w"], ["y"])]
    eye = 4 * np.eye(8, dtype=np.float32)
    graph = helper.make_graph(nodes, "around", [value("x", ["N", 8, 8])], [value("y", ["N", 8, 8])],
                              [numpy_helper.from_array(eye + operator_cases.quarters(303 + i, 8, 8) / 16, name)
                               for i, name in enumerate("vw")])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def branches_model():
    """Branches of an If use what a MaxPool makes of a convolution's result. ONNX Runtime's optimizations end the process if
    there is nothing but a DequantizeLinear in front of that pool."""
    helper, node = onnx.helper, onnx.helper.make_node
    value = lambda name, shape=None, type=onnx.TensorProto.FLOAT: helper.make_tensor_value_info(name, type, shape)
    branch = lambda op, out: helper.make_graph([node(op, ["v"], [out])], op, [], [value(out)])
    nodes = [node("Conv", ["x", "w"], ["t"]), node("MaxPool", ["t"], ["v"], kernel_shape=[2, 2], strides=[2, 2]),
             node("Abs", ["x"], ["size"]), node("ReduceMax", ["size"], ["largest"], keepdims=0),
             node("Greater", ["largest", "least"], ["bright"]),  # always
             node("If", ["bright"], ["chosen"], then_branch=branch("Relu", "a"), else_branch=branch("Neg", "b")),
             node("Conv", ["chosen", "w2"], ["y"])]
    constants = {"w": operator_cases.quarters(307, 6, 3, 3, 3) / 16, "w2": operator_cases.quarters(308, 4, 6, 1, 1) / 16,
                 "least": np.array(-1, np.float32)}
    graph = helper.make_graph(nodes, "branches", [value("x", ["N", 3, 10, 10])], [value("y", ["N", 4, 4, 4])],
                              [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def pools_model():
    """An average with dilations, which ONNX Runtime would replace by an operator on integers that has none. (Averages with
    padding in ceil mode are of another kind in float in releases before 1.23, so that these cannot be compared here.)"""
    helper, node = onnx.helper, onnx.helper.make_node
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    nodes = [node("Conv", ["x", "w"], ["a"]), node("AveragePool", ["a"], ["b"], kernel_shape=[2, 2], dilations=[2, 2]),
             node("Conv", ["b", "w2"], ["y"])]
    constants = {"w": operator_cases.quarters(309, 4, 3, 3, 3) / 16, "w2": operator_cases.quarters(310, 4, 4, 1, 1) / 16}
    graph = helper.make_graph(nodes, "pools", [value("x", ["N", 3, 12, 12])], [value("y", ["N", 4, 8, 8])],
                              [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def bert_model(layers=2, hidden=64, heads=4, vocabulary=200, length=16, classes=3):
    """Embeddings, attention, LayerNormalization and GELU, as exporters write them."""
    helper, random = onnx.helper, np.random.default_rng(305)
    nodes, constants = [], {}

    def op(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], f"/{output}", **attributes))
        return output

    def constant(name, value, dtype=np.float32):
        constants[name] = np.asarray(value, dtype)
        return name

    def linear(x, name, inputs, outputs):
        weights = constant(name + "_w", random.normal(size=(inputs, outputs)) / np.sqrt(inputs))
        product = op("MatMul", [x, weights], name + "_product")
        return op("Add", [product, constant(name + "_b", random.normal(0, 0.05, outputs))], name)

    def norm(x, name):
        scale, shift = constant(name + "_scale", random.normal(1, 0.1, hidden)), constant(name + "_shift", random.normal(0, 0.1, hidden))
        return op("LayerNormalization", [x, scale, shift], name, axis=-1)

    def gelu(x, name):
        erf = op("Erf", [op("Div", [x, constant("root", np.sqrt(2))], name + "_divided")], name + "_erf")
        product = op("Mul", [x, op("Add", [erf, constant("one", 1)], name + "_shifted")], name + "_product")
        return op("Mul", [product, constant("half", 0.5)], name)

    def split(x, order):
        shape = constant("split", [0, 0, heads, hidden // heads], np.int64)
        return op("Transpose", [op("Reshape", [x, shape], x + "_split")], x + "_heads", perm=order)

    x = op("Gather", [constant("words", random.normal(size=(vocabulary, hidden))), "ids"], "embedded")
    x = norm(op("Add", [x, constant("positions", random.normal(0, 0.3, (1, length, hidden)))], "placed"), "first")
    for i in range(layers):
        q, k, v = (linear(x, f"{kind}{i}", hidden, hidden) for kind in "qkv")
        scores = op("MatMul", [split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])], f"scores{i}")
        scores = op("Mul", [scores, constant("scale", np.sqrt(heads / hidden))], f"scaled{i}")
        mixed = op("MatMul", [op("Softmax", [scores], f"shares{i}", axis=-1), split(v, [0, 2, 1, 3])], f"mixed{i}")
        joined = op("Reshape", [op("Transpose", [mixed], f"turned{i}", perm=[0, 2, 1, 3]),
                                constant("join", [0, 0, hidden], np.int64)], f"joined{i}")
        x = norm(op("Add", [linear(joined, f"out{i}", hidden, hidden), x], f"attended{i}"), f"norm{i}")
        wide = gelu(linear(x, f"up{i}", hidden, 4 * hidden), f"gelu{i}")
        x = norm(op("Add", [linear(wide, f"down{i}", 4 * hidden, hidden), x], f"fed{i}"), f"last{i}")
    x = op("Gather", [x, constant("zero", 0, np.int64)], "start", axis=1)
    linear(op("Tanh", [linear(x, "pool", hidden, hidden)], "pooled"), "logits", hidden, classes)
    graph = helper.make_graph(nodes, "bert", [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["N", length])],
                              [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", classes])],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# A file of Neural Compressor as its documentation has it.
DYNAMIC_YAML = """model:                                               # mandatory. used to specify model specific information.
  name: bert
  framework: onnxrt_integerops                       # mandatory. supported values are onnxrt_integerops and others

quantization:
  approach: post_training_dynamic_quant              # optional. default value is post_training_static_quant.
  calibration:
    sampling_size: 8, 16, 32
tuning:
  accuracy_criterion:
    relative:  0.01                                  # accuracy criterion, relative: accuracy loss percentage: 1%.
  exit_policy:
    timeout: 0                                       # optional. tuning timeout (seconds). 0 means early stop.
  random_seed: 9527                                  # optional. random seed for deterministic tuning.
"""


def versions(tool, table, options):
    """Every form of what we write loads in every release, and computes there what it computes here."""
    releases, missing = onnxruntime_versions.available()
    for release in onnxruntime_versions.RELEASES:
        if release not in releases:
            print(f"ONNX Runtime {release} is not here" + ("" if release in missing else ": this Python is too new for it"))
    if missing:
        skip("cmake/setup.sh --python installs " + ", ".join(missing))
    random = np.random.default_rng(304)
    sources = []
    for name, proto, data in (("relu6", relu6_model(), random.uniform(-1, 1, (24, 3, 32, 32))),
                              ("transposes", transposes_model(), random.uniform(-1, 1, (16, 40))),
                              ("upsampling", upsampling_model(), smooth_images(305, 16, 3, 8, 8, -1.0, 1.0)),
                              ("branches", branches_model(), random.uniform(-1, 1, (16, 3, 10, 10))),
                              ("pools", pools_model(), random.uniform(-1, 1, (16, 3, 12, 12))),
                              ("around", around_model(), np.eye(8) + random.uniform(-0.2, 0.2, (16, 8, 8)))):
        path = tool.folder / f"{name}.onnx"
        onnx.save(proto, str(path))
        sources.append((name, path, data.astype(np.float32), data.astype(np.float32)))
    folder = options.digits
    sources.append(("digits", folder / "digits.onnx", np.load(folder / "calibration_images.npy")[:16],
                    np.load(folder / "test_images.npy")[:32]))
    if options.shared and (options.shared / "models").is_dir():
        sources += [(name, model, calibration[:4], samples[:4]) for name, model, calibration, samples
                    in load_models(options.shared)]
    else:
        print("the shared models are not here: only models of our own")
    lstm = tool.folder / "lstm.onnx"
    onnx.save(lstm_model(), str(lstm))
    jobs = []
    feeds = {"x": random.normal(size=(7, 4, 12)).astype(np.float32)}
    for stored in ("u8", "s8"):
        path = tool.folder / f"lstm.{stored}.onnx"
        tool("quantize", lstm, "-o", path, "--approach", "dynamic", "--weights", stored)
        jobs.append((f"lstm {stored}", path, feeds))
        table.compare_float(f"lstm {stored}, float", run_exactly(tool, path, feeds), run_ort(lstm, feeds), 0.05)
    bert, config = tool.folder / "bert.onnx", tool.folder / "conf.yaml"
    onnx.save(bert_model(), str(bert))
    config.write_text(DYNAMIC_YAML)
    ids = random.integers(0, 200, (32, 16))
    sources.append(("bert", bert, ids, ids))
    tool("quantize", bert, "-o", tool.folder / "bert.by_file.onnx", "--config", config)
    jobs.append(("bert by Neural Compressor's file", tool.folder / "bert.by_file.onnx", {"ids": ids}))
    exact = run_ort(bert, {"ids": ids})
    table.compare_float("bert by Neural Compressor's file, float", run_exactly(tool, jobs[-1][1], {"ids": ids}), exact, 0.1)
    for name, model, calibration, samples in sources:
        feeds, files = with_input_name(model, samples), tool.save("calibration", with_input_name(model, calibration))
        forms = [["--format", form, "--activations", activations, *(["--method", "mse"] if form != "integerops" else [])]
                 for form, activations in FORMS]
        forms += [["--format", "integerops", "--granularity", "per-tensor"], ["--format", "matmulnbits"]]
        for form in forms:
            if name in ("ultraface", "yunet", "upsampling", "branches", "pools") and "matmulnbits" in form:
                continue  # no products with constants
            label = " ".join([name, *form[1:]]).replace("--", "")
            path = tool.folder / (label.replace(" ", ".") + ".onnx")
            calib = [] if "matmulnbits" in form else [a for text in files for a in ("--calib", text)]
            tool("quantize", model, "-o", path, *form, *calib)
            jobs.append((label, path, feeds))
    for release in releases:
        results = onnxruntime_versions.run_all(release, [(path, feeds) for _, path, feeds in jobs], tool.folder)
        for (label, path, feeds), there in zip(jobs, results):
            if isinstance(there, str):
                table.fail(f"{label}: ONNX Runtime {release}: {there}")
                continue
            if is_exact() and is_exact(release):
                table.compare_quantized(f"{label} ({release})", path, there, run_ort(path, feeds), {}, within=0.98, most=6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"digits": digits, "versions": versions, "operators": operators, "quantizers": quantizers, "models": models, "peers": peers,
             "methods": methods, "conformance": conformance}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--detent", required=True, help="the binary")
    parser.add_argument("--digits", required=True, type=pathlib.Path, help="examples/digits")
    parser.add_argument("--shared", type=pathlib.Path, help="folder that holds models/ and data/")
    parser.add_argument("--verbose", action="store_true", help="say what ONNX Runtime refuses, and why")
    options = parser.parse_args()
    if "DETENT_SHARED" in os.environ:
        options.shared = pathlib.Path(os.environ["DETENT_SHARED"])
    shared = options.part in ("models", "peers", "methods", "conformance")
    if shared and not (options.shared and (options.shared / "models").is_dir()):
        skip("the shared models are not here; DETENT_SHARED may say where they are")
    with tempfile.TemporaryDirectory() as folder:
        table = Table()
        parts[options.part](Tool(options.detent, folder), table, options)
    return table.verdict()


if __name__ == "__main__":
    sys.exit(main())
