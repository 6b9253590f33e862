#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Records gradients of single operators, by central differences in float64.

    record_gradients.py OUT

recorded_gradients_test.cpp compares them with what gradient_graph computes. The loss of a case is sum(output * D) over its float
outputs, with random D. The reference implementation of ONNX evaluates the operator in float64; for operators that it evaluates in
float32, FORMULAS has numpy formulas. Every input is an input of the model, and the difference is taken for each element of each
float input. A difference with twice the step must agree: where it does not, the operator was not evaluated in float64, or a kink
lies between.

OUT holds, for each case, the number of its bytes (32 bits, little endian) and an ONNX model: what it is called stands in its
producer_name, and its initializers are the inputs given/NAME, D as seed/NAME of each output, and the gradients expected/NAME.
"""

import math
import pathlib
import sys
import zlib

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

STEP = 1e-5
OPSET = 22


def generator(*seed):
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


def real(seed, *shape, low=-1.0, high=1.0):
    """Random floats."""
    return np.asarray(generator(seed, shape).uniform(low, high, shape), np.float32)


def apart(seed, *shape, step=0.1):
    """Numbers of which no two, nor their absolute values, are nearer to each other or to 0 than step / 2."""
    count = math.prod(shape)
    values = (np.arange(count) - count // 2 + 0.5) * step + np.arange(count) * step * 0.001
    return np.asarray(generator(seed, shape).permutation(values).reshape(shape), np.float32)


def i64(*values):
    return np.array(values, np.int64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# ------------------------------------------------------------------------------------ formulas


def batch_normalization(inputs, epsilon=1e-5, momentum=0.9, training_mode=0, **_):
    x, scale, bias, mean, variance = inputs
    axes = tuple(i for i in range(x.ndim) if i != 1)
    shape = [-1 if i == 1 else 1 for i in range(x.ndim)]
    if training_mode:
        mean, variance = x.mean(axes), x.var(axes)
    y = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + epsilon)
    return [y * scale.reshape(shape) + bias.reshape(shape)]


def group_normalization(inputs, num_groups=None, epsilon=1e-5, **_):
    x, scale, bias = inputs
    groups = x.reshape(x.shape[0], num_groups or x.shape[1], -1)
    y = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + epsilon)
    shape = [-1 if i == 1 else 1 for i in range(x.ndim)]
    if scale.size != x.shape[1]:  # of a group, before opset 21
        scale, bias = (np.repeat(v, x.shape[1] // v.size) for v in (scale, bias))
    return [y.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)]


def layer_normalization(inputs, axis=-1, epsilon=1e-5, **_):
    x, scale = inputs[:2]
    axes = tuple(range(axis % x.ndim, x.ndim))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return [y * scale + (inputs[2] if len(inputs) > 2 else 0)]


def rms_normalization(inputs, axis=-1, epsilon=1e-5, **_):
    x, scale = inputs
    axes = tuple(range(axis % x.ndim, x.ndim))
    return [x / np.sqrt((x * x).mean(axes, keepdims=True) + epsilon) * scale]


def mean_variance_normalization(inputs, axes=(0, 2, 3), **_):
    x, = inputs
    return [(x - x.mean(tuple(axes), keepdims=True)) / (x.std(tuple(axes), keepdims=True) + 1e-9)]


def local_response_normalization(inputs, size=None, alpha=1e-4, beta=0.75, bias=1.0, **_):
    x, = inputs
    sums = np.zeros_like(x)
    for c in range(x.shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(x.shape[1], c + size // 2 + 1)
        sums[:, c] = (x[:, first:last] ** 2).sum(1)
    return [x / (bias + alpha / size * sums) ** beta]


def image_scaler(inputs, bias, scale=1.0, **_):
    x, = inputs
    return [x * scale + np.reshape(bias, (1, -1) + (1,) * (x.ndim - 2))]


def lp_normalization(inputs, axis=-1, p=2, **_):
    x, = inputs
    return [x / (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)]


def erf(inputs, **_):
    return [np.vectorize(math.erf, otypes=[np.float64])(inputs[0])]


def gelu(inputs, approximate="none", **_):
    x, = inputs
    if approximate == "tanh":
        return [x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))]
    return [x / 2 * (1 + erf([x / math.sqrt(2)])[0])]


def windows(x, kernel_shape, strides=None, pads=None, dilations=None, ceil_mode=0, **_):
    """The pixels under each position of a window as [batch, channels, positions ..., taps]; NaN where there is padding, infinity
    where ceil_mode reaches behind it."""
    axes = len(kernel_shape)
    strides, dilations, pads = strides or [1] * axes, dilations or [1] * axes, pads or [0] * (2 * axes)
    padding = [(0, 0), (0, 0)] + [(pads[i], pads[i + axes]) for i in range(axes)]
    padded = np.pad(x, padding, constant_values=np.nan)
    out = []
    for i in range(axes):
        room = padded.shape[i + 2] - dilations[i] * (kernel_shape[i] - 1) - 1
        out.append((-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1)
        if ceil_mode and (out[i] - 1) * strides[i] >= x.shape[i + 2] + pads[i]:
            out[i] -= 1
    padded = np.pad(padded, [(0, 0), (0, 0)] + [(0, s * 2 + 2) for s in kernel_shape], constant_values=np.inf)
    taps = []
    for tap in np.ndindex(*kernel_shape):
        places = [slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, out, strides)]
        taps.append(padded[(slice(None), slice(None), *places)])
    return np.stack(taps, -1)


def max_pool(inputs, **attributes):
    taps = windows(inputs[0], **attributes)
    return [np.where(np.isfinite(taps), taps, -np.inf).max(-1)]


def average_pool(inputs, count_include_pad=0, **attributes):
    taps = windows(inputs[0], **attributes)
    counted = ~np.isinf(taps) if count_include_pad else np.isfinite(taps)
    return [np.where(np.isfinite(taps), taps, 0).sum(-1) / counted.sum(-1)]


def lp_pool(inputs, p=2, **attributes):
    taps = windows(inputs[0], **attributes)
    return [(np.where(np.isfinite(taps), np.abs(taps), 0) ** p).sum(-1) ** (1 / p)]


def global_lp_pool(inputs, p=2, **_):
    axes = tuple(range(2, inputs[0].ndim))
    return [(np.abs(inputs[0]) ** p).sum(axes, keepdims=True) ** (1 / p)]


def global_max_pool(inputs, **_):
    return [inputs[0].max(tuple(range(2, inputs[0].ndim)), keepdims=True)]


def softmax(inputs, axis=-1, opset=OPSET):
    x, = inputs
    axes = tuple(range(axis, x.ndim)) if opset < 13 else axis
    y = np.exp(x)
    return [y / y.sum(axes, keepdims=True)]


def convolution(inputs, group=1, strides=None, dilations=None, pads=None, **_):
    x, w = inputs[:2]
    taps = windows(x, w.shape[2:], strides, pads, dilations)  # [batch, channels, positions ..., taps]
    taps = np.where(np.isfinite(taps), taps, 0)
    y = []
    for o in range(w.shape[0]):
        first = o // (w.shape[0] // group) * w.shape[1]
        patches = np.moveaxis(taps[:, first:first + w.shape[1]], 1, -2)
        y.append((patches * w[o].reshape(w.shape[1], -1)).sum((-1, -2)) + (inputs[2][o] if len(inputs) > 2 else 0))
    return [np.stack(y, 1)]


def transposed_convolution(inputs, group=1, strides=None, dilations=None, pads=None, output_padding=None, **_):
    x, w = inputs[:2]
    axes = x.ndim - 2
    strides, dilations, pads = strides or [1] * axes, dilations or [1] * axes, pads or [0] * (2 * axes)
    added = output_padding or [0] * axes
    full = [s * (n - 1) + a + d * (k - 1) + 1
            for s, n, a, d, k in zip(strides, x.shape[2:], added, dilations, w.shape[2:])]
    y = np.zeros((x.shape[0], w.shape[1] * group, *full))
    for i in range(x.shape[1]):
        first = i // (x.shape[1] // group) * w.shape[1]
        for o in range(w.shape[1]):
            for tap in np.ndindex(*w.shape[2:]):
                places = [slice(t * d, t * d + (n - 1) * s + 1, s)
                          for t, d, n, s in zip(tap, dilations, x.shape[2:], strides)]
                y[(slice(None), first + o, *places)] += x[:, i] * w[(i, o, *tap)]
    inside = [slice(pads[i], y.shape[i + 2] - pads[i + axes]) for i in range(axes)]
    y = y[(slice(None), slice(None), *inside)]
    return [y + inputs[2].reshape(-1, *[1] * axes) if len(inputs) > 2 else y]


ACTIVATIONS = {
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
    "Affine": lambda x, a, b: a * x + b,
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
}


def recurrent(cell):
    """A formula around cell(f, gates, h, c, ...), which takes one step of one sequence."""

    def run(inputs, direction="forward", layout=0, activations=None, activation_alpha=(), activation_beta=(), clip=None,
            hidden_size=None, **attributes):
        x, w, r, b, lengths, h0, c0, p = (list(inputs) + [None] * 8)[:8]
        if layout:
            x = x.swapaxes(0, 1)
            h0, c0 = (v if v is None else v.swapaxes(0, 1) for v in (h0, c0))
        steps, batch, _ = x.shape
        directions, hidden = w.shape[0], hidden_size
        b = np.zeros((directions, 2 * w.shape[1])) if b is None else b
        lengths = [steps] * batch if lengths is None else lengths
        y = np.zeros((steps, directions, batch, hidden))
        finals = [np.zeros((directions, batch, hidden)) for _ in range(2)]
        names = activations or list(cell.activations) * directions
        alphas, betas = list(activation_alpha), list(activation_beta)
        functions = []
        for name in names:
            both = name in ("HardSigmoid", "Affine", "ScaledTanh")
            alpha = alphas.pop(0) if both or name in ("LeakyRelu", "ThresholdedRelu", "Elu") else 0
            beta = betas.pop(0) if both else 0
            functions.append(lambda v, limit=clip, f=ACTIVATIONS[name], alpha=alpha, beta=beta: f(
                v if limit is None else np.clip(v, -limit, limit), alpha, beta))
        for d in range(directions):
            f = functions[d * len(cell.activations):(d + 1) * len(cell.activations)]
            backward = direction == "reverse" or d == 1
            for s in range(batch):
                h = np.zeros(hidden) if h0 is None else h0[d, s]
                c = np.zeros(hidden) if c0 is None else c0[d, s]
                for i in range(lengths[s]):
                    t = lengths[s] - 1 - i if backward else i
                    h, c = cell(f, x[t, s], h, c, w[d], r[d], b[d], None if p is None else p[d], attributes)
                    y[t, d, s] = h
                if lengths[s]:
                    finals[0][d, s], finals[1][d, s] = h, c
        if layout:
            return [y.transpose(2, 0, 1, 3), finals[0].swapaxes(0, 1), finals[1].swapaxes(0, 1)]
        return [y, *finals]

    return run


def rnn_cell(f, x, h, c, w, r, b, p, attributes):
    half = len(b) // 2
    return f[0](w @ x + r @ h + b[:half] + b[half:]), c


def gru_cell(f, x, h, c, w, r, b, p, attributes):
    n = len(h)
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    bz, br, bh, cz, cr, ch = np.split(b, 6)
    z, reset = f[0](wz @ x + rz @ h + bz + cz), f[0](wr @ x + rr @ h + br + cr)
    if attributes.get("linear_before_reset"):
        new = f[1](wh @ x + reset * (rh @ h + ch) + bh)
    else:
        new = f[1](wh @ x + rh @ (reset * h) + ch + bh)
    return (1 - z) * new + z * h, c


def lstm_cell(f, x, h, c, w, r, b, p, attributes):
    half = len(b) // 2
    i, o, u, n = np.split(w @ x + r @ h + b[:half] + b[half:], 4)
    pi, po, pu = np.zeros((3, len(h))) if p is None else np.split(p, 3)
    i = f[0](i + pi * c)
    u = 1 - i if attributes.get("input_forget") else f[0](u + pu * c)
    c = u * c + i * f[1](n)
    return f[0](o + po * c) * f[2](c, None), c  # the clip is for what gates take, not for the state


rnn_cell.activations = ["Tanh"]
gru_cell.activations = ["Sigmoid", "Tanh"]
lstm_cell.activations = ["Sigmoid", "Tanh", "Tanh"]


def attention(inputs, q_num_heads=None, kv_num_heads=None, is_causal=0, scale=None, softcap=0.0, **_):
    q, k, v, mask, past_k, past_v = (list(inputs) + [None] * 6)[:6]
    flat = q.ndim == 3

    def heads(t, count):
        return t.reshape(t.shape[0], t.shape[1], count, -1).swapaxes(1, 2) if flat else t

    q, k, v = heads(q, q_num_heads), heads(k, kv_num_heads), heads(v, kv_num_heads)
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
    scores = q @ k.swapaxes(2, 3) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    if is_causal:
        before = 0 if past_k is None else past_k.shape[2]
        scores = np.where(np.tril(np.ones(scores.shape[2:]), before) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ v
    return [y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y]


def rotary_embedding(inputs, num_heads=0, interleaved=0, rotary_embedding_dim=0, **_):
    x, cosine, sine = inputs[:3]
    if len(inputs) > 3:
        cosine, sine = cosine[inputs[3]], sine[inputs[3]]
    t = x.reshape(x.shape[0], x.shape[1], num_heads, -1).swapaxes(1, 2) if x.ndim == 3 else x
    width = rotary_embedding_dim or t.shape[-1]
    turned, rest = t[..., :width], t[..., width:]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, -1)
    cosine, sine = cosine[:, None], sine[:, None]
    y, z = cosine * a - sine * b, sine * a + cosine * b
    turned = np.stack([y, z], -1).reshape(turned.shape) if interleaved else np.concatenate([y, z], -1)
    y = np.concatenate([turned, rest], -1)
    return [y.swapaxes(1, 2).reshape(x.shape) if x.ndim == 3 else y]


def top_k(inputs, axis=-1, largest=1, **_):
    order = np.argsort(-inputs[0] if largest else inputs[0], axis=axis, kind="stable")
    chosen = np.take(order, np.arange(inputs[1][0]), axis=axis)
    return [np.take_along_axis(inputs[0], chosen, axis)]


def cumulative_product(inputs, exclusive=0, reverse=0, **_):
    x, axis = inputs[0], int(inputs[1])
    x = np.flip(x, axis) if reverse else x
    y = np.cumprod(x, axis)
    if exclusive:
        y = np.concatenate([np.ones_like(np.take(y, [0], axis)), np.take(y, range(x.shape[axis] - 1), axis)], axis)
    return [np.flip(y, axis) if reverse else y]


def swiglu(inputs, alpha=1.0, **_):
    return [inputs[0] * sigmoid(alpha * inputs[0]) * inputs[1]]


def pad(inputs, mode="constant", **_):
    x, pads = inputs[:2]
    if mode != "constant":
        return [np.pad(x, np.reshape(pads, (2, -1)).T, mode=mode)]
    axes = range(x.ndim) if len(inputs) < 4 else inputs[3]
    value = 0 if len(inputs) < 3 or inputs[2] is None else inputs[2]
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(pads) // 2]
        x = np.take(x, range(max(0, -before), x.shape[axis] - max(0, -after)), axis)
        for count, first in ((before, True), (after, False)):
            shape = list(x.shape)
            shape[axis] = max(0, count)
            added = np.full(shape, value, np.float64)
            x = np.concatenate([added, x] if first else [x, added], axis)
    return [x]


def scatter(inputs, axis=0, **_):
    y = inputs[0].copy()
    np.put_along_axis(y, inputs[1], inputs[2], axis)
    return [y]


def tensor_scatter(inputs, axis=-2, **_):
    y = inputs[0].copy()
    for b, first in enumerate(inputs[2]):
        places = np.moveaxis(y[b], (axis % y.ndim) - 1, 0)
        update = np.moveaxis(inputs[1][b], (axis % y.ndim) - 1, 0)
        places[first:first + len(update)] = update
    return [y]


FORMULAS = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": group_normalization,
    "GroupNormalization": group_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "ImageScaler": image_scaler,
    "LRN": local_response_normalization,
    "LpNormalization": lp_normalization,
    "Erf": erf,
    "Gelu": gelu,
    "Swish": lambda inputs, alpha=1.0, **_: [inputs[0] * sigmoid(alpha * inputs[0])],
    "Mish": lambda inputs, **_: [inputs[0] * np.tanh(np.log1p(np.exp(inputs[0])))],
    "SwiGLU": swiglu,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "Softmax": softmax,
    "RNN": recurrent(rnn_cell),
    "GRU": recurrent(gru_cell),
    "LSTM": recurrent(lstm_cell),
    "Attention": attention,
    "RotaryEmbedding": rotary_embedding,
    "TopK": top_k,
    "CumProd": cumulative_product,
    "TensorScatter": tensor_scatter,
    "Pad": pad,
    "Scatter": scatter,
}


# --------------------------------------------------------------------------------------- cases


class Cases:
    """Collects (label, model, inputs, names of the outputs that the loss depends on)."""

    def __init__(self):
        self.all = []

    def add(self, op, arrays, outputs=("y",), loss=None, opset=OPSET, **attributes):
        """One node. `arrays`: its inputs, None for an absent one. `loss`: the outputs with a gradient, all by default."""
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
        node = helper.make_node(op, names, list(outputs), **attributes)
        inputs = {n: a for n, a in zip(names, arrays) if a is not None}
        graph = helper.make_graph(
            [node], "case",
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()],
            [ValueInfoProto(name=name) for name in outputs if name])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        shapes = ",".join("x".join(map(str, a.shape)) or "scalar" for a in arrays if a is not None)
        model.producer_name = " ".join([op, shapes, *(f"{k}={v}" for k, v in attributes.items()), f"opset {opset}"])
        self.all.append((model, inputs, [name for name in outputs if name and (loss is None or name in loss)]))

    def convolutions(self):
        x1, x2, x3 = real(1, 2, 3, 7), real(2, 2, 4, 5, 4), real(3, 1, 2, 3, 4, 3)
        for op, first, pads in (("Conv", lambda i, o, g: (o, i // g), [1, 0, 0, 1]), ("ConvTranspose", lambda i, o, g: (i, o // g), [1, 0, 0, 1])):
            def w(i, o, g, *kernel, first=first):
                return real((op, i, o, g), *first(i, o, g), *kernel)
            self.add(op, [x1, w(3, 2, 1, 3), real(4, 2)], strides=[2], pads=[1, 1])
            self.add(op, [x2, w(4, 3, 1, 3, 2), real(5, 3)])
            self.add(op, [x2, w(4, 3, 1, 2, 3)], strides=[2, 1], dilations=[2, 1], pads=pads)
            self.add(op, [x2, w(4, 2, 2, 2, 2), real(6, 2)], group=2, strides=[1, 2])
            self.add(op, [x2, w(4, 4, 4, 3, 3), real(7, 4)], group=4, pads=[1, 1, 1, 1])
            self.add(op, [x2, w(4, 8, 4, 2, 2)], group=4, strides=[2, 2], dilations=[1, 2])
            self.add(op, [x2, w(4, 5, 1, 1, 1), real(8, 5)])
            self.add(op, [x3, w(2, 2, 1, 2, 2, 2), real(9, 2)], pads=[1, 0, 1, 0, 1, 0], strides=[1, 2, 1])
            self.add(op, [x3, w(2, 2, 2, 2, 1, 2)], group=2)
        self.add("ConvTranspose", [x2, real(10, 4, 2, 2, 3)], strides=[2, 3], output_padding=[1, 1])
        self.add("Conv", [real(13, 2, 1, 4, 3), real(14, 5, 1, 2, 2), real(15, 5)], pads=[1, 0, 0, 1])
        self.add("Conv", [x2, real(16, 2, 4, 3, 1)], pads=[1, 0, 1, 0], dilations=[2, 1])
        self.add("Conv", [real(11, 3, 2, 12, 1), real(12, 3, 2, 5, 1)], strides=[3, 1], pads=[2, 0, 2, 0])

    def products(self):
        for kwargs, a, b in (({}, (3, 4), (4, 2)), ({"transA": 1, "alpha": 0.5}, (4, 3), (4, 2)), ({"transB": 1, "beta": -2.0}, (3, 4), (2, 4))):
            for c in ((2,), (3, 1), ()):
                self.add("Gemm", [real(20, *a), real(21, *b), real(22, *c)], **kwargs)
        for a, b in (((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 2, 3), (3, 4)), ((2, 2, 3), (2, 3, 2)), ((2, 1, 2, 3), (2, 3, 2)),
                     ((2, 3), (2, 3, 2))):
            self.add("MatMul", [real(23, *a), real(24, *b)])
        for equation, *shapes in (("ij,jk->ik", (2, 3), (3, 4)), ("bhqd,bhkd->bhqk", (2, 2, 3, 2), (2, 2, 4, 2)), ("ii->i", (3, 3)), ("ij->", (2, 3)),
                                  ("...ij,jk", (2, 2, 3), (3, 2)), ("i,ij,j->", (2,), (2, 3), (3,)), ("ij,ij->ji", (2, 1), (1, 3))):
            self.add("Einsum", [real((25, i), *s) for i, s in enumerate(shapes)], equation=equation)

    def unary(self):
        x = real(30, 3, 5, low=-3, high=3)
        positive, inside, above = real(31, 3, 4, low=0.2, high=3), real(32, 3, 4, low=-0.9, high=0.9), real(33, 3, 4, low=1.1, high=3)
        for op in ("Neg", "Exp", "Erf", "Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "Gelu"):
            self.add(op, [x])
        for op in ("Reciprocal", "Sqrt", "Log"):
            self.add(op, [positive])
        for op in ("Asin", "Acos", "Atanh", "Tan"):
            self.add(op, [inside])
        self.add("Acosh", [above])
        self.add("Gelu", [x], approximate="tanh")
        self.add("Gelu", [real(34, 8, low=-0.002, high=0.002)])
        self.add("Swish", [x], opset=24)
        self.add("Swish", [x], opset=24, alpha=1.5)
        kinks = apart(35, 4, 8, step=0.21)
        for op, *choices in (("Abs", {}), ("Relu", {}), ("LeakyRelu", {}, {"alpha": 0.3}), ("Elu", {}, {"alpha": 0.5}), ("Selu", {}, {"alpha": 1.2, "gamma": 0.7}),
                             ("Celu", {}, {"alpha": 2.0}), ("ThresholdedRelu", {}, {"alpha": 0.45}), ("HardSigmoid", {}, {"alpha": 0.4, "beta": 0.3}),
                             ("HardSwish", {}), ("Shrink", {}, {"bias": 0.2, "lambd": 0.75})):
            for kwargs in choices:
                self.add(op, [kinks], **kwargs)
        for slope in ((4, 8), (8,), (4, 1), (1,)):
            self.add("PRelu", [kinks, real(36, *slope)])
        self.add("SwiGLU", [x, real(37, 3, 5)], opset=28)
        self.add("SwiGLU", [x, real(37, 3, 5)], opset=28, alpha=1.7)
        self.add("Clip", [kinks, np.array(-0.5, np.float32), np.array(1.0, np.float32)])
        self.add("Clip", [kinks, None, np.array(1.0, np.float32)])
        self.add("Clip", [kinks], opset=6, min=-0.5, max=0.75)

    def elementwise(self):
        shapes = [((2, 3, 2), (2, 3, 2)), ((2, 3, 2), (3, 1)), ((2, 1, 2), (1, 3, 1)), ((3,), (2, 3)), ((), (2, 2))]
        for a, b in shapes:
            for op in ("Add", "Sub", "Mul"):
                self.add(op, [real(40, *a), real(41, *b)])
            self.add("Div", [real(40, *a), real(41, *b, low=0.5, high=2)])
            self.add("Pow", [real(40, *a, low=0.3, high=2), real(41, *b, low=-2, high=2)])
            both = apart(42, 24)
            for op in ("Max", "Min"):
                self.add(op, [both[:math.prod(a)].reshape(a), both[12:12 + math.prod(b)].reshape(b)])
            self.add("Mod", [apart(43, *a, step=0.37), real(44, *b, low=0.9, high=0.91)], fmod=1)
        self.add("Pow", [apart(45, 6), i64(3)])
        self.add("Pow", [np.abs(apart(45, 6)), np.array([2.0], np.float32)])
        for op in ("Sum", "Mean"):
            self.add(op, [real(46, 2, 3), real(47, 3), real(48, 2, 1)])
            self.add(op, [real(46, 2, 3)])
        both = apart(49, 18).reshape(3, 2, 3)
        for op in ("Max", "Min"):
            self.add(op, list(both))
            self.add(op, [both[0]])
        condition = generator(50).uniform(size=(2, 3)) < 0.5
        self.add("Where", [condition, real(51, 2, 3), real(52, 2, 3)])
        self.add("Where", [condition[0], real(51, 2, 1), real(52, 1)])
        for op, kwargs in (("Identity", {}), ("Dropout", {}), ("Cast", {"to": TensorProto.FLOAT})):
            self.add(op, [real(53, 2, 3)], **kwargs)
        self.add("CastLike", [real(53, 2, 3), real(54, 1)])

    def normalizations(self):
        x, x2 = real(60, 2, 4, 3), real(61, 3, 4, 2, 2)
        for a in (x, x2, real(62, 5, 3)):
            channels = a.shape[1]
            statistics = [real(63, channels), real(64, channels), real(65, channels), real(66, channels, low=0.2, high=2)]
            self.add("BatchNormalization", [a, *statistics])
            self.add("BatchNormalization", [a, *statistics], outputs=("y", "mean", "variance"), loss=("y",), training_mode=1, momentum=0.8, epsilon=1e-3)
            self.add("BatchNormalization", [a, *statistics], training_mode=1)
        self.add("InstanceNormalization", [x, real(67, 4), real(68, 4)])
        self.add("InstanceNormalization", [x2, real(67, 4), real(68, 4)], epsilon=0.1)
        self.add("GroupNormalization", [x, real(67, 4), real(68, 4)], num_groups=2)
        self.add("GroupNormalization", [x2, real(67, 4), real(68, 4)], num_groups=1)
        self.add("GroupNormalization", [x2, real(67, 2), real(68, 2)], num_groups=2, opset=18)
        for axis, shape in ((-1, (3,)), (1, (4, 3)), (-2, (4, 1)), (-2, (3,)), (0, (2, 4, 3))):
            self.add("LayerNormalization", [x, real(69, *shape), real(70, *shape)], axis=axis)
            self.add("RMSNormalization", [x, real(69, *shape)], axis=axis, opset=23)
        self.add("LayerNormalization", [x, real(69, 3)], epsilon=0.1, outputs=("y", "mean", "inverse"), loss=("y",))
        self.add("MeanVarianceNormalization", [x2])
        self.add("MeanVarianceNormalization", [x], axes=[-1])
        self.add("ImageScaler", [real(379, 2, 3, 2, 2)], bias=[0.5, -3.0, 2.0], scale=0.75)
        for size in (2, 3):
            self.add("LRN", [real(71, 2, 5, 3)], size=size, alpha=0.5, bias=1.5)
        for axis in (0, 1, -1):
            for op in ("Softmax", "LogSoftmax"):
                self.add(op, [real(72, 3, 4, 2, low=-2, high=2)], axis=axis)
            for p in (1, 2):
                self.add("LpNormalization", [apart(73, 3, 4, 2)], axis=axis, p=p)
        self.add("Softmax", [real(72, 2, 3, 2)], axis=1, opset=11)

    def pools(self):
        x1, x2, x3 = apart(80, 2, 2, 7), apart(81, 2, 2, 5, 4), apart(82, 1, 2, 3, 4, 3)
        variants = [(x1, {"kernel_shape": [3], "strides": [2]}), (x2, {"kernel_shape": [2, 2], "strides": [2, 2]}),
                    (x2, {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 2, 1]}),
                    (x2, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
                    (x2, {"kernel_shape": [2, 2], "dilations": [2, 3]}), (x3, {"kernel_shape": [2, 2, 2], "pads": [0, 1, 0, 1, 0, 1]})]
        for x, kwargs in variants:
            self.add("MaxPool", [x], **kwargs)
            self.add("AveragePool", [x], **kwargs)
            self.add("AveragePool", [x], count_include_pad=1, **kwargs)
            self.add("LpPool", [x], p=3, **kwargs)
        self.add("MaxPool", [x2], kernel_shape=[2, 2], outputs=("y", "indices"), loss=("y",))
        self.add("LpPool", [x2], kernel_shape=[2, 2])
        self.add("LpPool", [x2], kernel_shape=[2, 2], p=1)
        for x in (x1, x2, x3):
            for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
                self.add(op, [x])

    def reductions(self):
        x, signed = real(90, 2, 3, 2, low=0.3, high=2), apart(91, 2, 3, 2)
        for axes in (None, i64(1), i64(-1, 0), i64(0, 1, 2)):
            for keepdims in (0, 1) if axes is not None and len(axes) == 1 else (1,):
                for op in ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceMax", "ReduceMin"):
                    self.add(op, [signed] if axes is None else [signed, axes], keepdims=keepdims)
                self.add("ReduceLogSum", [x] if axes is None else [x, axes], keepdims=keepdims)
        self.add("ReduceSum", [signed], noop_with_empty_axes=1)
        self.add("ReduceMean", [signed], opset=13, axes=[1])
        zero = signed.copy()
        zero[0, 0, 0] = zero[1, 1, 1] = zero[1, 2, 1] = 0
        self.add("ReduceProd", [zero, i64(1)])
        for exclusive in (0, 1):
            for reverse in (0, 1):
                for axis in (1, -1):
                    self.add("CumSum", [signed, np.array(axis, np.int64)], exclusive=exclusive, reverse=reverse)
                    self.add("CumProd", [zero, np.array(axis, np.int64)], exclusive=exclusive, reverse=reverse, opset=26)

    def movements(self):
        x = real(100, 2, 3, 4)
        for op, *more in (("Reshape", i64(4, -1)), ("Squeeze", i64(1)), ("Unsqueeze", i64(0, -1)), ("Expand", i64(2, 2, 3, 1)), ("Tile", i64(1, 2, 3))):
            self.add(op, [x[:, :1] if op == "Squeeze" else x[..., :1] if op == "Expand" else x, *more])
        self.add("Flatten", [x], axis=-1)
        self.add("Transpose", [x])
        self.add("Transpose", [x], perm=[1, 0, 2])
        for axis in (0, -1):
            self.add("Concat", [x, real(101, 2, 3, 4), real(102, 2, 3, 4)], axis=axis)
        self.add("Concat", [x, real(101, 2, 1, 4)], axis=1)
        self.add("Split", [x, i64(1, 3)], outputs=("y", "z"), axis=-1)
        self.add("Split", [x, i64(1, 3)], outputs=("y", "z"), loss=("z",), axis=-1)
        self.add("Split", [x], outputs=("y", "z", "w"), loss=("y", "w"), axis=1, num_outputs=3)
        self.add("Slice", [x, i64(0, 3), i64(2, 0), i64(1, 2), i64(1, -2)])
        self.add("Slice", [x, i64(1), i64(9), i64(-1)])
        for mode in ("edge", "reflect", "wrap"):
            self.add("Pad", [x, i64(0, 1, 2, 1, 0, 1)], mode=mode)
        self.add("Pad", [x, i64(0, 1, -1, 1, 0, 2), np.array(0.5, np.float32)])
        self.add("Pad", [x, i64(1, 1), None, i64(1)])
        for mode in ("DCR", "CRD"):
            self.add("DepthToSpace", [real(103, 1, 8, 2, 3)], blocksize=2, mode=mode)
        self.add("SpaceToDepth", [real(104, 1, 2, 4, 2)], blocksize=2)
        self.add("Gather", [x, i64(0, 2, 0, -1)], axis=1)
        self.add("Gather", [x, np.array([[3, 1], [1, 1]], np.int64)], axis=-1)
        self.add("Gather", [x, np.array(1, np.int64)])
        self.add("GatherElements", [x, generator(105).integers(-3, 3, (2, 5, 4))], axis=1)
        self.add("GatherND", [x, np.array([[0, 1], [1, 2], [0, 1]], np.int64)])
        self.add("GatherND", [x, np.array([[1], [1]], np.int64)], batch_dims=1)
        distinct = np.array([[[0, 2, 1, 0]], [[2, 1, 0, 1]]], np.int64)
        repeated = np.array([[[0, 2, 1, 0], [0, 1, 1, -1]], [[2, 1, 0, 1], [2, 0, 0, 2]]], np.int64)
        self.add("ScatterElements", [x, distinct, real(106, 2, 1, 4)], axis=1)
        self.add("Scatter", [x, distinct, real(106, 2, 1, 4)], axis=1, opset=10)
        self.add("ScatterElements", [x, repeated, real(107, 2, 2, 4)], axis=1, reduction="add")
        self.add("ScatterND", [x, np.array([[0, 1], [1, 2]], np.int64), real(108, 2, 4)])
        self.add("ScatterND", [x, np.array([[0, 1], [1, 2], [0, 1]], np.int64), real(108, 3, 4)], reduction="add")
        self.add("TensorScatter", [x, real(109, 2, 2, 4), i64(0, 1)], opset=24)
        self.add("Compress", [x, np.array([True, False, True, True])], axis=-1)
        self.add("Compress", [x, np.array([True, False, True, False, False, True])])
        self.add("OneHot", [i64(2, 0, 2), np.array(4, np.int64), np.array([0.5, 2.0], np.float32)], axis=0)
        for upper in (0, 1):
            self.add("Trilu", [x, np.array(1 - upper, np.int64)], upper=upper)
        self.add("ReverseSequence", [x, i64(2, 1, 2)], batch_axis=1, time_axis=0)
        self.add("CenterCropPad", [x, i64(3, 2, 6)])
        self.add("TopK", [apart(110, 2, 3, 4), i64(2)], outputs=("y", "indices"), loss=("y",))
        self.add("TopK", [apart(110, 2, 3, 4), i64(2)], outputs=("y", "indices"), loss=("y",), axis=1, largest=0)
        image = real(111, 1, 2, 3, 4)
        for mode in ("nearest", "linear", "cubic"):
            for where in ("half_pixel", "align_corners", "asymmetric"):
                self.add("Resize", [image, None, None, i64(1, 2, 5, 6)], mode=mode, coordinate_transformation_mode=where)
            self.add("Resize", [image, None, None, i64(1, 2, 2, 3)], mode=mode)
        for mode in ("linear", "cubic"):
            self.add("Resize", [image, None, None, i64(1, 2, 2, 2)], mode=mode, antialias=1)
        self.add("Resize", [image, None, np.array([1.5, 2.0], np.float32)], mode="linear", axes=[2, 3])
        self.add("Resize", [image, None, None, i64(2, 5)], mode="cubic", axes=[2, 3], exclude_outside=1)
        region = np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2], np.float32)
        for mode in ("linear", "nearest"):
            self.add("Resize", [image, region, None, i64(1, 2, 4, 5)], mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0)
        self.add("Upsample", [image, np.array([1, 1, 2, 3], np.float32)], opset=9, mode="nearest")

    def recurrents(self):
        lengths = np.array([3, 1], np.int32)
        for op, gates, options in (
                ("RNN", 1, [{}, {"activations": ["Elu"], "activation_alpha": [0.7]}, {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
                            {"clip": 0.6}, {"activations": ["Softsign"]}, {"activations": ["Softplus"]}, {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}]),
                ("GRU", 3, [{}, {"linear_before_reset": 1},
                            {"activations": ["HardSigmoid", "ScaledTanh"], "activation_alpha": [0.3, 1.2], "activation_beta": [0.4, 0.8]},
                            {"linear_before_reset": 1, "clip": 0.7}]),
                ("LSTM", 4, [{}, {"input_forget": 1}, {"clip": 0.5}, {"activations": ["HardSigmoid", "Tanh", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]}])):
            states = ("y", "h", "c") if op == "LSTM" else ("y", "h")
            for n, kwargs in enumerate(options):
                for direction, layout in (("forward", 0), ("reverse", 0), ("bidirectional", 0), ("bidirectional", 1)) if n == 0 else (("forward", 0),):
                    d = 2 if direction == "bidirectional" else 1
                    x = real((op, 120), 3, 2, 2)
                    h, c = real((op, 121), d, 2, 2), real((op, 122), d, 2, 2)
                    if layout:
                        x, h, c = x.swapaxes(0, 1).copy(), h.swapaxes(0, 1).copy(), c.swapaxes(0, 1).copy()
                        kwargs = {**kwargs, "layout": 1}
                    inputs = [x, real((op, 123), d, gates * 2, 2), real((op, 124), d, gates * 2, 2), real((op, 125), d, gates * 4), lengths, h]
                    peepholes = [c, real((op, 126), d, 6)] if op == "LSTM" else []
                    self.add(op, [*inputs, *peepholes], outputs=states, direction=direction, hidden_size=2, **kwargs)
            plain = [real((op, 127), 3, 2, 2), real((op, 128), 1, gates * 2, 2), real((op, 129), 1, gates * 2, 2)]
            for loss in states:
                self.add(op, plain, outputs=states, loss=(loss,), hidden_size=2)
            self.add(op, plain, outputs=("", "h"), hidden_size=2)

    def attentions(self):
        q, k, v = real(130, 2, 2, 3, 4), real(131, 2, 2, 4, 4), real(132, 2, 2, 4, 2)
        self.add("Attention", [q, k, v], opset=23)
        self.add("Attention", [q, k, v, real(133, 3, 4)], opset=23, scale=0.7, softcap=0.8)
        self.add("Attention", [q, k, v], opset=23, is_causal=1)
        self.add("Attention", [q, k[:, :1].copy(), v[:, :1].copy(), real(134, 2, 1, 1, 5), real(135, 2, 1, 1, 4), real(136, 2, 1, 1, 2)], opset=23, is_causal=1)
        self.add("Attention", [real(137, 1, 3, 4), real(138, 1, 4, 2), real(139, 1, 4, 2), np.tril(np.ones((3, 4))) > 0], opset=23, q_num_heads=2, kv_num_heads=1)
        cosine, sine = real(140, 2, 3, 2), real(141, 2, 3, 2)
        for interleaved in (0, 1):
            self.add("RotaryEmbedding", [real(142, 2, 2, 3, 4), cosine, sine], opset=23, interleaved=interleaved)
        self.add("RotaryEmbedding", [real(143, 2, 3, 12), real(144, 4, 2), real(145, 4, 2), np.array([[0, 1, 3], [2, 2, 0]], np.int64)], opset=23,
                 num_heads=2, rotary_embedding_dim=4)


def all_cases():
    cases = Cases()
    for collect in (cases.convolutions, cases.products, cases.unary, cases.elementwise, cases.normalizations, cases.pools, cases.reductions,
                    cases.movements, cases.recurrents, cases.attentions):
        collect()
    return cases.all


# ----------------------------------------------------------------------------------- recording


def evaluator(model, inputs):
    """A function of the inputs in float64 that returns the outputs by name."""
    node = model.graph.node[0]
    names = list(node.output)
    if node.op_type in FORMULAS:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attributes = {k: v.decode() if isinstance(v, bytes) else [i.decode() if isinstance(i, bytes) else i for i in v] if isinstance(v, list) else v
                      for k, v in attributes.items()}
        attributes["opset"] = model.opset_import[0].version
        return lambda given: dict(zip(names, FORMULAS[node.op_type]([given.get(n) for n in node.input], **attributes)))
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for a in wide.graph.node[0].attribute:
        if a.name == "to":
            a.i = TensorProto.DOUBLE
    session = ReferenceEvaluator(wide)
    made = [name for name in names if name]
    return lambda given: dict(zip(made, session.run(None, {k: v for k, v in given.items()})))


def wide(array):
    return array.astype(np.float64) if array.dtype == np.float32 else array


# Inputs that say how to compute, and have no gradient.
SETTINGS = {("Resize", "x1"), ("Resize", "x2"), ("Upsample", "x1")}


def record(model, inputs, losses):
    op = model.graph.node[0].op_type
    run = evaluator(model, inputs)
    # What Resize reads beside the image stays float32, as its scales are.
    given = {k: v.copy() if (op, k) in SETTINGS else wide(v).copy() for k, v in inputs.items()}
    first = run(given)
    seeds = {}
    for name in losses:
        assert first[name].dtype == np.float64, (model.producer_name, name, first[name].dtype)
        seeds[name] = real((model.producer_name, name), *first[name].shape)

    def loss():
        made = run(given)
        return math.fsum(float((made[name] * wide(d)).sum()) for name, d in seeds.items())

    gradients = {}
    for name, array in inputs.items():
        if array.dtype != np.float32 or (op, name) in SETTINGS:
            continue
        gradient = np.zeros(array.shape)
        for index in np.ndindex(*array.shape):
            before = given[name][index]
            differences = []
            for step in (STEP, 2 * STEP):
                values = []
                for sign in (1, -1):
                    given[name][index] = before + sign * step
                    values.append(loss())
                differences.append((values[0] - values[1]) / (2 * step))
            given[name][index] = before
            gradient[index] = differences[0]
            scale = 1 + abs(differences[0])
            assert abs(differences[0] - differences[1]) < 1e-6 * scale, (model.producer_name, name, index, differences)
        gradients[name] = gradient.astype(np.float32)
    for kind, values in (("given", inputs), ("seed", seeds), ("expected", gradients)):
        for name, array in values.items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"{kind}/{name}"))
    return model.SerializeToString()


def main():
    recorded, failed = bytearray(), 0
    cases = all_cases()
    for case in cases:
        try:
            data = record(*case)
        except Exception as problem:  # all problems in one run
            failed += 1
            print(case[0].producer_name, "--", type(problem).__name__, problem, file=sys.stderr)
            continue
        recorded += len(data).to_bytes(4, "little") + data
    pathlib.Path(sys.argv[1]).write_bytes(recorded)
    print(f"{len(cases) - failed} cases, {len(recorded)} bytes, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
