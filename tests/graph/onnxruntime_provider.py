#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs models in ONNX Runtime with the library's execution provider and without it.

    onnxruntime_provider.py models      --provider LIBRARY --detent BINARY --digits FOLDER [--shared FOLDER]
    onnxruntime_provider.py conformance ...
    onnxruntime_provider.py sessions    ...
    onnxruntime_provider.py examples    ... --twin PROGRAM
    onnxruntime_provider.py operators   ...

models: digits and the shared models, quantized by the tool and by ONNX Runtime in all forms, in each release that loads
providers. The classes must be the same where there are labels, the values up to what rounding at ties explains, and a
provider that claims everything must return the bits of `detent run`.
conformance: ONNX's node tests with a provider that claims everything; the values that the tests expect must come out.
sessions: options, models that are left alone, threads that share a session, many sessions one after the other.
examples: the programs of examples/onnxruntime.
operators: the custom operators, in each release, against `detent run` and against the products of floats.
Exit codes as interoperability.py."""
import argparse
import logging
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading

import interoperability as judge
import numpy as np
import onnx
import onnxruntime
import onnxruntime_versions
from onnx import numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/onnxruntime"))
import run as example

OLDEST = (1, 23)


class Failures(list):
    def expect(self, holds, text):
        if not holds:
            self.append(text)
            print("FAILED: " + text)


def claimed(report):
    """(claimed nodes, nodes) of all graphs of a report."""
    pairs = re.findall(r"(\d+) of (\d+) nodes claimed", report.read_text())
    return tuple(sum(int(pair[i]) for pair in pairs) for i in (0, 1))


def run_all(session, feeds):
    """The outputs for all samples. Models with a fixed batch of one are run sample by sample."""
    (name, samples), = feeds.items()
    if session.get_inputs()[0].shape[:1] != [1]:
        return session.run(None, feeds)
    runs = [session.run(None, {name: samples[i : i + 1]}) for i in range(len(samples))]
    return [np.concatenate(parts) for parts in zip(*runs)]


# ------------------------------------------------------------------------------------------- models


def forms_of(tool, name, model, calibration, folder):
    """The model in all quantized forms: [path]. What ONNX Runtime's quantizer cannot do is left out."""
    from onnxruntime import quantization  # older releases need packages for it that are not here

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.feeds = iter([{input_name: samples[i : i + 1]} for i in range(len(samples))])

        def get_next(self):
            return next(self.feeds, None)

    logging.disable(logging.WARNING)
    (input_name, samples), = judge.with_input_name(model, calibration).items()
    data = folder / f"{name}.npy"
    np.save(data, samples)
    made = []
    for form in ("qdq", "qoperator"):
        made.append(folder / f"{name}.{form}.onnx")
        tool("quantize", model, "-o", made[-1], "--calib", data, "--method", "minmax", "--format", form)
    made.append(folder / f"{name}.integerops.onnx")
    tool("quantize", model, "-o", made[-1], "--approach", "dynamic", "--format", "integerops")
    static = {"per_channel": True, "activation_type": quantization.QuantType.QUInt8,
              "weight_type": quantization.QuantType.QInt8}
    for form in (quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator, None):
        made.append(folder / f"{name}.theirs.{form.name.lower() if form else 'dynamic'}.onnx")
        try:
            if form:
                quantization.quantize_static(model, made[-1], Reader(), quant_format=form, **static)
            else:
                quantization.quantize_dynamic(model, made[-1])
            example.make_session(made[-1])
        except Exception as problem:  # its quantizer raises everything
            print(f"{made.pop().name}: ONNX Runtime does not make or load it ({str(problem).splitlines()[0][:80]})")
    return made


