#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Reads the files of `detent quantize --pipeline ppq --export native=FILE`, which are pickles of PPQ's Python objects.

    ppq_native_test.py --detent BINARY --digits FOLDER

PPQ is not needed: stand-ins take the place of its classes, and nothing else may be loaded. Graph, values and configurations
are compared with the other files that the tool writes for the same input: the quantized model, the float network
(--export onnx), the table for PPL (--export ppl-json) and the numbers that it prints.

Where DETENT_PPQ_PYTHON names a Python that has PPQ 0.6.6 (with PyTorch 1.12 and onnx 1.14, for example), PPQ loads the
files, too, must find the same in them, and runs the networks, which must give what ONNX Runtime makes of the quantized
model. The test prints how much of it is equal.

Exit codes: 0 ok, 1 something is wrong, 77 skipped: numpy or onnx is missing (with CI=true that is 1).
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import pickle
import pickletools
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"skipped: no Python with numpy and onnx here ({missing})")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

PLATFORMS = {"TRT_INT8": 101, "PPL_CUDA_INT8": 201, "SNPE_INT8": 302, "NXP_INT8": 501, "ONNXRUNTIME": -7}
INITIAL, BAKED, OVERLAPPED, ACTIVATED, PASSIVE, PASSIVE_INIT, PASSIVE_BAKED, FP32 = 1, 2, 3, 4, 5, 6, 7, 8
PER_CHANNEL, ASYMMETRICAL = 0x02, 0x20


# --------------------------------------------------------------------------- stand-ins


class Instance:
    """An object of PPQ's that a pickle makes without calling __init__."""

    def __init__(self):
        raise AssertionError(f"{type(self).__name__} is called")


class Enumerator:
    """A member of one of PPQ's enumerations."""

    def __init__(self, value):
        self.value = value


def stand_ins():
    """The classes that PPQ's own files name, by module and name."""
    instances = {"ppq.IR.base.graph": "BaseGraph Operation Variable", "ppq.IR.base.opdef": "Opset",
                 "ppq.IR.quantize": "QuantableOperation QuantableVariable", "ppq.core.storage": "ValueState",
                 "ppq.core.quant": "TensorQuantizationConfig OperationQuantizationConfig QuantizationPolicy"}
    enumerations = {"ppq.core.data": "DataType",
                    "ppq.core.quant": "NetworkFramework QuantizationStates QuantizationVisibility RoundingPolicy TargetPlatform"}
    return {(module, name): type(name, (base,), {}) for table, base in ((instances, Instance), (enumerations, Enumerator))
            for module, names in table.items() for name in names.split()}


class Reader(pickle.Unpickler):
    def __init__(self, file):
        super().__init__(file)
        self.classes = stand_ins()

    def find_class(self, module, name):
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        return self.classes[module, name]


class ArrayReader(pickle.Unpickler):
    def find_class(self, module, name):
        assert (module, name) in {("numpy", "dtype"), ("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct")}, name
        return super().find_class(module, name)


def value_of(state):
    """The array in a ValueState; None stays None."""
    if state is None:
        return None
    assert state._value_type == "Tensor" and state.__version__ == "0.6.6"
    pickletools.dis(state._value, io.StringIO())
    file = io.BytesIO(state._value)
    value = ArrayReader(file).load()
    assert file.read() == b"" and isinstance(value, np.ndarray)
    assert value.dtype == state._dtype and value.shape == state._shape, (value.dtype, value.shape)
    return value


def read(path):
    """The graph in a file, after a look at its form."""
    with open(path, "rb") as file:
        for _ in range(3):
            pickletools.dis(file, io.StringIO())  # raises where the form is wrong
        assert file.read() == b""
        file.seek(0)
        assert pickle.load(file) == "PPQ GRAPH DEFINITION"
        assert pickle.load(file) == "0.6.6"
        return Reader(file).load()


# ---------------------------------------------------------------------- facts of a graph


def digest(value):
    return None if value is None else [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]


def numbers(value):
    return None if value is None else np.asarray(value).tolist()


