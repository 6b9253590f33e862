#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train the digits example network and export it to ONNX.

Needs numpy and onnx; onnxruntime, if installed, verifies the exported model.

    python train.py                 train, then write the files beside this script
    python train.py --output DIR    ... or into DIR
    python train.py --check         verify the files already there, without training

Inside this script activations are laid out NHWC, which turns a convolution into
a matrix product; weights are transposed to ONNX's NCHW order at export.
"""
import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
SEED = 1998
HELD_OUT_ROWS = 360
CALIBRATION_ROWS = 100
EPOCHS = 40
BATCH_SIZE = 16
PEAK_LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.2
LABEL_SMOOTHING = 0.1
SHIFT_PROBABILITY = 0.3  # per axis
PIXEL_MAX = np.float32(16)  # training sees pixel / 16; the export folds 1/16 into conv1
BN_EPSILON = 1e-5
BN_MOMENTUM = 0.9


# ------------------------------------------------------------------ data

def load_split():
    """Return (train_images, train_labels), (test_images, test_labels).

    Images are float32 [rows, 1, 8, 8] holding the raw pixel values 0..16."""
    rows = np.loadtxt(HERE / "digits.csv.gz", delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(SEED).permutation(len(rows))]
    images = rows[:, :64].reshape(-1, 1, 8, 8)
    labels = rows[:, 64].astype(np.int64)
    return ((images[:-HELD_OUT_ROWS], labels[:-HELD_OUT_ROWS]),
            (images[-HELD_OUT_ROWS:], labels[-HELD_OUT_ROWS:]))


def to_network_input(images):
    return images.transpose(0, 2, 3, 1) / PIXEL_MAX


def shift_randomly(x, rng):
    """Move some of the images by one pixel along either axis, zero filled."""
    (count, height, width, _), p = x.shape, SHIFT_PROBABILITY
    top, left = rng.choice(3, size=(2, count, 1, 1), p=[p / 2, 1 - p, p / 2])
    return pad_spatially(x)[np.arange(count)[:, None, None],
                            top + np.arange(height)[:, None], left + np.arange(width)]


# ---------------------------------------------------------------- layers
#
# forward(x, training) remembers what backward needs; backward(grad) stores the
# gradient of every entry of self.params in self.grads and returns d loss / d x.

class Layer:
    def __init__(self, name, **params):
        self.name, self.params, self.grads = name, params, {}


def pad_spatially(x):
    return np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


def windows_3x3(padded):
    """The nine shifted views of a padded NHWC array, in row-major kernel order."""
    height, width = padded.shape[1] - 2, padded.shape[2] - 2
    return [padded[:, i:i + height, j:j + width] for i in range(3) for j in range(3)]


class Dense(Layer):
    """Matrix product over the last axis: a 1x1 convolution, or with a bias a Gemm."""

    def forward(self, x, training):
        self.x = x
        return x @ self.params["weight"] + self.params.get("bias", np.float32(0))

    def backward(self, grad):
        inputs, outputs = self.params["weight"].shape
        self.grads["weight"] = self.x.reshape(-1, inputs).T @ grad.reshape(-1, outputs)
        self.grads["bias"] = grad.reshape(-1, outputs).sum(0)
        return grad @ self.params["weight"].T


class Conv3x3(Layer):
    """3x3 convolution, padding 1, in which each output channel reads one input
    channel: its own (depthwise), or the only one there is (the first layer)."""

    def forward(self, x, training):
        self.padded = pad_spatially(x)
        return sum(window * tap for window, tap
                   in zip(windows_3x3(self.padded), self.params["weight"]))

    def backward(self, grad):
        self.grads["weight"] = np.stack([(window * grad).sum((0, 1, 2))
                                         for window in windows_3x3(self.padded)])
        if self.padded.shape[-1] != grad.shape[-1]:
            return None  # the first layer: nobody needs the gradient of the image
        grad_padded = np.zeros_like(self.padded)
        for target, tap in zip(windows_3x3(grad_padded), self.params["weight"]):
            target += grad * tap
        return grad_padded[:, 1:-1, 1:-1]


class BatchNormRelu(Layer):
    def __init__(self, name, channels):
        super().__init__(name, scale=np.ones(channels, np.float32),
                         bias=np.zeros(channels, np.float32))
        self.mean, self.var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def forward(self, x, training):
        mean, var = self.mean, self.var
        if training:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            self.mean = BN_MOMENTUM * self.mean + (1 - BN_MOMENTUM) * mean
            self.var = BN_MOMENTUM * self.var + (1 - BN_MOMENTUM) * var
        self.inv_std = 1 / np.sqrt(var + np.float32(BN_EPSILON))
        self.normalized = (x - mean) * self.inv_std
        y = self.normalized * self.params["scale"] + self.params["bias"]
        self.positive = y > 0
        return y * self.positive

    def backward(self, grad):
        grad = grad * self.positive
        self.grads["bias"] = grad.sum((0, 1, 2))
        self.grads["scale"] = (grad * self.normalized).sum((0, 1, 2))
        # The batch's mean and variance depend on x too: remove their components.
        count = grad.size // grad.shape[-1]
        grad = grad - (self.grads["bias"] + self.normalized * self.grads["scale"]) / count
        return grad * (self.params["scale"] * self.inv_std)


class MaxPool2x2(Layer):
    def forward(self, x, training):
        count, height, width, channels = self.shape = x.shape
        blocks = x.reshape(count, height // 2, 2, width // 2, 2, channels)
        pooled = blocks.max((2, 4), keepdims=True)
        self.share = (blocks == pooled).astype(np.float32)
        self.share /= self.share.sum((2, 4), keepdims=True)  # equal maxima share the gradient
        return pooled[:, :, 0, :, 0]

    def backward(self, grad):
        return (self.share * grad[:, :, None, :, None]).reshape(self.shape)


class GlobalAveragePool(Layer):
    """With the Flatten behind it: [n, h, w, c] -> [n, c]."""

    def forward(self, x, training):
        self.shape = x.shape
        return x.mean((1, 2))

    def backward(self, grad):
        return np.broadcast_to(grad[:, None, None] / (self.shape[1] * self.shape[2]), self.shape)


def build_network(rng):
    def he_normal(fan_in, outputs):
        return rng.normal(0, np.sqrt(2 / fan_in), (fan_in, outputs)).astype(np.float32)

    return [Conv3x3("conv1", weight=he_normal(9, 16)), BatchNormRelu("conv1", 16),
            Conv3x3("conv2_dw", weight=he_normal(9, 16)), BatchNormRelu("conv2_dw", 16),
            Dense("conv2_pw", weight=he_normal(16, 32)), BatchNormRelu("conv2_pw", 32),
            MaxPool2x2("pool"),
            Conv3x3("conv3_dw", weight=he_normal(9, 32)), BatchNormRelu("conv3_dw", 32),
            Dense("conv3_pw", weight=he_normal(32, 64)), BatchNormRelu("conv3_pw", 64),
            GlobalAveragePool("global_pool"),
            Dense("classifier", weight=he_normal(64, 10), bias=np.zeros(10, np.float32))]


def run_forward(network, x, training=False):
    for layer in network:
        x = layer.forward(x, training)
    return x


# -------------------------------------------------------------- training

def cross_entropy_gradient(logits, labels):
    """Gradient of the mean softmax cross-entropy against smoothed labels."""
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    target = np.full_like(logits, LABEL_SMOOTHING / logits.shape[1])
    target[np.arange(len(labels)), labels] += 1 - LABEL_SMOOTHING
    return (probability - target) / np.float32(len(labels))


def make_adam(network):
    """Return step(rate, count), count from 1: Adam with decoupled weight decay for weights only."""
    moments = [(layer, key, np.zeros_like(value), np.zeros_like(value))
               for layer in network for key, value in layer.params.items()]

    def step(rate, count, beta1=0.9, beta2=0.999):
        for layer, key, first, second in moments:
            param, grad = layer.params[key], layer.grads[key]
            first += (1 - beta1) * (grad - first)
            second += (1 - beta2) * (grad * grad - second)
            if key == "weight":
                param -= rate * WEIGHT_DECAY * param
            param -= (rate / (1 - beta1 ** count) * first
                      / (np.sqrt(second / (1 - beta2 ** count)) + 1e-8))
    return step


def train(images, labels):
    """Return the network after the last epoch; no held-out row plays any part."""
    rng = np.random.default_rng(SEED + 1)
    network = build_network(rng)
    adam_step = make_adam(network)
    x = to_network_input(images)
    steps_per_epoch = len(x) // BATCH_SIZE
    for step in range(EPOCHS * steps_per_epoch):
        if step % steps_per_epoch == 0:
            order = rng.permutation(len(x))
        start = step % steps_per_epoch * BATCH_SIZE
        batch = order[start:start + BATCH_SIZE]
        logits = run_forward(network, shift_randomly(x[batch], rng), training=True)
        grad = cross_entropy_gradient(logits, labels[batch])
        for layer in reversed(network):
            grad = layer.backward(grad)
        cosine = float(np.cos(np.pi * step / (EPOCHS * steps_per_epoch)))
        adam_step(PEAK_LEARNING_RATE * (1 + cosine) / 2, step + 1)
    return network


# ---------------------------------------------------------------- export

def export_onnx(network):
    nodes, initializers = [], []

    def add(op_type, name, constants=None, output=None, **attributes):
        """Append a node that reads the previous node's output."""
        inputs = [nodes[-1].output[0] if nodes else "image"]
        for key, array in (constants or {}).items():
            inputs.append(f"{name}_{key}")
            array = np.ascontiguousarray(array, dtype=np.float32)
            initializers.append(numpy_helper.from_array(array, inputs[-1]))
        nodes.append(helper.make_node(op_type, inputs, [output or f"{name}_out"],
                                      name=name, **attributes))

    for layer in network:
        weight = layer.params.get("weight")
        if isinstance(layer, Conv3x3):
            weight = weight.T.reshape(-1, 1, 3, 3)
            first = layer is network[0]
            add("Conv", layer.name, {"weight": weight / PIXEL_MAX if first else weight},
                group=1 if first else len(weight), kernel_shape=[3, 3], pads=[1] * 4)
        elif isinstance(layer, BatchNormRelu):
            constants = {**layer.params, "mean": layer.mean, "var": layer.var}
            add("BatchNormalization", f"{layer.name}_bn", constants, epsilon=BN_EPSILON)
            add("Relu", f"{layer.name}_relu")
        elif isinstance(layer, MaxPool2x2):
            add("MaxPool", layer.name, kernel_shape=[2, 2], strides=[2, 2])
        elif isinstance(layer, GlobalAveragePool):
            add("GlobalAveragePool", layer.name)
            add("Flatten", "flatten", axis=1)
        elif "bias" in layer.params:
            constants = {"weight": weight.T, "bias": layer.params["bias"]}
            add("Gemm", layer.name, constants, output="logits", transB=1)
        else:
            add("Conv", layer.name, {"weight": weight.T[:, :, None, None]}, kernel_shape=[1, 1])

    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        initializers)
    return helper.make_model(graph, producer_name="detent-examples-digits", ir_version=8,
                             opset_imports=[helper.make_opsetid("", 17)])