def models(tool, options, failures, folder):
    digits = options.digits
    cases = [("digits", digits / "digits.onnx", np.load(digits / "calibration_images.npy")[:64],
              np.load(digits / "test_images.npy")[:200], np.load(digits / "test_labels.npy")[:200])]
    if options.shared and (options.shared / "models").is_dir():
        labels = np.array((options.shared / "data/kws01/labels.txt").read_text().split(), int)
        for name, model, calibration, samples in judge.load_models(options.shared):
            cases.append((name, model, calibration, samples, labels if name == "kws" else None))
        for name in ("kws_dscnn_mlperf", "resnet8_cifar10_mlperf"):
            twin = options.shared / "models" / f"{name}.peer_tflite_qdq.onnx"
            of = next(case for case in cases if case[1].stem == name)
            cases.append((f"{of[0]}.tflite", twin, None, *of[3:]))
    jobs = []
    for name, model, calibration, samples, labels in cases:
        made = [model] if calibration is None else forms_of(tool, name, model, calibration, folder)
        np.savez(folder / f"{name}.npz", samples=samples, **({} if labels is None else {"labels": labels}))
        jobs += [(path, folder / f"{name}.npz") for path in made]
    listed = folder / "jobs.txt"
    listed.write_text("".join(f"{model}\t{data}\n" for model, data in jobs))
    # Each release in a process of its own.
    there, missing = onnxruntime_versions.available()
    failures.expect(not missing, f"releases that are not installed: {', '.join(missing)}")
    for release in [None] + [r for r in there if tuple(map(int, r.split(".")[:2])) >= OLDEST]:
        environment = dict(os.environ)
        if release:
            environment["PYTHONPATH"] = str(onnxruntime_versions.FOLDER / release)
        done = subprocess.run([sys.executable, __file__, "compare", *sys.argv[2:], "--jobs", str(listed)],
                              env=environment, text=True, capture_output=True)
        print(done.stdout, end="")
        failures.expect(done.returncode == 0,
                        f"ONNX Runtime {release or onnxruntime.__version__}: {done.stderr.strip()[-800:]}")


def compare(tool, options, failures, folder):
    """One release: all jobs with the provider and without it."""
    device = example.find_device(options.provider)
    report = folder / "report.txt"
    print(f"ONNX Runtime {onnxruntime.__version__}")
    print(f"{'model':44} {'claimed':>9} {'largest step':>12} {'values off':>10}")
    for line in options.jobs.read_text().splitlines():
        model, data = map(pathlib.Path, line.split("\t"))
        stored = np.load(data)
        try:
            plain = example.make_session(model)
        except Exception as problem:  # a kernel that this release lacks
            print(f"{model.name:44} this release does not load it ({str(problem).splitlines()[0][-60:]})")
            continue
        feeds = {plain.get_inputs()[0].name: stored["samples"]}
        theirs = run_all(plain, feeds)
        ours = run_all(example.make_session(model, device, options={"report": report}), feeds)
        nodes, of = claimed(report)
        failures.expect(nodes > 0, f"{model.name}: nothing was claimed")
        largest, off = 0.0, 0.0
        of_softmax = set(judge.expose_logits(model, folder)[1])
        for output, a, b in zip(plain.get_outputs(), ours, theirs):
            failures.expect(a.shape == b.shape and a.dtype == b.dtype, f"{model.name}: {a.shape} instead of {b.shape}")
            scale = np.max(np.abs(b)) or 1
            difference = float(np.max(np.abs(a - b)) / scale)
            largest, off = max(largest, difference), max(off, float(np.mean(np.abs(a - b) > 1e-5 * scale)))
            # A tie that is rounded the other way moves a value by one step of its quantizer, and what follows by little
            # more; Softmax makes many steps of one.
            bound = 0.15 if output.name in of_softmax else 0.05
            failures.expect(difference < bound or not judge.is_exact(),
                            f"{model.name}: '{output.name}' differs by {difference:.3g} of its range")
        print(f"{model.name:44} {nodes:4}/{of:4} {largest:12.2g} {100 * off:9.2f}%")
        if "labels" in stored:
            first = [values[0].reshape(len(stored["samples"]), -1).argmax(-1) for values in (ours, theirs)]
            differ = int(np.sum(first[0] != first[1]))
            failures.expect(differ == 0 or not judge.is_exact(), f"{model.name}: {differ} classes differ")
        # All of it is ours: then the bits are those of the executor, for any number of threads.
        names = [output.name for output in onnx.load(str(model)).graph.output]
        try:
            own = tool.run(model, feeds)
        except RuntimeError as problem:
            failures.expect("unsupported operator" in str(problem), f"{model.name}: {problem}")
            continue
        for threads in (1, 2):
            whole = run_all(example.make_session(model, device, threads, {"claim": "all", "report": report}), feeds)
            nodes, of = claimed(report)
            failures.expect(nodes == of, f"{model.name}: with claim=all, {of - nodes} nodes are left")
            same = [np.array_equal(a, own[name]) for a, name in zip(whole, names)]
            failures.expect(all(same), f"{model.name}, {threads} threads: {same.count(False)} outputs are not those of detent run")
    nested_graphs(device, failures, folder)
    graph_of_a_function(device, failures, folder)
    impossible_scales(device, failures, folder)


