#!/usr/bin/env python3
"""Makes the inputs that fuzzing begins with: small ONNX models, .npy files, samples and configuration files.

    make_corpus.py FOLDER [--digits FOLDER]

The models are ONNX's own node tests (they come with the onnx package), and some that are made here:
layers in a row, control flow, and quantized models in all forms. Nothing in FOLDER is removed.
"""
import argparse
import os
import pathlib
import struct
import sys
import warnings

try:
    import numpy as np
    import onnx
    from onnx import TensorProto as T, helper as h, numpy_helper
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

LARGEST = 8192  # bytes of a model


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, inputs, outputs, constants, opset=17, domains=()):
    graph = h.make_graph(nodes, "g", inputs, outputs, constants)
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(d, 1) for d in domains]
    return h.make_model(graph, opset_imports=imports, ir_version=8)


def value(name, dims, element=T.FLOAT):
    return h.make_tensor_value_info(name, element, dims)


def made_models():
    r = np.random.default_rng(1)

    def real(*dims):
        return r.standard_normal(dims).astype(np.float32)

    yield "network", model(
        [h.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
         h.make_node("BatchNormalization", ["c", "g", "b", "b", "v"], ["n"], name="norm"),
         h.make_node("Relu", ["n"], ["r"], name="relu"),
         h.make_node("Conv", ["r", "d"], ["e"], name="depthwise", group=4),
         h.make_node("Add", ["e", "r2"], ["s"], name="sum"),
         h.make_node("GlobalAveragePool", ["s"], ["p"], name="pool"),
         h.make_node("Flatten", ["p"], ["f"], name="flatten"),
         h.make_node("Gemm", ["f", "m", "k"], ["y"], name="gemm", transB=1)],
        [value("x", ["N", 3, 6, 6])], [value("y", ["N", 5])],
        [constant("w", real(4, 3, 3, 3)), constant("b", real(4)), constant("g", real(4)), constant("v", np.abs(real(4))),
         constant("d", real(4, 1, 1, 1)), constant("r2", real(1, 4, 1, 1)), constant("m", real(5, 4)), constant("k", real(5))])
    yield "attention", model(
        [h.make_node("MatMul", ["x", "q"], ["a"]), h.make_node("MatMul", ["x", "k"], ["b"]),
         h.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]), h.make_node("MatMul", ["a", "t"], ["s"]),
         h.make_node("Softmax", ["s"], ["p"], axis=-1), h.make_node("MatMul", ["p", "x"], ["o"]),
         h.make_node("LayerNormalization", ["o", "g", "h"], ["y"])],
        [value("x", [1, 3, 16])], [value("y", [1, 3, 16])],
        [constant("q", real(16, 16)), constant("k", real(16, 16)), constant("g", real(16)), constant("h", real(16))])
    yield "shapes", model(
        [h.make_node("Shape", ["x"], ["s"]), h.make_node("Gather", ["s", "i"], ["n"]), h.make_node("Concat", ["n", "m"], ["d"], axis=0),
         h.make_node("Reshape", ["x", "d"], ["r"]), h.make_node("Slice", ["r", "b", "e"], ["c"]),
         h.make_node("Pad", ["c", "p"], ["y"], mode="reflect"), h.make_node("ConstantOfShape", ["d"], ["z"])],
        [value("x", [2, 3, 4])], [value("y", None), value("z", None)],
        [constant("i", np.array([0])), constant("m", np.array([-1])), constant("b", np.array([0, 1])),
         constant("e", np.array([2, 9])), constant("p", np.array([0, 2, 1, 0]))])
    body = h.make_graph(
        [h.make_node("Add", ["v", "x"], ["w"]), h.make_node("Identity", ["go"], ["more"])], "body",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("v", [2])],
        [value("more", [], T.BOOL), value("w", [2]), value("w", [2])])
    branch = h.make_graph([h.make_node("Neg", ["l"], ["n"])], "branch", [], [value("n", [2])])
    other = h.make_graph([h.make_node("Abs", ["l"], ["m"])], "other", [], [value("m", [2])])
    yield "loops", model(
        [h.make_node("Loop", ["trips", "", "x"], ["l", "all"], body=body),
         h.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)],
        [value("x", [2]), value("c", [], T.BOOL)], [value("y", [2]), value("all", None)],
        [constant("trips", np.array(3))])
    quantized = [constant("s", np.float32(0.1)), constant("z", np.uint8(128)), constant("ws", real(4) ** 2 + np.float32(0.1)),
                 constant("wz", np.zeros(4, np.int8)), constant("w", r.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)),
                 constant("bias", r.integers(-99, 99, 4).astype(np.int32))]
    yield "qdq", model(
        [h.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]), h.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
         h.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0), h.make_node("Conv", ["xd", "wd"], ["c"]),
         h.make_node("Relu", ["c"], ["r"]), h.make_node("QuantizeLinear", ["r", "s", "z"], ["yq"]),
         h.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"])],
        [value("x", [1, 3, 5, 5])], [value("y", None)], quantized[:5])
    yield "qlinear", model(
        [h.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
         h.make_node("QLinearConv", ["xq", "s", "z", "w", "ws", "wz", "s", "z", "bias"], ["c"]),
         h.make_node("QLinearAdd", ["c", "s", "z", "c", "s", "z", "s", "z"], ["a"], domain="com.microsoft"),
         h.make_node("DequantizeLinear", ["a", "s", "z"], ["y"])],
        [value("x", [1, 3, 5, 5])], [value("y", None)], quantized, domains=["com.microsoft"])
    yield "integers", model(
        [h.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]), h.make_node("MatMulInteger", ["q", "w2", "qz"], ["p"]),
         h.make_node("Cast", ["p"], ["f"], to=T.FLOAT), h.make_node("Mul", ["f", "qs"], ["y"])],
        [value("x", [2, 8])], [value("y", None)], [constant("w2", r.integers(-127, 127, (8, 4)).astype(np.int8))])
    yield "qdq_products", model(
        [h.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]), h.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
         h.make_node("DequantizeLinear", ["w2", "ws", "wz"], ["wd"], axis=1), h.make_node("MatMul", ["xd", "wd"], ["m"]),
         h.make_node("Add", ["m", "row"], ["a"]), h.make_node("Clip", ["a", "low", "high"], ["r"]),
         h.make_node("QuantizeLinear", ["r", "s", "z"], ["rq"]), h.make_node("DequantizeLinear", ["rq", "s", "z"], ["rd"]),
         h.make_node("Flatten", ["rd"], ["f"], axis=2), h.make_node("DequantizeLinear", ["bias", "bs"], ["bd"], axis=0),
         h.make_node("DequantizeLinear", ["w3", "ws", "wz"], ["w3d"], axis=1), h.make_node("Gemm", ["f", "w3d", "bd"], ["g"]),
         h.make_node("QuantizeLinear", ["g", "s", "z"], ["y"])],
        [value("x", [2, 3, 5])], [value("y", None, T.UINT8)],
        [quantized[0], quantized[1], quantized[2], quantized[3], quantized[5], constant("row", real(4)), constant("low", np.float32(-1)),
         constant("high", np.float32(6)), constant("bs", real(4) ** 2 + np.float32(0.1)),
         constant("w2", r.integers(-127, 127, (5, 4)).astype(np.int8)), constant("w3", r.integers(-127, 127, (4, 4)).astype(np.int8))])
    yield "channels", model(
        [h.make_node("Conv", ["x", "w", "b"], ["c"]), h.make_node("PRelu", ["c", "slope"], ["p"]),
         h.make_node("Mul", ["p", "factor"], ["m"]), h.make_node("Conv", ["m", "d"], ["e"]),
         h.make_node("Reshape", ["e", "dims"], ["f"]), h.make_node("Gemm", ["f", "k", "one"], ["g"]),
         h.make_node("Relu", ["g"], ["r"]), h.make_node("Gemm", ["r", "l"], ["y"])],
        [value("x", [1, 3, 4, 4])], [value("y", None)],
        [constant("w", 5 * real(8, 3, 1, 1)), constant("b", real(8)), constant("slope", real(8, 1, 1)), constant("factor", real(1, 8, 1, 1)),
         constant("d", 5 * real(2, 8, 1, 1)), constant("dims", np.array([1, -1])), constant("k", real(32, 1)),
         constant("one", np.float32(0.5)), constant("l", real(1, 4))])
    yield "gated", model(
        [h.make_node("MatMul", ["x", "a"], ["p"]), h.make_node("MatMul", ["x", "b"], ["q"]), h.make_node("Sigmoid", ["q"], ["s"]),
         h.make_node("Mul", ["p", "s"], ["m"]), h.make_node("MatMul", ["m", "c"], ["n"]), h.make_node("Add", ["n", "row"], ["o"]),
         h.make_node("ReduceMean", ["o"], ["t"], axes=[1], keepdims=0), h.make_node("MatMul", ["t", "d"], ["y"])],
        [value("x", [1, 3, 8])], [value("y", None)],
        [constant("a", real(8, 8)), constant("b", real(8, 8)), constant("c", real(8, 8)), constant("row", real(8)), constant("d", real(8, 8))])
    yield "nbits", model(
        [h.make_node("MatMulNBits", ["x", "b", "sc"], ["y"], domain="com.microsoft", K=32, N=3, bits=4, block_size=16)],
        [value("x", [2, 32])], [value("y", None)],
        [constant("b", r.integers(0, 255, (3, 2, 8)).astype(np.uint8)), constant("sc", real(6))], domains=["com.microsoft"])


