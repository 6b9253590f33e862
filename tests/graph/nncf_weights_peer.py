#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Judges `detent quantize --pipeline nncf --compress` by NNCF's compress_weights: the same model must give the same weights.

    nncf_weights_peer.py --detent BINARY --digits FOLDER [--shared FOLDER] [--only TEXT]

For each model and set of options it compares which constants are compressed, to which type and group size, their codes,
scales and zero points (equal to the bit; with AWQ and scale estimation, whose sums round in another order, scales within
1e-5 and all codes but a few), what ONNX Runtime makes of our model with what our executor makes of it, and,
where NNCF's model is valid, with what ONNX Runtime makes of that. It prints a table.

NNCF 3.4.0 writes some forms that ONNX Runtime refuses or computes wrongly; ours are compared with the numbers that it
stores there, and not with its outputs: scales of convolutions are no vectors; block_size goes along axis 0 of weights
that are stored as N x K; zero points of MatMulNBits are not packed; a bias is added twice where MatMulNBits replaces a
MatMul before an Add.

NNCF's package is found as in nncf_peer.py. Exit codes: 0 agrees, 1 disagrees, 77 skipped.
"""

import argparse
import contextlib
import io
import logging
import pathlib
import sys
import tempfile

import nncf_peer  # finds a Python with NNCF, or skips
import interoperability
import nncf_cases
from nncf_peer import nncf, np, onnx, set_log_level
from onnx import TensorProto, numpy_helper

METRICS = ("hessian-input-activation", "mean-activation-variance", "max-activation-variance", "mean-activation-magnitude")
IDS = {"ids": (TensorProto.INT64, [1, 6])}


def attention(b, x, width, heads=1):
    """Self-attention with projections of its own, and a residual connection."""
    q, k, v = (b.linear(x, f"{x}_{name}", width, width) for name in "qkv")
    scores = b.op("MatMul", [q, b.op("Transpose", [k], f"{x}_kt", perm=[0, 2, 1])], f"{x}_scores")
    y = b.op("MatMul", [b.op("Softmax", [scores], f"{x}_softmax", axis=-1), v], f"{x}_mixed")
    return b.op("Add", [x, b.linear(y, f"{x}_o", width, width)], f"{x}_attended")


def transformer(opset):
    """Embeddings, a block with attention and a feed-forward part, and a layer that makes scores of words."""
    b = nncf_cases.Builder("transformer", IDS)
    x = attention(b, b.op("Gather", [b.weights("words", 50, 64, scale=0.5), "ids"], "e"), 64)
    h = b.relu(b.linear(x, "up", 64, 192))
    x = b.op("Add", [x, b.linear(h, "down", 192, 64)], "block")
    b.op("MatMul", [x, b.weights("head_w", 64, 32)], "y")
    return finished(b, opset)


def mixed(opset):
    """Gemm with both orders of its weights, a convolution, and a MatMul that shares its weights with another one."""
    b = nncf_cases.Builder("mixed", IDS)
    x = b.op("Gather", [b.weights("words", 50, 64, scale=0.5), "ids"], "e")
    shared = b.weights("shared_w", 64, 64)
    x = b.relu(b.op("MatMul", [b.op("MatMul", [x, shared], "first"), shared], "second"))
    x = b.op("Reshape", [x, b.constant("rows", [6, 64], np.int64)], "flat")
    x = b.relu(b.op("Gemm", [x, b.weights("g_w", 96, 64), b.weights("g_b", 96)], "g", transB=1))
    x = b.op("Gemm", [x, b.weights("f_w", 96, 96), b.weights("f_b", 96)], "f")
    x = b.op("Reshape", [x, b.constant("image", [1, 4, 12, 12], np.int64)], "i")
    x = b.op("Reshape", [b.relu(b.conv(x, "c", 4, 8)), b.constant("again", [18, 64], np.int64)], "r")
    b.op("MatMul", [x, b.weights("head_w", 64, 32)], "y")
    return finished(b, opset)


def gated(opset):
    """A gate and a layer behind it, in a feed-forward part."""
    b = nncf_cases.Builder("gated", IDS)
    x = b.op("Gather", [b.weights("words", 50, 64, scale=0.5), "ids"], "e")
    gate = b.op("Sigmoid", [b.op("MatMul", [x, b.weights("gate_w", 64, 128)], "gate")], "open")
    h = b.op("Mul", [gate, b.op("MatMul", [x, b.weights("up_w", 64, 128)], "up")], "h")
    x = b.op("MatMul", [h, b.weights("down_w", 128, 64)], "down")
    b.op("MatMul", [x, b.weights("head_w", 64, 32)], "y")
    return finished(b, opset)


def finished(b, opset):
    model = b.model("y", opset=opset)
    model.ir_version = 10
    return model


def cases():
    """Model, opset and options, as pairs of NNCF's names and the tool's values."""
    for make in (transformer, mixed):
        for opset in (21, 17):
            for mode in ("int8-asym", "int8-sym"):
                yield make, opset, {"mode": mode}
            for mode in ("int4-asym", "int4-sym"):
                base = {"mode": mode, "group_size": 32}
                yield make, opset, base
                for ratio in (0.2, 0.5, 0.8):
                    yield make, opset, {**base, "ratio": ratio}
                yield make, opset, {**base, "ratio": 0.5, "backup_mode": "int8-sym"}
                yield make, opset, {**base, "ratio": 0.5, "backup_mode": "none"}
                for metric in METRICS:
                    yield make, opset, {**base, "ratio": 0.5, "sensitivity_metric": metric}
                if opset >= 21:
                    yield make, opset, {"mode": mode, "group_size": -1}
                    for ratio in (0.6, 1.0):
                        yield make, opset, {**base, "all_layers": True, "ratio": ratio}
                    yield make, opset, {**base, "all_layers": True, "ratio": 0.7, "sensitivity_metric": METRICS[1]}
    for make in (transformer, mixed, gated):
        for mode in ("int4-asym", "int4-sym"):
            base = {"mode": mode, "group_size": 32}
            yield make, 21, {**base, "awq": True}
            yield make, 21, {**base, "awq": True, "calibration": True}
            yield make, 21, {**base, "scale_estimation": True, "calibration": True}
            yield make, 21, {**base, "scale_estimation": True, "calibration": True, "group_size": -1}
            yield make, 21, {**base, "awq": True, "scale_estimation": True, "calibration": True, "ratio": 0.8}
    for fallback in ("ignore", "adjust"):  # 96 and 192 are no multiples of 64 or 128
        yield mixed, 21, {"mode": "int4-sym", "group_size": 64, "group_size_fallback": fallback}
        yield transformer, 17, {"mode": "int4-asym", "group_size": 128, "group_size_fallback": fallback}


def compress(model, samples, options):
    """NNCF's result."""
    given = dict(options)
    fallback = given.pop("group_size_fallback", "error")
    enums = {"mode": nncf.CompressWeightsMode, "sensitivity_metric": nncf.SensitivityMetric, "backup_mode": nncf.BackupMode}
    for key, kind in enums.items():
        if key in given:
            given[key] = kind(given[key].replace("-", "_"))
    if given.pop("calibration", False) or options.get("sensitivity_metric") in METRICS:
        given["dataset"] = nncf.Dataset(samples)
    advanced = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode(fallback))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return nncf.compress_weights(model, advanced_parameters=advanced, **given)


