# SPDX-License-Identifier: BSD-3-Clause
"""Models whose quantization by NNCF is known, and what a quantized model says about its quantizers.

`small_models()` has one model for each rule of NNCF's placement of quantizers. `samples_of()` gives inputs that a
C++ test can make, too: they come from a generator of 32-bit integers.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def numbers(count, seed):
    """`count` floats in 0 .. 1, exact in float32: the upper 24 bits of s = 1664525 s + 1013904223 modulo 2^32."""
    state, values = seed & 0xFFFFFFFF, np.empty(count, np.float32)
    for i in range(count):
        state = (1664525 * state + 1013904223) & 0xFFFFFFFF
        values[i] = (state >> 8) / 2.0**24
    return values


def samples_of(model, count, low, high, seed=1):
    """Inputs for `count` runs: floats in low .. high, integers in 0 .. high - 1; open dimensions are 1."""
    constants = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    samples = []
    for k in range(count):
        feeds = {}
        for i, v in enumerate(inputs):
            dims = [d.dim_value if d.dim_value > 0 else 1 for d in v.type.tensor_type.shape.dim]
            u = numbers(int(np.prod(dims)), seed + 7919 * k + i).reshape(dims)
            if v.type.tensor_type.elem_type == TensorProto.INT64:
                feeds[v.name] = np.floor(u * np.float32(high)).astype(np.int64)
            else:
                feeds[v.name] = (np.float32(low) + np.float32(high - low) * u).astype(np.float32)
        samples.append(feeds)
    return samples


class Builder:
    """Makes a model node by node; constants are random, by names."""

    def __init__(self, name, inputs, seed=305):
        self.name, self.random = name, np.random.default_rng(seed)
        self.nodes, self.constants = [], {}
        self.inputs = [helper.make_tensor_value_info(k, t, d) for k, (t, d) in inputs.items()]

    def op(self, kind, inputs, output, outputs=None, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, outputs or [output], f"/{output}", **attributes))
        return output

    def constant(self, name, value, dtype=np.float32):
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weights(self, name, *dims, mean=0.0, scale=None):
        scale = scale or 1 / np.sqrt(max(1, np.prod(dims[1:])))
        return self.constant(name, self.random.normal(mean, scale, dims))

    def conv(self, x, output, channels, outputs, kernel=3, group=1, bias=True, **attributes):
        w = self.weights(output + "_w", outputs, channels // group, kernel, kernel)
        b = [self.weights(output + "_b", outputs, scale=0.1)] if bias else []
        pad = kernel // 2
        return self.op("Conv", [x, w, *b], output, group=group, pads=[pad] * 4, **attributes)

    def relu(self, x):
        return self.op("Relu", [x], x + "_relu")

    def norm(self, x, channels):
        y = x + "_norm"
        parts = [self.weights(f"{y}_{k}", channels, mean=m, scale=0.1) for k, m in (("s", 1), ("b", 0), ("m", 0))]
        parts.append(self.constant(y + "_v", self.random.uniform(0.5, 2, channels)))
        return self.op("BatchNormalization", [x, *parts], y)

    def linear(self, x, output, inputs, outputs):
        product = self.op("MatMul", [x, self.weights(output + "_w", inputs, outputs, scale=inputs**-0.5)], output + "_product")
        return self.op("Add", [product, self.weights(output + "_b", outputs, scale=0.1)], output)

    def model(self, *outputs, opset=17):
        graph = helper.make_graph(self.nodes, self.name, self.inputs,
                                  [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
                                  [numpy_helper.from_array(v, k) for k, v in self.constants.items()])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


IMAGE = {"x": (TensorProto.FLOAT, [1, 4, 8, 8])}
ROWS = {"x": (TensorProto.FLOAT, [1, 6, 16])}
CASES = {}


def case(inputs, low=-1, high=1, **kwargs):
    def keep(build):
        name = build.__name__

        def make():
            b = Builder(name, inputs)
            outputs = build(b)
            return b.model(*(outputs if isinstance(outputs, tuple) else (outputs,)), **kwargs)

        CASES[name] = (make, low, high)
        return build

    return keep


@case(IMAGE)
def chain(b):
    """Convolutions with normalization, activations, pooling, and a fully connected layer."""
    x = b.relu(b.norm(b.conv("x", "a", 4, 8), 8))
    x = b.op("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Clip", [b.conv(x, "c", 8, 8), b.constant("zero", 0), b.constant("six", 6)], "clipped")
    x = b.op("Flatten", [b.op("GlobalAveragePool", [x], "mean")], "flat")
    return b.op("Gemm", [x, b.weights("g_w", 5, 8), b.weights("g_b", 5, scale=0.1)], "y", transB=1)


@case(IMAGE)
def residual(b):
    """An addition of two branches, then a convolution and an output on one value."""
    x = b.relu(b.conv("x", "a", 4, 8))
    y = b.conv(b.relu(b.conv(x, "c", 8, 8)), "d", 8, 8)
    s = b.relu(b.op("Add", [x, y], "sum"))
    return b.conv(s, "y", 8, 4), b.op("Sigmoid", [s], "z")


@case(IMAGE)
def branch_to_output(b):
    """A value that a convolution takes and that is an output."""
    x = b.relu(b.conv("x", "a", 4, 8))
    return b.conv(x, "y", 8, 4), x


@case(IMAGE)
def branch_to_float(b):
    """A value that a convolution and an operator in float take, through operators that move elements."""
    x = b.relu(b.conv("x", "a", 4, 8))
    t = b.op("Transpose", [x], "turned", perm=[0, 1, 3, 2])
    return b.conv(t, "y", 8, 4), b.op("Exp", [t], "z")


@case(IMAGE)
def depthwise(b):
    """Depthwise convolutions, alone on their input and beside another convolution; groups."""
    x = b.relu(b.conv("x", "a", 4, 8))
    x = b.relu(b.conv(x, "d", 8, 8, group=8))
    y = b.conv(x, "e", 8, 8, group=8)
    z = b.conv(x, "f", 8, 8, kernel=1)
    s = b.op("Add", [y, z], "sum")
    return b.conv(s, "y", 8, 8, group=2)


@case(IMAGE)
def concat(b):
    """Concat before a convolution, before operators that do not unify scales, and at an output."""
    x = b.relu(b.conv("x", "a", 4, 8))
    l, r = b.conv(x, "l", 8, 4), b.relu(b.conv(x, "r", 8, 4))
    j = b.op("Concat", [l, r], "joined", axis=1)
    k = b.op("Concat", [b.op("Exp", [l], "l_exp"), b.op("Tanh", [r], "r_tanh")], "others", axis=1)
    return b.conv(j, "y", 8, 4), b.op("GlobalAveragePool", [k], "z"), b.op("Concat", [l, x], "v", axis=1)


@case(IMAGE)
def nested_concat(b):
    """Concat of a Concat and of a value that others take, too."""
    x = b.relu(b.conv("x", "a", 4, 4))
    c = b.relu(b.conv(x, "c", 4, 4))
    j = b.op("Concat", [x, c], "j", axis=1)
    d = b.relu(b.conv(j, "d", 8, 4))
    k = b.op("Concat", [j, d], "k", axis=1)
    return b.conv(k, "y", 12, 4), b.conv(c, "z", 4, 4)


@case(IMAGE)
def activations(b):
    """Swish, hard swish, GELU, LeakyRelu, PRelu, and a scale and a shift."""
    x = b.conv("x", "a", 4, 4)
    x = b.op("Mul", [x, b.op("Sigmoid", [x], "sigmoid")], "swish")
    x = b.conv(x, "c", 4, 4)
    six = b.op("Clip", [b.op("Add", [x, b.constant("three", 3)], "h_add"), b.constant("zero", 0), b.constant("six", 6)], "h_clip")
    x = b.op("Div", [b.op("Mul", [x, six], "h_mul"), "six"], "hswish")
    x = b.conv(x, "d", 4, 4)
    erf = b.op("Erf", [b.op("Div", [x, b.constant("root", 1.4142135)], "g_div")], "g_erf")
    x = b.op("Mul", [x, b.op("Add", [erf, b.constant("one", 1)], "g_add")], "gelu")
    x = b.op("LeakyRelu", [b.conv(x, "e", 4, 4)], "leaky", alpha=0.1)
    x = b.op("PRelu", [b.conv(x, "f", 4, 4), b.weights("slope", 4, 1, 1)], "prelu")
    x = b.op("Add", [b.op("Mul", [x, b.weights("scale", 4, 1, 1, mean=1)], "scaled"), b.weights("shift", 4, 1, 1)], "shifted")
    return b.op("HardSigmoid", [b.op("HardSwish", [b.conv(x, "g", 4, 4)], "hs")], "y")


@case(IMAGE)
def elementwise(b):
    """Sums and products of two activations and with constants; Sub, Div, Max, Min, Pow, Sqrt."""
    x, z = b.relu(b.conv("x", "a", 4, 4)), b.conv("x", "c", 4, 4)
    p = b.op("Mul", [x, z], "p")
    q = b.op("Sub", [p, z], "q")
    r = b.op("Max", [q, x], "r")
    s = b.op("Min", [b.op("Tanh", [r], "r_tanh"), b.constant("half", [0.5])], "s")
    t = b.op("Div", [b.op("Exp", [s], "s_exp"), b.op("Exp", [x], "x_exp")], "t")
    u = b.op("Sqrt", [b.op("Pow", [b.op("Abs", [t], "t_abs"), b.constant("three", 3)], "pow")], "u")
    return b.conv(u, "y", 4, 4), b.op("Mul", [b.op("Tanh", [u], "u_tanh"), b.weights("w", 4, 1, 1)], "v")


@case(IMAGE)
def same_operand(b):
    """A product of a value with itself, behind a convolution and behind an activation."""
    x = b.conv("x", "a", 4, 4)
    x = b.op("Mul", [x, x], "square")
    x = b.op("Tanh", [b.conv(x, "c", 4, 4)], "t")
    return b.op("Add", [x, x], "double"), b.op("Tanh", [b.op("Add", [x, x], "twice")], "z")


@case(IMAGE)
def squeeze_excite(b):
    """A block of squeeze and excitation, whose convolutions NNCF leaves in float."""
    x = b.relu(b.conv("x", "a", 4, 8))
    s = b.op("GlobalAveragePool", [x], "pooled")
    s = b.relu(b.conv(s, "down", 8, 2, kernel=1))
    s = b.op("Sigmoid", [b.conv(s, "up", 2, 8, kernel=1)], "gate")
    return b.conv(b.op("Mul", [x, s], "gated"), "y", 8, 4)


@case(IMAGE)
def lone_normalization(b):
    """Pooling, normalization and activations that no layer absorbs."""
    x = b.op("MaxPool", [b.relu(b.conv("x", "a", 4, 4))], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Resize", [x, "", b.constant("scales", [1, 1, 2, 2])], "resized", mode="nearest")
    x = b.op("AveragePool", [x], "average", kernel_shape=[2, 2])
    x = b.op("ReduceMean", [x], "reduced", axes=[3], keepdims=1)
    x = b.op("Pad", [x, b.constant("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)], "padded")
    return b.conv(x, "y", 4, 4)


@case(IMAGE)
def split_and_slice(b):
    """Split and Slice between layers; parts go to a layer, to float, to an output."""
    x = b.relu(b.conv("x", "a", 4, 8))
    b.op("Split", [x, b.constant("sizes", [4, 4], np.int64)], "split", outputs=["first", "second"], axis=1)
    s = b.op("Slice", [x, b.constant("from", [0], np.int64), b.constant("to", [4], np.int64), b.constant("axes", [1], np.int64)], "slice")
    return b.conv("first", "y", 4, 4), b.conv("second", "z", 4, 4), b.conv(s, "v", 4, 4)


@case(IMAGE)
def shared_weights(b):
    """Two layers with the same weights, and a transposed convolution."""
    x = b.relu(b.conv("x", "a", 4, 4))
    y = b.op("Conv", [x, "a_w"], "c", pads=[1, 1, 1, 1])
    return b.op("ConvTranspose", [b.relu(y), b.weights("t_w", 4, 3, 2, 2), b.weights("t_b", 3, scale=0.1)], "y", strides=[2, 2])


@case(ROWS)
def products(b):
    """Products with constant weights on either side, with shapes of three dimensions, and of two activations."""
    x = b.linear("x", "a", 16, 16)
    x = b.op("Relu", [x], "r")
    y = b.op("MatMul", [x, b.weights("w3", 1, 16, 8)], "y3")
    z = b.op("MatMul", [b.weights("left", 6, 6), x], "z_left")
    k = b.op("Transpose", [z], "turned", perm=[0, 2, 1])
    s = b.op("MatMul", [x, k], "scores")
    g = b.op("Reshape", [s, b.constant("shape", [6, 6], np.int64)], "flat")
    g = b.op("Gemm", [g, b.weights("g_w", 6, 3)], "gemm", alpha=0.5)
    return y, g


@case({"ids": (TensorProto.INT64, [1, 6])}, 0, 20)
def embedding(b):
    """A table of embeddings, an addition, a layer, and a Gather of an activation."""
    x = b.op("Gather", [b.weights("table", 20, 16, scale=1), "ids"], "words")
    y = b.linear(x, "a", 16, 16)
    s = b.op("Add", [b.op("Gather", [b.weights("other", 20, 16, scale=1), "ids"], "more"), y], "s")
    g = b.op("Gather", [s, b.constant("zero", 0, np.int64)], "first", axis=1)
    return b.linear(g, "y", 16, 4)


@case(ROWS, -3, 5)
def layer_norm(b):
    """Normalization of rows as primitive operators, with a scale and a shift, before two layers."""
    x = b.linear("x", "a", 16, 16)
    mean = b.op("ReduceMean", [x], "mean", axes=[-1])
    centred = b.op("Sub", [x, mean], "centred")
    variance = b.op("ReduceMean", [b.op("Pow", [centred, b.constant("two", 2)], "squared")], "variance", axes=[-1])
    root = b.op("Sqrt", [b.op("Add", [variance, b.constant("eps", 1e-5)], "safe")], "root")
    n = b.op("Div", [centred, root], "normed")
    n = b.op("Add", [b.op("Mul", [n, b.weights("scale", 16, mean=1)], "scaled"), b.weights("shift", 16)], "shifted")
    return b.linear(n, "y", 16, 8), b.op("Tanh", [b.linear(n, "z_in", 16, 8)], "z")


@case(ROWS, -3, 5, opset=23)
def attention(b):
    """The operator Attention between layers."""
    x = b.relu(b.linear("x", "a", 16, 16))
    operands = [b.linear(x, name, 16, 16) for name in "qkv"]
    return b.linear(b.op("Attention", operands, "mixed", q_num_heads=2, kv_num_heads=2), "y", 16, 8)


def bert(layers=2, hidden=16, heads=2, vocabulary=40, length=8, classes=3):
    """Embeddings, attention, LayerNormalization and GELU, as exporters write them."""
    b = Builder("bert", {"ids": (TensorProto.INT64, [1, length])})

    def norm(x, name):
        return b.op("LayerNormalization", [x, b.weights(name + "_scale", hidden, mean=1, scale=0.1),
                                           b.weights(name + "_shift", hidden, scale=0.1)], name, axis=-1)

    def gelu(x, name):
        erf = b.op("Erf", [b.op("Div", [x, b.constant("root", np.sqrt(2))], name + "_divided")], name + "_erf")
        product = b.op("Mul", [x, b.op("Add", [erf, b.constant("one", 1)], name + "_shifted")], name + "_product")
        return b.op("Mul", [product, b.constant("half", 0.5)], name)

    def split(x, order):
        shape = b.constant("split", [0, 0, heads, hidden // heads], np.int64)
        return b.op("Transpose", [b.op("Reshape", [x, shape], x + "_split")], x + "_heads", perm=order)

    x = b.op("Gather", [b.weights("words", vocabulary, hidden, scale=1), "ids"], "embedded")
    x = norm(b.op("Add", [x, b.weights("positions", 1, length, hidden, scale=0.3)], "placed"), "first")
    for i in range(layers):
        q, k, v = (b.linear(x, f"{kind}{i}", hidden, hidden) for kind in "qkv")
        scores = b.op("MatMul", [split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])], f"scores{i}")
        scores = b.op("Mul", [scores, b.constant("scale", np.sqrt(heads / hidden))], f"scaled{i}")
        mixed = b.op("MatMul", [b.op("Softmax", [scores], f"shares{i}", axis=-1), split(v, [0, 2, 1, 3])], f"mixed{i}")
        joined = b.op("Reshape", [b.op("Transpose", [mixed], f"turned{i}", perm=[0, 2, 1, 3]),
                                  b.constant("join", [0, 0, hidden], np.int64)], f"joined{i}")
        x = norm(b.op("Add", [b.linear(joined, f"out{i}", hidden, hidden), x], f"attended{i}"), f"norm{i}")
        wide = gelu(b.linear(x, f"up{i}", hidden, 4 * hidden), f"gelu{i}")
        x = norm(b.op("Add", [b.linear(wide, f"down{i}", 4 * hidden, hidden), x], f"fed{i}"), f"last{i}")
    x = b.op("Gather", [x, b.constant("zero", 0, np.int64)], "start", axis=1)
    b.linear(b.op("Tanh", [b.linear(x, "pool", hidden, hidden)], "pooled"), "logits", hidden, classes)
    return b.model("logits")


CASES["bert"] = (bert, 0, 40)


# The models that NNCF's own tests of bias correction have, and two of more layers: maker, overflow fix, and the biases
# that those tests expect of the fast method for published_sample(), if they are known. Their tolerance is 1e-4.
BIASED = {}
CORNERS = [[[[0.1, -2.0], [1.0, 0.1]]], [[[0.1, 2.0], [-1.0, 0.1]]]]
FLAT = {"x": (TensorProto.FLOAT, [1, 1, 4, 4])}


def published_sample():
    return {"x": np.random.RandomState(0).rand(1, 1, 4, 4).astype(np.float32)}


def biased(fix="first-layer", published=None):
    def keep(build):
        name = build.__name__
        BIASED[name] = (lambda: (lambda b: b.model(build(b), opset=13))(Builder(name, FLAT)), fix, published)
        return build

    return keep


@biased(published=[0.0288348, 1.0838453])
def published_conv(b):
    """NNCF's ConvTestModel."""
    return b.op("Conv", ["x", b.constant("w", CORNERS), b.constant("b", [0.1, 1.0])], "y")


