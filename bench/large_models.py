#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The time and memory that quantization without samples takes for a large model.

    large_models.py --detent BIN [--folder DIR] [--bytes 256M] [--width 4096] [--threads N]... [--only "rtn 4"]... [--keep]

Makes a chain of MatMul and Gemm with float weights in external data, at least BYTES (4G for the full size), quantizes it
with 4 and 8 bits by nearest rounding (rtn), with 4 bits by HQQ (hqq) and dynamically (dynamic 8), and prints for each

    seconds     of the clock
    MB/s core   float weights for each second of the processor, user and system time together; and of the clock
    peak MB     the largest resident memory, of which the bound is 2 x the largest tensor + 256 MiB
    bytes       what was written, and whether it went to external data
    check       ONNX Runtime ran the result for 4 rows; the reference is numpy's, with the weights that the codes stand for,
                which in turn are near the float ones

With several --threads, the files must be the same. Needs a Python with numpy, onnx and onnxruntime."""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 4
BOUNDS = {4: 0.15, 8: 0.01}  # of a layer: |w - v| / |w|


def size(text):
    return int(float(text.rstrip("KMG")) * 1024 ** (" KMG".index(text[-1]) if text[-1] in "KMG" else 0))


# ------------------------------------------------------------------------------------------ steps with numpy, each a process


def generate(path, layers, width):
    """Writes layers of width x width: MatMul(x, W) and Gemm(x, W^T, bias) in turns. One layer is in memory at a time."""
    import numpy as np
    from onnx import TensorProto, helper, save

    data = Path(str(path) + ".data")
    random = np.random.default_rng(1)
    nodes, constants, value = [], [], "x"
    with open(data, "wb") as file:
        def add(name, values):
            t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=values.shape,
                            data_location=TensorProto.EXTERNAL)
            for key, entry in (("location", data.name), ("offset", file.tell()), ("length", values.nbytes)):
                t.external_data.add(key=key, value=str(entry))
            file.write(values.data)
            constants.append(t)
            return name

        for i in range(layers):
            w = random.standard_normal((width, width), np.float32)
            w *= 1 / width**0.5
            inputs = [value, add(f"w{i}", w)]
            value = f"y{i}"
            if i % 2 == 0:
                nodes.append(helper.make_node("MatMul", inputs, [value], f"layer{i}"))
            else:
                inputs.append(add(f"b{i}", random.standard_normal(width, np.float32)))
                nodes.append(helper.make_node("Gemm", inputs, [value], f"layer{i}", transB=1))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def constant(folder, t, kind):
    """The elements of a constant, from external data as a view of the file."""
    import numpy as np

    where = {e.key: e.value for e in t.external_data}
    if where:
        return np.memmap(folder / where["location"], kind, "r", int(where["offset"]), tuple(t.dims))
    return np.frombuffer(t.raw_data, kind).reshape(t.dims)


def weights_of(node, constants, folder):
    """The weights K x N that a node of the result stands for."""
    import numpy as np
    import onnx

    if node.op_type == "MatMulInteger":
        codes = constant(folder, constants[node.input[1]], np.uint8)
        base = node.input[1].removesuffix("_quantized")
        zero = constant(folder, constants[base + "_zero_point"], np.uint8)
        return (codes.astype(np.float32) - np.float32(zero)) * constant(folder, constants[base + "_scale"], np.float32)
    a = {x.name: x.i for x in node.attribute}
    codes = constant(folder, constants[node.input[1]], np.uint8)
    scales = constant(folder, constants[node.input[2]], np.float32)
    has_real_zeros = constants[node.input[3]].data_type == onnx.TensorProto.FLOAT
    zeros = constant(folder, constants[node.input[3]], np.float32 if has_real_zeros else np.uint8)
    if a["bits"] == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(a["N"], -1)
    if a["bits"] == 4 and not has_real_zeros:
        zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(a["N"], -1)[:, : scales.shape[1]]
    codes = codes.reshape(a["N"], -1, a["block_size"]).astype(np.float32)
    return ((codes - zeros[..., None]) * scales[..., None]).reshape(a["N"], -1)[:, : a["K"]].T


def check(original, result, bits):
    import numpy as np
    import onnx
    import onnxruntime

    folder = result.parent
    floats = {t.name: t for t in onnx.load(original, load_external_data=False).graph.initializer}
    model = onnx.load(result, load_external_data=False)
    constants = {t.name: t for t in model.graph.initializer}
    # What a float layer adds; a large model is not loaded a second time.
    layers = [n for n in model.graph.node if n.op_type in ("MatMulNBits", "MatMulInteger")]
    x = np.random.default_rng(2).standard_normal((ROWS, int(floats["w0"].dims[0])), np.float32)
    y, worst = x, 0.0
    for i, node in enumerate(layers):
        w = constant(original.parent, floats[f"w{i}"], np.float32)
        v = weights_of(node, constants, folder)
        w = w if i % 2 == 0 else w.T
        worst = max(worst, float(np.linalg.norm(w - v) / np.linalg.norm(w)))
        if node.op_type == "MatMulInteger":  # the operator rounds its input
            low, high = min(y.min(), 0), max(y.max(), 0)
            scale = np.float32((high - low) / 255)
            zero = np.round(-low / scale)
            y = (np.clip(np.round(y / scale) + zero, 0, 255) - zero).astype(np.float32) * scale
        y = y @ v
        if i % 2 == 1:
            y = y + constant(original.parent, floats[f"b{i}"], np.float32)
    del constants, model
    session = onnxruntime.InferenceSession(str(result), providers=["CPUExecutionProvider"])
    given = session.run(None, {"x": x})[0]
    error = float(np.linalg.norm(given - y) / np.linalg.norm(y))
    # Sums in another order; and a value that is nearly a tie may round the other way in dynamic quantization.
    tolerance = 0.05 if layers[0].op_type == "MatMulInteger" else 1e-3
    ok = len(layers) == sum(name[0] == "w" for name in floats) and worst < BOUNDS[bits] and error < tolerance
    print(f"{'ok' if ok else 'WRONG'}: {len(layers)} layers, weights off by {worst:.4f}, outputs by {error:.2g}")
    return 0 if ok else 1


# ----------------------------------------------------------------------------------------------------------------- measuring


def measured(command):
    """Runs a command; returns seconds, processor seconds and peak bytes. This process is small on purpose: what it has in
    memory would count for the child, which begins as its copy."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def step(*arguments):
    return subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detent", required=True, type=Path)
    parser.add_argument("--folder", type=Path, help="where the model is made; the default is a new folder, removed at the end")
    parser.add_argument("--bytes", type=size, default=256 << 20)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--only", action="append")
    parser.add_argument("--external-data-from", help="passed to detent")
    parser.add_argument("--keep", action="store_true", help="keeps the models")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="large_models"))
    folder.mkdir(exist_ok=True)
    layer = options.width**2 * 4
    layers = -(-options.bytes // layer)
    original = folder / "float.onnx"
    if not original.exists():
        made = step("generate", original, layers, options.width)
        if made.returncode != 0:
            sys.exit(made.stderr)
    total = layers * layer
    bound = 2 * layer + (256 << 20)
    print(f"{layers} layers of {options.width} x {options.width}, {total / 1e6:.0f} MB; bound {bound / 1e6:.0f} MB")
    wrong = 0
    results = []
    for what in options.only or ("rtn 4", "rtn 8", "dynamic 8", "hqq 4"):
        algorithm, bits = what.split()
        before = None
        for threads in options.threads or [1]:
            result = folder / f"{algorithm}{bits}_{threads}.onnx"
            approach = ["dynamic", "--weight-scales", "absmax"] if algorithm == "dynamic" else [
                "weight-only", "--weight-algorithm", algorithm, "--bits", bits]
            more = ["--external-data-from", options.external_data_from] if options.external_data_from else []
            seconds, processor, peak = measured([options.detent, "quantize", original, "-o", result, "--approach", *approach,
                                                 "--threads", str(threads), *more])
            data = Path(str(result) + ".data")
            written = result.stat().st_size + (data.stat().st_size if data.exists() else 0)
            done = step("check", original, result, bits)
            wrong += done.returncode != 0 or peak > bound
            print(f"{what:10} threads {threads}: {seconds:8.1f} s, {total / processor / 1e6:6.0f} MB/s core "
                  f"({total / seconds / 1e6:.0f} by the clock), peak {peak / 1e6:.0f} MB"
                  f"{'' if peak <= bound else ' OVER THE BOUND'}, {written} bytes"
                  f"{', external' if data.exists() else ''}; {(done.stdout or done.stderr[-300:]).strip()}", flush=True)
            # Names of the data files differ, so their models do; the constants must not.
            now = data if data.exists() else result
            if before is not None and not filecmp.cmp(before, now, shallow=False):
                print(f"WRONG: {before} and {now} differ")
                wrong += 1
            if before is None:
                before = now
            results.append(result)
        for path in [] if options.keep else results:
            path.unlink()
            Path(str(path) + ".data").unlink(missing_ok=True)
        results = [] if not options.keep else results
    if not options.keep:
        if options.folder is None:
            shutil.rmtree(folder)
        else:
            original.unlink()
            Path(str(original) + ".data").unlink()
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["generate"]:
        generate(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["check"]:
        sys.exit(check(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
    else:
        sys.exit(main())