def open_models():
    """The models that are made here with an open dimension in each input: what does not fit is found only when they run."""
    for name, m in made_models():
        for v in m.graph.input:
            if v.type.tensor_type.shape.dim:
                v.type.tensor_type.shape.dim[0].dim_param = "N"
        yield name + "_open", m


def node_test_models():
    """The models of ONNX's node tests."""
    warnings.simplefilter("ignore")  # of infinities that the tests make on purpose
    try:
        from onnx.backend.test.case.node import collect_testcases
        for case in collect_testcases(None):
            if case.model is not None:
                yield case.name, case.model
    except Exception as e:  # they are made by code of another project: what it can't make is left out
        print(f"no node tests: {type(e).__name__}: {e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--digits", type=pathlib.Path)
    options, _ = parser.parse_known_args()
    folders = {name: options.folder / name for name in ("onnx", "npy", "samples", "config")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for models in (made_models(), open_models(), node_test_models()):
        for name, m in models:
            data = m.SerializeToString()
            if len(data) <= LARGEST:
                (folders["onnx"] / f"{name}.onnx").write_bytes(data)
                count += 1
    for name, array in {
            "floats": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.float64(1.5), "bytes": np.zeros((3, 0), np.uint8),
            "half": np.ones(4, np.float16), "long": np.arange(3), "bool": np.array([True, False]),
            "fortran": np.asfortranarray(np.ones((2, 3), np.float32))}.items():
        np.save(folders["npy"] / f"{name}.npy", array)
        # Before the file: its kind (0: TensorProto), rank and four dimensions of the input (-1: open), axis (7: none, 6: fixed).
        choices = {"open": (array.ndim, 0xFFFFFFFF, 7), "last": (array.ndim, 0xFFFFFFFF, -1), "batch": (array.ndim, 0xFF02, 1),
                   "fixed": (4, 0, 6), "single": (0, 0, 7)}
        for word, choice in choices.items():
            proto = numpy_helper.from_array(np.ascontiguousarray(array)).SerializeToString()
            for kind, content in ((0, proto), (1, (folders["npy"] / f"{name}.npy").read_bytes())):
                (folders["samples"] / f"{name}_{word}_{kind}").write_bytes(struct.pack("<IBIb", kind, *choice) + content)
    (folders["config"] / "all.yaml").write_text(
        "approach: static\nmethod: percentile\npercentile: 99.9\nactivations: u8\ngranularity: per-channel\n"
        "ignored:\n  names: [a, b]\n  types: [Softmax]\n  patterns: ['layer.*']\n"
        "operators:\n  - types: [Conv]\n    settings: {weight_bits: 4}\ntensors:\n  x: {scale: 0.1, zero_point: 3}\n")
    (folders["config"] / "neural_compressor.yaml").write_text(
        "model: {name: m, framework: onnxrt_qdqops, inputs: x}\nquantization:\n  approach: static\n  calibration:\n    sampling_size: 8, 16\n"
        "    dataloader: {batch_size: 2, dataset: {npy: {inputs: [a=X.npy], labels: Y.npy}}}\n  model_wise: {weight: {bit: 7.0, dtype: int8}}\n"
        "  op_wise: {'a.*': {activation: {dtype: fp32}}}\nevaluation:\n  accuracy:\n    multi_metrics: {topk: 1, MSE: {compare_label: False}, "
        "weight: [0.5, 0.5]}\n    dataloader: {dataset: {dummy: {shape: [[2, 3]], low: 0, high: 1}}}\ntuning:\n  strategy: {name: mse}\n"
        "  accuracy_criterion: {relative: 1%}\n  exit_policy: {timeout: 0, max_trials: 3}\n  workspace: {path: w}\n")
    for i, text in enumerate(["", "{}", "approach: dynamic\n", "a: &a [*a]\n", "- 1\n- 2\n", "? [x]\n: y\n", "method: {x: 1}\n"]):
        (folders["config"] / f"small{i}.yaml").write_text(text)
    print(f"{count} models")


if __name__ == "__main__":
    main()