@biased(fix="none", published=[0.08396978, 1.1676897])
def published_conv_bn(b):
    """NNCF's ConvBNTestModel, whose normalization (gain 0.2 and 2, shift 0.1 and 1) the exporter folds."""
    gain = np.array([0.2, 2.0]) / np.sqrt(1 + 1e-5)
    return b.op("Conv", ["x", b.constant("w", CORNERS * gain[:, None, None, None]), b.constant("b", [0.1, 1.0])], "y")


@biased()
def published_fc(b):
    """A fully connected layer as the exporter writes it, of the sizes of NNCF's FCTestModel."""
    w = np.transpose([[0.1, 0.2, 0.3, 0.2], [0.3, -0.1, 0.2, 0.1]])
    return b.op("Add", [b.constant("b", [1.0, 1.1]), b.op("MatMul", ["x", b.constant("w", w)], "product")], "y")


@biased()
def two_convs(b):
    x = b.relu(b.op("Conv", ["x", b.constant("w", CORNERS), b.constant("b", [0.1, 1.0])], "a"))
    return b.op("Conv", [x, b.weights("v", 3, 2, 2, 2, scale=0.5), b.constant("d", [0.4, -0.8, 0.6])], "y")


@biased(fix="enable")
def two_fcs(b):
    x = b.op("Gemm", [b.op("Flatten", ["x"], "flat"), b.weights("w", 5, 16), b.constant("b", np.linspace(-0.7, 0.9, 5))], "a", transB=1)
    return b.op("Gemm", [b.relu(x), b.weights("v", 5, 3), b.constant("d", [0.4, -0.8, 0.6])], "y")


