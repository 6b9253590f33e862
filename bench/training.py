#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The time of an epoch of quantization-aware training beside PyTorch's: the same network, samples and batches; one
thread each.

    training.py --detent bench_training MODEL.onnx IMAGES.npy LABELS.npy [--bits W A] [--epochs N] [--runs N]

Needs a Python with torch, numpy and onnx. Forms of PyTorch's fake quantizers, at the places where ours are:

    learned   torch.ao.quantization's _LearnableFakeQuantize (LSQ): scales are trained, as ours are
    observed  FusedMovingAvgObsFakeQuantize, which prepare_qat() uses: ranges are observed, and scales not trained

BatchNormalization is folded into the layers on both sides. The optimizer is AdamW, and of PyTorch's implementations of
it (for each constant, or for all of them at once) the faster one counts. An epoch is the processor time of its batches,
from gathering the samples to the step of the optimizer. Runs take turns; the table has the median epoch of each, without
the first of a run, and the losses of the first epoch and the last, which must fall."""

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from torch import nn
from torch.ao import quantization as quantize
from torch.ao.quantization import _learnable_fake_quantize as learnable

BATCH = 32
LEARNING_RATE = 1e-3


def quantizer_of_values(form, bits):
    levels = {"quant_min": 0, "quant_max": 2**bits - 1}
    observer = quantize.MovingAverageMinMaxObserver
    if form == "observed":
        return quantize.FusedMovingAvgObsFakeQuantize(observer, dtype=torch.quint8, **levels)
    made = learnable._LearnableFakeQuantize(observer, scale=1.0, zero_point=0.0, use_grad_scaling=True,
                                            dtype=torch.quint8, reduce_range=False, **levels)
    return made


def quantizer_of_weights(form, bits, channels):
    levels = {"quant_min": -(2 ** (bits - 1)), "quant_max": 2 ** (bits - 1) - 1}
    kind = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric, "ch_axis": 0}
    observer = quantize.MovingAveragePerChannelMinMaxObserver
    if form == "observed":
        return quantize.FusedMovingAvgObsFakeQuantize(observer, **levels, **kind)
    return learnable._LearnableFakeQuantize(observer, scale=1.0, zero_point=0.0, channel_len=channels,
                                            use_grad_scaling=True, reduce_range=False, **levels, **kind)


class QuantizedConvolution(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.fake_quantize(self.weight), self.bias)


class QuantizedLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.fake_quantize(self.weight), self.bias)


def constants_of(model):
    return {i.name: onnx.numpy_helper.to_array(i).astype(np.float32) for i in model.graph.initializer}


def attributes_of(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def network_of(path, form, bits):
    """The layers of a chain of Conv, BatchNormalization, Relu, MaxPool, GlobalAveragePool, Flatten and Gemm with fake
    quantizers at the input, the weights, and behind layers (behind their Relu if there is one) and average pools. What
    a final Softmax takes is the result."""
    model = onnx.load(path)
    constants = constants_of(model)
    modules = [quantizer_of_values(form, bits[1])]
    nodes = [n for n in model.graph.node if n.op_type not in ("Identity", "Softmax")]
    for at, node in enumerate(nodes):
        following = nodes[at + 1].op_type if at + 1 < len(nodes) else ""
        a = attributes_of(node)
        if node.op_type == "Conv":
            weight = constants[node.input[1]].copy()
            bias = constants[node.input[2]].copy() if len(node.input) > 2 else np.zeros(len(weight), np.float32)
            if following == "BatchNormalization":
                scale, shift, mean, variance = (constants[name] for name in nodes[at + 1].input[1:])
                factor = scale / np.sqrt(variance + attributes_of(nodes[at + 1]).get("epsilon", 1e-5))
                weight *= factor[:, None, None, None]
                bias = (bias - mean) * factor + shift
                following = nodes[at + 2].op_type
            pads = a.get("pads", [0, 0, 0, 0])
            group = a.get("group", 1)
            padding = tuple(pads[:2])
            if pads[:2] != pads[2:]:
                modules.append(nn.ZeroPad2d((pads[1], pads[3], pads[0], pads[2])))
                padding = 0
            layer = QuantizedConvolution(weight.shape[1] * group, len(weight), tuple(weight.shape[2:]),
                                         a.get("strides", 1), padding, groups=group)
        elif node.op_type == "Gemm":
            weight = constants[node.input[1]]
            weight = weight if a.get("transB", 0) else weight.T
            bias = constants[node.input[2]]
            layer = QuantizedLinear(weight.shape[1], weight.shape[0])
        elif node.op_type == "BatchNormalization":
            continue
        else:
            modules.append({"Relu": nn.ReLU, "GlobalAveragePool": lambda: nn.AdaptiveAvgPool2d(1), "Flatten": nn.Flatten,
                            "MaxPool": lambda: nn.MaxPool2d(a["kernel_shape"], a.get("strides"))}[node.op_type]())
            if node.op_type in ("Relu", "GlobalAveragePool"):
                modules.append(quantizer_of_values(form, bits[1]))
            continue
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
            layer.bias.copy_(torch.from_numpy(bias))
        layer.fake_quantize = quantizer_of_weights(form, bits[0], len(weight))
        modules.append(layer)
        if following != "Relu":
            modules.append(quantizer_of_values(form, bits[1]))
    return nn.Sequential(*modules)


def train(path, images, labels, bits, epochs, form, together):
    """Losses and seconds of the epochs."""
    torch.manual_seed(0)
    network = network_of(path, form, bits)
    quantizers = [m for m in network.modules() if isinstance(m, learnable._LearnableFakeQuantize)]
    for q in quantizers:
        q.enable_static_estimate()
    with torch.no_grad():
        network(images[:256])  # calibrates
    for q in quantizers:
        q.enable_param_learning()
    parameters = [p for name, p in network.named_parameters() if not name.endswith("zero_point")]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, foreach=together)
    reports = []
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        seconds = 0.0
        total = 0.0
        for first in range(0, len(order), BATCH):
            begin = time.process_time()
            batch = order[first : first + BATCH]
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            value = loss.item()
            seconds += time.process_time() - begin
            total += value * len(batch) / len(order)
        reports.append((total, seconds))
    return reports


def ours(arguments, bits):
    command = [arguments.detent, arguments.model, arguments.images, arguments.labels, *map(str, bits)]
    done = subprocess.run([*command, str(arguments.epochs)], capture_output=True, text=True, check=True)
    return [tuple(map(float, line.split()[1:])) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description="The time of an epoch of training beside PyTorch's.")
    parser.add_argument("--detent", required=True, metavar="BINARY", help="bench_training")
    parser.add_argument("model")
    parser.add_argument("images")
    parser.add_argument("labels")
    parser.add_argument("--bits", type=int, nargs=2, default=[8, 8], metavar=("W", "A"))
    parser.add_argument("--epochs", type=int, default=5, help="of a run, at least 2")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.from_numpy(np.load(arguments.images))
    labels = torch.from_numpy(np.load(arguments.labels))
    sides = {"ours": lambda: ours(arguments, arguments.bits)}
    for form in ("learned", "observed"):
        for together in (False, True):
            sides[f"PyTorch, {form}, {'all constants at once' if together else 'each constant'}"] = (
                lambda form=form, together=together: train(arguments.model, images, labels, arguments.bits,
                                                           arguments.epochs, form, together))
    seconds = {name: [] for name in sides}
    losses = {}
    for _ in range(arguments.runs):
        for name, side in sides.items():
            reports = side()
            seconds[name] += [s for _, s in reports[1:]]
            losses[name] = (reports[0][0], reports[-1][0])
    print(f"torch {torch.__version__}; ours / PyTorch's")
    own = statistics.median(seconds["ours"])
    for name in sides:
        middle = statistics.median(seconds[name])
        print(f"{name:44} {middle * 1e3:8.1f} ms  {own / middle:5.2f} x  loss {losses[name][0]:.4f} -> "
              f"{losses[name][1]:.4f}")
    if any(not last < first for first, last in losses.values()):
        sys.exit("a loss did not fall: the times count for nothing")


if __name__ == "__main__":
    main()