def quantized_layers(prefix, x, count, scales=None):
    """Conv nodes of 8 channels between Q/DQ nodes: (nodes, constants, result). The weights are so small that ONNX Runtime
    is exact without VNNI, too: its sums of two products are below 2^15."""
    random = np.random.default_rng(len(prefix) + count)
    nodes, constants = [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.asarray(value), f"{prefix}_{name}"))
        return constants[-1].name

    scale, zero_point = constant("scale", np.float32(0.03)), constant("zero_point", np.uint8(120))

    def pair(value, name):
        nodes.append(onnx.helper.make_node("QuantizeLinear", [value, scale, zero_point], [f"{prefix}_{name}_q"]))
        nodes.append(onnx.helper.make_node("DequantizeLinear", [f"{prefix}_{name}_q", scale, zero_point],
                                           [f"{prefix}_{name}_dq"]))
        return nodes[-1].output[0]

    value = pair(x, "x")
    for k in range(count):
        w = constant(f"w{k}", random.integers(-64, 65, (8, 8, 3, 3), np.int8))
        of_w = constant(f"w{k}_scale", np.full(8, 2e-3, np.float32) if scales is None else scales[k])
        zeros = constant(f"w{k}_zero_point", np.zeros(8, np.int8))
        nodes.append(onnx.helper.make_node("DequantizeLinear", [w, of_w, zeros], [f"{prefix}_w{k}_dq"], axis=0))
        nodes.append(onnx.helper.make_node("Conv", [value, f"{prefix}_w{k}_dq"], [f"{prefix}_y{k}"], pads=[1, 1, 1, 1]))
        value = pair(f"{prefix}_y{k}", f"y{k}")
    return nodes, constants, value


def check_same(failures, what, model, device, report, feeds):
    """Runs a model with the provider and without it: values may differ by one step of their quantizer."""
    theirs = example.make_session(model).run(None, feeds)[0]
    try:
        own = example.make_session(model, device, options={"report": report}).run(None, feeds)[0]
        failures.expect(np.abs(own - theirs).max() < 0.031, f"{what}: other values")
    except Exception as problem:  # its errors have types of their own
        failures.expect(False, f"{what}: {problem}")


def nested_graphs(device, failures, folder):
    """Regions in a graph and in both branches of an If in it."""
    image = onnx.helper.make_tensor_value_info
    nodes, constants, value = quantized_layers("outer", "x", 1)
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner, inner_constants, result = quantized_layers(name, value, 1)
        branches[name] = onnx.helper.make_graph(inner, name, [], [image(result, onnx.TensorProto.FLOAT, None)],
                                                inner_constants)
    nodes.append(onnx.helper.make_node("If", ["flag"], ["y"], **branches))
    graph = onnx.helper.make_graph(
        nodes, "nested", [image("x", onnx.TensorProto.FLOAT, ["N", 8, 16, 16]), image("flag", onnx.TensorProto.BOOL, [])],
        [image("y", onnx.TensorProto.FLOAT, None)], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "nested.onnx"))
    x = np.random.default_rng(71).standard_normal((2, 8, 16, 16)).astype(np.float32)
    report = folder / "nested.txt"
    for flag in (True, False):
        check_same(failures, "regions in several graphs", folder / "nested.onnx", device, report,
                   {"x": x, "flag": np.array(flag)})
    counts = re.findall(r"(\d+) of \d+ nodes claimed", report.read_text())
    is_new = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 25)
    failures.expect(sum(int(n) > 0 for n in counts) == (3 if is_new else 1), f"regions in several graphs: {counts} claimed")
    failures.expect(is_new == ("ONNX Runtime before 1.25" not in report.read_text()), "the reason of nested graphs")