def plain(value):
    """An attribute without classes."""
    if isinstance(value, np.ndarray):
        return digest(value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value.decode() if isinstance(value, bytes) else getattr(value, "value", value)


def facts_of_stand_ins(graph):
    def config(c):
        source = c._dominator
        return [c._hash, source._hash, c.state.value, c._num_of_bits, c._quant_min, c._quant_max, c._policy._policy,
                c._rounding.value, c.observer_algorithm, c._channel_axis, c._visibility.value,
                {key: plain(value) for key, value in c.detail.items()}, numbers(value_of(source._scale)), numbers(value_of(source._offset))]

    def operation(o):
        configs = getattr(o, "_config", None)
        return [o._name, o._type, o._platform.value, o._input_vars, o._output_vars, o._opset.domain, o._opset.version,
                {key: plain(value) for key, value in o._attributes.items()},
                configs and [[config(c) for c in configs.input_quantization_config], [config(c) for c in configs.output_quantization_config]]]

    def variable(v):
        return [v._name, v._is_parameter, v._shape, v._dtype.value, v._dest_ops, v._source_op, digest(value_of(v._value)),
                digest(value_of(getattr(v, "_fp32_value", None)))]

    return {"inputs": graph._graph_inputs, "outputs": graph._graph_outputs,
            "operations": [operation(o) for o in graph._operations.values()],
            "variables": [variable(v) for v in graph._variables.values()]}


def inside_ppq(native, inputs, outputs):
    """What PPQ itself finds in a file; runs the network. In the Python that has PPQ."""
    import torch
    from ppq.api import load_native_graph
    from ppq.executor import TorchExecutor

    def config(c):
        return [c._hash, c.dominated_by._hash, c.state.value, c.num_of_bits, c.quant_min, c.quant_max, c.policy._policy,
                c.rounding.value, c.observer_algorithm, c.channel_axis, c.visibility.value,
                {key: plain(value) for key, value in c.detail.items()}, numbers(c.scale), numbers(c.offset)]

    def operation(o):
        configs = getattr(o, "config", None)
        return [o.name, o.type, o.platform.value, [v.name for v in o.inputs], [v.name for v in o.outputs], o.opset.domain,
                o.opset.version, {key: plain(value) for key, value in o.attributes.items()},
                configs and [[config(c) for c in configs.input_quantization_config], [config(c) for c in configs.output_quantization_config]]]

    def variable(v):
        array = lambda t: None if t is None else t.numpy()
        return [v.name, v.is_parameter, v.shape, v.dtype.value, [o.name for o in v.dest_ops], v.source_op and v.source_op.name,
                digest(array(v.value)), digest(array(getattr(v, "stored_value", None)))]

    graph = load_native_graph(native)
    facts = {"inputs": list(graph.inputs), "outputs": list(graph.outputs),
             "operations": [operation(o) for o in graph.operations.values()],
             "variables": [variable(v) for v in graph.variables.values()]}
    executor = TorchExecutor(graph, device="cpu")
    images = torch.tensor(np.load(inputs))
    results = [executor.forward(images[i : i + 1]) for i in range(len(images))]
    np.savez(outputs, **{name: torch.cat([r[k] for r in results]).numpy() for k, name in enumerate(graph.outputs)})
    print(json.dumps(facts))


if sys.argv[1:2] == ["--inside-ppq"]:
    inside_ppq(*sys.argv[2:])
    sys.exit(0)

parser = argparse.ArgumentParser()
parser.add_argument("--detent", required=True)
parser.add_argument("--digits", required=True, type=pathlib.Path)
parser.add_argument("--shared", type=pathlib.Path, help="not used")
options = parser.parse_args()


def branched_network():
    """A network with what PPQ's graphs treat in their own ways: bounds, padding, shared scales, shapes that are computed,
    inputs and outputs that are left out, nodes without a name or with the same one, an empty constant."""
    random = np.random.default_rng(7)
    nodes, constants = [], []

    def constant(name, value, dtype=np.float32):
        constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(kind, inputs, outputs, name="", **attributes):
        nodes.append(helper.make_node(kind, inputs, outputs if isinstance(outputs, list) else [outputs], name=name, **attributes))

    def weights(name, *shape):
        return constant(name, random.normal(size=shape) / np.sqrt(np.prod(shape[1:])))

    op("Pad", ["x", constant("pads", [0, 0, 1, 0, 0, 0, 0, 1], np.int64), constant("pad_value", 0.0)], "padded", "pad")
    op("Conv", ["padded", weights("w0", 8, 3, 3, 3), weights("b0", 8)], "c0", "layer", pads=[0, 1, 1, 0])
    op("Clip", ["c0", constant("low", 0.0), constant("high", 6.0)], "a0", "layer")
    op("Conv", ["a0", weights("w1", 8, 1, 3, 3)], "c1", group=8, pads=[1, 1, 1, 1])
    op("Clip", ["c1", "", "high"], "a1")
    op("Add", ["a0", "a1"], "sum", "add")
    op("MaxPool", ["sum"], "pooled", "pool", kernel_shape=[2, 2], strides=[2, 2])
    op("Resize", ["pooled", constant("roi", [], np.float32), constant("scales", [1, 1, 2, 2])], "large", "resize", mode="nearest",
       nearest_mode="floor", coordinate_transformation_mode="asymmetric")
    op("Concat", ["large", "sum", "sum"], "joined", "concat", axis=1)
    op("Split", ["joined"], ["left", "right"], "split", axis=1)
    op("MaxPool", ["left"], "left_pooled", "left_pool", kernel_shape=[2, 2], strides=[2, 2])
    op("Resize", ["left_pooled", "roi", "scales"], "left_large", "left_resize", mode="nearest", nearest_mode="floor",
       coordinate_transformation_mode="asymmetric")
    op("Mul", ["left_large", "right"], "product", "mul")
    op("GlobalAveragePool", ["product"], "mean", "mean")
    op("Shape", ["mean"], "dims", "shape")
    op("Gather", ["dims", constant("first", [0], np.int64)], "batch", "gather", axis=0)
    op("Concat", ["batch", constant("rest", [-1], np.int64)], "flat_dims", "dims", axis=0)
    op("Reshape", ["mean", "flat_dims"], "flat", "reshape")
    op("Gemm", ["flat", weights("w2", 5, 12), weights("b2", 5)], "y", "gemm", transB=1, alpha=1.0)
    graph = helper.make_graph(nodes, "branches", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def fake_quantized(x, c):
    """PPQ's formula for a constant, in the precision that its grid needs."""
    exact = np.float32 if c._num_of_bits <= 16 else np.float64
    scale, offset = value_of(c._scale).astype(exact), value_of(c._offset).astype(exact)
    if scale.ndim:
        dims = [1] * x.ndim
        dims[c._channel_axis] = -1
        scale, offset = scale.reshape(dims), offset.reshape(dims)
    ratio = x.astype(exact) / scale
    rounded = np.rint(ratio) if c._rounding.value == 0 else np.sign(ratio) * np.floor(np.abs(ratio) + exact(0.5))
    q = np.clip(rounded + offset, c._quant_min, c._quant_max)
    return ((q - offset) * scale).astype(np.float32)


class Native(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def quantize(self, model, samples, platform, *more):
        """The numbers that the tool prints, and the paths of its files."""
        paths = {kind: self.folder / f"{platform}.{kind}" for kind in ("native", "onnx", "ppl-json")}
        words = [word for kind, path in paths.items() for word in ("--export", f"{kind}={path}")]
        paths["qdq"] = self.folder / f"{platform}.qdq.onnx"
        done = subprocess.run([options.detent, "quantize", str(model), "-o", str(paths["qdq"]), "--pipeline", "ppq", "--platform", platform,
                               "--calib", str(samples), "--samples", "16", "--json", *words, *more], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout), paths

    def check_structure(self, graph, network):
        """Operations and variables are the nodes and values of the float network; returns the configurations of variables."""
        constants = {t.name: numpy_helper.to_array(t) for t in network.graph.initializer}
        self.assertEqual(graph.__version__, "0.6.6")
        self.assertEqual(graph._name, network.graph.name)
        self.assertEqual(graph._built_from.value, 2)
        self.assertEqual(graph._graph_inputs, [v.name for v in network.graph.input])
        self.assertEqual(graph._graph_outputs, [v.name for v in network.graph.output])
        self.assertEqual(graph._detail["GRAPH_OPSET"], [{"domain": o.domain, "version": o.version} for o in network.opset_import])
        self.assertEqual(graph._detail["ir_version"], network.ir_version)
        self.assertEqual(len(graph._operations), len(network.graph.node))
        uses, makers = {}, {}
        for (name, o), node in zip(graph._operations.items(), network.graph.node):
            self.assertEqual(o._name, name)
            expected = node.name or next(filter(None, node.output))
            self.assertIn(name, (expected, expected + "_2"))
            self.assertEqual(o._type, node.op_type)
            inputs = list(node.input)
            while inputs and not inputs[-1]:
                inputs.pop()
            self.assertEqual(len(o._input_vars), len(inputs))
            for here, original in zip(o._input_vars, inputs):
                if here != original:  # one of several users of a constant
                    self.assertIn(original, constants)
                    self.assertRegex(here, f"^{original}_[0-9]+$")
                    constants[here] = constants[original]
            self.assertEqual(o._output_vars, list(node.output))
            self.assertEqual(o._opset.version, network.opset_import[0].version)
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            self.assertEqual({k: plain(v) for k, v in o._attributes.items()}, {k: plain(v) for k, v in attributes.items()}, name)
            for value in o._input_vars:
                uses.setdefault(value, []).append(name)
            makers.update(dict.fromkeys(o._output_vars, name))
        for name, v in graph._variables.items():
            self.assertEqual(v._name, name)
            self.assertEqual(v._dest_ops, uses.get(name, []))
            self.assertEqual(v._source_op, makers.get(name))
            self.assertEqual(v._is_parameter, name in constants)
            if name in constants:
                self.assertEqual(len(v._dest_ops), 1)
                value = value_of(v._value)
                self.assertEqual(value.dtype, constants[name].dtype)
                np.testing.assert_array_equal(value, constants[name])
                self.assertEqual(v._shape, list(value.shape))
                self.assertEqual(v._dtype.value, helper.np_dtype_to_tensor_dtype(value.dtype))
            else:
                self.assertIsNone(v._value)
            users = [graph._operations[o] for o in v._dest_ops + [v._source_op] * (v._source_op is not None)]
            quantable = any(type(o).__name__ == "QuantableOperation" for o in users)
            self.assertEqual(type(v).__name__, "QuantableVariable" if quantable else "Variable")
            self.assertEqual(hasattr(v, "_fp32_value"), quantable)
        self.assertEqual(set(uses) | set(makers), set(graph._variables))

    def check_configs(self, graph, platform, states, table, quantized):
        configs, variables = {}, {}
        for o in graph._operations.values():
            if type(o).__name__ != "QuantableOperation":
                self.assertFalse(hasattr(o, "_config"))
                self.assertIn(o._platform.value, (0, -1))
                continue
            self.assertEqual(o._platform.value, PLATFORMS[platform])
            self.assertFalse(o._dequantized)
            for side, names in ((o._config.input_quantization_config, o._input_vars), (o._config.output_quantization_config, o._output_vars)):
                self.assertEqual(len(side), len(names))
                for c, name in zip(side, names):
                    self.assertNotIn(c._hash, configs)
                    configs[c._hash], variables[c._hash] = c, name
        found = {}
        for number, c in configs.items():
            found[c.state.value] = found.get(c.state.value, 0) + 1
            root = c._dominator
            self.assertIs(configs[root._hash], root)
            self.assertIs(root._dominator, root)
            if c.state.value in (ACTIVATED, BAKED):
                self.assertIs(root, c)
            elif c.state.value == OVERLAPPED:
                self.assertIsNot(root, c)
            self.assertEqual(c._scale is None, c._offset is None)
            if root is not c:
                self.assertIsNone(c._scale)
            if c.state.value in (ACTIVATED, BAKED, PASSIVE, PASSIVE_BAKED, OVERLAPPED):
                scale, offset = value_of(root._scale), value_of(root._offset)
                self.assertEqual((scale.dtype, offset.dtype, scale.shape), (np.float32, np.float32, offset.shape))
                self.assertEqual(scale.ndim, 1 if root._policy._policy & PER_CHANNEL else 0)
                self.assertTrue(np.all(scale > 0))
                if not root._policy._policy & ASYMMETRICAL and root._quant_min < 0:
                    self.assertFalse(offset.any())
            if c.state.value in (BAKED, PASSIVE_BAKED):
                v = graph._variables[variables[number]]
                expected = fake_quantized(value_of(v._fp32_value), root)
                np.testing.assert_allclose(value_of(v._value), expected, rtol=0 if c._num_of_bits <= 16 else 1e-6)
        names = ("INITIAL", "BAKED", "OVERLAPPED", "ACTIVATED", "PASSIVE", "PASSIVE_INIT", "PASSIVE_BAKED")
        self.assertEqual({names[k - 1]: n for k, n in found.items() if k != FP32}, {k: n for k, n in states.items() if k != "FP32"})
        self.assertGreaterEqual(found.get(FP32, 0), states.get("FP32", 0))
        # The table for PPL has the same numbers under the same hashes.
        self.assertTrue(table)
        for name, row in table.items():
            c = configs[row["hash"]]
            self.assertEqual(variables[row["hash"]], name)
            # PPQ follows masters, too; the table has roots.
            self.assertEqual(row["dominator"], c._hash if c.state.value == PASSIVE else c._dominator._hash)
            self.assertEqual((c._num_of_bits, c._quant_min, c._quant_max), (row["bit_width"], row["q_min"], row["q_max"]))
            self.assertEqual(bool(c._policy._policy & PER_CHANNEL), row["per_channel"])
            self.assertEqual(not c._policy._policy & ASYMMETRICAL, row["sym"])
            np.testing.assert_array_equal(value_of(c._dominator._scale), np.float32(row["scale"]))
            np.testing.assert_array_equal(value_of(c._dominator._offset), row["zero_point"])
        # Each activation that the quantized model quantizes has a configuration with this scale and zero point.
        constants = {t.name: numpy_helper.to_array(t) for t in quantized.graph.initializer}
        pairs = [n for n in quantized.graph.node if n.op_type == "QuantizeLinear"]
        self.assertTrue(pairs)
        for n in pairs:
            value = n.name.removesuffix("_QuantizeLinear")
            sought = float(constants[n.input[1]]), float(constants[n.input[2]])
            known = [(float(value_of(c._dominator._scale)), float(value_of(c._dominator._offset))) for number, c in configs.items()
                     if variables[number] == value and c._dominator._scale is not None and not c._dominator._policy._policy & PER_CHANNEL]
            self.assertIn(sought, known, value)

    def check(self, model, samples, inputs, platform):
        facts, paths = self.quantize(model, samples, platform)
        graph = read(paths["native"])
        self.check_structure(graph, onnx.load(paths["onnx"]))
        self.check_configs(graph, platform, facts["states"], json.loads(paths["ppl-json"].read_text())["quant_info"], onnx.load(paths["qdq"]))
        python = os.environ.get("DETENT_PPQ_PYTHON")
        if python:
            self.check_with_ppq(python, graph, paths, inputs, f"{graph._name}, {platform}")
        return graph

    def check_with_ppq(self, python, graph, paths, inputs, label):
        results = self.folder / "ppq.npz"
        done = subprocess.run([python, __file__, "--inside-ppq", str(paths["native"]), str(inputs), str(results)], capture_output=True,
                              text=True, env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"})
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        theirs = json.loads(done.stdout.splitlines()[-1])
        ours = json.loads(json.dumps(facts_of_stand_ins(graph)))
        for key in ours:
            self.assertEqual(theirs[key], ours[key], key)
        rounding = next(o._config.output_quantization_config[0]._rounding.value for o in graph._operations.values() if hasattr(o, "_config"))
        expected = self.run_by_onnxruntime(onnx.load(paths["qdq"]), np.load(inputs), halves_go_up=rounding == 1)
        for name, value in np.load(results).items():
            maker = graph._operations[graph._variables[name]._source_op]
            step = float(value_of(maker._config.output_quantization_config[0]._dominator._scale))
            steps = np.abs(value - expected[name]) / step
            print(f"PPQ loads {label}: {np.mean(steps < 0.01):.2%} of {value.size} outputs equal, at most {steps.max():.2f} steps apart")
            self.assertGreater(np.mean(steps < 0.01), 0.99)
            self.assertLess(steps.max(), 1.01)

    def run_by_onnxruntime(self, model, x, halves_go_up):
        """What the quantized model computes step by step, as PPQ's executor does. QuantizeLinear rounds halves to even;
        `halves_go_up` puts the other rule in its place, for int8 with zero point 0."""
        import onnxruntime

        for n in model.graph.node:
            n.ClearField("name")  # ONNX Runtime takes no two nodes of one name
        if halves_go_up:
            constants = {"a_half": 0.5, "lowest": -128, "highest": 127}
            model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), name) for name, v in constants.items())
            nodes = []
            for n in model.graph.node:
                if n.op_type != "QuantizeLinear":
                    nodes.append(n)
                    continue
                at = n.output[0]
                nodes += [helper.make_node("Div", n.input[:2], [at + "/ratio"]), helper.make_node("Add", [at + "/ratio", "a_half"], [at + "/more"]),
                          helper.make_node("Floor", [at + "/more"], [at + "/level"]),
                          helper.make_node("Clip", [at + "/level", "lowest", "highest"], [at + "/clipped"]),
                          helper.make_node("Cast", [at + "/clipped"], [at], to=TensorProto.INT8)]
            del model.graph.node[:]
            model.graph.node.extend(nodes)
        session_options = onnxruntime.SessionOptions()
        session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), session_options, providers=["CPUExecutionProvider"])
        runs = [session.run(None, {model.graph.input[0].name: x[i : i + 1]}) for i in range(len(x))]
        return {o.name: np.concatenate([r[k] for r in runs]) for k, o in enumerate(session.get_outputs())}

    def test_digits(self):
        inputs = self.folder / "inputs.npy"
        np.save(inputs, np.load(options.digits / "test_images.npy")[:200].astype(np.float32))
        for platform in PLATFORMS:
            with self.subTest(platform):
                self.check(options.digits / "digits.onnx", options.digits / "calibration_images.npy", inputs, platform)

    def test_branches(self):
        model, inputs = self.folder / "branches.onnx", self.folder / "inputs.npy"
        onnx.save(branched_network(), model)
        np.save(inputs, np.random.default_rng(3).normal(size=(64, 3, 8, 8)).astype(np.float32))
        original = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
        for platform in PLATFORMS:
            with self.subTest(platform):
                graph = self.check(model, inputs, inputs, platform)
                names = list(graph._operations)
                self.assertEqual(names[names.index("layer") + 1], "layer_2")
                self.assertIn("c1", names)  # a node without a name
                self.assertEqual(graph._operations["a1"]._input_vars[1], "")
                for name in ("w0", "w1", "w2"):
                    np.testing.assert_array_equal(value_of(graph._variables[name]._fp32_value), original[name])
                self.assertEqual(value_of(graph._variables["roi"]._value).shape, (0,))
                self.assertEqual(graph._operations["resize"]._input_vars[1:], ["roi", "scales"])
                self.assertEqual(graph._operations["left_resize"]._input_vars[1:], ["roi_2", "scales_2"])
                self.assertEqual(graph._variables["joined"]._shape, [1, 24, 8, 8])
                platforms = {name: o._platform.value for name, o in graph._operations.items()}
                for name in ("shape", "gather", "dims"):
                    self.assertEqual(platforms[name], -1, name)

    def test_what_ppq_does_not_have(self):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
        branch = lambda name, kind: helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [],
                                                      [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])])
        nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Greater", ["m", "zero"], ["positive"]),
                 helper.make_node("If", ["positive"], ["z"], name="choice", then_branch=branch("t", "Relu"), else_branch=branch("e", "Neg")),
                 helper.make_node("MatMul", ["z", "w"], ["y"])]
        constants = [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
        graph = helper.make_graph(nodes, "choices", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])], constants)
        model, samples = self.folder / "choices.onnx", self.folder / "samples.npy"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), model)
        np.save(samples, np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32))
        done = subprocess.run([options.detent, "quantize", str(model), "-o", str(self.folder / "q.onnx"), "--pipeline", "ppq",
                               "--calib", str(samples),
                               "--export", f"native={self.folder / 'q.native'}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("'choice'", done.stderr)
        self.assertIn("sub-graphs", done.stderr)
        self.assertFalse((self.folder / "q.native").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