def arguments(options):
    """The same options for the tool."""
    flags = {"mode": "--compress", "sensitivity_metric": "--sensitivity", "backup_mode": "--backup"}
    words = []
    for key, value in options.items():
        if key == "calibration":
            continue
        words += [flags.get(key, "--" + key.replace("_", "-"))] + ([] if value is True else [str(value)])
    return words


def unpacked(zero_points, columns, blocks):
    """The zero points of MatMulNBits, one in a byte: NNCF writes them so, ONNX Runtime defines them packed."""
    packed = zero_points.reshape(columns, -1)
    if packed.shape[1] == blocks:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(columns, -1)[:, :blocks]


def weights_of(model):
    """By the constants' names: type, block size, codes, scales and zero points."""
    constants = {t.name: t for t in model.graph.initializer}
    found = {}
    for n in model.graph.node:
        if n.op_type not in ("DequantizeLinear", "MatMulNBits"):
            continue
        own = {a.name: a.i for a in n.attribute}
        at = 0 if n.op_type == "DequantizeLinear" else 1
        codes, scales = (numpy_helper.to_array(constants[name]) for name in n.input[at:at + 2])
        zeros = numpy_helper.to_array(constants[n.input[at + 2]]) if len(n.input) > at + 2 and n.input[at + 2] else None
        if at == 1 and zeros is not None:
            zeros = unpacked(zeros, own["N"], own["K"] // own["block_size"])
        kind = (n.op_type, constants[n.input[at]].data_type, own.get("block_size", 0))
        found[n.input[at].removesuffix("_quantized")] = (kind, *(
            None if v is None else np.ravel(v.astype(np.float32)) for v in (codes, scales, zeros)))
    for name, t in constants.items():
        if name.endswith("awq_mul_scale"):
            found[name] = (("Mul", t.data_type, 0), None, np.ravel(numpy_helper.to_array(t)), None)
    return found


def equal(a, b, is_exact):
    """Whether types and numbers are equal. If not exact, scales may differ by rounding, and so may a few codes."""
    if a[0] != b[0] or any((x is None) != (y is None) for x, y in zip(a[1:], b[1:])):
        return False
    if is_exact:
        return all(x is None or np.array_equal(x, y) for x, y in zip(a[1:], b[1:]))
    close = a[2].shape == b[2].shape and np.allclose(a[2], b[2], rtol=1e-5, atol=0)
    codes = all(x is None or (np.mean(x != y) <= 0.002 and np.max(np.abs(x - y)) <= 1) for x, y in zip(a[1::2], b[1::2]))
    return bool(close and codes)


def is_right(model, options):
    """Whether ONNX Runtime can run what NNCF makes of the model, and gets the right result (see above)."""
    blocks = options["mode"].startswith("int4") and options["group_size"] > 0
    has_names = {n.op_type for n in model.graph.node}
    if "Conv" in has_names:
        return False
    return not blocks or (model.opset_import[0].version >= 21 and "Gemm" not in has_names and not options.get("all_layers"))


class Judge:
    def __init__(self, tool):
        self.tool, self.failures = tool, 0
        print(f"{'model':12} {'opset':>5} {'weights':>7} {'layers':>6} {'equal':>6} {'executor':>9} {'NNCF':>8}  options")

    def check(self, make, opset, options):
        model = make(opset)
        samples = nncf_cases.samples_of(model, 4, 0, 50)
        theirs = compress(make(opset), samples, options)
        file, out = self.tool.folder / "model.onnx", self.tool.folder / "compressed.onnx"
        onnx.save(model, str(file))
        feeds = {key: np.concatenate([s[key] for s in samples]) for key in samples[0]}
        calibration = self.tool.save("calibration", feeds) if options.get("calibration") or options.get("sensitivity_metric") in METRICS else []
        self.tool("quantize", file, "-o", out, "--pipeline", "nncf", *arguments(options),
                  *(x for a in calibration for x in ("--calib", a)))
        ours = onnx.load(str(out))
        a, b = weights_of(theirs), weights_of(ours)
        same_layers = {k: v[0] for k, v in a.items()} == {k: v[0] for k, v in b.items()}
        is_exact = not (options.get("awq") or options.get("scale_estimation"))
        same = same_layers and all(equal(a[key], b[key], is_exact) for key in a)
        result = nncf_peer.run(ours, samples)
        largest = np.max(np.abs(result))
        executor = np.concatenate([np.ravel(v) for s in samples for v in self.tool.run(out, s).values()])
        error = np.max(np.abs(executor - result)) / largest
        to_nncf = np.max(np.abs(nncf_peer.run(theirs, samples) - result)) / largest if is_right(model, options) else None
        good = same and bool(b) and error < 1e-5 and (to_nncf is None or to_nncf < (1e-5 if is_exact else 1e-2))
        self.failures += not good
        shown = "-" if to_nncf is None else f"{to_nncf:.0e}"
        print(f"{make.__name__:12} {opset:5} {len(b):7} {'yes' if same_layers else 'NO':>6} {'yes' if same else 'NO':>6} {error:9.0e} "
              f"{shown:>8}  {' '.join(arguments(options))}{'' if good else '  FAILED'}", flush=True)
        if not same:
            print("   theirs:", {k: v[0] for k, v in a.items()}, "\n   ours:  ", {k: v[0] for k, v in b.items()},
                  "\n   differ:", [k for k in a.keys() & b.keys() if not equal(a[k], b[k], is_exact)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detent", required=True)
    parser.add_argument("--digits", type=pathlib.Path, required=True)
    parser.add_argument("--shared", type=pathlib.Path)
    parser.add_argument("--only", default="", help="checks the cases whose options hold this text")
    options = parser.parse_args()
    set_log_level(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(interoperability.Tool(options.detent, folder))
        for make, opset, own in cases():
            if options.only in " ".join(arguments(own)):
                judge.check(make, opset, own)
    sys.exit(1 if judge.failures else 0)


if __name__ == "__main__":
    main()
