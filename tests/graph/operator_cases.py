# SPDX-License-Identifier: BSD-3-Clause
"""Small models, most of one operator, over many attributes and opsets.

Elements are multiples of 1/4 where sums matter: float32 adds them up exactly in any order, so that the
comparison needs no tolerance for cancellation.
"""

import itertools
import zlib

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

OPSETS = (7, 9, 11, 13, 17, 21, 23)
ML_DOMAIN = "com.microsoft"


class Case:
    """A model and its inputs. `constants` become initializers."""

    def __init__(self, label, opset, nodes, inputs, constants=None, outputs=("y",)):
        self.label = label
        self.opset = opset
        self.inputs = inputs
        graph = helper.make_graph(
            nodes,
            "case",
            [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
             for name, value in inputs.items()],
            [ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML_DOMAIN, 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10 if opset < 23 else 11)


def quarters(seed, *shape, low=-16, high=16):
    """Random multiples of 1/4."""
    random = np.random.default_rng(zlib.crc32(repr((seed, shape)).encode()))
    return np.asarray(random.integers(low, high + 1, shape) / 4, np.float32)


def integers(seed, dtype, *shape, low=None, high=None):
    info = np.iinfo(dtype)
    random = np.random.default_rng(zlib.crc32(repr((seed, shape)).encode()))
    low, high = info.min if low is None else low, info.max if high is None else high
    return np.asarray(random.integers(low, high + 1, shape), dtype)


def i64(*values):
    return np.array(values, np.int64)


def f32(*values):
    return np.array(values, np.float32)


class Cases:
    """Collects the cases of one opset."""

    def __init__(self, opset):
        self.opset = opset
        self.all = []

    def add(self, op, arrays, constant=(), outputs=1, label="", domain="", **attributes):
        """One node. `arrays`: its inputs, None for an absent one; `constant`: which are initializers."""
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
        made = ["y"] if outputs == 1 else [f"y{i}" for i in range(outputs)]
        node = helper.make_node(op, names, made, domain=domain, **attributes)
        inputs = {n: a for i, (n, a) in enumerate(zip(names, arrays)) if a is not None and i not in constant}
        constants = {n: a for i, (n, a) in enumerate(zip(names, arrays)) if a is not None and i in constant}
        shapes = ",".join("x".join(map(str, a.shape)) or "scalar" for a in arrays if a is not None)
        text = " ".join([op, shapes, *(f"{k}={v}" for k, v in attributes.items()), label]).strip()
        self.all.append(Case(text, self.opset, [node], inputs, constants, made))

    def chain(self, label, steps, inputs, constants, outputs=("y",)):
        """Several nodes: (operator, inputs, outputs, attributes)."""
        nodes = [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in steps]
        self.all.append(Case(label, self.opset, nodes, inputs, constants, outputs))

    # ------------------------------------------------------------------------------------- layers

    def convolution(self):
        x1, x2 = quarters(1, 2, 4, 11), quarters(2, 2, 4, 9, 8)
        w1, w2 = quarters(4, 6, 4, 3), quarters(5, 6, 4, 3, 2)
        b = quarters(7, 6)
        for strides, dilations, pads in [((1, 1), (1, 1), (0, 0, 0, 0)), ((2, 1), (1, 1), (1, 0, 2, 1)),
                                         ((1, 2), (2, 3), (2, 1, 2, 3)), ((3, 3), (1, 1), (1, 1, 1, 1))]:
            for bias in (None, b):
                self.add("Conv", [x2, w2, bias], (1, 2), strides=strides, dilations=dilations, pads=pads)
        for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            for strides in ((1, 1), (2, 3)):
                self.add("Conv", [x2, w2, b], (1, 2), auto_pad=auto_pad, strides=strides)
        self.add("Conv", [x2, w2, b], (), kernel_shape=[3, 2], label="weights not constant")
        for group, out in ((2, 6), (4, 4), (4, 8), (2, 2)):
            w = quarters(8, out, 4 // group, 3, 3)
            self.add("Conv", [x2, w, quarters(9, out)], (1, 2), group=group, pads=[1, 1, 1, 1])
            self.add("Conv", [x2, w], (1,), group=group, strides=[2, 2], dilations=[2, 1])
        self.add("Conv", [quarters(10, 1, 16, 7, 7), quarters(11, 16, 1, 3, 3), quarters(12, 16)], (1, 2),
                 group=16, pads=[1, 1, 1, 1], label="depthwise")
        self.add("Conv", [quarters(13, 2, 7, 5, 4), quarters(14, 9, 7, 1, 1)], (1,), label="pointwise")
        self.add("Conv", [quarters(13, 2, 7, 5, 4), quarters(14, 9, 7, 1, 1)], (1,), strides=[2, 2])
        for kwargs in ({}, {"strides": [2]}, {"dilations": [3], "pads": [2, 3]}, {"auto_pad": "SAME_LOWER"}):
            self.add("Conv", [x1, w1, b], (1, 2), **kwargs)
        self.add("Conv", [x1, quarters(15, 4, 1, 5)], (1,), group=4, pads=[2, 2])
        self.add("Conv", [quarters(16, 0, 4, 9, 8), w2], (1,), label="empty batch")
        x3, w3, b3 = quarters(17, 2, 4, 5, 6, 4), quarters(18, 6, 4, 3, 2, 2), quarters(19, 6)
        for kwargs in ({}, {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}, {"dilations": [1, 3, 2]},
                       {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]}):
            self.add("Conv", [x3, w3, b3], (1, 2), **kwargs)
        self.add("Conv", [x3, w3], ())
        self.add("Conv", [x3, quarters(19, 6, 2, 2, 2, 2), b3], (1, 2), group=2)
        self.add("Conv", [x3, quarters(19, 4, 1, 2, 3, 2)], (1,), group=4, pads=[1, 1, 1, 1, 1, 1])
        self.add("Conv", [quarters(19, 1, 2, 3, 3, 3, 3), quarters(19, 3, 2, 2, 2, 2, 2)], (1,), pads=[0, 1, 0, 1, 1, 0, 1, 0])

    def transposed_convolution(self):
        x = quarters(20, 2, 4, 5, 4)
        w = quarters(21, 4, 3, 3, 2)
        for kwargs in ({}, {"strides": [2, 3]}, {"strides": [2, 2], "output_padding": [1, 1]},
                       {"pads": [1, 0, 1, 1]}, {"dilations": [2, 1], "strides": [1, 2]},
                       {"strides": [2, 2], "output_shape": [10, 8]},
                       {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
                       {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"},
                       {"strides": [3, 3], "pads": [2, 1, 0, 1], "output_padding": [2, 0]}):
            self.add("ConvTranspose", [x, w], (1,), **kwargs)
            self.add("ConvTranspose", [x, w, quarters(22, 3)], (1, 2), **kwargs)
        self.add("ConvTranspose", [x, quarters(23, 4, 2, 3, 3), quarters(24, 4)], (1, 2), group=2, strides=[2, 2])
        self.add("ConvTranspose", [x, quarters(25, 4, 1, 2, 2)], (1,), group=4)
        self.add("ConvTranspose", [quarters(26, 1, 3, 7), quarters(27, 3, 2, 4)], (1,), strides=[2], pads=[1, 1])
        self.add("ConvTranspose", [x, w], (), label="weights not constant")
        x3 = quarters(28, 2, 4, 3, 4, 2)
        for kwargs in ({}, {"strides": [2, 1, 2]}, {"strides": [2, 2, 2], "pads": [1, 0, 1, 1, 1, 0], "output_padding": [1, 0, 1]},
                       {"dilations": [2, 1, 2]}, {"strides": [2, 2, 2], "output_shape": [6, 7, 5]}):
            self.add("ConvTranspose", [x3, quarters(29, 4, 3, 2, 3, 2), quarters(29, 3)], (1, 2), **kwargs)
        self.add("ConvTranspose", [x3, quarters(29, 4, 2, 2, 2, 2)], (1,), group=2)

    def pools(self):
        x1, x2, x3 = quarters(30, 2, 3, 10), quarters(31, 2, 3, 9, 8), quarters(32, 1, 2, 5, 6, 7)
        variants = [{}, {"strides": [2, 2]}, {"strides": [2, 3], "pads": [1, 0, 1, 1]},
                    {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
                    {"auto_pad": "VALID", "strides": [1, 2]}]
        if self.opset >= 11:
            variants += [{"strides": [2, 2], "ceil_mode": 1}, {"strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
                         {"strides": [3, 3], "ceil_mode": 1}]
        for kwargs in variants:
            self.add("MaxPool", [x2], kernel_shape=[3, 2], **kwargs)
            for count in (0, 1):
                self.add("AveragePool", [x2], kernel_shape=[3, 2], count_include_pad=count, **kwargs)
        if self.opset >= 11:
            self.add("MaxPool", [x2], kernel_shape=[2, 3], dilations=[2, 1])
            self.add("MaxPool", [x2], kernel_shape=[2, 2], dilations=[3, 2], pads=[1, 1, 1, 1], strides=[2, 1])
        if self.opset >= 21:
            for count in (0, 1):
                self.add("AveragePool", [x2], kernel_shape=[2, 2], dilations=[3, 2], pads=[1, 1, 1, 1],
                         count_include_pad=count)
        for op in ("MaxPool", "AveragePool"):
            self.add(op, [x1], kernel_shape=[3], strides=[2], pads=[1, 0])
            self.add(op, [x3], kernel_shape=[2, 3, 2], strides=[1, 2, 2])
            self.add(op, [quarters(33, 1, 17, 6, 6)], kernel_shape=[6, 6])
        if self.opset >= 9:
            self.add("MaxPool", [x2], kernel_shape=[2, 2], strides=[2, 2], outputs=2)
        for x in (x1, x2, x3):
            self.add("GlobalAveragePool", [x])
            self.add("GlobalMaxPool", [x])
        for dtype in (np.uint8, np.int8):
            if self.opset >= 13:
                self.add("MaxPool", [integers(34, dtype, 1, 5, 6, 6)], kernel_shape=[2, 2], pads=[1, 1, 0, 0])

    def products(self):
        for ta, tb in itertools.product((0, 1), (0, 1)):
            a = quarters(40, 5, 3) if ta else quarters(40, 3, 5)
            b = quarters(41, 7, 5) if tb else quarters(41, 5, 7)
            for c in (quarters(42, 7), quarters(42, 3, 7), quarters(42, 3, 1), quarters(42, 1, 7), quarters(42, 1),
                      np.array(0.75, np.float32)):
                self.add("Gemm", [a, b, c], (1, 2), transA=ta, transB=tb)
            self.add("Gemm", [a, b, quarters(42, 7)], (1, 2), transA=ta, transB=tb, alpha=0.5, beta=2.0)
            self.add("Gemm", [a, b, quarters(42, 7)], (), transA=ta, transB=tb, alpha=-1.0, beta=0.0)
            if self.opset >= 11:
                self.add("Gemm", [a, b], (1,), transA=ta, transB=tb)
        shapes = [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
                  ((5, 2, 3), (5, 3, 4)), ((1, 5, 2, 3), (4, 1, 3, 6)), ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)),
                  ((5, 2, 3), (3,)), ((2, 0), (0, 3)), ((1, 1), (1, 1)), ((33, 65), (65, 17))]
        for left, right in shapes:
            for constant in ((), (1,), (0,)):
                self.add("MatMul", [quarters(43, *left), quarters(44, *right)], constant)

    # ------------------------------------------------------------------------ elements by themselves

    def arithmetic(self):
        shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3, 4), (3, 1)), ((3, 1), (2, 3, 4)), ((1, 4), (3, 1)),
                  ((), (2, 3)), ((2, 3, 4, 5), (3, 1, 1)), ((2, 0, 3), (1, 3)), ((2, 1, 3, 1, 2), (4, 1, 5, 1))]
        for op in ("Add", "Sub", "Mul", "Div"):
            for left, right in shapes:
                a, b = quarters(50, *left), quarters(51, *right, low=1)
                self.add(op, [a, b])
                self.add(op, [a, b], (1,))
            for dtype in (np.int32, np.int64):
                self.add(op, [integers(52, dtype, 2, 3, low=-50, high=50), integers(53, dtype, 3, low=1, high=9)],
                         label=dtype.__name__)
            self.add(op, [quarters(50, 3).astype(np.float64), quarters(51, 3, low=1).astype(np.float64)])
        self.add("Pow", [quarters(54, 2, 3, low=1), f32(0.5, 2, -1)])
        self.add("Pow", [quarters(54, 2, 3), np.array(3, np.float32)])
        for op in ("Max", "Min", "Sum", "Mean"):
            arrays = [quarters(55 + i, *s) for i, s in enumerate([(2, 3), (3,), (2, 1)])]
            for count in (1, 2, 3) if self.opset >= 9 else (1,):  # without broadcasting before 8
                self.add(op, arrays[:count])
        for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
            if self.opset >= 12 or not op.endswith("OrEqual"):
                dtype = np.float32 if self.opset >= 11 or op != "Equal" else np.int32
                self.add(op, [quarters(58, 4, 5, low=-2, high=2).astype(dtype),
                              quarters(59, 5, low=-2, high=2).astype(dtype)])
        flags = [integers(60 + i, np.uint8, *s, high=1).astype(bool) for i, s in enumerate([(3, 4), (4,), (3, 1)])]
        for op in ("And", "Or", "Xor"):
            self.add(op, flags[:2])
        self.add("Not", flags[:1])
        if self.opset >= 9:
            self.add("Where", [flags[2], quarters(63, 3, 4), quarters(64, 4)])
            self.add("Where", [flags[0], i64(3), integers(65, np.int64, 3, 4)])
        if self.opset >= 11:
            a, b = integers(66, np.int32, 3, 4, low=-20, high=20), i64(3, -3, 7, -7).astype(np.int32)
            self.add("Mod", [a, b])
            self.add("Mod", [quarters(67, 3, 4), f32(0.75, -0.75, 3, 1)], fmod=1)

    def functions(self):
        x = np.concatenate([quarters(70, 60), f32(0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 6, 3, -3, 7)])
        plain = ["Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Exp", "Abs", "Neg", "Ceil", "Floor", "Identity",
                 "Elu", "Selu", "LeakyRelu", "HardSigmoid"]
        plain += ["Erf", "Sign", "Sin", "Cos"] if self.opset >= 9 else []
        plain += ["Round"] if self.opset >= 11 else []
        plain += ["Celu"] if self.opset >= 13 else []
        plain += ["HardSwish"] if self.opset >= 17 else []
        plain += ["Mish", "Gelu"] if self.opset >= 21 else []
        for op in plain:
            self.add(op, [x])
        self.add("Log", [np.abs(x) + np.float32(0.25)])
        self.add("Sqrt", [np.abs(x)])
        self.add("Reciprocal", [np.abs(x) + np.float32(0.25)])
        self.add("Elu", [x], alpha=0.3)
        self.add("Selu", [x], alpha=1.5, gamma=0.7)
        self.add("LeakyRelu", [x], alpha=0.25)
        self.add("HardSigmoid", [x], alpha=0.3, beta=0.4)
        if self.opset >= 11:
            self.add("ThresholdedRelu", [x], alpha=0.5)
        if self.opset >= 21:
            self.add("Gelu", [x], approximate="tanh")
        for slope in (quarters(71, 3, 1, 1), quarters(71, 1), quarters(71, 2, 3, 4, 5), quarters(71, 5)):
            self.add("PRelu", [quarters(72, 2, 3, 4, 5), slope], (1,))
        odd = f32(np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, 3e38, -3e38)
        for op in ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Floor", "Exp"):
            self.add(op, [odd], label="special values")
        if self.opset >= 11:
            for low, high in ((f32(-1).reshape(()), f32(2).reshape(())), (None, f32(1).reshape(())),
                              (f32(0).reshape(()), None), (None, None)):
                self.add("Clip", [x, low, high], (1, 2))
        else:
            for kwargs in ({}, {"min": -1.0}, {"max": 2.0}, {"min": 0.0, "max": 6.0}):
                self.add("Clip", [x], **kwargs)
        if self.opset >= 13:
            self.add("Clip", [integers(73, np.int8, 40), np.array(-5, np.int8), np.array(70, np.int8)], (1, 2))
        for source, target in ((np.float32, TensorProto.INT32), (np.float32, TensorProto.BOOL),
                               (np.float32, TensorProto.DOUBLE), (np.float32, TensorProto.INT64),
                               (np.int64, TensorProto.FLOAT), (np.int32, TensorProto.UINT8),
                               (np.uint8, TensorProto.FLOAT), (np.bool_, TensorProto.FLOAT),
                               (np.float32, TensorProto.FLOAT16), (np.int64, TensorProto.INT32)):
            values = quarters(74, 20, low=0, high=255) if target == TensorProto.UINT8 else quarters(74, 20)
            self.add("Cast", [values.astype(source)], to=target, label=np.dtype(source).name)

    def normalization(self):
        for shape in ((2, 3, 4, 5), (2, 3, 7), (4, 3)):
            scale, shift, mean, variance = quarters(80, 3), quarters(81, 3), quarters(82, 3), f32(0.25, 1, 16)
            for p, epsilon in (((scale, np.zeros_like(shift), mean, variance), 1e-3), ((scale, shift, mean, variance), 0.0)):
                self.add("BatchNormalization", [quarters(84, *shape), *p], (1, 2, 3, 4), epsilon=epsilon)
                self.add("BatchNormalization", [quarters(84, *shape), *p], (), epsilon=epsilon)
        for shape in ((2, 3, 4, 5), (2, 3, 7)):
            self.add("InstanceNormalization", [quarters(85, *shape), quarters(86, 3), quarters(87, 3)], (1, 2), epsilon=1e-2)
        for size in (1, 3, 5):
            self.add("LRN", [quarters(88, 2, 6, 3, 3)], size=size, alpha=0.1, beta=0.6, bias=1.5)
        for shape in ((2, 3, 4, 5), (1, 3, 1, 7)) if self.opset < 10 else ():  # an operator of ONNX up to 1.4
            self.add("ImageScaler", [quarters(379, *shape)], bias=[0.5, -3.25, 2.0], scale=0.75)
            self.add("ImageScaler", [quarters(379, *shape)], bias=[0.5, -3.25, 2.0])
        for axis, p in itertools.product((-1, 1, 0), (1, 2)):
            self.add("LpNormalization", [quarters(89, 3, 4, 5, low=1)], axis=axis, p=p)
        if self.opset >= 17:
            for axis in (-1, 1, 2):
                shape = (2, 3, 4, 5)[axis:]
                self.add("LayerNormalization", [quarters(90, 2, 3, 4, 5), quarters(91, *shape), quarters(92, *shape)],
                         (1, 2), axis=axis, epsilon=1e-3)
                self.add("LayerNormalization", [quarters(90, 2, 3, 4, 5), quarters(91, *shape)], (1,), axis=axis)
        if self.opset >= 21:
            self.add("GroupNormalization", [quarters(93, 2, 6, 3, 3), quarters(94, 6), quarters(95, 6)], (1, 2),
                     num_groups=3)
        for op in ("Softmax", "LogSoftmax"):
            for axis in (0, 1, 2, -1, None):
                if axis == -1 and self.opset < 11:
                    continue
                x = quarters(96, 3, 4, 5) / np.float32(2)
                self.add(op, [x], **({} if axis is None else {"axis": axis}))
            self.add(op, [quarters(97, 2, 4, 1, 1)], axis=1)
        self.add("Softmax", [f32([1000, 1001, -1000], [-1000, -1000, -1000])], axis=1)

    # ----------------------------------------------------------------------------------- reductions

    def reductions(self):
        x = quarters(100, 3, 4, 5)
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1",
                   "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
            data = np.abs(x) + np.float32(0.25) if op in ("ReduceLogSum", "ReduceProd") else x
            as_input = self.opset >= (13 if op == "ReduceSum" else 18)
            for axes, keepdims in itertools.product((None, [1], [-1], [0, 2], [0, 1, 2], [-2, 0]), (0, 1)):
                if axes is not None and min(axes) < 0 and self.opset < 11:
                    continue
                if axes is None:
                    self.add(op, [data], keepdims=keepdims)
                elif as_input:
                    self.add(op, [data, i64(*axes)], (1,), keepdims=keepdims, label=str(axes))
                else:
                    self.add(op, [data], axes=axes, keepdims=keepdims)
            if as_input:
                self.add(op, [data], noop_with_empty_axes=1)
                self.add(op, [data, i64()], (1,), noop_with_empty_axes=0)
        for op in ("ReduceSum", "ReduceMax"):
            self.add(op, [integers(101, np.int32, 3, 4, low=-100, high=100)], keepdims=0)
        ties = quarters(102, 4, 5, 6, low=-1, high=1)
        for op in ("ArgMax", "ArgMin"):
            for axis, keepdims in itertools.product((0, 1, 2), (0, 1)):
                self.add(op, [ties], axis=axis, keepdims=keepdims)
            self.add(op, [ties])
            if self.opset >= 12:
                self.add(op, [ties], axis=-1, select_last_index=1)
        if self.opset >= 11:
            for exclusive, reverse in itertools.product((0, 1), (0, 1)):
                for axis in (0, -1):
                    self.add("CumSum", [x, np.array(axis, np.int64)], (1,), exclusive=exclusive, reverse=reverse)

    # ------------------------------------------------------------------------------------- movement

    def shapes(self):
        x = quarters(110, 2, 3, 4, 5)
        for shape in ((6, 20), (0, -1), (-1,), (2, 0, 20), (1, 2, 3, 4, 5, 1)):
            self.add("Reshape", [x, i64(*shape)], (1,), label=str(shape))
        if self.opset >= 17:
            self.add("Reshape", [quarters(111, 0, 3), i64(3, 0)], (1,), allowzero=1)
        for axis in (0, 1, 2, 4) + ((-1,) if self.opset >= 11 else ()):
            self.add("Flatten", [x], axis=axis)
        for perm in (None, (0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 3, 2)):
            self.add("Transpose", [x], **({} if perm is None else {"perm": perm}))
        for dtype in (np.uint8, np.int64, np.bool_, np.float64):
            self.add("Transpose", [x.astype(dtype)], perm=[1, 0, 3, 2], label=np.dtype(dtype).name)
        ones = quarters(112, 1, 3, 1, 4)
        for axes in ([0], [0, 2], [2]):
            if self.opset >= 13:
                self.add("Squeeze", [ones, i64(*axes)], (1,), label=str(axes))
                self.add("Unsqueeze", [ones, i64(*axes)], (1,), label=str(axes))
            else:
                self.add("Squeeze", [ones], axes=axes)
                self.add("Unsqueeze", [ones], axes=axes)
        self.add("Squeeze", [ones])
        for axis in (0, 1, 3) + ((-2,) if self.opset >= 11 else ()):
            shape = list(x.shape)
            shape[axis] = 2
            self.add("Concat", [x, quarters(113, *shape), x], axis=axis)
        self.add("Concat", [x], axis=1)
        if self.opset >= 13:
            self.add("Split", [x], axis=2, outputs=2, **({"num_outputs": 2} if self.opset >= 18 else {}))
            self.add("Split", [x, i64(1, 4)], (1,), axis=3, outputs=2)
            self.add("Split", [x, i64(2, 0, 1)], (1,), axis=1, outputs=3)
        else:
            self.add("Split", [x], axis=2, outputs=2)
            self.add("Split", [x], axis=3, split=[1, 4], outputs=2)
        if self.opset >= 18:
            self.add("Split", [x], axis=3, outputs=3, num_outputs=3)
        for shape in ((2, 3, 4, 5), (1, 5), (7, 2, 1, 4, 5)):
            if self.opset >= 9:
                self.add("Expand", [quarters(114, 3, 1, 1) if shape[0] == 2 else quarters(114, 1, 1), i64(*shape)], (1,))
        self.add("Tile", [quarters(115, 2, 3), i64(2, 3)], (1,))
        self.add("Tile", [quarters(115, 2, 3), i64(1, 0)], (1,))
        self.add("Shape", [x])
        self.add("Size", [x])
        if self.opset >= 17:
            self.add("Shape", [x], start=1, end=-1)
            self.add("Shape", [x], start=-2)
        if self.opset >= 9:
            self.add("ConstantOfShape", [i64(2, 3)], (0,))
            self.add("ConstantOfShape", [i64(4)], (0,), value=numpy_helper.from_array(i64(7)))
        if self.opset >= 11:
            for start, limit, delta in ((0, 10, 3), (5, -5, -2), (1, 1, 1)):
                for dtype in (np.int64, np.float32):
                    self.add("Range", [np.array(v, dtype) for v in (start, limit, delta)], (0, 1, 2))
        self.add("Dropout", [x])

    def indexing(self):
        x = quarters(120, 6, 7, 5)
        slices = [([1, 2], [4, 6], [0, 1], None), ([0], [100], [2], None), ([-3], [-1], [1], None)]
        if self.opset >= 10:
            slices += [([5, 6], [0, -100], [0, 1], [-1, -2]), ([0, 1], [6, 7], None, [2, 3]), ([3], [1], [0], None),
                       ([-1], [-1000], [-1], [-1])]
            for starts, ends, axes, steps in slices:
                for dtype in (np.int64, np.int32):
                    arrays = [None if a is None else np.array(a, dtype) for a in (starts, ends, axes, steps)]
                    self.add("Slice", [x, *arrays], (1, 2, 3, 4), label=f"{starts} {ends} {axes} {steps}")
        else:
            for starts, ends, axes, _ in slices:
                self.add("Slice", [x], starts=starts, ends=ends, axes=axes)
        for axis in (0, 1, 2):
            self.add("Gather", [x, i64(0, 2, 1)], (1,), axis=axis)
            self.add("Gather", [x, np.array(3, np.int64)], (1,), axis=axis)
            self.add("Gather", [x, integers(121, np.int32, 2, 3, low=0, high=4)], axis=axis)
        if self.opset >= 11:
            self.add("Gather", [x, i64(-1, 0)], (1,), axis=-1)
            self.add("GatherElements", [x, integers(122, np.int64, 2, 7, 5, low=-6, high=5)], axis=0)
            self.add("GatherElements", [x, integers(122, np.int64, 6, 7, 2, low=0, high=4)], axis=-1)
            self.add("GatherND", [x, integers(123, np.int64, 4, 2, low=0, high=5)])
            self.add("GatherND", [x, integers(123, np.int64, 3, 1, 3, low=0, high=4)])
        if self.opset >= 12:
            self.add("GatherND", [x, integers(124, np.int64, 6, 2, low=0, high=4)], batch_dims=1)
        image = quarters(125, 2, 8, 4, 6)
        self.add("SpaceToDepth", [image], blocksize=2)
        self.add("DepthToSpace", [image], blocksize=2)
        if self.opset >= 11:
            for mode in ("DCR", "CRD"):
                self.add("DepthToSpace", [image], blocksize=2, mode=mode)
        for mode in ("constant", "reflect", "edge") + (("wrap",) if self.opset >= 19 else ()):
            for pads in ([0, 0, 1, 2, 0, 0, 3, 1], [0, 0, 0, 0, 0, 0, 0, 0], [0, 0, -1, 1, 0, 0, 0, -2], [1, 2, 0, 0, 0, 1, 0, 0]):
                if mode != "constant" and (min(pads) < 0 or pads[0]):
                    continue
                if self.opset >= 11:
                    self.add("Pad", [image, i64(*pads)], (1,), mode=mode, label=str(pads))
                    if mode == "constant":
                        self.add("Pad", [image, i64(*pads), np.array(1.5, np.float32)], (1, 2), label=str(pads))
                else:
                    self.add("Pad", [image], mode=mode, pads=pads, value=0.5)
        if self.opset >= 18:
            self.add("Pad", [image, i64(1, 2, 3, 0), None, i64(3, -2)], (1, 3), mode="constant")

    def resizing(self):
        x = quarters(130, 2, 3, 4, 6, low=40, high=72)  # away from 0, near which nothing cancels
        scales = ([1, 1, 2, 2], [1, 1, 1.5, 0.5], [1, 1, 0.75, 1.25], [1, 1, 0.75, 1.5])

        def judged(coordinates, s):
            """With align_corners, ONNX takes the last sample to be at size * scale - 1, ONNX Runtime at the rounded."""
            return coordinates != "align_corners" or s[3] != 1.25

        if self.opset < 10:
            op, place = "Upsample", (1,)
            for mode in ("nearest", "linear"):
                for s in ([1, 1, 2, 2], [1, 1, 3, 1.5]):
                    if self.opset < 9:
                        self.add(op, [x], mode=mode, scales=[float(v) for v in s])
                    else:
                        self.add(op, [x, f32(*s)], place, mode=mode, label=str(s))
            return
        modes = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        if self.opset >= 21:
            modes += ("half_pixel_symmetric",)
        for mode, coordinates in itertools.product(("nearest", "linear", "cubic"), modes):
            for s in scales:
                if not judged(coordinates, s):
                    continue
                self.add("Resize", [x, f32(), f32(*s)], (1, 2), mode=mode, coordinate_transformation_mode=coordinates,
                         label=f"scales {s}")
            for size in ([2, 3, 8, 12], [2, 3, 3, 9], [2, 3, 7, 5]):
                self.add("Resize", [x, f32(), f32(), i64(*size)], (1, 2, 3), mode=mode,
                         coordinate_transformation_mode=coordinates, label=f"sizes {size}")
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            for coordinates, s in itertools.product(modes, scales):
                if not judged(coordinates, s):
                    continue
                self.add("Resize", [x, f32(), f32(*s)], (1, 2), mode="nearest", nearest_mode=nearest,
                         coordinate_transformation_mode=coordinates, label=f"scales {s}")
        for a, outside in itertools.product((-0.5, -0.75), (0, 1)):
            self.add("Resize", [x, f32(), f32(1, 1, 1.5, 0.8)], (1, 2), mode="cubic", cubic_coeff_a=a,
                     exclude_outside=outside)
        self.add("Resize", [quarters(131, 1, 2, 7), f32(), f32(1, 1, 2.5)], (1, 2), mode="linear")
        self.add("Resize", [quarters(132, 5, 4), f32(), f32(2, 0.5)], (1, 2), mode="nearest")
        if self.opset >= 13:
            self.add("Resize", [integers(133, np.uint8, 1, 2, 4, 4), None, f32(1, 1, 2, 2)], (2,), mode="nearest",
                     coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        if self.opset >= 18:
            self.add("Resize", [x, None, f32(2, 0.5)], (2,), axes=[2, 3], mode="linear")
            for policy in ("stretch", "not_larger", "not_smaller"):
                self.add("Resize", [x, None, None, i64(7, 9)], (3,), axes=[2, 3], mode="linear",
                         keep_aspect_ratio_policy=policy)

    # ---------------------------------------------------------------------------------- quantization

    def quantized(self):
        if self.opset < 11:
            return
        x = np.concatenate([quarters(140, 50, low=-400, high=400), f32(0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf)])
        one, scalar = f32(1.0).reshape(()), lambda v, t: np.array(v, t)
        for dtype, zero in ((np.uint8, 128), (np.int8, 3), (np.uint8, 0)):
            for scale in (1.0, 0.3, 7.0):
                self.add("QuantizeLinear", [x, scalar(scale, np.float32), scalar(zero, dtype)], (1, 2), label=f"{scale}")
                self.add("DequantizeLinear", [integers(141, dtype, 40), scalar(scale, np.float32), scalar(zero, dtype)], (1, 2))
        self.add("QuantizeLinear", [x, one], (1,))
        self.add("DequantizeLinear", [integers(142, np.int32, 20, low=-9999, high=9999), scalar(0.01, np.float32)], (1,))
        self.add("DynamicQuantizeLinear", [quarters(143, 40)])
        self.all[-1] = Case("DynamicQuantizeLinear", self.opset,
                            [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])],
                            {"x": quarters(143, 40)}, outputs=["q", "s", "z"])
        if self.opset >= 13:
            for axis in (0, 1, -1):
                n = (3, 4, 5)[axis]
                scales, zeros = quarters(144, n, low=1), integers(145, np.int8, n, low=-9, high=9)
                self.add("QuantizeLinear", [quarters(146, 3, 4, 5, low=-400, high=400), scales, zeros], (1, 2), axis=axis)
                self.add("DequantizeLinear", [integers(147, np.int8, 3, 4, 5), scales, zeros], (1, 2), axis=axis)
        if self.opset >= 21:
            for dtype in (np.uint16, np.int16):
                self.add("QuantizeLinear", [x * 50, scalar(0.3, np.float32), scalar(5, dtype)], (1, 2))
                self.add("DequantizeLinear", [integers(148, dtype, 40), scalar(0.3, np.float32), scalar(5, dtype)], (1, 2))
            self.add("DequantizeLinear", [integers(149, np.int8, 4, 6), quarters(150, 4, 3, low=1)], (1,), axis=1, block_size=2)
        u8, s8 = np.uint8, np.int8
        image = [integers(151, u8, 2, 4, 7, 6), integers(152, s8, 6, 4, 3, 3)]
        for attributes in ({}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}, {"dilations": [2, 2]}):
            self.add("ConvInteger", [*image, scalar(130, u8)], (1, 2), **attributes)
            for per_channel in (False, True):
                scales = quarters(153, 6, low=1, high=9) / 64 if per_channel else scalar(0.02, np.float32)
                zeros = np.zeros(6, s8) if per_channel else scalar(0, s8)
                arrays = [image[0], scalar(0.1, np.float32), scalar(130, u8), image[1], scales.astype(np.float32), zeros,
                          scalar(0.7, np.float32), scalar(120, u8), integers(154, np.int32, 6, low=-500, high=500)]
                self.add("QLinearConv", arrays, tuple(range(1, 9)), **attributes)
                self.add("QLinearConv", arrays[:8], tuple(range(1, 8)), **attributes)
        depthwise = integers(155, s8, 4, 1, 3, 3)
        self.add("QLinearConv", [image[0], scalar(0.1, np.float32), scalar(130, u8), depthwise, scalar(0.02, np.float32),
                                 scalar(0, s8), scalar(0.3, np.float32), scalar(120, u8)], tuple(range(1, 8)), group=4,
                 pads=[1, 1, 1, 1])
        for left, right in itertools.product((u8,), (u8, s8)):
            a, b = integers(156, left, 5, 9), integers(157, right, 9, 7)
            self.add("MatMulInteger", [a, b, scalar(100, left), scalar(3, right)], (1, 2, 3), label=right.__name__)
            self.add("MatMulInteger", [a, b], (), label=right.__name__)
            self.add("QLinearMatMul", [a, scalar(0.1, np.float32), scalar(100, left), b, scalar(0.02, np.float32),
                                       scalar(3, right), scalar(0.5, np.float32), scalar(110, left)],
                     (1, 2, 3, 4, 5, 6, 7), label=right.__name__)
        self.add("MatMulInteger", [integers(158, u8, 2, 5, 9), integers(159, s8, 2, 9, 3), scalar(7, u8)], (2,))
        for dtype in (u8, s8):
            zero = lambda v: scalar(v if dtype == u8 else v - 128, dtype)
            a, b = integers(160, dtype, 2, 5, 3, 3), integers(161, dtype, 5, 1, 1)
            for op in ("QLinearAdd", "QLinearMul"):
                for right in (b, integers(162, dtype, 2, 5, 3, 3)):
                    self.add(op, [a, scalar(0.25, np.float32), zero(100), right, scalar(0.5, np.float32), zero(90),
                                  scalar(1.0 if op == "QLinearAdd" else 16.0, np.float32), zero(110)],
                             (1, 2, 4, 5, 6, 7), domain=ML_DOMAIN, label=dtype.__name__)
            for op, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.25})):
                y = 1 / 256 if op == "QLinearSigmoid" else 0.2
                self.add(op, [a, scalar(0.1, np.float32), zero(100), scalar(y, np.float32), zero(20)], (1, 2, 3, 4),
                         domain=ML_DOMAIN, label=dtype.__name__, **attributes)
            self.add("QLinearGlobalAveragePool", [a, scalar(0.1, np.float32), zero(100), scalar(0.07, np.float32), zero(20)],
                     (1, 2, 3, 4), domain=ML_DOMAIN, label=dtype.__name__)
            for attributes in ({}, {"pads": [1, 1, 0, 0], "count_include_pad": 1}, {"pads": [1, 1, 0, 0]}):
                self.add("QLinearAveragePool", [a, scalar(0.1, np.float32), zero(100), scalar(0.07, np.float32), zero(20)],
                         (1, 2, 3, 4), domain=ML_DOMAIN, kernel_shape=[2, 2], label=dtype.__name__, **attributes)
            self.add("QLinearConcat", [scalar(0.5, np.float32), zero(100), a, scalar(0.25, np.float32), zero(90), a,
                                       scalar(0.5, np.float32), zero(100)], (0, 1, 3, 4, 6, 7), domain=ML_DOMAIN, axis=1,
                     label=dtype.__name__)

    def contributed(self):
        """Integer products of com.microsoft."""
        if self.opset < 17:
            return
        scalar = lambda v, t=np.float32: np.array(v, t)
        for bits, block, depth, columns in ((4, 32, 64, 5), (4, 16, 50, 6), (4, 128, 300, 3), (4, 256, 40, 17), (8, 32, 64, 5),
                                            (8, 16, 50, 6), (8, 64, 65, 2), (2, 16, 50, 6)):
            blocks = -(-depth // block)
            codes = integers(190, np.uint8, columns, blocks, block * bits // 8)
            scales = quarters(191, columns, blocks, low=1) / 2
            packed = integers(192, np.uint8, columns, -(-blocks * bits // 8))
            bias = quarters(193, columns)
            sizes = {"bits": bits, "block_size": block, "K": depth, "N": columns}
            for shape in ((depth,), (3, depth), (2, 1, 4, depth)):
                a = quarters(194, *shape)
                for zero_points in (None, packed, quarters(195, columns, blocks, low=0, high=60)):
                    if bits == 8 and zero_points is not None and zero_points.dtype == np.float32:
                        continue  # ONNX Runtime has no code for that
                    self.add("MatMulNBits", [a, codes, scales, zero_points], (1, 2, 3), domain=ML_DOMAIN, **sizes)
                self.add("MatMulNBits", [a, codes, scales, packed, None, bias], (1, 2, 3, 5), domain=ML_DOMAIN, **sizes)
            signs = np.where(integers(196, np.uint8, columns, blocks) > 127, -1, 1).astype(np.float32)
            signs[0, 0] = 0
            self.add("MatMulNBits", [a, codes, scales * signs], (1, 2), domain=ML_DOMAIN, label="signs", **sizes)
            self.add("MatMulNBits", [a, codes, scales.ravel(), packed.ravel()], (1, 2, 3), domain=ML_DOMAIN, label="flat",
                     **sizes)
            self.add("MatMulNBits", [a, codes, scales, packed], (), domain=ML_DOMAIN, label="not constant", **sizes)
            self.add("MatMulNBits", [a[:0], codes, scales], (1, 2), domain=ML_DOMAIN, label="empty", **sizes)
        # Exact as 8-bit activations, of a row (127 + 128 steps of one) and of a block of it (127 steps).
        a = integers(197, np.int8, 3, 64, low=-126, high=126).astype(np.float32)
        a[:, :16], a[:, 20::16] = 0, -127
        a[:, 5] = 128
        codes, scales = integers(198, np.uint8, 7, 4, 8), quarters(199, 7, 4, low=1) / 2
        for zero_points in (None, integers(200, np.uint8, 7, 2)):
            for sign in (1, -1):
                arrays = [a, codes, scales * np.float32(sign), zero_points, None, np.full(7, 64, np.float32)]
                self.add("MatMulNBits", arrays, (1, 2, 3, 5), domain=ML_DOMAIN, bits=4, block_size=16, K=64, N=7,
                         accuracy_level=4)
        for dtype in (np.uint8, np.int8):
            b, scales, zeros = integers(201, dtype, 9, 7), quarters(202, 7, low=1) / 16, integers(203, dtype, 7)
            bias = quarters(204, 7)
            for a in (quarters(205, 5, 9), quarters(206, 2, 3, 9, low=-1), quarters(207, 4, 9, high=0)):
                self.add("DynamicQuantizeMatMul", [a, b, scalar(0.25)], (1, 2), domain=ML_DOMAIN, label=dtype.__name__)
                self.add("DynamicQuantizeMatMul", [a, b, scalar(0.25), scalar(3, dtype), bias], (1, 2, 3, 4),
                         domain=ML_DOMAIN, label=dtype.__name__)
                self.add("DynamicQuantizeMatMul", [a, b, scales, zeros, bias], (1, 2, 3, 4), domain=ML_DOMAIN,
                         label=dtype.__name__)
                self.add("DynamicQuantizeMatMul", [a, b, scales, zeros], (), domain=ML_DOMAIN, label=dtype.__name__)
            self.add("DynamicQuantizeMatMul", [np.zeros((2, 9), np.float32), b, scales, zeros, bias], (1, 2, 3, 4),
                     domain=ML_DOMAIN, label=f"zeros {dtype.__name__}")
            for left in (np.uint8, np.int8):
                a = integers(208, left, 2, 5, 9)
                self.add("MatMulIntegerToFloat", [a, b, scalar(0.5), scalar(0.25)], (1, 2, 3), domain=ML_DOMAIN,
                         label=f"{left.__name__} {dtype.__name__}")
                self.add("MatMulIntegerToFloat", [a, b, scalar(0.5), scales, scalar(7, left), zeros, bias],
                         (1, 2, 3, 4, 5, 6), domain=ML_DOMAIN, label=f"{left.__name__} {dtype.__name__}")
                self.add("MatMulIntegerToFloat", [a, b, scalar(0.5), scales, None, scalar(9, dtype)], (), domain=ML_DOMAIN,
                         label=f"{left.__name__} {dtype.__name__}")

    def resizing_more(self):
        """Integers, antialias and tf_crop_and_resize."""
        if self.opset < 13:
            return
        for dtype, scales in itertools.product((np.uint8, np.int8), ([1, 1, 1.7, 2.3], [1, 1, 0.6, 0.6])):
            self.add("Resize", [integers(340, dtype, 1, 2, 5, 6), None, f32(*scales)], (2,), mode="linear", label=f"{dtype.__name__} {scales}")
        x, roi = quarters(341, 1, 2, 7, 9), f32(0, 0, 0.2, -0.1, 1, 1, 0.7, 1.2)
        for mode in ("nearest", "linear", "cubic") if self.opset >= 18 else ():
            if mode != "nearest":
                for sizes in ([1, 2, 4, 5], [1, 2, 3, 12], [1, 2, 1, 9]):
                    for outside in (0, 1) if mode == "linear" else (1,):
                        self.add("Resize", [x, None, None, i64(*sizes)], (3,), mode=mode, antialias=1, exclude_outside=outside,
                                 label=str(sizes))
        for mode in ("nearest", "linear"):
            self.add("Resize", [x, roi, None, i64(1, 2, 5, 4)], (1, 3), mode=mode, extrapolation_value=8.0,
                     coordinate_transformation_mode="tf_crop_and_resize")

    # ---------------------------------------------------------- order, selection, patterns and bits

    def sorting(self):
        x, ties = quarters(240, 3, 4, 5), integers(241, np.int64, 6, 9, low=-2, high=2)
        for k in (0, 1, 3, 4):
            for axis in (1, -2):
                known = {} if self.opset >= 10 else {"k": k}
                arrays = [x, i64(k)] if self.opset >= 10 else [x]
                if k > 0 or self.opset >= 10:
                    self.add("TopK", arrays, outputs=2, axis=axis, label=f"k {k}", **known)
        if self.opset >= 11:
            for largest, dtype in itertools.product((0, 1), (np.int64, np.int32, np.float32, np.float64)):
                self.add("TopK", [ties.astype(dtype), i64(7)], outputs=2, largest=largest, label=dtype.__name__)
                self.add("TopK", [ties.astype(dtype), i64(4)], (1,), outputs=2, largest=largest, axis=0, label=dtype.__name__)
            self.add("TopK", [quarters(242, 40), i64(40)], outputs=2)
            self.add("TopK", [np.zeros((2, 0), np.float32), i64(0)], outputs=2)
            for x in (quarters(243, 4, 5, low=-3, high=3), integers(244, np.int64, 12, low=0, high=3),
                      integers(245, np.int8, 3, 4, low=0, high=2), np.zeros((0,), np.float32)):
                for sort in (0, 1):
                    self.add("Unique", [x], outputs=4, sorted=sort, label=x.dtype.name)
            for x in (integers(246, np.int64, 6, 2, low=0, high=1), integers(247, np.int64, 2, 7, 2, low=0, high=1)):
                for axis, sort in itertools.product(range(-1, x.ndim), (0, 1)):
                    self.add("Unique", [x], outputs=4, axis=axis, sorted=sort)

    def scattering(self):
        x, few = quarters(250, 4, 5), quarters(251, 3, 5)
        indices = integers(252, np.int64, 3, 5, low=-4, high=3)
        names = ["none"] * (self.opset >= 11) + ["add", "mul"] * (self.opset >= 16) + ["max", "min"] * (self.opset >= 18)
        if 9 <= self.opset < 11:
            self.add("Scatter", [x, np.argsort(few, 0), few])
            self.add("Scatter", [x, np.argsort(few, 1), few], axis=1)
        for name in names:
            how = {} if name == "none" else {"reduction": name}
            one = np.argsort(quarters(253, 3, 5), 0) if name == "none" else indices
            self.add("ScatterElements", [x, one, few], **how)
            self.add("ScatterElements", [x, one[:, :2].astype(np.int32), few[:, :2]], **how)
            self.add("ScatterElements", [x, np.argsort(quarters(254, 2, 4), 1), few[:2, :4]], axis=-1, **how)
            self.add("ScatterElements", [x, np.zeros((0, 5), np.int64), few[:0]], **how)
            whole = x.astype(np.int64)
            self.add("ScatterElements", [whole, one, few.astype(np.int64)], label="int64", **how)
            nd = i64([3, -5], [0, 2], [1, 1]) if name == "none" else i64([3, -5], [0, 2], [0, 2])
            self.add("ScatterND", [x, nd, few[0, :3]], **how)
            self.add("ScatterND", [x, i64([2], [-4]), few[:2]], **how)
            cube = quarters(255, 2, 3, 4)
            self.add("ScatterND", [cube, i64([[1, 2], [0, 0]], [[1, 0], [0, 1]]), quarters(256, 2, 2, 4)], **how)
            self.add("ScatterND", [cube.astype(np.int32), i64([[1, 2, 3]]), integers(257, np.int32, 1, 1)], **how)
        if self.opset >= 13:
            bits = np.array([True, False, True, False])
            self.add("ScatterElements", [bits, i64(1, 2), np.array([True, False])])
            self.add("ScatterND", [bits, i64([1], [-2]), np.array([True, False])])

    def selecting(self):
        x = quarters(260, 3, 4, 5)
        wide, tall = quarters(261, 3, 6), quarters(262, 2, 6, 3)
        if self.opset >= 9:
            for bits in ([True, False, True, True], [False], [False] * 3, [True] * 4):
                self.add("Compress", [x, np.array(bits)], axis=1, label=str(bits))
                self.add("Compress", [x, np.array(bits)], label=str(bits))
            self.add("Compress", [x.astype(np.int8), np.array([False, True])], (1,), axis=-1)
            for array in (integers(263, np.int64, 3, 4, low=-1, high=1), wide * (wide > 0), np.zeros((2, 3), np.float32),
                          np.array([[True, False], [True, True]]), np.array(5, np.int64), np.zeros((0, 2), np.int32)):
                self.add("NonZero", [array], label=array.dtype.name)
            for axis in (-1, 0, 1):
                self.add("OneHot", [integers(264, np.int64, 2, 3, low=-5, high=5), np.array(4, np.int64), f32(-1, 2)], (1,),
                         axis=axis)
            self.add("OneHot", [quarters(265, 3, low=0, high=12), i64(3), i64(0, 7)], (1,))
            self.add("OneHot", [np.array(1, np.int64), i64(3), f32(0, 1)], (1,))
            for dtype in (TensorProto.FLOAT, TensorProto.INT32, TensorProto.DOUBLE):
                for k in (0, 2, -1, 9, -9):
                    self.add("EyeLike", [wide], dtype=dtype, k=k)
            self.add("EyeLike", [wide.astype(np.int64)], k=1)
        if self.opset >= 10:
            lengths = i64(3, 1, 0, 2)
            self.add("ReverseSequence", [quarters(266, 3, 4), lengths], time_axis=0, batch_axis=1)
            self.add("ReverseSequence", [quarters(267, 4, 3, 2), lengths], time_axis=1, batch_axis=0)
        if self.opset >= 14:
            for k, upper in itertools.product((None, 0, 1, -2, 7, -7), (0, 1)):
                for array in (wide, tall):
                    self.add("Trilu", [array, None if k is None else np.array(k, np.int64)], upper=upper, label=f"k {k}")
            self.add("Trilu", [tall.astype(np.int64)])
            self.add("Trilu", [np.array([[True, True], [True, True]])])
        for axis in (0, 1, -1):
            if axis >= 0 or self.opset >= 11:
                self.add("Hardmax", [x], axis=axis)
        self.add("Hardmax", [np.round(wide / 4)])

    def bits(self):
        if self.opset >= 11:
            for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
                bits = np.iinfo(dtype).bits
                if dtype == np.uint16:
                    continue
                for direction in ("LEFT", "RIGHT"):
                    self.add("BitShift", [integers(270, dtype, 3, 4, high=min(np.iinfo(dtype).max, 2**62)), integers(271, dtype, 4, low=0, high=bits - 1)],
                             direction=direction, label=dtype.__name__)
        if self.opset >= 18:
            for dtype in (np.uint8, np.int8, np.int16, np.uint32, np.int64, np.uint64):
                high = min(np.iinfo(dtype).max, 2**62)
                for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
                    self.add(op, [integers(272, dtype, 3, 4, high=high), integers(273, dtype, 3, 1, high=high)],
                             label=dtype.__name__)
                self.add("BitwiseNot", [integers(274, dtype, 3, 4, high=high)], label=dtype.__name__)
        odd = f32(1, np.nan, np.inf, -np.inf, 0, -0.0)
        if self.opset >= 9:
            self.add("IsNaN", [odd])
            self.add("Shrink", [quarters(275, 3, 7)])
            self.add("Shrink", [quarters(275, 3, 7)], lambd=1.5, bias=0.75)
        if self.opset >= 10:
            for negative, positive in itertools.product((0, 1), (0, 1)):
                self.add("IsInf", [odd], detect_negative=negative, detect_positive=positive)
            self.add("IsInf", [odd.astype(np.float64)])
        small = np.linspace(-0.9, 0.9, 19).astype(np.float32)
        for op in ("Tan", "Asin", "Acos", "Atan") + ("Sinh", "Cosh", "Asinh", "Atanh") * (self.opset >= 9):
            self.add(op, [small])
        if self.opset >= 9:
            self.add("Acosh", [1.5 - small])

    def letters(self):
        """Einsum, of opset 12 on."""
        if self.opset < 12:
            return
        a, b, m = quarters(280, 2, 3, 4), quarters(281, 2, 4, 5), quarters(282, 3, 3)
        for equation, arrays in [("bij,bjk->bik", [a, b]), ("bij,bjk", [a, b]), ("...ij,...jk->...ik", [a, b]), ("ii->i", [m]),
                                 ("ii", [m]), ("ij->ji", [m]), ("ij->", [m]), ("i,j->ij", [m[0], m[1]]),
                                 ("i,i->", [m[0], m[1]]), ("bij , bjk , kl -> bil", [a, b, quarters(283, 5, 2)]),
                                 ("b...,b...->b", [a, a]), ("...->...", [a]), ("bij->jb", [a]),
                                 ("bhqd,bhkd->bhqk", [quarters(284, 2, 2, 3, 4), quarters(285, 2, 2, 5, 4)]),
                                 ("ab,cd->abcd", [m[:2], m[:, :2]]), ("bij,jk->bik", [a, quarters(286, 4, 2)]),
                                 ("i...,i...->...", [a, a]), ("Aa,aB->AB", [m, m])]:
            self.add("Einsum", arrays, equation=equation)
        self.add("Einsum", [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)], equation="ij,jk->ik")
        for dtype in (np.float64, np.int64, np.int32):
            self.add("Einsum", [a.astype(dtype), b.astype(dtype)], equation="bij,bjk->bik", label=dtype.__name__)

    def detecting(self):
        if self.opset < 10:
            return
        corners = quarters(290, 2, 12, 4, low=0, high=24)
        scores = quarters(291, 2, 3, 12, low=0, high=8)
        scalars = lambda most, overlap, score: [np.array(most, np.int64), f32(overlap), None if score is None else f32(score)]
        for most, overlap, score, center in itertools.product((0, 2, 100), (0.0, 0.3, 0.5), (None, 0.5), (0, 1)):
            self.add("NonMaxSuppression", [corners, scores, *scalars(most, overlap, score)], center_point_box=center,
                     label=f"{most} {overlap} {score}")
        self.add("NonMaxSuppression", [corners, scores])
        x = quarters(292, 2, 3, 7, 9, low=1)
        regions = f32([0, 0, 6, 5], [1.5, 0.25, 3, 3.5], [-2, -1, 4, 9], [3, 3, 3, 3], [5, 4, 2, 1])
        for mode, ratio, scale in itertools.product(("avg", "max"), (0, 2), (1.0, 0.5)):
            for transformation in (None,) if self.opset < 16 else ("half_pixel", "output_half_pixel"):
                kwargs = {} if transformation is None else {"coordinate_transformation_mode": transformation}
                self.add("RoiAlign", [x, regions, i64(0, 1, 1, 0, 1)], mode=mode, sampling_ratio=ratio, spatial_scale=scale,
                         output_height=3, output_width=2, **kwargs)

    def attending(self):
        """Attention, RotaryEmbedding and RMSNormalization, of opset 23 on."""
        if self.opset < 23:
            return
        q, k, v = quarters(350, 2, 4, 5, 8) / 4, quarters(351, 2, 2, 6, 8) / 4, quarters(352, 2, 2, 6, 3) / 4
        flat = lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))
        heads = {"q_num_heads": 4, "kv_num_heads": 2}
        past = [quarters(353, 2, 2, 3, 8) / 4, quarters(354, 2, 2, 3, 3) / 4]
        for causal in (0, 1):
            self.add("Attention", [q, k, v], is_causal=causal)
            self.add("Attention", [flat(q), flat(k), flat(v)], is_causal=causal, scale=0.5, **heads)
            for mask in (quarters(355, 5, 6), quarters(356, 2, 1, 5, 6), integers(357, np.uint8, 5, 6, low=0, high=1) == 1):
                self.add("Attention", [q, k, v, mask], is_causal=causal, label=mask.dtype.name)
        self.add("Attention", [q, k, v, None, *past], outputs=3)
        self.add("Attention", [flat(q), flat(k), flat(v), quarters(358, 2, 4, 5, 9), *past], outputs=3, softcap=2.0, **heads)
        x = quarters(359, 2, 3, 4, 8)
        cosines, sines, places = quarters(360, 9, 4) / 4, quarters(361, 9, 4) / 4, integers(362, np.int64, 2, 4, low=0, high=8)
        for interleaved in (0, 1):
            self.add("RotaryEmbedding", [x, cosines, sines, places], interleaved=interleaved)
            self.add("RotaryEmbedding", [flat(x), cosines[places], sines[places]], interleaved=interleaved, num_heads=3)
            self.add("RotaryEmbedding", [x, cosines[:, :2], sines[:, :2], places], interleaved=interleaved, rotary_embedding_dim=4)
        for axis in (-1, 1, 2):
            self.add("RMSNormalization", [x, quarters(363, *x.shape[axis:])], axis=axis)

    def sampling(self):
        if self.opset >= 20:
            for corners in (0, 1):
                self.add("AffineGrid", [quarters(375, 2, 2, 3), i64(2, 1, 4, 5)], (1,), align_corners=corners)
                self.add("AffineGrid", [quarters(376, 2, 3, 4), i64(2, 1, 3, 5, 9)], (1,), align_corners=corners)
        if self.opset >= 9:
            self.add("MeanVarianceNormalization", [quarters(377, 2, 3, 4, 5)])
            for axes in ([1], [0, 2], [-1, 1]) if self.opset < 13 else ([1], [0, 2]):
                self.add("MeanVarianceNormalization", [quarters(378, 2, 3, 4)], axes=axes)
        if self.opset >= 17:
            x, grid = quarters(370, 2, 3, 5, 6), quarters(371, 2, 4, 3, 2, low=-6, high=6) * np.float32(0.9)
            names = ("linear", "nearest", "cubic") if self.opset >= 20 else ("bilinear", "nearest", "bicubic")
            for mode, padding, corners in itertools.product(names, ("zeros", "border", "reflection"), (0, 1)):
                self.add("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=corners)
        if self.opset >= 20:
            x, grid = quarters(372, 1, 2, 3, 4, 5), quarters(373, 1, 2, 2, 2, 3, low=-6, high=6) * np.float32(0.9)
            for mode, padding in itertools.product(("linear", "nearest"), ("zeros", "border", "reflection")):
                self.add("GridSample", [x, grid], mode=mode, padding_mode=padding)
        x2 = quarters(374, 2, 3, 9, 8)
        for p in (1, 2, 3):
            self.add("LpPool", [x2], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=p)
            self.add("GlobalLpPool", [x2], p=p)

    # --------------------------------------------------------------------------------- recurrent layers

    def recurrent(self):
        length, batch, width, hidden = 5, 3, 4, 6
        x = quarters(300, length, batch, width)
        for op, gates, functions in (("RNN", 1, ["Relu"]), ("GRU", 3, ["HardSigmoid", "ScaledTanh"]),
                                     ("LSTM", 4, ["HardSigmoid", "Affine", "Softsign"])):
            for direction in ("forward", "reverse", "bidirectional"):
                d = 2 if direction == "bidirectional" else 1
                w, r = quarters(301, d, gates * hidden, width) / 4, quarters(302, d, gates * hidden, hidden) / 4
                b, states = quarters(303, d, 2 * gates * hidden) / 4, quarters(304, d, batch, hidden) / 4
                lengths = np.array([4, 5, 2], np.int32)
                more = [states / 2, quarters(305, d, 3 * hidden) / 4] if op == "LSTM" else []
                outputs = 3 if op == "LSTM" else 2
                common = {"hidden_size": hidden, "direction": direction, "outputs": outputs}
                self.add(op, [x, w, r], (1, 2), **common)
                self.add(op, [x, w, r, b, lengths, states, *more], (1, 2, 3), **common)
                self.add(op, [x, w, r, b, None, None, *[None] * (len(more) > 0), *more[1:]], (1, 2, 3), clip=0.75,
                         label="clip", **common)
                self.add(op, [x[:, :1], w, r, b], (1, 2, 3), label="one sequence", **common)
                self.add(op, [x[:1], w, r, b], (), label="one step, not constant", **common)
                scaled = {} if op == "RNN" else {"activation_alpha": [0.3, 0.9] * d, "activation_beta": [0.4, 0.8] * d}
                self.add(op, [x, w, r, b, lengths], (1, 2, 3), activations=functions * d, label="activations", **scaled,
                         **common)
                if op == "GRU":
                    self.add(op, [x, w, r, b, lengths, states], (1, 2, 3), linear_before_reset=1, **common)
                if op == "LSTM":
                    self.add(op, [x, w, r, b, lengths, states, *more], (1, 2, 3), input_forget=1, **common)

    def dynamic_recurrent(self):
        """DynamicQuantizeLSTM, whose weights are transposed."""
        length, batch, width, hidden = 5, 3, 4, 6
        x = quarters(310, length, batch, width)
        for direction, dtype in itertools.product(("forward", "reverse", "bidirectional"), (np.int8, np.uint8)):
            d = 2 if direction == "bidirectional" else 1
            w, r = integers(311, dtype, d, width, 4 * hidden), integers(312, dtype, d, hidden, 4 * hidden)
            b, states = quarters(313, d, 8 * hidden) / 4, quarters(314, d, batch, hidden) / 4
            peepholes, lengths = quarters(317, d, 3 * hidden) / 4, np.array([4, 5, 2], np.int32)
            for columns in ((), (4 * hidden,)):
                scales = np.abs(quarters(316, d, *columns, low=1)) / 512
                zeros = (np.zeros if dtype == np.int8 else lambda s, t: np.full(s, 128, t))((d, *columns), dtype)
                parameters = [scales, zeros, scales * np.float32(0.5), zeros]
                common = {"hidden_size": hidden, "direction": direction, "outputs": 3, "domain": ML_DOMAIN,
                          "label": f"{dtype.__name__} {'columns' if columns else ''}"}
                self.add("DynamicQuantizeLSTM", [x, w, r, None, None, None, None, None, *parameters],
                         (1, 2, 8, 9, 10, 11), **common)
                self.add("DynamicQuantizeLSTM", [x, w, r, b, lengths, states, states / 2, peepholes, *parameters],
                         (1, 2, 3, 8, 9, 10, 11), **common)
                self.add("DynamicQuantizeLSTM", [x[:, :1], w, r, b, None, None, None, None, *parameters],
                         (1, 2, 3, 8, 9, 10, 11), **common)

    def quantized_volumes(self):
        """ConvInteger and QLinearConv over three axes, and a quantized model that becomes QLinearConv."""
        if self.opset < 13:
            return
        scalar = lambda value, dtype=np.float32: np.array(value, dtype)
        x, scales = integers(330, np.uint8, 1, 4, 4, 5, 4), np.abs(quarters(331, 6, low=1)) / 64
        for dtype, group in itertools.product((np.int8, np.uint8), (1, 2)):
            w, zeros = integers(332, dtype, 6, 4 // group, 2, 3, 2), np.full(6, 128 if dtype == np.uint8 else 0, dtype)
            label = dtype.__name__
            self.add("ConvInteger", [x, w, scalar(7, np.uint8), zeros[0]], (1, 2, 3), group=group, pads=[1, 0, 1, 0, 1, 1], label=label)
            self.add("QLinearConv", [x, scalar(0.25), scalar(7, np.uint8), w, scales, zeros, scalar(8.0), scalar(100, np.uint8),
                                     integers(333, np.int32, 6, low=-500, high=500)], (1, 2, 3, 4, 5, 6, 7, 8), group=group,
                     strides=[1, 2, 1], pads=[1, 0, 1, 0, 1, 1], label=label)
        w = integers(334, np.int8, 6, 4, 2, 3, 2)
        self.chain("DequantizeLinear, Conv over volumes, QuantizeLinear",
                   [("DequantizeLinear", ["x", "s", "z"], ["a"], {}), ("DequantizeLinear", ["w", "ws", "wz"], ["b"], {"axis": 0}),
                    ("Conv", ["a", "b"], ["c"], {}), ("QuantizeLinear", ["c", "t", "z"], ["y"], {})], {"x": x},
                   {"s": scalar(0.25), "z": scalar(7, np.uint8), "w": w, "ws": scales, "wz": np.zeros(6, np.int8), "t": scalar(16.0)})

    def quantized_transposed_convolution(self):
        """ConvTranspose between quantizers: weights with a scale for each channel, which groups share, or one; a bias."""
        if self.opset < 13:
            return
        scalar = lambda value, dtype=np.float32: np.array(value, dtype)
        x = integers(340, np.uint8, 2, 4, 5, 4)
        for group, channels in itertools.product((1, 2), (True, False)):
            per_group = 6 // group
            scales = np.abs(quarters(341, per_group, low=1)) / 64 if channels else scalar(0.125)
            constants = {"s": scalar(0.25), "z": scalar(7, np.uint8), "t": scalar(4.0), "w": integers(342, np.int8, 4, per_group, 3, 2),
                         "ws": scales, "wz": np.zeros(scales.shape, np.int8), "q": integers(343, np.int32, 6, low=-999, high=999),
                         "bs": np.tile(scales, group) * np.float32(0.25) if channels else scales * np.float32(0.25)}
            self.chain(f"DequantizeLinear, ConvTranspose, QuantizeLinear, {group} groups, {scales.size} scales",
                       [("DequantizeLinear", ["x", "s", "z"], ["a"], {}), ("DequantizeLinear", ["w", "ws", "wz"], ["b"], {"axis": 1}),
                        ("DequantizeLinear", ["q", "bs"], ["e"], {"axis": 0}),
                        ("ConvTranspose", ["a", "b", "e"], ["c"], {"group": group, "strides": [2, 1], "pads": [1, 0, 1, 1]}),
                        ("QuantizeLinear", ["c", "t", "z"], ["y"], {})], {"x": x}, constants)

    def quantized_by_microsoft(self):
        x = quarters(320, 3, 4, 5, low=-64, high=64)
        for dtype in (np.uint8, np.int8, np.uint16, np.int16):
            zero = integers(321, dtype, 4, low=1, high=100)
            scales = np.abs(quarters(322, 4, low=1))
            q = integers(323, dtype, 3, 4, 5)
            for op, array in (("QuantizeLinear", x), ("DequantizeLinear", q)):
                scale, one = np.array(0.25, np.float32), zero[0]
                self.add(op, [array, scale, np.array(one)], (1, 2), domain=ML_DOMAIN, label=dtype.__name__)
                self.add(op, [array, scales, zero], (1, 2), domain=ML_DOMAIN, axis=1, label=dtype.__name__)
                self.add(op, [array.reshape(3, 5, 4), scales, zero], (1, 2), domain=ML_DOMAIN, axis=-1, label=dtype.__name__)
        self.add("DequantizeLinear", [integers(324, np.int32, 3, 4), np.array(0.5, np.float32)], (1,), domain=ML_DOMAIN)

    # ---------------------------------------------------------------------- a few operators together

    def chains(self):
        """Between convolutions, which work in another order of elements, and what else uses their result."""
        x = quarters(170, 2, 3, 8, 8, low=-4, high=4)
        w1, w2 = quarters(171, 6, 3, 3, 3, low=-4, high=4), quarters(172, 4, 6, 1, 1, low=-4, high=4)
        head = ("Conv", ["x", "w1"], ["a"], {"pads": [1, 1, 1, 1]})

        def between(label, steps, constants=None, channels=6):
            weights = w2 if channels == 6 else quarters(173, 4, channels, 1, 1, low=-4, high=4)
            tail = [("Conv", ["b", "w2"], ["y"], {})]
            self.chain("Conv, " + label + ", Conv", [head, *steps, *tail], {"x": x},
                       {"w1": w1, "w2": weights, **(constants or {})})
            self.chain("Conv, " + label, [head, *steps], {"x": x}, {"w1": w1, **(constants or {})}, ["b", "a"])

        c = lambda *shape: {"c": quarters(174, *shape)}
        for shape in ((6, 1, 1), (1, 6, 1, 1), (1,), (), (1, 1, 1), (8,), (8, 8), (6, 8, 8), (2, 6, 8, 8), (1, 1, 1, 1)):
            between(f"Add {shape}", [("Add", ["a", "c"], ["b"], {})], c(*shape))
            between(f"Mul {shape}", [("Mul", ["c", "a"], ["b"], {})], c(*shape))
        self.chain("Conv, Add of rank 5", [head, ("Add", ["a", "c"], ["y"], {})], {"x": x},
                   {"w1": w1, **c(1, 1, 1, 1, 1)})
        between("Relu", [("Relu", ["a"], ["b"], {})])
        between("LeakyRelu", [("LeakyRelu", ["a"], ["b"], {"alpha": 0.25})])
        between("PRelu", [("PRelu", ["a", "c"], ["b"], {})], c(6, 1, 1))
        between("BatchNormalization", [("BatchNormalization", ["a", "p", "q", "r", "s"], ["b"], {"epsilon": 0.0})],
                {"p": quarters(175, 6), "q": quarters(176, 6), "r": quarters(177, 6), "s": f32(1, 4, 0.25, 16, 1, 4)})
        between("InstanceNormalization", [("InstanceNormalization", ["a", "p", "q"], ["b"], {})],
                {"p": quarters(175, 6), "q": quarters(176, 6)})
        between("MaxPool", [("MaxPool", ["a"], ["b"], {"kernel_shape": [3, 3], "strides": [2, 2]})])
        between("AveragePool", [("AveragePool", ["a"], ["b"], {"kernel_shape": [2, 2], "strides": [2, 2]})])
        between("GlobalAveragePool", [("GlobalAveragePool", ["a"], ["b"], {})])
        between("Concat", [("Concat", ["a", "x", "a"], ["b"], {"axis": 1})], channels=15)
        between("Concat of columns", [("Concat", ["a", "a"], ["b"], {"axis": 3})])
        between("Transpose", [("Transpose", ["a"], ["b"], {"perm": [0, 1, 3, 2]})])
        between("to channels last and back", [("Transpose", ["a"], ["t"], {"perm": [0, 2, 3, 1]}),
                                              ("Transpose", ["t"], ["b"], {"perm": [0, 3, 1, 2]})])
        between("Softmax", [("Softmax", ["a"], ["b"], {"axis": 1})])
        between("LRN", [("LRN", ["a"], ["b"], {"size": 3})])
        between("Identity", [("Identity", ["a"], ["b"], {})])
        between("Dropout", [("Dropout", ["a"], ["b"], {})])
        between("Add of two", [("Conv", ["x", "w3"], ["d"], {"pads": [1, 1, 1, 1]}), ("Add", ["a", "d"], ["b"], {})],
                {"w3": quarters(179, 6, 3, 3, 3)})
        between("squeeze and excitation", [("GlobalAveragePool", ["a"], ["g"], {}), ("Conv", ["g", "w3"], ["h"], {}),
                                           ("Sigmoid", ["h"], ["i"], {}), ("Mul", ["a", "i"], ["b"], {})],
                {"w3": quarters(180, 6, 6, 1, 1) / 8})
        between("shuffle", [("Reshape", ["a", "s1"], ["d"], {}), ("Transpose", ["d"], ["e"], {"perm": [0, 2, 1, 3, 4]}),
                            ("Reshape", ["e", "s2"], ["b"], {})],
                {"s1": i64(2, 2, 3, 8, 8), "s2": i64(2, 6, 8, 8)})
        if self.opset >= 11:
            between("Clip", [("Clip", ["a", "lo", "hi"], ["b"], {})],
                    {"lo": np.array(-2, np.float32), "hi": np.array(3, np.float32)})
            between("Resize", [("Resize", ["a", "", "sc"], ["b"], {"mode": "linear"})] if self.opset >= 13 else
                    [("Resize", ["a", "roi", "sc"], ["b"], {"mode": "linear"})],
                    {"sc": f32(1, 1, 2, 2), **({} if self.opset >= 13 else {"roi": f32()})})
            between("Pad", [("Pad", ["a", "p"], ["b"], {"mode": "reflect"})], {"p": i64(0, 0, 1, 2, 0, 0, 3, 1)})
            between("Slice", [("Slice", ["a", "s", "e", "ax"], ["b"], {})], {"s": i64(1), "e": i64(5), "ax": i64(1)}, 4)
        if self.opset >= 13:
            between("Split", [("Split", ["a", "sp"], ["d", "b"], {"axis": 1})], {"sp": i64(2, 4)}, 4)
            between("ReduceMean", [("ReduceMean", ["a"], ["b"], {"axes": [2, 3]})] if self.opset < 18 else
                    [("ReduceMean", ["a", "ax"], ["b"], {})], {} if self.opset < 18 else {"ax": i64(2, 3)})
        self.chain("Conv, Flatten, Gemm", [head, ("Flatten", ["a"], ["f"], {}), ("Gemm", ["f", "m", "n"], ["y"], {})],
                   {"x": x}, {"w1": w1, "m": quarters(181, 384, 5), "n": quarters(182, 5)})
        self.chain("MatMul, Add, Relu", [("MatMul", ["x", "m"], ["a"], {}), ("Add", ["n", "a"], ["b"], {}),
                                         ("Relu", ["b"], ["y"], {})],
                   {"x": quarters(183, 3, 5)}, {"m": quarters(184, 5, 4), "n": quarters(185, 4)})
        self.chain("MatMul of rank 3, Add, Relu", [("MatMul", ["x", "m"], ["a"], {}), ("Add", ["n", "a"], ["b"], {}),
                                                   ("Relu", ["b"], ["y"], {})],
                   {"x": quarters(183, 2, 3, 5)}, {"m": quarters(184, 5, 4), "n": quarters(185, 4)})
        transposed = [("ConvTranspose", ["x", "t"], ["a"], {"strides": [2, 2]}),
                      ("BatchNormalization", ["a", "p", "q", "r", "s"], ["y"], {"epsilon": 0.0})]
        self.chain("ConvTranspose, BatchNormalization", transposed, {"x": x},
                   {"t": quarters(186, 3, 4, 2, 2), "p": quarters(187, 4), "q": quarters(188, 4), "r": quarters(189, 4),
                    "s": f32(1, 4, 0.25, 16)})

    # -------------------------------------------------------------------------------- sub-graphs

    def control_flow(self):
        node = helper.make_node

        def body(nodes, outputs, inputs=(), constants=None):
            """Of (name, type) lists; a third entry is a shape."""
            values = lambda listed: [helper.make_tensor_value_info(*v, *[None] * (3 - len(v))) for v in listed]
            return helper.make_graph(nodes, "body", values(inputs), values(outputs),
                                     [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])

        real, whole, flag = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
        x, k = quarters(220, 2, 3), quarters(221, 3)
        conditions = (np.array(True), np.array(False), np.array([True]), np.array([[False]]))

        # If: captured values and constants, constants of its own, two outputs, shapes that differ, nesting.
        yes = body([node("Mul", ["x", "own"], ["t"]), node("Add", ["t", "k"], ["u"])], [("t", real), ("u", real)],
                   constants={"own": quarters(222, 2, 1)})
        no = body([node("Sub", ["x", "k"], ["e"]), node("ReduceMax" if self.opset >= 11 else "Neg", ["x"], ["m"])],
                  [("e", real), ("m", real)])  # one shape before 11
        deep = body([node("If", ["q"], ["f", "g"], then_branch=no, else_branch=body(
            [node("Neg", ["k" if self.opset >= 11 else "x"], ["h"]), node("Abs", ["x"], ["i"])], [("h", real), ("i", real)]))],
            [("f", real), ("g", real)])
        for c in conditions:
            self.chain(f"If {c.tolist()}", [("If", ["c"], ["y", "z"], {"then_branch": yes, "else_branch": no})],
                       {"c": c, "x": x}, {"k": k}, ("y", "z"))
            for q in conditions[:2]:
                self.chain(f"If {c.tolist()} in If {q.tolist()}",
                           [("If", ["c"], ["y", "z"], {"then_branch": yes, "else_branch": deep})],
                           {"c": c, "q": q, "x": x, "k": k}, {}, ("y", "z"))
            self.chain(f"If {c.tolist()} constant", [("If", ["c"], ["y", "z"], {"then_branch": yes, "else_branch": no})],
                       {"x": x}, {"c": c, "k": k}, ("y", "z"))

        # What it captures, and what takes its result, works in another order of elements.
        image, w = quarters(223, 1, 3, 6, 6, low=-4, high=4), quarters(224, 5, 3, 3, 3, low=-4, high=4)
        w2 = quarters(225, 4, 5, 1, 1, low=-4, high=4)
        images = [body([node("Relu", ["a"], ["t"])], [("t", real)]),
                  body([node("Conv", ["a", "w3"], ["e"])], [("e", real)], constants={"w3": quarters(226, 5, 5, 1, 1) / 4})]
        for c in conditions[:2]:
            self.chain(f"Conv, If {c.tolist()}, Conv",
                       [("Conv", ["x", "w"], ["a"], {"pads": [1, 1, 1, 1]}),
                        ("If", ["c"], ["b"], {"then_branch": images[0], "else_branch": images[1]}),
                        ("Conv", ["b", "w2"], ["y"], {}), ("Relu", ["a"], ["z"], {})],
                       {"x": image, "c": c}, {"w": w, "w2": w2}, ("y", "z"))

        # Loop: v = v / 2 + k + x for as long as the sum of v is below a limit; each iteration returns two values.
        state = [("n", whole, []), ("go", flag, []), ("v", real)]
        steps = [node("Mul", ["v", "half"], ["h"]), node("Add", ["h", "k"], ["hk"]), node("Add", ["hk", "x"], ["v2"]),
                 node("Cast", ["n"], ["r"], to=real), node("Less", ["r", "limit"], ["go2"]),
                 node("Mul", ["v2", "r"], ["s"]), node("Identity", ["n"], ["m"])]
        repeat = body(steps, [("go2", flag, []), ("v2", real), ("s", real, [2, 3]), ("m", whole, [])], state)
        constants = {"k": k, "half": np.array(0.5, np.float32), "limit": np.array(2.5, np.float32)}
        for trips in (None, 0, 1, 3, 7, -2):
            for go in (None, True, False):
                inputs = {"x": x, "v0": quarters(227, 2, 3)}
                inputs |= {} if trips is None else {"trips": np.array(trips, np.int64)}
                inputs |= {} if go is None else {"go0": np.array(go)}
                self.chain(f"Loop {trips} {go}", [("Loop", ["" if trips is None else "trips", "" if go is None else "go0",
                                                            "v0"], ["y", "z", "m"], {"body": repeat})],
                           inputs, constants, ("y", "z", "m"))

        # A carried value that grows, and one that is passed on.
        grows = body([node("Concat", ["v", "x"], ["v2"], axis=0), node("Identity", ["go"], ["go2"]),
                      node("Identity", ["p"], ["p2"])],
                     [("go2", flag, []), ("v2", real), ("p2", real)], [*state, ("p", real)])
        self.chain("Loop, growing", [("Loop", ["trips", "", "x", "x"], ["y", "z"], {"body": grows})],
                   {"trips": np.array(4, np.int64), "x": x}, {}, ("y", "z"))

        # Loop in If in Loop; names of the innermost are those of what is around both.
        innermost = body([node("Add", ["acc", "x"], ["t1"]), node("Mul", ["t1", "half"], ["acc2"]),
                          node("Identity", ["go1"], ["go12"])],
                         [("go12", flag, []), ("acc2", real)], [("j", whole, []), ("go1", flag, []), ("acc", real)])
        even = body([node("Loop", ["n", "", "v"], ["looped"], body=innermost)], [("looped", real)])
        odd = body([node("Sub", ["v", "k"], ["less"])], [("less", real)])
        outer = body([node("Cast", ["n"], ["r"], to=real), node("Less", ["r", "limit"], ["low"]),
                      node("If", ["low"], ["v2"], then_branch=even, else_branch=odd), node("Identity", ["go"], ["go2"])],
                     [("go2", flag, []), ("v2", real)], state)
        for trips in (0, 2, 5):
            self.chain(f"Loop in If in Loop {trips}", [("Loop", ["trips", "", "x"], ["y"], {"body": outer})],
                       {"trips": np.array(trips, np.int64), "x": x}, constants)

        # Scan, of opset 9 on.
        if self.opset >= 9:
            sequence, other = quarters(228, 4, 2, 3), quarters(229, 2, 4)
            part = body([node("Mul", ["state", "half"], ["sh"]), node("Add", ["sh", "part"], ["state2"]),
                         node("Mul", ["state2", "k"], ["out"]), node("Identity", ["second"], ["same"])],
                        [("state2", real), ("out", real), ("same", real)],
                        [("state", real), ("part", real), ("second", real)])
            for directions, axes, in_axes in itertools.product(((0, 0), (1, 0), (0, 1)), ((0, 0), (1, 1), (-1, 0)),
                                                               ((0, 1), (-3, -1))):
                self.chain(f"Scan {directions} {axes} {in_axes}",
                           [("Scan", ["start", "sequence", "other"], ["y", "z", "s"],
                             {"body": part, "num_scan_inputs": 2, "scan_input_axes": in_axes,
                              "scan_input_directions": directions, "scan_output_axes": axes,
                              "scan_output_directions": directions[::-1]})],
                           {"start": x, "sequence": sequence, "other": other}, constants, ("y", "z", "s"))
            self.chain("Scan", [("Scan", ["start", "sequence", "other"], ["y", "z", "s"],
                                 {"body": part, "num_scan_inputs": 2})],
                       {"start": x, "sequence": sequence, "other": quarters(230, 4, 2)}, constants, ("y", "z", "s"))


def all_cases():
    for opset in OPSETS:
        cases = Cases(opset)
        for family in (cases.convolution, cases.transposed_convolution, cases.pools, cases.products, cases.arithmetic,
                       cases.functions, cases.normalization, cases.reductions, cases.shapes, cases.indexing,
                       cases.resizing, cases.resizing_more, cases.quantized, cases.contributed, cases.sorting, cases.scattering, cases.selecting,
                       cases.bits, cases.letters, cases.detecting, cases.attending, cases.sampling, cases.recurrent, cases.dynamic_recurrent,
                       cases.quantized_volumes, cases.quantized_transposed_convolution, cases.quantized_by_microsoft, cases.chains,
                       cases.control_flow):
            family()
        yield from cases.all