def graph_of_a_function(device, failures, folder):
    """Layers in the graph of a SequenceMap, and in an If in it: ONNX Runtime moves these nodes after it has asked."""
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 26):
        return  # 1.23 does not tell whose graph it asks for
    image = onnx.helper.make_tensor_value_info
    for is_nested in (False, True):
        nodes, constants, value = quantized_layers("body", "element", 1)
        if is_nested:
            inner = onnx.helper.make_graph(nodes, "branch", [], [image(value, onnx.TensorProto.FLOAT, None)], constants)
            constants = [numpy_helper.from_array(np.array(True), "flag")]
            nodes = [onnx.helper.make_node("If", ["flag"], ["inner_y"], then_branch=inner, else_branch=inner)]
            value = "inner_y"
        body = onnx.helper.make_graph(nodes, "body", [image("element", onnx.TensorProto.FLOAT, [2, 8, 16, 16])],
                                      [image(value, onnx.TensorProto.FLOAT, [2, 8, 16, 16])], constants)
        outer, outer_constants, first = quantized_layers("outer", "x", 1)
        outer += [onnx.helper.make_node("SequenceConstruct", [first, first], ["images"]),
                  onnx.helper.make_node("SequenceMap", ["images"], ["results"], body=body),
                  onnx.helper.make_node("ConcatFromSequence", ["results"], ["y"], axis=0)]
        graph = onnx.helper.make_graph(outer, "function", [image("x", onnx.TensorProto.FLOAT, [2, 8, 16, 16])],
                                       [image("y", onnx.TensorProto.FLOAT, None)], outer_constants)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(folder / "function.onnx"))
        try:
            example.make_session(folder / "function.onnx")
        except Exception as problem:  # 1.26 does not load the nested one, with or without a provider
            print(f"a SequenceMap, nested {is_nested}: {str(problem).splitlines()[0][-60:]}")
            continue
        x = np.random.default_rng(73).standard_normal((2, 8, 16, 16)).astype(np.float32)
        report = folder / "function.txt"
        what = f"the graph of a SequenceMap, nested {is_nested}"
        check_same(failures, what, folder / "function.onnx", device, report, {"x": x})
        text = report.read_text()
        failures.expect("in the graph of a node of SequenceMap" in text, f"{what}: the reason")
        failures.expect(claimed(report)[0] > 0, f"{what}: the graph around it has no region: {text}")


def impossible_scales(device, failures, folder):
    """A channel whose scale is 0: its layer stays with ONNX Runtime, the others do not."""
    image = onnx.helper.make_tensor_value_info
    for batch in ("N", 2):
        scales = [np.full(8, 2e-3, np.float32) for _ in range(3)]
        scales[1][5] = 0
        nodes, constants, value = quantized_layers("layers", "x", 3, scales)
        graph = onnx.helper.make_graph(nodes, "scales", [image("x", onnx.TensorProto.FLOAT, [batch, 8, 16, 16])],
                                       [image(value, onnx.TensorProto.FLOAT, None)], constants)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(folder / "scales.onnx"))
        report = folder / "scales.txt"
        x = np.random.default_rng(72).standard_normal((2, 8, 16, 16)).astype(np.float32)
        check_same(failures, "a scale of 0", folder / "scales.onnx", device, report, {"x": x})
        failures.expect("scale 0 is not a positive finite number" in report.read_text(), "the reason of a scale of 0")
        failures.expect(report.read_text().count(": Conv node") == 3 and "in 2 regions" in report.read_text(),
                        f"a scale of 0: {report.read_text()}")


# -------------------------------------------------------------------------------------- conformance


def conformance(tool, options, failures, folder):
    if not (options.shared and (options.shared / "conformance").is_dir()):
        judge.skip("the shared node tests are not here; DETENT_SHARED may say where they are")
    device = example.find_device(options.provider)
    report = folder / "report.txt"
    count = {"claimed": 0, "quantization": 0, "not run by ONNX Runtime": 0}
    for path in sorted((options.shared / "conformance").glob("*/test_*/model.onnx")):
        try:
            plain = example.make_session(path)
            feeds = {}
            for i, value in enumerate(plain.get_inputs()):
                stored = onnx.TensorProto.FromString((path.parent / f"test_data_set_0/input_{i}.pb").read_bytes())
                feeds[value.name] = numpy_helper.to_array(stored)
            theirs = plain.run(None, feeds)
        except Exception:  # it has no kernel, or no tensor type of numpy's
            count["not run by ONNX Runtime"] += 1
            continue
        session = example.make_session(path, device, options={"claim": "all", "report": report})
        count["claimed"] += claimed(report)[0] > 0
        count["quantization"] += path.parent.parent.name == "quant" and claimed(report)[0] > 0
        for i, (a, b) in enumerate(zip(session.run(None, feeds), theirs)):
            close = a.shape == b.shape and a.dtype == b.dtype and np.allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-5, equal_nan=True)
            failures.expect(close, f"{path.parent.name}: output {i} differs")
    print(", ".join(f"{n} {what}" for what, n in count.items()))
    failures.expect(count["claimed"] > 200 and count["quantization"] >= 15, "too few node tests were claimed")


# ----------------------------------------------------------------------------------------- sessions


def is_refused(device, model, **option):
    try:
        example.make_session(model, device, options=option)
        return ""
    except Exception as problem:
        return str(problem)


