#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times models in detent's executor and in ONNX Runtime, by turns.

    models.py --program bench_models --detent detent [--threads 1 2] [--seconds S] [--profile] [MODEL.onnx...]

Without models, makes networks with random weights: a squeezenet (1.1, 3x224x224), mobilenets (v1 of a quarter of the
width on 3x96x96, v2 on 3x224x224), a resnet20 (3x32x32), a tiny_darknet (3x224x224) and a transformer of 6 layers (64
tokens of 384 numbers). `detent quantize` makes the integer model of each (--forms int8; QDQ, calibrated on random
inputs), and both sides run that same file. A row for each model, form and number of threads: medians in microseconds,
the ratio (above 1: detent is faster) with its quartiles and that of the shortest times, and the largest difference of
the outputs in parts of the largest element of an output, which are compared before the timing. If it is more than
TOLERANCES has for the form, the row says WRONG, and the program fails at its end. With --profile also the time of each
operator on both sides and the slowest nodes of the executor, from runs that follow the timed ones; to measure nodes
takes time itself, most in small models."""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# float: sums in another order, and functions that are off by units in the last place, make differences of some 1e-6.
# int8: where a value is nearly a tie, such a difference becomes a step of a code, 1/255 to 1/127 of a range, which later
# layers carry on; the most so far is 0.021, of the transformer. A wrong kernel makes differences of the size of the outputs.
TOLERANCES = {"float": 1e-3, "int8": 0.05}


class Network:
    """A chain of layers with random weights that keep the sizes of values."""

    def __init__(self, shape):
        self.random = np.random.default_rng(1)
        self.nodes, self.constants = [], []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        self.channels = {"x": shape[1]}

    def add(self, kind, inputs, channels, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.channels[name] = channels
        return name

    def constant(self, values, kind=np.float32):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def conv(self, x, filters, kernel, stride=1, groups=1, activation="Relu", pad=None):
        depth = self.channels[x] // groups * kernel * kernel
        shape = (filters, self.channels[x] // groups, kernel, kernel)
        w = self.constant(self.random.standard_normal(shape) * np.sqrt((2 if activation else 1) / depth))
        b = self.constant(self.random.standard_normal(filters) * 0.1)
        pad = kernel // 2 if pad is None else pad
        y = self.add("Conv", [x, w, b], filters, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
                     group=groups)
        if activation == "Clip":
            return self.add("Clip", [y, self.constant(0.0), self.constant(6.0)], filters)
        return self.add(activation, [y], filters) if activation else y

    def depthwise(self, x, stride=1, activation="Relu"):
        return self.conv(x, self.channels[x], 3, stride, self.channels[x], activation)

    def pool(self, x, kernel=3, stride=2):
        return self.add("MaxPool", [x], self.channels[x], kernel_shape=[kernel] * 2, strides=[stride] * 2)

    def classes(self, x, count):
        x = self.add("GlobalAveragePool", [x], self.channels[x])
        x = self.add("Flatten", [x], self.channels[x])
        w = self.random.standard_normal((count, self.channels[x])) / np.sqrt(self.channels[x])
        return self.add("Gemm", [x, self.constant(w), self.constant(np.zeros(count))], count, transB=1)

    def linear(self, x, inputs, outputs):
        w = self.constant(self.random.standard_normal((inputs, outputs)) / np.sqrt(inputs))
        b = self.constant(self.random.standard_normal(outputs) * 0.1)
        return self.add("Add", [b, self.add("MatMul", [x, w], outputs)], outputs)

    def normalized(self, x, width):
        gamma, beta = self.constant(np.ones(width)), self.constant(np.zeros(width))
        return self.add("LayerNormalization", [x, gamma, beta], width)

    def heads(self, x, perm, heads, size):
        x = self.add("Reshape", [x, self.constant([0, 0, heads, size], np.int64)], heads)
        return self.add("Transpose", [x], heads, perm=perm)

    def save(self, y, path):
        graph = helper.make_graph(self.nodes, path.stem, [self.input], [onnx.ValueInfoProto(name=y)], self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def squeezenet(path):
    n = Network([1, 3, 224, 224])
    x = n.pool(n.conv("x", 64, 3, 2, pad=0))
    for i, (squeezed, expanded) in enumerate(((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256),
                                              (64, 256))):
        if i in (2, 4):
            x = n.pool(x)
        x = n.conv(x, squeezed, 1)
        x = n.add("Concat", [n.conv(x, expanded, 1), n.conv(x, expanded, 3)], 2 * expanded, axis=1)
    x = n.conv(x, 1000, 1)
    x = n.add("GlobalAveragePool", [x], 1000)
    return n.save(n.add("Flatten", [x], 1000), path)


def mobilenet_v1(path, width=0.25):
    n = Network([1, 3, 96, 96])
    x = n.conv("x", int(32 * width), 3, 2)
    for filters, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1),
                            (512, 1), (512, 1), (1024, 2), (1024, 1)):
        x = n.conv(n.depthwise(x, stride), int(filters * width), 1)
    return n.save(n.classes(x, 2), path)


def mobilenet_v2(path):
    n = Network([1, 3, 224, 224])
    x = n.conv("x", 32, 3, 2, activation="Clip")
    for expand, filters, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                           (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            y = n.conv(x, expand * n.channels[x], 1, activation="Clip") if expand > 1 else x
            y = n.conv(n.depthwise(y, stride if i == 0 else 1, "Clip"), filters, 1, activation=None)
            x = y if i == 0 else n.add("Add", [x, y], filters)
    return n.save(n.classes(n.conv(x, 1280, 1, activation="Clip"), 1000), path)


def resnet20(path):
    n = Network([1, 3, 32, 32])
    x = n.conv("x", 16, 3)
    for filters in (16, 32, 64):
        for _ in range(3):
            stride = 1 if filters == n.channels[x] else 2
            y = n.conv(n.conv(x, filters, 3, stride), filters, 3, activation=None)
            x = x if stride == 1 else n.conv(x, filters, 1, stride, activation=None)
            x = n.add("Relu", [n.add("Add", [x, y], filters)], filters)
    return n.save(n.classes(x, 10), path)


def tiny_darknet(path):
    n = Network([1, 3, 224, 224])
    x = n.pool(n.conv("x", 16, 3), 2)
    x = n.pool(n.conv(x, 32, 3), 2)
    for squeezed, expanded in ((16, 128), (32, 256), (64, 512)):
        for _ in range(2):
            x = n.conv(n.conv(x, squeezed, 1), expanded, 3)
        x = n.pool(x, 2) if expanded < 512 else x
    x = n.conv(n.conv(x, 128, 1), 1000, 1)
    x = n.add("GlobalAveragePool", [x], 1000)
    return n.save(n.add("Flatten", [x], 1000), path)


def transformer(path, layers=6, length=64, width=384, heads=12):
    """The encoder of MiniLM-L6, in the nodes that PyTorch exports."""
    n = Network([1, length, width])
    x = n.normalized("x", width)
    for _ in range(layers):
        size = width // heads
        q, k, v = (n.heads(n.linear(x, width, width), perm, heads, size)
                   for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        a = n.add("Div", [n.add("MatMul", [q, k], heads), n.constant(np.sqrt(size))], heads)
        a = n.add("MatMul", [n.add("Softmax", [a], heads, axis=-1), v], heads)
        a = n.add("Transpose", [a], heads, perm=[0, 2, 1, 3])
        a = n.add("Reshape", [a, n.constant([0, 0, width], np.int64)], width)
        x = n.normalized(n.add("Add", [n.linear(a, width, width), x], width), width)
        u = n.linear(x, width, 4 * width)
        e = n.add("Erf", [n.add("Div", [u, n.constant(np.sqrt(2))], 4 * width)], 4 * width)
        u = n.add("Mul", [u, n.add("Add", [e, n.constant(1)], 4 * width)], 4 * width)
        u = n.add("Mul", [u, n.constant(0.5)], 4 * width)
        x = n.normalized(n.add("Add", [n.linear(u, 4 * width, width), x], width), width)
    return n.save(x, path)


NETWORKS = {"squeezenet": squeezenet, "mobilenet_v1_025": mobilenet_v1, "mobilenet_v2": mobilenet_v2,
            "resnet20": resnet20, "tiny_darknet": tiny_darknet, "transformer": transformer}


def quantized(detent, model, folder):
    """The QDQ model that `detent quantize` makes; made once in a folder."""
    result = folder / f"{model.stem}_int8.onnx"
    if not result.exists():
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        random = np.random.default_rng(2)
        command = [detent, "quantize", model, "--output", result]
        for number, value in enumerate(session.get_inputs()):
            shape = [d if isinstance(d, int) else 1 for d in value.shape]
            samples = folder / f"{model.stem}_{number}.npy"
            np.save(samples, random.standard_normal([4 * shape[0], *shape[1:]]).astype(np.float32))
            command += ["--calib", f"{value.name}={samples}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return result


def theirs_by_operator(profile):
    """The microseconds of a run in each operator of ONNX Runtime: the medians of its nodes."""
    nodes = collections.defaultdict(list)
    for event in json.loads(profile.read_text()):
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes[event["name"], arguments["op_name"]].append(event["dur"])
    operators = collections.Counter()
    for (_, operator), durations in nodes.items():
        operators[operator] += float(np.mean(durations))
    return operators


def print_profile(lines, profile, slowest):
    nodes = [(float(time), operator, output) for _, time, operator, output in (line.split(maxsplit=3) for line in lines)]
    ours = collections.Counter()
    for time, operator, _ in nodes:
        ours[operator] += time
    theirs = theirs_by_operator(profile)
    for title, operators in (("detent", ours), ("ONNX Runtime", theirs)):
        print(f"    {title}: " + ", ".join(f"{name} {time:.1f}" for name, time in operators.most_common()))
    for time, operator, output in sorted(nodes, reverse=True)[:slowest]:
        print(f"      {time:9.1f} {operator} {output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--program", required=True, type=pathlib.Path, metavar="BENCH_MODELS")
    parser.add_argument("--detent", type=pathlib.Path, help="the command line tool, which quantizes the models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--forms", nargs="+", choices=("float", "int8"), default=["float", "int8"])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--folder", type=pathlib.Path, help="where made models are kept for the next call")
    parser.add_argument("--winograd", choices=("0", "2", "4"), default="0",
                        help="tile of Winograd convolutions in float models; 0: exact sums")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--slowest", type=int, default=0, help="how many nodes a profile lists")
    options = parser.parse_args()
    if "int8" in options.forms and options.detent is None:
        parser.error("--forms int8 needs --detent")
    library = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    print(f"# ONNX Runtime {onnxruntime.__version__}")
    print(f"{'model':32} {'form':5} threads {'detent us':>10} {'other us':>10} {'ratio':>6} {'quartiles':>11} {'best':>5} difference")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = options.models or [make(folder / f"{name}.onnx") for name, make in NETWORKS.items()]
        ratios = collections.defaultdict(list)
        wrong = []
        for model in models:
            for form in options.forms:
                path = model if form == "float" else quantized(options.detent, model, folder)
                for threads in options.threads:
                    profiles = pathlib.Path(tempfile.mkdtemp(dir=temporary)) if options.profile else "-"
                    command = [options.program, library, str(threads), str(options.seconds), profiles, options.winograd, path]
                    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
                    _, _, ours, theirs, ratio, low, high, best, error = out[0].split()
                    ratios[form, threads].append(float(ratio))
                    right = float(error) <= TOLERANCES[form]
                    wrong += [] if right else [f"{model.stem} ({form}, {threads} threads)"]
                    print(f"{model.stem:32} {form:5} {threads:7} {float(ours):10.1f} {float(theirs):10.1f} "
                          f"{float(ratio):6.2f} {float(low):5.2f}-{float(high):5.2f} {float(best):5.2f} {error:>9}"
                          f"{'' if right else ' WRONG'}", flush=True)
                    if options.profile:
                        print_profile(out[1:], next(profiles.glob("*.json")), options.slowest)
        for (form, threads), all_of in ratios.items():
            print(f"# {form}, {threads} threads: geometric mean {np.exp(np.mean(np.log(all_of))):.2f}, "
                  f"smallest {min(all_of):.2f}")
    if wrong:
        sys.exit(f"models.py: outputs differ from those of ONNX Runtime: {', '.join(wrong)}")


if __name__ == "__main__":
    sys.exit(main())