def report_accuracy(runner, predict, **parts):
    for part, (images, labels) in parts.items():
        correct = (predict(images).argmax(1) == labels).sum()
        print(f"{runner}: {part} accuracy {correct}/{len(labels)} = {correct / len(labels):.2%}")


def main():
    parser = argparse.ArgumentParser(description="Train and export the digits example network.")
    parser.add_argument("--output", type=Path, default=HERE, metavar="DIR",
                        help="folder of the written files (default: beside this script)")
    parser.add_argument("--check", action="store_true",
                        help="verify the existing files instead of training")
    arguments = parser.parse_args()
    folder, model_path = arguments.output, str(arguments.output / "digits.onnx")
    train_rows, test_rows = load_split()
    arrays = {"calibration_images": train_rows[0][:CALIBRATION_ROWS],
              "training_images": train_rows[0].astype(np.uint8),
              "training_labels": train_rows[1],
              "test_images": test_rows[0], "test_labels": test_rows[1]}

    if not arguments.check:
        network = train(*train_rows)
        report_accuracy("numpy", lambda images: run_forward(network, to_network_input(images)),
                        training=train_rows, held_out=test_rows)
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(export_onnx(network), model_path)
        learned = sum(value.size for layer in network for value in layer.params.values())
        print(f"{learned} learned parameters, plus the BatchNormalization statistics")
        for name, array in arrays.items():
            with open(folder / f"{name}.npy", "wb") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0))

    onnx.checker.check_model(onnx.load(model_path), full_check=True)
    for name, expected in arrays.items():
        if not np.array_equal(np.load(folder / f"{name}.npy"), expected):
            raise SystemExit(f"{name}.npy differs from digits.csv.gz")
    try:
        import onnxruntime
    except ImportError:
        return print("onnxruntime is not installed: the exported model was not run")
    session = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
    report_accuracy("onnxruntime", lambda images: session.run(["logits"], {"image": images})[0],
                    training=train_rows, held_out=test_rows)


if __name__ == "__main__":
    main()