def quantizers_of(model, original):
    """What each node reads through a DequantizeLinear: (first output of the node, input) -> (value, type, scales, zero points).

    `value` is the value of the original model that is quantized, "weight" for a constant; the input of a product
    that SmoothQuant has inserted gets the name "smooth(value)"."""
    makers = {o: n for n in model.graph.node for o in n.output}
    constants = {t.name: t for t in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Constant":
            constants[n.output[0]] = n.attribute[0].t
    known = {o for n in original.graph.node for o in n.output} | {v.name for v in original.graph.input}
    data = {v.name for v in model.graph.input} - {t.name for t in model.graph.initializer}
    for n in model.graph.node:  # what depends on inputs; nodes are in their order
        if data.intersection(n.input):
            data.update(n.output)

    def canonical(value):
        node = makers.get(value)
        if value in known or node is None or node.op_type != "Mul":
            return value
        read = node.input[0]
        maker = makers.get(read)
        if maker is not None and maker.op_type == "DequantizeLinear":
            read = makers[maker.input[0]].input[0]
        return f"smooth({canonical(read)})"

    found = {}
    for n in model.graph.node:
        if n.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for i, value in enumerate(n.input):
            dequantize = makers.get(value)
            if dequantize is None or dequantize.op_type != "DequantizeLinear":
                continue
            scale = numpy_helper.to_array(constants[dequantize.input[1]])
            zero = constants[dequantize.input[2]] if len(dequantize.input) > 2 else None
            kind = "int32" if zero is None else TensorProto.DataType.Name(zero.data_type).lower()
            zero = np.zeros(scale.shape) if zero is None else numpy_helper.to_array(zero)
            quantize = makers.get(dequantize.input[0])
            source = "weight" if quantize is None or quantize.input[0] not in data else canonical(quantize.input[0])
            if kind == "int32":
                continue  # a bias, which NNCF leaves in float
            found[(canonical(n.output[0]), i)] = (source, kind, scale.astype(np.float32).reshape(-1), zero.astype(np.int64).reshape(-1))
    return found


def biases_of(model):
    """The constants that layers and sums add: (first output of the node, input) -> values."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Constant":
            constants[n.output[0]] = numpy_helper.to_array(n.attribute[0].t)
    found = {}
    for n in model.graph.node:
        for i in [2] if n.op_type in ("Conv", "Gemm", "ConvTranspose") else [0, 1] if n.op_type == "Add" else []:
            if i < len(n.input) and n.input[i] in constants:
                found[(n.output[0], i)] = constants[n.input[i]].reshape(-1)
    return found