def float_model(path):
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["p"]), onnx.helper.make_node("Relu", ["p"], ["y"])], "float",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])], [weights])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def half_model(path):
    """Of float16: the type of the result is that of a constant."""
    one, scale = (numpy_helper.from_array(np.float16(value), name) for name, value in (("one", 1), ("scale", 0.125)))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("DequantizeLinear", ["x", "scale"], ["d"]),
         onnx.helper.make_node("Sub", ["one", "d"], ["y"])], "half",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["n", 300])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, ["n", 300])], [one, scale])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9), path)
    return path


def stale_model(path):
    """Dynamic layers of open length, between which the file declares a length of 1: a tool forgot to update it. As in
    quantized_layers(), ONNX Runtime is exact with these weights on every processor."""
    random = np.random.default_rng(311)
    constants, nodes = [], []
    for i, (k, n) in enumerate(((300, 512), (512, 200))):
        constants += [numpy_helper.from_array(random.integers(-64, 65, (k, n)).astype(np.int8), f"w{i}"),
                      numpy_helper.from_array(np.float32(0.02), f"s{i}"), numpy_helper.from_array(np.int8(0), f"z{i}")]
        x = "x" if i == 0 else "h"
        nodes += [onnx.helper.make_node("DynamicQuantizeLinear", [x], [f"q{i}", f"qs{i}", f"qz{i}"]),
                  onnx.helper.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"qz{i}", f"z{i}"], [f"a{i}"]),
                  onnx.helper.make_node("Cast", [f"a{i}"], [f"f{i}"], to=onnx.TensorProto.FLOAT),
                  onnx.helper.make_node("Mul", [f"qs{i}", f"s{i}"], [f"m{i}"]),
                  onnx.helper.make_node("Mul", [f"f{i}", f"m{i}"], [f"o{i}"])]
        if i == 0:  # the provider leaves the product of floats to ONNX Runtime: two regions
            constants.append(numpy_helper.from_array(np.eye(512, dtype=np.float32), "v"))
            nodes.append(onnx.helper.make_node("MatMul", ["o0", "v"], ["h"]))
    value = lambda name, n, c: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [n, c])
    graph = onnx.helper.make_graph(nodes, "stale", [value("x", "n", 300)], [value("o1", "n", 200)], constants,
                                   value_info=[value("h", 1, 512)])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def transposed_product(path):
    """A QGemm with transA, which the executor does not have."""
    random = np.random.default_rng(312)
    constants = [numpy_helper.from_array(np.float32(0.02), "s"), numpy_helper.from_array(np.uint8(3), "z"),
                 numpy_helper.from_array(random.integers(0, 256, (300, 200)).astype(np.uint8), "w")]
    node = onnx.helper.make_node("QGemm", ["x", "s", "z", "w", "s", "z", "", "s", "z"], ["y"], transA=1,
                                 domain="com.microsoft")
    graph = onnx.helper.make_graph(
        [node], "transposed", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [300, 40])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [40, 200])], constants)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def sessions(tool, options, failures, folder):
    device = example.find_device(options.provider)
    images = np.load(options.digits / "test_images.npy")[:64]
    model = folder / "digits.onnx"
    tool("quantize", options.digits / "digits.onnx", "-o", model, "--calib", options.digits / "calibration_images.npy")
    name = example.make_session(model).get_inputs()[0].name

    report = folder / "float.txt"
    alone = float_model(folder / "float.onnx")
    out = example.make_session(alone, device, options={"report": report}).run(None, {"x": np.eye(4, dtype=np.float32)})[0]
    failures.expect(claimed(report) == (0, 2) and np.array_equal(out, np.ones((4, 3))), "a float model is left alone")
    failures.expect("MatMul node" in report.read_text() and "its product is of floats" in report.read_text(),
                    "the report says why a node is left")
    for key, value, said in [("claim", "some", "option claim is 'some', expected integer, all or none"),
                             ("threads", "0", "option threads is '0', expected session or a number from 1 to 1024"),
                             ("threads", "-1", "option threads is '-1'"), ("target", "mips", "option target is 'mips'"),
                             ("clam", "all", "there is no option 'clam'"),
                             ("report", folder / "none" / "r.txt", "none")]:
        problem = is_refused(device, model, **{key: value})
        failures.expect(said in problem, f"{key}={value}: '{problem}' does not say '{said}'")

    report = folder / "half.txt"
    session = example.make_session(half_model(folder / "half.onnx"), device, options={"report": report, "claim": "all"})
    codes = (np.arange(600) % 256).astype(np.uint8).reshape(2, 300)
    values = [session.run(None, {"x": codes})[0] for _ in range(3)]
    failures.expect(claimed(report) == (2, 2), f"float16: {claimed(report)} of 2 nodes are claimed")
    failures.expect(all(v.dtype == np.float16 and np.array_equal(v, 1 - codes * np.float16(0.125)) for v in values),
                    "float16: not the same values in each run")

    # Shapes within the model that are wrong in the file, and what the library cannot run.
    x = np.random.default_rng(313).standard_normal((4, 300)).astype(np.float32)
    stale = stale_model(folder / "stale.onnx")
    report = folder / "stale.txt"
    own = example.make_session(stale, device, options={"report": report}).run(None, {"x": x})[0]
    theirs = example.make_session(stale).run(None, {"x": x})[0]
    failures.expect(claimed(report) == (4, 11) and "in 2 regions" in report.read_text(), f"stale: {report.read_text()}")
    failures.expect(own.shape == (4, 200) and np.allclose(own, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max()),
                    "a model that declares a wrong length within it")
    report, refused = folder / "transposed.txt", transposed_product(folder / "transposed.onnx")
    levels = np.random.default_rng(314).integers(0, 256, (300, 40)).astype(np.uint8)
    out = example.make_session(refused, device, options={"report": report}).run(None, {"x": levels})[0]
    failures.expect(claimed(report) == (0, 1) and "transA = 1" in report.read_text(), "a QGemm with transA is claimed")
    failures.expect(np.array_equal(out, example.make_session(refused).run(None, {"x": levels})[0]), "QGemm with transA")

    # Other shapes, other numbers of threads, several threads on one session.
    expected = {count: example.make_session(model, device).run(None, {name: images[:count]}) for count in (1, 3, 64)}
    for count, values in expected.items():
        own = tool.run(model, {name: images[:count]})
        close = np.allclose(values[0], own[example.make_session(model).get_outputs()[0].name], rtol=1e-5, atol=1e-6)
        failures.expect(close, f"batch {count}: other values than detent run")
    for settings in ({"threads": 1}, {"threads": 2}, {"threads": "session"}):
        session = example.make_session(model, device, 2, settings)
        wrong = []

        def work(count, session=session, wrong=wrong):
            for _ in range(100):
                if not np.array_equal(session.run(None, {name: images[:count]})[0], expected[count][0]):
                    wrong.append(count)

        threads = [threading.Thread(target=work, args=(count,)) for count in (1, 3, 64, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failures.expect(not wrong, f"{settings}: {len(wrong)} of 400 concurrent runs returned other values")

    # A kernel that fails says which node, and the session goes on.
    session = example.make_session(model, device)
    session.run(None, {name: images[:1]})
    for _ in range(100):
        example.make_session(model, device).run(None, {name: images[:1]})
    before = resident()
    for _ in range(900):
        example.make_session(model, device).run(None, {name: images[:1]})
    grown = resident() - before
    print(f"900 sessions: {grown / 2**20:.1f} MiB more memory")
    failures.expect(grown < 8 * 2**20, f"900 sessions left {grown} bytes behind")

    # Sessions and threads at once, without Python between the runs.
    dynamic = folder / "digits.integerops.onnx"
    tool("quantize", options.digits / "digits.onnx", "-o", dynamic, "--approach", "dynamic", "--format", "integerops")
    runtime = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    for model in (model, dynamic):
        done = subprocess.run([options.concurrent, runtime, model, options.provider, "400"], capture_output=True, text=True)
        failures.expect(done.returncode == 0 and "400 runs, 0 wrong" in done.stdout, f"{model.name}: {done.stdout}{done.stderr}")


# ----------------------------------------------------------------------------------------- examples


def examples(tool, options, failures, folder):
    """Both programs of examples/onnxruntime, on one model."""
    model = folder / "digits.onnx"
    tool("quantize", options.digits / "digits.onnx", "-o", model, "--calib", options.digits / "calibration_images.npy")
    runtime = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    commands = {"run.py": [sys.executable, example.__file__, model, "--provider", options.provider],
                "run.cpp": [options.twin, runtime, model, options.provider]}
    for name, command in commands.items():
        for setting in ("claim=integer", "claim=some"):
            argument = ["--option", setting] if name == "run.py" else [setting]
            done = subprocess.run(list(map(str, [*command, *argument])), capture_output=True, text=True)
            print(f"{name} {setting}: exit code {done.returncode}\n{done.stdout}", end="")
            if setting == "claim=some":
                failures.expect(done.returncode == 1 and "option claim is 'some'" in done.stderr, f"{name}: {done.stderr}")
            else:
                failures.expect(done.returncode == 0, f"{name}: {done.stderr[-500:]}")
                difference = re.findall(r"largest difference ([^ ,\n]+)", done.stdout)
                failures.expect(difference and all(float(d) < 1e-5 for d in difference), f"{name}: {done.stdout}")
    usage = subprocess.run([str(options.twin)], capture_output=True, text=True)
    failures.expect(usage.returncode == 2 and "usage:" in usage.stderr, f"no arguments: exit code {usage.returncode}")


# ---------------------------------------------------------------------------------------- operators


def layer_model(path, op, x, constants, open_inputs=(), **attributes):
    """A model of one node of the domain "detent": inputs x and those named, the rest are constants. None is an absent input."""
    names = ["x"] + ["" if value is None else f"c{i}" for i, value in enumerate(constants, 1)]
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.helper.np_dtype_to_tensor_dtype(x.dtype),
                                                 ["n", *x.shape[1:]])]
    stored = []
    for name, value in zip(names[1:], constants):
        if name in open_inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
        elif name:
            stored.append(numpy_helper.from_array(value, name))
    node = onnx.helper.make_node(op, names, ["y"], name="layer", domain="detent", **attributes)
    graph = onnx.helper.make_graph([node], "layer", inputs,
                                   [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)], stored)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("detent", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def layer_session(library, model, threads=2):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])


