#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times single float operators in detent's executor and in ONNX Runtime, by turns.

    operators.py --program bench_models [--threads N] [--seconds S] [--only WORD]

Makes a model of one operator for each row: functions of elements, rows, images and movements in the sizes that
transformers and convolutional networks have. The columns are medians in microseconds (of the processor's time with one
thread), the ratio (above 1: detent is faster), and the largest difference of the outputs in parts of the largest element.
If that is more than TOLERANCE, the row says WRONG, and the program fails at its end. The last line has the geometric mean
of the ratios."""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# Sums in another order, and functions that are off by some units in the last place, differ by some 1e-6.
TOLERANCE = 1e-3
RANDOM = np.random.default_rng(0)
HIDDEN, WIDE, IMAGE = [128, 768], [128, 3072], [1, 64, 56, 56]


def floats(*dims):
    return RANDOM.standard_normal(dims).astype(np.float32)


def integers(*values):
    return np.array(values, np.int64)


def rows():
    """Name, operator, shape of the input, constants behind it, and attributes."""
    for op in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Softplus", "Mish", "Exp", "Log",
               "Erf", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Round", "Sign"):
        yield op, op, HIDDEN, (), {}
    yield "Gelu", "Gelu", WIDE, (), {}
    yield "Gelu, tanh", "Gelu", WIDE, (), {"approximate": "tanh"}
    yield "Clip", "Clip", HIDDEN, (np.float32(-1), np.float32(1)), {}
    yield "Pow 2", "Pow", HIDDEN, (np.float32(2),), {}
    for op in ("Add", "Mul", "Div", "Max"):
        yield op, op, HIDDEN, (floats(*HIDDEN) + 3,), {}
    yield "Add, a bias", "Add", WIDE, (floats(WIDE[1]),), {}
    yield "Add, channels", "Add", IMAGE, (floats(1, 64, 1, 1),), {}
    yield "Softmax", "Softmax", [12 * 128, 128], (), {}
    yield "Softmax, channels", "Softmax", [1, 21, 64, 64], (), {"axis": 1}
    yield "LogSoftmax", "LogSoftmax", [128, 1000], (), {}
    yield "LayerNormalization", "LayerNormalization", HIDDEN, (floats(768), floats(768)), {}
    yield "LayerNormalization, 64", "LayerNormalization", [512, 64], (floats(64), floats(64)), {}
    yield "InstanceNormalization", "InstanceNormalization", [1, 64, 32, 32], (floats(64), floats(64)), {}
    yield "BatchNormalization", "BatchNormalization", IMAGE, (floats(64), floats(64), floats(64), np.abs(floats(64)) + 1), {}
    yield "LRN", "LRN", [1, 64, 28, 28], (), {"size": 5}
    for op in ("ReduceMean", "ReduceMax", "ReduceL2"):
        yield op, op, HIDDEN, (integers(1),), {}
    yield "ReduceSum, columns", "ReduceSum", HIDDEN, (integers(0),), {}
    yield "ArgMax", "ArgMax", HIDDEN, (), {"axis": 1}
    yield "CumSum", "CumSum", HIDDEN, (np.int64(1),), {}
    for name, dims, order in (("rows and columns", [768, 768], [1, 0]), ("heads", [1, 128, 12, 64], [0, 2, 1, 3]),
                              ("keys", [1, 128, 12, 64], [0, 2, 3, 1]), ("channels last", IMAGE, [0, 2, 3, 1])):
        yield f"Transpose, {name}", "Transpose", dims, (), {"perm": order}
    yield "Slice", "Slice", [64, 3136], (integers(0, 8), integers(64, 3000), integers(0, 1)), {}
    yield "Pad", "Pad", IMAGE, (integers(0, 0, 1, 1, 0, 0, 1, 1),), {}
    yield "Concat", "Concat", HIDDEN, (floats(*HIDDEN),), {"axis": 1}
    yield "Expand", "Expand", [128, 1], (integers(*HIDDEN),), {}
    double = np.array([1, 1, 2, 2], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        yield f"Resize, {mode}", "Resize", [1, 64, 28, 28], (np.zeros(0, np.float32), double), {"mode": mode}
    yield "MaxPool", "MaxPool", IMAGE, (), {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield "AveragePool", "AveragePool", IMAGE, (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    yield "GlobalAveragePool", "GlobalAveragePool", [1, 512, 7, 7], (), {}
    yield "MatMul", "MatMul", HIDDEN, (floats(768, 768),), {}
    yield "MatMul, heads", "MatMul", [12, 128, 64], (floats(12, 64, 128),), {}
    yield "Conv 3x3", "Conv", [1, 64, 28, 28], (floats(64, 64, 3, 3), floats(64)), {"pads": [1] * 4}


def write(path, op, dims, constants, attributes):
    names = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    result = TensorProto.INT64 if op == "ArgMax" else TensorProto.FLOAT
    graph = helper.make_graph([node], op, [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
                              [helper.make_tensor_value_info("y", result, None)],
                              [numpy_helper.from_array(np.asarray(c), name) for name, c in zip(names, constants)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path, metavar="BENCH_MODELS")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows with this in their name")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in row[0]]
    if not chosen:
        parser.error(f"no row has '{options.only}' in its name")
    library = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    print(f"# ONNX Runtime {onnxruntime.__version__}, {options.threads} threads")
    print(f"{'operator':24} {'detent us':>10} {'other us':>10} {'ratio':>6} difference")
    ratios, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "operator.onnx"
        for name, *model in chosen:
            write(path, *model)
            command = [options.program, library, str(options.threads), str(options.seconds), "-", "0", path]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            _, _, ours, theirs, ratio, _, _, _, error = out.split()
            ratios.append(float(ratio))
            right = float(error) <= TOLERANCE
            wrong += [] if right else [name]
            print(f"{name:24} {float(ours):10.1f} {float(theirs):10.1f} {ratios[-1]:6.2f} {error:>10}"
                  f"{'' if right else ' WRONG'}", flush=True)
    print(f"# geometric mean {np.exp(np.mean(np.log(ratios))):.2f}, smallest {min(ratios):.2f}, "
          f"below 1 in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)} rows")
    if wrong:
        sys.exit(f"operators.py: outputs differ from those of ONNX Runtime: {'; '.join(wrong)}")


if __name__ == "__main__":
    sys.exit(main())