def layer_cases(random):
    """(name, operator, x, the constants, attributes, the product of floats)"""
    x = random.standard_normal((5, 3, 96)).astype(np.float32)
    b = random.integers(-128, 128, (96, 40), np.int8)
    scale = random.uniform(0.001, 0.01, 40).astype(np.float32)
    zero_point = random.integers(-20, 20, 40).astype(np.int8)
    bias = random.standard_normal(40).astype(np.float32)
    real = x.astype(np.float64) @ ((b.astype(np.float64) - zero_point) * scale) + bias
    for per_row in (0, 1):
        yield f"linear.{per_row}", "DynamicLinear", x, [b, scale, zero_point, bias], {"per_row": per_row}, real
    yield "linear.plain", "DynamicLinear", x, [b, scale[:1]], {}, x.astype(np.float64) @ b * float(scale[0])
    yield ("linear.transposed", "DynamicLinear", x, [np.ascontiguousarray(b.T), scale, None, bias], {"transB": 1},
           x.astype(np.float64) @ (b * scale.astype(np.float64)) + bias)
    images = random.standard_normal((2, 6, 9, 11)).astype(np.float32)
    w = random.integers(-128, 128, (8, 3, 3, 3), np.int8)
    scale = random.uniform(0.001, 0.01, 8).astype(np.float32)
    filters = w * scale[:, None, None, None].astype(np.float64)
    padded = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    real = np.zeros((2, 8, 5, 11))
    for m in range(8):
        part = padded[:, 3 * (m // 4) : 3 * (m // 4) + 3]
        for i in range(3):
            for j in range(3):
                real[:, m] += np.einsum("nchw,c->nhw", part[:, :, i : i + 9 : 2, j : j + 11], filters[m, :, i, j])
    for per_image in (0, 1):
        yield (f"conv.{per_image}", "DynamicConv", images, [w, scale, None, bias[:8]],
               {"group": 2, "strides": [2, 1], "pads": [1, 1, 1, 1], "per_image": per_image},
               real + bias[:8, None, None])
    codes = random.integers(0, 16, (40, 96), np.uint8)
    scales = random.uniform(0.005, 0.05, (40, 3)).astype(np.float32)
    real = x.astype(np.float64) @ ((codes - 8.0) * np.repeat(scales, 32, axis=1)).T
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(40, 3, 16)
    yield "nbits", "MatMulNBits", x, [packed, scales], {"K": 96, "N": 40, "bits": 4, "block_size": 32}, real


def operators(tool, options, failures, folder):
    there, missing = onnxruntime_versions.available()
    failures.expect(not missing, f"releases that are not installed: {', '.join(missing)}")
    for release in [None, *there]:
        environment = dict(os.environ)
        if release:
            environment["PYTHONPATH"] = str(onnxruntime_versions.FOLDER / release)
        done = subprocess.run([sys.executable, __file__, "one-release", *sys.argv[2:]], env=environment, text=True,
                              capture_output=True)
        print(done.stdout, end="")
        failures.expect(done.returncode == 0,
                        f"ONNX Runtime {release or onnxruntime.__version__}: {done.stderr.strip()[-800:]}")


def one_release(tool, options, failures, folder):
    """The custom operators in the release that is imported."""
    print(f"ONNX Runtime {onnxruntime.__version__}")
    library = pathlib.Path(options.provider).resolve()
    for name, op, x, constants, attributes, real in layer_cases(np.random.default_rng(7)):
        own = None
        for kind in ("constant", "not constant"):
            open_inputs = {f"c{i}" for i, c in enumerate(constants, 1) if c is not None} if kind != "constant" else ()
            model = layer_model(folder / f"{name}.onnx", op, x, constants, open_inputs, **attributes)
            feeds = {"x": x, **{n: constants[int(n[1:]) - 1] for n in open_inputs}}
            session = layer_session(library, model)
            values = [session.run(None, feeds)[0] for _ in range(2)]
            if own is None:
                own = tool.run(model, feeds)["y"]
                distance = np.max(np.abs(own - real)) / np.max(np.abs(real))
                print(f"  {name:18} {distance:.1e} of the range from the product of floats")
                # The inputs have 8 bits. The largest of these distances is 0.73 %; they are the same on every processor.
                failures.expect(own.shape == real.shape and distance < 0.008, f"{name}: {distance} of the range off")
            failures.expect(all(np.array_equal(v, own) for v in values), f"{name}, {kind}: not the bits of detent run")
            smaller = session.run(None, {**feeds, "x": x[:1]})[0]
            failures.expect(smaller.shape == (1, *own.shape[1:]), f"{name}: {smaller.shape} for a batch of 1")

    # Threads that share a session.
    _, op, x, constants, attributes, _ = next(layer_cases(np.random.default_rng(7)))
    model = layer_model(folder / "shared.onnx", op, x, constants, **attributes)
    session = layer_session(library, model)
    expected = session.run(None, {"x": x})[0]
    wrong = []

    def work():
        for _ in range(200):
            if not np.array_equal(session.run(None, {"x": x})[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures.expect(not wrong, f"{len(wrong)} of 800 concurrent runs returned other values")

    # Errors name the node and what is wrong, and the session goes on.
    b, scale = constants[:2]
    infinite = x.copy()
    infinite[1, 1, 1] = np.inf
    for fed, constants, changed, said in [
            (x, [b[:90], scale], {}, "do not fit together"), (x, [b.astype(np.float32), scale], {}, "B of type float"),
            (x, [b, scale[:7]], {}, "7 weight scales for 40 columns"), (x, [b, -scale], {}, "is not a positive"),
            (x, [b, scale], {"per_row": 3}, "per_row is 3"), (x.astype(np.float64), [b, scale], {}, "input 0 of type"),
            (x.astype(np.float16), [b, scale], {}, "is float16, ONNX Runtime expects float32"),
            (x, [b, None], {}, "b_scale is missing"), (x, [b.ravel().view(np.uint8)], {}, "N is 0"),
            (x, [b.ravel().view(np.uint8)], {"N": 40}, "load"), (infinite, [b, scale], {}, "inf is not finite"),
            (x, [b, scale], {"per_row": 1.5}, "per_row")]:
        model = layer_model(folder / "wrong.onnx", "DynamicLinear", fed, constants, **changed)
        try:
            layer_session(library, model).run(None, {"x": fed})
            failures.expect(False, f"'{said}': no error")
        except Exception as problem:  # its errors have types of their own
            failures.expect(said in str(problem), f"'{problem}' does not say '{said}'")
            failures.expect("layer" in str(problem), f"'{problem}' does not name the node")
    try:
        session.run(None, {"x": infinite})
        failures.expect(False, "an infinity: no error")
    except Exception:
        failures.expect(np.array_equal(session.run(None, {"x": x})[0], expected), "after an error: other values")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"models": models, "conformance": conformance, "sessions": sessions, "examples": examples, "compare": compare,
             "operators": operators, "one-release": one_release}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--provider", required=True, help="libdetent_onnxruntime.so")
    parser.add_argument("--detent", required=True, help="the binary")
    parser.add_argument("--digits", required=True, type=pathlib.Path, help="examples/digits")
    parser.add_argument("--shared", type=pathlib.Path, help="folder that holds models/, data/ and conformance/")
    parser.add_argument("--concurrent", help="the program of concurrent_runs.cpp")
    parser.add_argument("--twin", help="the program of examples/onnxruntime/run.cpp")
    parser.add_argument("--jobs", type=pathlib.Path, help="the list that the part `models` hands to `compare`")
    options = parser.parse_args()
    if "DETENT_SHARED" in os.environ:
        options.shared = pathlib.Path(os.environ["DETENT_SHARED"])
    failures = Failures()
    with tempfile.TemporaryDirectory() as folder:
        parts[options.part](judge.Tool(options.detent, folder), options, failures, pathlib.Path(folder))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
