#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What scripts rely on in the command line tool: exit codes, messages, files, last lines, JSON.

    cli_test.py --detent BINARY --digits FOLDER

Exit codes: 0 ok, 1 something is wrong, 77 skipped: numpy is missing (with CI=true that is 1).
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

try:
    import numpy as np
except ImportError:
    print("skipped: no Python with numpy here")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

parser = argparse.ArgumentParser()
parser.add_argument("--detent", required=True)
parser.add_argument("--digits", required=True, type=pathlib.Path)
parser.add_argument("--shared", type=pathlib.Path, help="folder with conformance/*/*, ONNX's test data")
options = parser.parse_args()

MODEL = options.digits / "digits.onnx"
CALIBRATION = options.digits / "calibration_images.npy"
IMAGES = options.digits / "test_images.npy"
LABELS = options.digits / "test_labels.npy"


# ------------------------------------------------------------------------------- a little protobuf


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """An integer, or bytes (text, messages)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def value_info(name, *dims, element=1):
    shape = b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, element) + field(2, shape)))


def node(op, inputs, outputs, name=""):
    ins = b"".join(field(1, i) for i in inputs)
    outs = b"".join(field(2, o) for o in outputs)
    return ins + outs + field(3, name) + field(4, op)


def model(nodes, inputs, outputs, constants=()):
    graph = b"".join(field(1, n) for n in nodes) + field(2, "g")
    graph += b"".join(field(5, t) for t in constants)
    graph += b"".join(field(11, v) for v in inputs) + b"".join(field(12, v) for v in outputs)
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def int64s(name, *values):
    """A constant of rank 1."""
    return field(1, len(values)) + field(2, 7) + field(8, name) + b"".join(field(7, v) for v in values)


def floats(name, values):
    """A constant, or the bytes of a file with a TensorProto."""
    dims = b"".join(field(1, d) for d in values.shape)
    return dims + field(2, 1) + field(8, name) + field(9, values.astype(np.float32).tobytes())


def halves(name, values):
    """A constant of 16-bit floats."""
    dims = b"".join(field(1, d) for d in values.shape)
    return dims + field(2, 10) + field(8, name) + field(9, values.astype(np.float16).tobytes())


def cast(source, result, element):
    return node("Cast", [source], [result]) + field(5, field(1, "to") + field(3, element) + field(20, 2))


def external_floats(name, values, location, offset):
    """A constant whose values are in another file."""
    dims = b"".join(field(1, d) for d in values.shape)
    where = {"location": location, "offset": str(offset), "length": str(values.size * 4)}
    entries = b"".join(field(13, field(1, key) + field(2, value)) for key, value in where.items())
    return dims + field(2, 1) + field(8, name) + entries + field(14, 1)


class CommandLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def detent(self, *arguments):
        return subprocess.run([options.detent, *map(str, arguments)], capture_output=True, text=True)

    def works(self, *arguments):
        done = self.detent(*arguments)
        # Many tests take fewer samples than they would in earnest.
        warnings = "".join(line for line in done.stderr.splitlines(True) if "with fewer than 8, ranges are unreliable" not in line)
        self.assertEqual((done.returncode, warnings), (0, ""), arguments)
        return done.stdout

    def warns(self, words, *arguments):
        """It works, and says these words on standard error."""
        done = self.detent(*arguments)
        self.assertEqual(done.returncode, 0, (arguments, done.stderr))
        for word in words:
            self.assertIn(str(word), done.stderr)
        return done.stdout

    def fails(self, words, *arguments, lines=1):
        """The job fails: exit code 1 and one line that names what is wrong."""
        done = self.detent(*arguments)
        self.assertEqual(done.returncode, 1, (arguments, done.stderr))
        self.assertEqual(done.stderr.count("\n"), lines, done.stderr)
        self.assertTrue(done.stderr.startswith("detent: "), done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        return done.stderr

    def wrong_usage(self, words, *arguments):
        done = self.detent(*arguments)
        self.assertEqual(done.returncode, 2, (arguments, done.stderr))
        for word in words:
            self.assertIn(word, done.stderr.splitlines()[0])

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def array(self, name, values):
        path = self.folder / name
        np.save(path, values)
        return path

    def evaluate(self, *more, model=MODEL, data=IMAGES, labels=LABELS):
        return ["eval", model, "--data", data, "--labels", labels, *more]

    def quantize(self, *more, model=MODEL, calib=CALIBRATION, output=None):
        return ["quantize", model, "-o", output or self.folder / "out.onnx", "--calib", calib, *more]

    # ------------------------------------------------------------------------------------- models

    def test_models_that_cannot_be_read(self):
        good = MODEL.read_bytes()
        cases = {
            "missing.onnx": None,
            "empty.onnx": b"",
            "truncated.onnx": good[: len(good) // 2],
            "tail.onnx": good[:-1],
            "text.onnx": b"not a model\n" * 100,
            "unsorted.onnx": model([node("Relu", ["a"], ["y"]), node("Relu", ["y"], ["a"], "loop")],
                                   [value_info("x", 1)], [value_info("y", 1)]),
        }
        for name, content in cases.items():
            path = self.folder / name
            if content is not None:
                path.write_bytes(content)
            out = self.folder / "out.onnx"
            for arguments in (self.evaluate(model=path), self.quantize(model=path, output=out), ["inspect", path],
                              ["run", path, "--input", IMAGES, "-o", self.folder / "out"],
                              ["compare", path, MODEL, "--data", IMAGES], ["compare", MODEL, path, "--data", IMAGES]):
                with self.subTest(name=name, command=arguments[0]):
                    self.fails([path], *arguments)
            self.assertFalse(out.exists())
        self.fails([self.folder], "inspect", self.folder)

    def test_operator_that_is_not_supported(self):
        path = self.write("fancy.onnx", model([node("Relu", ["x"], ["a"]), node("Fancy", ["a"], ["y"], "the_node")],
                                              [value_info("x", "N", 2)], [value_info("y", "N", 2)]))
        data = self.array("x.npy", np.zeros((3, 2), np.float32))
        self.fails(["Fancy", "the_node"], "run", path, "--input", data, "-o", self.folder / "out")
        out = self.folder / "out.onnx"
        self.warns(["1 node stays in float", "Fancy", "the_node"], *self.quantize(model=path, calib=data, output=out))
        self.assertFalse((self.folder / "out").exists())
        self.assertIn("Fancy", self.works("inspect", path))
        self.assertEqual(len(json.loads(self.works("inspect", path, "--json"))["unsupported_nodes"]), 1)

    def test_layers_around_an_operator_that_is_not_supported(self):
        random = np.random.default_rng(5)
        weights = [floats(name, random.normal(size=(32, 32))) for name in ("v", "w")]
        path = self.write("around.onnx", model(
            [node("MatMul", ["x", "v"], ["a"], "before"), node("Fancy", ["a"], ["b"], "the_node"),
             node("MatMul", ["b", "w"], ["y"], "behind")],
            [value_info("x", "N", 32)], [value_info("y", "N", 32)], weights))
        data = self.array("x.npy", random.normal(size=(20, 32)).astype(np.float32))
        out = self.folder / "out.onnx"

        def operators():
            found = json.loads(self.works("inspect", out, "--json"))["operators"]
            return {o["operator"]: o["count"] for o in found}

        facts = json.loads(self.warns(["2 nodes stay in float", "Fancy", "the_node"],
                                      *self.quantize("--json", model=path, calib=data, output=out)))
        self.assertEqual(len(facts["not_run"]), 2)
        self.assertIn("behind", facts["not_run"][1])
        self.assertEqual(operators(), {"QuantizeLinear": 2, "DequantizeLinear": 3, "Gemm": 1, "MatMul": 1, "Fancy": 1})
        for stored in ("u8", "s8"):
            self.works("quantize", path, "-o", out, "--approach", "dynamic", "--weights", stored)
            self.assertEqual(operators()["MatMulInteger"], 2)
        self.fails(["--bias-correction fast", "Fancy"], "quantize", path, "-o", out, "--approach", "dynamic", "--calib", data,
                   "--bias-correction", "fast")
        for algorithm in ("rtn", "awq"):
            self.works("quantize", path, "-o", out, "--approach", "weight-only", "--weight-algorithm", algorithm,
                       *(["--calib", data] if algorithm == "awq" else []))
            self.assertEqual(operators()["com.microsoft.MatMulNBits"], 2)
        self.wrong_usage(["static", "--weights"], *self.quantize("--weights", "s8"))

    def test_few_bits(self):
        out = self.folder / "few.onnx"
        for weights, activations in (("8", "8"), ("4", "8"), ("4", "4")):
            self.works(*self.quantize("--method", "minmax", "--bits", weights, "--activation-bits", activations, output=out))
            found = json.loads(self.works("inspect", out, "--json"))["operators"]
            clips = sum(o["count"] for o in found if o["operator"] == "Clip")
            self.assertEqual(clips > 4, activations != "8")
            rates = json.loads(self.works(*self.evaluate("--json", model=out)))
            self.assertGreater(rates["top1"], 98 if weights == "8" else 90, (weights, activations, rates))
        self.wrong_usage(["--bits", "9"], *self.quantize("--bits", "9"))
        self.wrong_usage(["--activation-bits", "1"], *self.quantize("--activation-bits", "1"))
        self.wrong_usage(["qoperator", "--activation-bits"], *self.quantize("--activation-bits", "4", "--format", "qoperator"))
        self.wrong_usage(["dynamic", "--activation-bits"], *self.quantize("--activation-bits", "4", "--approach", "dynamic"))
        self.wrong_usage(["weight-only", "--bits"], *self.quantize("--bits", "3", "--approach", "weight-only"))

    def test_names_from_a_file_do_not_break_lines(self):
        path = self.write("odd.onnx", model([node("Fancy", ["x"], ["y"], "two\nlines \x1b[31mred")],
                                            [value_info("x", 1)], [value_info("y", 1)]))
        data = self.array("x.npy", np.zeros((1,), np.float32))
        message = self.fails(["Fancy"], "run", path, "--input", data, "-o", self.folder / "out")
        self.assertNotIn("\x1b", message)
        odd = "a\nb\x1b[31m\x9b1m\x7f\tc"
        path = self.write("names.onnx", model([node("Relu", ["x"], [odd])], [value_info("x", 1)], [value_info(odd, 1)]))
        text = self.works("inspect", path)
        self.assertIn("a?b?[31m?1m??c", text)
        for character in "\x1b\x9b\x7f\t":
            self.assertNotIn(character, text)
        text = self.works("inspect", path, "--json")
        self.assertEqual(json.loads(text)["outputs"][0]["name"], odd)
        for character in "\x1b\x9b\x7f\t":
            self.assertNotIn(character, text)
        folder = self.folder / "named"
        self.works("run", path, "--input", data, "-o", folder)
        self.assertEqual([f.name for f in folder.iterdir()], ["a_b_[31m_1m__c.npy"])

    # --------------------------------------------------------------------------------------- data

    def test_arrays_that_are_wrong(self):
        images = np.load(IMAGES)
        good = IMAGES.read_bytes()
        files = {
            "missing.npy": None,
            "empty.npy": b"",
            "text.npy": b"1 2 3\n",
            "truncated.npy": good[:-7],
            "header.npy": good[:40],
            "longer.npy": good + b"\0",
            "rank.npy": images[:, 0],
            "size.npy": images[:, :, :7],
            "scalar.npy": np.float32(1),
            "type.npy": images.astype(np.float64),
            "integers.npy": images.astype(np.int32),
            "endian.npy": images.astype(">f4"),
            "fortran.npy": np.asfortranarray(images),
            "none.npy": images[:0],
            "objects.npy": np.array([{"a": 1}], dtype=object),
            "complex.npy": images.astype(np.complex64),
        }
        for name, content in files.items():
            path = self.folder / name
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content is not None:
                np.save(path, content)
            for arguments in (self.evaluate(data=path), self.quantize(calib=path),
                              ["run", MODEL, "--input", f"image={path}", "-o", self.folder / "out"],
                              ["compare", MODEL, MODEL, "--data", path]):
                with self.subTest(name=name, command=arguments[0]):
                    self.fails([name], *arguments)
        self.assertFalse((self.folder / "out.onnx").exists())
        self.assertFalse((self.folder / "out").exists())

    def test_labels_that_are_wrong(self):
        labels = np.load(LABELS)
        for name, values in (("short", labels[:-1]), ("long", np.append(labels, 0)), ("float", labels.astype(np.float32)),
                             ("matrix", labels.reshape(-1, 2)), ("large", labels + 5), ("negative", labels - 1)):
            with self.subTest(name=name):
                path = self.array(f"{name}.npy", values)
                self.fails([path], *self.evaluate(labels=path))
        for dtype in (np.int32, np.uint8, np.int8):
            path = self.array("labels.npy", labels.astype(dtype).reshape(-1, 1))
            self.assertIn("top1 99.44", self.works(*self.evaluate(labels=path)))

    def test_inputs_by_name(self):
        self.fails(["'nope'", "'image'"], *self.evaluate(data=f"nope={IMAGES}"))
        self.works(*self.evaluate(data=f"image={IMAGES}"))
        two = self.write("two.onnx", model([node("Add", ["a/b", "c"], ["y/z"])],
                                           [value_info("a/b", "N", 2), value_info("c", "N", 2)], [value_info("y/z", "N", 2)]))
        data = self.array("x.npy", np.ones((3, 2), np.float32))
        out = self.folder / "out"
        self.fails(["x.npy", "NAME="], "run", two, "--input", data, "--input", data, "-o", out)
        self.fails(["'c'"], "run", two, "--input", f"a/b={data}", "-o", out)
        self.fails(["twice"], "run", two, "--input", f"a/b={data}", "--input", f"a/b={data}", "-o", out)
        other = self.array("other.npy", np.ones((4, 2), np.float32))
        self.fails(["other.npy"], "run", two, "--input", f"a/b={data}", "--input", f"c={other}", "-o", out)
        self.works("run", two, "--input", f"a/b={data}", "--input", f"c={data}", "-o", out)
        self.assertTrue((np.load(out / "y_z.npy") == np.full((3, 2), 2, np.float32)).all())
        self.assertEqual([p.name for p in out.iterdir()], ["y_z.npy"])

    # -------------------------------------------------------------------- inputs that are not images

    def run_model(self, path, *inputs, more=()):
        """The outputs of `detent run`, by the names of the files relative to the folder."""
        out = self.folder / "out"
        self.works("run", path, *(word for one in inputs for word in ("--input", one)), "-o", out, *more)
        found = {str(p.relative_to(out)): np.load(p) for p in sorted(out.rglob("*.npy"))}
        for name in found:
            (out / name).unlink()
        return found

    def test_inputs_with_different_sample_axes(self):
        generator = np.random.default_rng(1)
        x = generator.normal(size=(5, 3)).astype(np.float32)
        y = generator.normal(size=(4, 5, 3)).astype(np.float32)
        x_file, y_file = self.array("x.npy", x), self.array("y.npy", y)
        y_proto = self.write("y.pb", floats("y", y))
        for batch, z_batch in (("N", "N"), (2, 2), (1, 1)):
            path = self.write("add.onnx", model([node("Add", ["x", "y"], ["z"])], [value_info("x", batch, 3), value_info("y", 4, batch, 3)],
                                                [value_info("z", 4, z_batch, 3)]))
            for y_text in (f"y={y_file}:axis=1", f"y={y_proto}:axis=-2"):
                with self.subTest(batch=batch, y=y_text):
                    (z,) = self.run_model(path, f"x={x_file}", y_text).values()
                    self.assertTrue((z == x + y).all())
                    last = self.works("compare", path, path, "--data", f"x={x_file}", "--data", y_text).splitlines()[-1]
                    self.assertEqual(last, "agreement 100.00 n 5")
        # Batches of two along axis 0 or axis 1: which axis of the result counts samples is not clear.
        path = self.write("square.onnx", model([node("Add", ["x", "y"], ["z"])], [value_info("x", 2, 3), value_info("y", 2, 2, 3)],
                                               [value_info("z", 2, 2, 3)]))
        y_file = self.array("two.npy", y[:2])
        self.fails(["output 'z'", "[2,2,3]", "counts the 2 samples", "--input FOLDER"],
                   "run", path, "--input", f"x={x_file}", "--input", f"y={y_file}:axis=1", "-o", self.folder / "out")

    def test_repeated_samples_do_not_count(self):
        """A batch of 4 with 6 samples along axis 1: of the second batch, half are repetitions."""
        x = np.ones((3, 6), np.float32)
        x[:, 5] = 100
        data = f"{self.array('x.npy', x)}:axis=1"
        found = []
        for op in ("Relu", "Neg"):
            nodes = [node(op, ["x"], ["a"]), node("Neg", ["a"], ["y"])]
            found.append(self.write(op + ".onnx", model(nodes, [value_info("x", 3, 4)], [value_info("y", 3, 4)])))
        facts = json.loads(self.works("compare", *found, "--data", data, "--json"))
        for one in facts["tensors"] + facts["outputs"]:  # v and -v: the noise is four times the signal
            self.assertAlmostEqual(one["snr_db"], -10 * np.log10(4), places=5)
            self.assertEqual(one["max_error"], 200)
        shifted = [floats("c", np.full((1,), 10.0))]
        other = self.write("other.onnx", model([node("Relu", ["x"], ["b"]), node("Add", ["b", "c"], ["a"]), node("Neg", ["a"], ["y"])],
                                               [value_info("x", 3, 4)], [value_info("y", 3, 4)], shifted))
        facts = json.loads(self.works("compare", found[0], other, "--data", data, "--json"))
        expected = 10 * np.log10((5 + 100 ** 2) / (6 * 10 ** 2))  # of each of the three rows
        for one in facts["outputs"] + [t for t in facts["tensors"] if t["name"] == "a"]:
            self.assertAlmostEqual(one["snr_db"], expected, places=4)

    def test_models_of_16_bits(self):
        random = np.random.default_rng(5)
        weights, x = random.standard_normal((8, 4)), random.standard_normal((6, 8)).astype(np.float16)
        data = f"x={self.array('x.npy', x)}"
        forms = [value_info("x", "N", 8, element=10)], [value_info("y", "N", 4, element=10)]
        layer = [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["y"])]
        path = self.write("half.onnx", model(layer, *forms, [halves("w", weights)]))
        wrong = self.write("wrong.onnx", model(layer, *forms, [halves("w", -3 * weights)]))
        facts = json.loads(self.works("compare", path, wrong, "--data", data, "--json"))
        for one in facts["outputs"] + facts["tensors"]:
            self.assertLess(one["snr_db"], 5)
            self.assertGreater(one["max_error"], 1)
        self.assertIsNotNone(facts["agreement"])
        self.assertEqual(facts["n"], 6)
        labels = self.array("l.npy", np.argmax(np.maximum(x @ weights.astype(np.float16), 0), 1))
        self.assertIn("top1 100.00", self.works("eval", path, "--data", data, "--labels", labels))
        # Other types are not measured, which is not the same as being equal.
        whole = self.write("whole.onnx", model([cast("x", "y", 7)], forms[0], [value_info("y", "N", 8, element=7)]))
        self.assertEqual(self.works("compare", whole, whole, "--data", data).splitlines()[1].split(), ["n/a"] * 3 + ["output", "y"])
        self.assertIsNone(json.loads(self.works("compare", whole, whole, "--data", data, "--json"))["outputs"][0]["cosine"])
        # What is quantized computes in float32 between inputs and outputs of 16 bits.
        for more in ([], ["--method", "minmax"], ["--approach", "dynamic"], ["--approach", "weight-only", "--bits", 8],
                     ["--pipeline", "nncf"], ["--pipeline", "ppq"]):
            with self.subTest(more=more):
                out = self.folder / "quantized.onnx"
                samples = [] if "dynamic" in more or "weight-only" in more else ["--calib", data]
                facts = json.loads(self.warns(["half.onnx", "holds floats of 16 bits"], "quantize", path, "-o", out, *samples, *more, "--json"))
                self.assertEqual(facts["layers"], 1)
                compared = json.loads(self.works("compare", path, out, "--data", data, "--json"))
                # NNCF's ranges are means over the samples, which are few here.
                self.assertGreater(compared["outputs"][0]["snr_db"], 12 if "nncf" in more else 25)
                self.works("run", out, "--input", data, "-o", self.folder / "out")
                self.assertEqual(np.load(self.folder / "out" / "y.npy").dtype, np.float16)
        self.fails(["half.onnx: output 'y' is float16", "training needs outputs of float32"], "train", path, "-o", self.folder / "t.onnx",
                   "--data", data, "--labels", labels, lines=2)
        # Operators that are unknown keep their types.
        foreign = node("MatMul", ["x", "w"], ["p"]), node("Foo", ["p"], ["y"]) + field(7, "some.domain")
        strange = self.write("foreign.onnx", model(foreign, *forms, [halves("w", weights)]) + field(8, field(1, "some.domain") + field(2, 1)))
        self.warns(["foreign.onnx holds floats of 16 bits that stay as they are: some.domain.Foo node", "has no layer that was quantized", "1 layer has weights of 16 bits", "MatMul", "float16"],
                   "quantize", strange, "-o", self.folder / "q.onnx", "--approach", "dynamic")
        # NumPy has no bfloat16.
        brain = self.write("brain.onnx", model([cast("x", "y", 16)], forms[0], [value_info("y", "N", 8, element=16)]))
        self.works("run", brain, "--input", data, "-o", self.folder / "brain")
        y = np.load(self.folder / "brain" / "y.npy")
        self.assertEqual(y.dtype, np.float32)
        self.assertLess(np.max(np.abs(y - x) / np.abs(x)), 2.0 ** -8)

    def test_scores_of_samples_along_another_axis(self):
        scores = np.zeros((4, 6), np.float32)  # a column for each sample
        scores[[0, 1, 2, 3, 0, 1], range(6)] = 1
        data, labels = self.array("x.npy", scores), self.array("l.npy", np.array([0, 1, 2, 3, 0, 0]))
        for batch in ("N", 4):
            path = self.write("same.onnx", model([node("Relu", ["x"], ["y"])], [value_info("x", 4, batch)], [value_info("y", 4, batch)]))
            for more in (["--batch", 4], []):
                last = self.works("eval", path, "--data", f"{data}:axis=1", "--labels", labels, *more).splitlines()[-1]
                self.assertTrue(last.startswith("top1 83.33 top5 100.00 n 6 "), last)
            other = self.write("other.onnx", model([node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["y"])], [value_info("x", 4, batch)],
                                                   [value_info("y", 4, batch)]))
            self.assertEqual(self.works("compare", path, other, "--data", f"{data}:axis=1").splitlines()[-1], "agreement 100.00 n 6")

    def test_scalars(self):
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        path = self.write("mul.onnx", model([node("Mul", ["x", "s"], ["y"]), node("Neg", ["s"], ["t"])],
                                            [value_info("x", "N", 2), value_info("s")], [value_info("y", "N", 2), value_info("t")]))
        x_text = f"x={self.array('x.npy', x)}"
        one = self.array("one.npy", np.float32(3))
        all_of_them = self.array("all.npy", np.arange(4, dtype=np.float32))
        for text in (f"s={one}", f"s={one}:fixed"):
            found = self.run_model(path, x_text, text)
            self.assertTrue((found["y.npy"] == 3 * x).all())
            self.assertEqual((found["t.npy"].shape, found["t.npy"]), ((), -3))
        found = self.run_model(path, x_text, f"s={all_of_them}")
        self.assertTrue((found["y.npy"] == np.arange(4)[:, None] * x).all())
        self.assertTrue((found["t.npy"] == -np.arange(4)).all())
        short = self.array("short.npy", np.arange(3, dtype=np.float32))
        out = self.folder / "out"
        for words, text in ((["short.npy has 3 samples of input 's'", "x.npy has 4 samples of input 'x'", ":axis=K", ":fixed"], f"s={short}"),
                            (["[4]", "'s' []", "given whole"], f"s={all_of_them}:fixed"),
                            (["one.npy", "no axis 1"], f"s={one}:axis=1")):
            self.fails(words, "run", path, "--input", x_text, "--input", text, "-o", out)
        self.fails(["'x' [-1,2]"], "run", path, "--input", f"x={one}", "--input", f"s={one}", "-o", out)
        labels = self.array("l.npy", np.array([1, 1, 1, 1]))
        arguments = ["eval", path, "--data", x_text, "--data", f"s={all_of_them}", "--labels", labels]
        self.assertTrue(self.works(*arguments).splitlines()[-1].startswith("top1 75.00 "))  # the first row is a tie
        self.fails(["--batch 2", "1 sample"], *arguments, "--batch", 2)

    def test_quantize_with_scalars_and_other_sample_axes(self):
        generator = np.random.default_rng(4)
        constants = [floats("w", generator.normal(size=(4, 3)))]
        nodes = [node("Mul", ["x", "s"], ["a"]), node("MatMul", ["a", "w"], ["b"]), node("Add", ["b", "t"], ["y"])]
        x = self.array("x.npy", generator.normal(size=(2, 9, 4)).astype(np.float32))  # steps, samples, features
        t = self.write("t.pb", floats("", generator.normal(size=(9, 3))))
        scalars = self.array("s.npy", np.linspace(0.5, 2, 9, dtype=np.float32))
        scalar = self.write("s.pb", floats("", np.float32(2).reshape(())))
        out = self.folder / "q.onnx"
        for batch, s_file in (("N", scalar), (1, scalars), ("N", scalars), (4, scalar)):
            path = self.write("net.onnx", model(nodes, [value_info("x", 2, batch, 4), value_info("s"), value_info("t", batch, 3)],
                                                [value_info("y", 2, batch, 3)], constants))
            texts = [f"x={x}:axis=1", f"s={s_file}", f"t={t}"]
            data = [word for text in texts for word in ("--data", text)]
            for more in ([], ["--method", "minmax"], ["--approach", "dynamic"]):
                with self.subTest(batch=batch, more=more):
                    facts = json.loads(self.works("quantize", path, "-o", out, *(w.replace("--data", "--calib") for w in data), *more, "--json"))
                    self.assertEqual((facts["samples"], facts["layers"]), (9, 1))
                    compared = json.loads(self.works("compare", path, out, *data, "--json"))
                    self.assertEqual(compared["n"], 9)
                    self.assertGreater(compared["outputs"][0]["snr_db"], 20)
            runs = [self.run_model(m, *texts)["y.npy"] for m in (path, out)]
            self.assertEqual([r.shape for r in runs], [(2, 9, 3)] * 2)

    def recurrent(self):
        """A step of a network with a state: 4 features, 3 outputs. Its path, samples and state."""
        generator = np.random.default_rng(2)
        constants = [floats(n, generator.normal(size=s)) for n, s in (("w", (4, 3)), ("r", (3, 3)))]
        nodes = [node("MatMul", ["x", "w"], ["a"], "in"), node("MatMul", ["h", "r"], ["b"], "again"), node("Add", ["a", "b"], ["c"]),
                 node("Relu", ["c"], ["y"])]
        path = self.write("step.onnx", model(nodes, [value_info("x", "N", 4), value_info("h", 1, 3)], [value_info("y", "N", 3)], constants))
        return path, generator.normal(size=(20, 4)).astype(np.float32), generator.normal(size=(1, 3)).astype(np.float32)

    def test_a_state_that_is_fixed(self):
        path, x, h = self.recurrent()
        texts = [f"x={self.array('x.npy', x)}", f"h={self.array('h.npy', h)}:fixed"]
        together = self.run_model(path, *texts)["y.npy"]
        self.assertEqual(together.shape, (20, 3))
        whole = self.run_model(path, texts[0] + ":fixed", texts[1])["y.npy"]
        self.assertTrue((together == whole).all())
        self.fails(["h.npy has 1 sample of input 'h' (axis 0 of [1,3])", "x.npy has 20", ":fixed"],
                   "run", path, "--input", texts[0], "--input", texts[1].removesuffix(":fixed"), "-o", self.folder / "o")
        labels = self.array("l.npy", together.argmax(1))
        data = [word for text in texts for word in ("--data", text)]
        for more in ([], ["--batch", 7]):
            last = self.works("eval", path, *data, "--labels", labels, *more, "--samples", "3:")
            self.assertTrue(last.splitlines()[-1].startswith("top1 100.00 top5 100.00 n 17 "), last)
        out = self.folder / "q.onnx"
        calib = [word for text in texts for word in ("--calib", text)]
        page = self.folder / "page.html"
        for more in ([], ["--method", "minmax", "--bias-correction", "full"], ["--approach", "dynamic"],
                     ["--approach", "weight-only", "--weight-algorithm", "gptq", "--block-size", 0],
                     ["--method", "minmax", "--max-drop", 50, "--labels", labels, "--report", page]):
            with self.subTest(more=more):
                # Bias correction may be taken back, with a warning.
                facts = json.loads(self.warns([], "quantize", path, "-o", out, *calib, *more, "--json"))
                self.assertEqual((facts["samples"], facts["layers"]), (20, 2))
                compared = json.loads(self.works("compare", path, out, *data, "--json"))
                self.assertEqual(compared["n"], 20)
                self.assertGreater(compared["outputs"][0]["snr_db"], 15)
        validation = [word for text in texts for word in ("--validation", text)]
        self.works("quantize", path, "-o", out, *calib, *validation, "--labels", labels, "--max-drop", 50, "--method", "minmax")
        config = self.config(f"calib: ['{texts[0]}', '{texts[1]}']\nmethod: minmax\n")
        self.works("quantize", path, "-o", out, "--config", config)

    def test_a_model_without_inputs(self):
        values = np.array([[-1, 2, 5]], np.float32)
        path = self.write("none.onnx", model([node("Relu", ["c"], ["y"])], [], [value_info("y", 1, 3)], [floats("c", values)]))
        self.assertTrue((self.run_model(path)["y.npy"] == np.maximum(values, 0)).all())
        labels = self.array("l.npy", np.array([2]))
        self.assertTrue(self.works("eval", path, "--labels", labels).splitlines()[-1].startswith("top1 100.00 top5 100.00 n 1 "))
        self.assertEqual(self.works("compare", path, path).splitlines()[-1], "agreement 100.00 n 1")
        self.fails(["l.npy", "no inputs"], "run", path, "--input", labels, "-o", self.folder / "out")
        matmul = model([node("Shape", ["c"], ["n"]), node("ConstantOfShape", ["n"], ["z"]), node("Add", ["z", "c"], ["a"]),
                        node("MatMul", ["a", "w"], ["y"])], [], [value_info("y", 1, 2)],
                       [floats("c", values), floats("w", np.ones((3, 2)))])
        path = self.write("matmul.onnx", matmul)
        for more in ([], ["--method", "minmax"], ["--approach", "dynamic"]):
            with self.subTest(more=more):  # all of it is constant, so a warning says that no layer is quantized
                done = self.detent("quantize", path, "-o", self.folder / "q.onnx", *more)
                self.assertEqual(done.returncode, 0, done.stderr)
                compared = json.loads(self.works("compare", path, self.folder / "q.onnx", "--json"))
                self.assertLess(compared["outputs"][0]["max_error"], 0.1)

    def samples_in_folders(self, name, inputs, kind="sample_{}", file="input_{}.npy"):
        """A folder for each of the samples, which are lists of arrays."""
        for i, sample in enumerate(inputs):
            folder = self.folder / name / kind.format(i)
            folder.mkdir(parents=True)
            for j, values in enumerate(sample):
                if file.endswith(".pb"):
                    (folder / file.format(j)).write_bytes(floats("", values))
                else:
                    np.save(folder / file.format(j), values)
        return self.folder / name

    def test_a_folder_of_samples_of_many_shapes(self):
        path, _, h = self.recurrent()
        generator = np.random.default_rng(3)
        samples = [[generator.normal(size=(1 + i % 5, 4)).astype(np.float32), h * i] for i in range(12)]
        for kind, file in (("sample_{}", "input_{}.npy"), ("test_data_set_{}", "input_{}.pb")):
            folder = self.samples_in_folders(kind.format("all"), samples, kind, file)
            found = self.run_model(path, folder)
            self.assertEqual(len(found), 12)
            for i, (x, h_i) in enumerate(samples):
                (expected,) = self.run_model(path, f"x={self.array('x.npy', x)}:fixed", f"h={self.array('h.npy', h_i)}:fixed").values()
                actual = found[kind.format(i) + "/output_0.npy"]
                self.assertEqual(actual.shape, (len(x), 3))
                self.assertTrue((actual == expected).all())
            facts = json.loads(self.works("run", path, "--input", folder, "-o", self.folder / "json", "--json"))["outputs"]
            self.assertEqual([f["file"] for f in facts[:3]],  # in the order of the numbers
                             [str(self.folder / "json" / kind.format(i) / "output_0.npy") for i in range(3)])
            self.assertEqual(json.loads(self.works("compare", path, path, "--data", folder, "--json", "--samples", "9:"))["n"], 3)
            out, page = self.folder / "q.onnx", self.folder / "page.html"
            for more in ([], ["--method", "kl", "--bias-correction", "full", "--report", page], ["--approach", "dynamic"],
                         ["--approach", "weight-only", "--weight-algorithm", "awq", "--block-size", 0]):
                with self.subTest(kind=kind, more=more):
                    facts = json.loads(self.works("quantize", path, "-o", out, "--calib", folder, *more, "--json"))
                    self.assertEqual((facts["samples"], facts["layers"]), (12, 2))
                    compared = json.loads(self.works("compare", path, out, "--data", folder, "--json"))
                    self.assertGreater(compared["outputs"][0]["snr_db"], 15)
        ones = self.samples_in_folders("ones", [[x[:1], h_i] for x, h_i in samples])
        labels = self.array("l.npy", np.zeros(12, np.int64))
        first = self.works("eval", path, "--data", ones, "--labels", labels, "--samples", ":5").splitlines()[-1]
        self.assertIn(" n 5 ", first)
        self.fails(["2 rows of scores for 1 sample", "[2,3]"], "eval", path, "--data", folder, "--labels", labels)
        self.fails(["--batch 3"], "eval", path, "--data", ones, "--labels", labels, "--batch", 3)
        self.works("quantize", path, "-o", out, "--calib", folder, "--validation", ones, "--labels", labels, "--max-drop", 100,
                   "--method", "minmax")

    def test_folders_that_are_wrong(self):
        path, x, h = self.recurrent()
        folder = self.samples_in_folders("in", [[x[:2], h], [x[:3], h]])
        out = self.folder / "out"
        run = ["run", path, "-o", out, "--input"]
        self.fails(["x=", "a folder holds the values of all inputs", f"--input {folder}"], *run, f"x={folder}")
        self.fails([":fixed", "a folder holds"], *run, f"{folder}:fixed")
        self.fails(["write only --input"], *run, folder, "--input", f"h={self.array('h.npy', h)}:fixed")
        self.fails(["holds no samples", "sample_0", "test_data_set_0"], *run, folder / "sample_0")
        (folder / "sample_1" / "h.npy").write_bytes(b"")
        self.fails(["both", "input_1.npy", "h.npy", "input 'h'"], *run, folder)
        (folder / "sample_1" / "h.npy").unlink()
        (folder / "sample_1" / "input_1.npy").unlink()
        self.fails(["sample_1", "input 'h' float32 [1,3]", "input_1.npy", "input_1.pb", "h.npy"], *run, folder)
        os.mkfifo(folder / "sample_1" / "h.npy")
        self.fails(["h.npy is not a regular file"], *run, folder)
        (folder / "sample_1" / "h.npy").unlink()
        np.save(folder / "sample_1" / "h.npy", h.astype(np.float64))
        self.fails(["h.npy", "float64", "'h' is float32"], *run, folder)
        np.save(folder / "sample_1" / "h.npy", np.ones((1, 4), np.float32))
        self.fails(["h.npy", "[1,4]", "'h' [1,3]", "given whole"], *run, folder)
        self.assertFalse(out.exists())
        np.save(folder / "sample_1" / "h.npy", h)
        (folder / "sample_1" / "input_2.pb").write_bytes(b"")
        self.fails(["input_2.pb", "only 2 inputs"], *run, folder)
        (folder / "sample_1" / "input_2.pb").unlink()
        (folder / "test_data_set_0").mkdir()
        self.fails(["both sample_I and test_data_set_I"], *run, folder)
        (folder / "test_data_set_0").rmdir()
        out.write_bytes(b"a file")
        self.fails([out], *run, folder)
        out.unlink()
        self.works(*run, folder)

    def test_texts_that_name_no_input(self):
        path, x, h = self.recurrent()
        x_file, h_file = self.array("x.npy", x), self.array("h.npy", h)
        run = ["run", path, "-o", self.folder / "out", "--input"]
        state = ["--input", f"h={h_file}:fixed"]
        self.fails(["input 'h' float32 [1,3]", "--input h=FILE.npy"], *run, f"x={x_file}")
        self.fails(["no input 'y'", "'x' float32 [-1,4], 'h' float32 [1,3]"], *run, f"y={x_file}", *state)
        self.fails(["':rows'", ":axis=K", ":fixed"], *run, f"x={x_file}:rows", *state)
        self.fails(["'first' is not an integer", ":axis=K"], *run, f"x={x_file}:axis=first", *state)
        self.fails(["NAME=", "'x' float32 [-1,4]"], *run, x_file, *state)
        self.fails(["missing.npy"], *run, f"x={self.folder / 'missing.npy'}:axis=0", *state)
        self.fails(["--data h=FILE.npy"], "compare", path, path, "--data", f"x={x_file}")
        self.fails(["--calib h=FILE.npy"], "quantize", path, "-o", self.folder / "q.onnx", "--calib", f"x={x_file}")
        for text in ("", "x=", "x=:fixed"):
            self.fails(["names no file", "=FILE.npy"], *run, text, *state)
        self.wrong_usage(["--input is required", "--input x=FILE.npy", "'h' float32 [1,3]"], "run", path, "-o", self.folder / "out")
        self.wrong_usage(["--data is required", "--data x=FILE.npy"], "compare", path, path)
        self.wrong_usage(["--data is required"], "eval", path, "--labels", self.array("l.npy", np.zeros(20, np.int64)))
        self.wrong_usage(["--approach static", "--calib x=FILE.npy", "'h' float32 [1,3]"], "quantize", path, "-o", self.folder / "q.onnx")
        odd = self.array("odd:name=1.npy", x)
        self.works(*run, f"x={odd}", *state)
        self.works(*run, f"x={odd}:axis=-2", *state)
        self.assertFalse((self.folder / "q.onnx").exists())

    def test_onnx_test_data(self):
        """ONNX's own test data as samples: what is written is what it expects."""
        folders = sorted(options.shared.glob("conformance/*/*")) if options.shared else []
        if not folders:
            self.skipTest("no conformance/*/* in --shared: ONNX's test data is not here")
        works = 0
        for folder in folders:
            data = folder / "test_data_set_0" / "output_0.pb"
            if not (folder / "model.onnx").exists() or not data.exists():
                continue
            out = self.folder / "out" / folder.name
            done = self.detent("run", folder / "model.onnx", "--input", folder, "-o", out)
            if done.returncode != 0:
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), (folder, done.stderr))
                continue
            works += 1
            self.assertTrue((out / "test_data_set_0" / "output_0.npy").exists(), folder)
        self.assertGreater(works, len(folders) * 0.8)

    # ------------------------------------------------------------------------------ external data

    def two_layers(self, location="weights"):
        """A model with two layers whose weights are in another file: 257 KiB each."""
        random = np.random.default_rng(5)
        weights = [random.standard_normal((256, 257), np.float32) / 16 for _ in range(2)]
        (self.folder / location).write_bytes(b"".join(w.tobytes() for w in weights))
        path = self.folder / "layers.onnx"
        nodes = [node("MatMul", ["x", "a"], ["y"]), node("Gemm", ["y", "b"], ["z"]) + field(5, field(1, "transB") + field(3, 1) + field(20, 2))]
        path.write_bytes(model(nodes, [value_info("x", "n", 256)], [value_info("z", "n", 256)],
                               [external_floats("a", weights[0], location, 0),
                                external_floats("b", weights[1], location, weights[0].nbytes)]))
        x = self.folder / "x.npy"
        np.save(x, random.standard_normal((3, 256), np.float32))
        return path, x

    def test_external_data_is_written(self):
        path, x = self.two_layers()
        out, data = self.folder / "out.onnx", self.folder / "out.onnx.data"
        forms = (["--approach", "weight-only"], ["--approach", "weight-only", "--bits", 8], ["--approach", "weight-only", "--weight-algorithm", "hqq"],
                 ["--approach", "dynamic"], ["--method", "minmax", "--calib", x])
        for form in forms:
            one = self.folder / "one.onnx"
            self.works("quantize", path, "-o", one, *form)
            self.assertFalse(pathlib.Path(str(one) + ".data").exists())
            text = self.works("quantize", path, "-o", out, "--external-data-from", "1K", *form)
            self.assertIn(f"external data in {data}, {data.stat().st_size} bytes", text)
            self.assertGreater(data.stat().st_size, 60000)
            self.assertLess(out.stat().st_size, 20000)
            self.works("run", one, "--input", x, "-o", self.folder / "one")
            self.works("run", out, "--input", x, "-o", self.folder / "two")
            self.assertEqual((self.folder / "one/z.npy").read_bytes(), (self.folder / "two/z.npy").read_bytes())
            first = out.read_bytes(), data.read_bytes()
            for threads in (2, 3):
                facts = json.loads(self.works("quantize", path, "-o", out, "--external-data-from", "1K", "--threads", threads,
                                              "--json", *form))
                self.assertEqual((out.read_bytes(), data.read_bytes()), first)
                self.assertEqual(facts["external_data"], str(data))
                self.assertEqual(facts["bytes_after"], len(first[0]) + len(first[1]))
            self.assertIn(" bytes", self.works("inspect", out))
        self.assertIsNone(json.loads(self.works("quantize", path, "-o", one, "--json", *forms[0]))["external_data"])
        for wrong in ("0", "3G", "some"):
            self.wrong_usage(["--external-data-from"], "quantize", path, "-o", out, "--external-data-from", wrong)

    def test_external_data_takes_the_place_of_what_it_is_made_from(self):
        path, x = self.two_layers()
        own = self.folder / "layers.onnx.data"
        (self.folder / "weights").rename(own)
        a = np.fromfile(own, np.float32)[: 256 * 257].reshape(256, 257)
        c = np.fromfile(own, np.float32)[256 * 257 :].reshape(257, 256)
        nodes = [node("MatMul", ["x", "a"], ["y"]), node("MatMul", ["y", "c"], ["z"])]
        path.write_bytes(model(nodes, [value_info("x", "n", 256)], [value_info("z", "n", 256)],
                               [external_floats("a", a, own.name, 0), external_floats("c", c, own.name, a.nbytes)]))
        flags = ["--approach", "weight-only", "--external-data-from", 1]
        self.works("quantize", path, "-o", self.folder / "out.onnx", *flags)
        expected = (self.folder / "out.onnx.data").read_bytes()
        self.works("quantize", path, "-o", path, *flags)
        self.assertEqual(own.read_bytes(), expected)
        self.works("run", path, "--input", x, "-o", self.folder / "z")

    @unittest.skipUnless(hasattr(os, "fork"), "needs limits of processes")
    def test_external_data_that_does_not_fit(self):
        import resource
        path, _ = self.two_layers()
        before = sorted(p.name for p in self.folder.iterdir())
        for limit in (0, 10000, 60000):
            for more in ([], ["--external-data-from", "1"]):
                done = subprocess.run(
                    [options.detent, "quantize", path, "-o", self.folder / "out.onnx", "--approach", "weight-only", *more],
                    capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                self.assertEqual(done.returncode, 1, done)
                self.assertIn("cannot write", done.stderr)
                self.assertIn("out.onnx", done.stderr)
                self.assertEqual(sorted(p.name for p in self.folder.iterdir()), before)
        self.fails(["cannot write", "nowhere"], "quantize", path, "-o", self.folder / "nowhere" / "out.onnx", "--approach", "dynamic")

    def test_external_data_that_is_damaged(self):
        path, x = self.two_layers()
        weights = self.folder / "weights"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        for command in (["inspect", path], ["run", path, "--input", x, "-o", self.folder / "z"],
                        ["quantize", path, "-o", self.folder / "out.onnx", "--approach", "weight-only"]):
            self.fails(["layers.onnx", "'b'", "weights", str(len(whole) - 1)], *command)
        weights.unlink()
        weights.mkdir()
        self.fails(["'a'", "is a folder"], "inspect", path)
        weights.rmdir()
        self.fails(["'a'", "weights"], "inspect", path)
        if hasattr(os, "mkfifo"):
            os.mkfifo(weights)
            self.fails(["'a'", "not a regular file"], "inspect", path)

    # ----------------------------------------------------------------------------------- quantize

    def test_quantize(self):
        out = self.folder / "out.onnx"
        text = self.works(*self.quantize(output=out))
        self.assertIn(str(out), text)
        self.assertLess(out.stat().st_size, MODEL.stat().st_size)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["out.onnx"])
        first = out.read_bytes()
        facts = json.loads(self.works(*self.quantize("--json", output=out)))
        self.assertEqual(first, out.read_bytes())
        self.assertEqual(facts["samples"], 100)
        self.assertEqual(facts["bytes_after"], len(first))
        facts = json.loads(self.works(*self.quantize("--json", "--samples", 7, "--granularity", "per-tensor")))
        self.assertEqual((facts["samples"], facts["granularity"]), (7, "per-tensor"))
        self.works(*self.quantize("--approach", "static", "--format", "qdq", "--activations", "u8", "--method", "minmax",
                                  "--bias-correction", "none"))
        accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
        self.assertGreaterEqual(accuracy, 98.0)
        self.fails(["already quantized"], *self.quantize(model=out, output=self.folder / "twice.onnx"))

    def test_the_pipeline_of_nncf(self):
        out = self.folder / "nncf.onnx"
        facts = json.loads(self.works(*self.quantize("--pipeline", "nncf", "--json", output=out)))
        self.assertEqual((facts["pipeline"], facts["layers"], facts["quantized_tensors"]), ("nncf", 6, 7))
        self.assertEqual({a["method"] for a in facts["activations"]}, {"nncf"})
        accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
        self.assertGreaterEqual(accuracy, 97.0)
        first = out.read_bytes()
        for more in (["--preset", "performance"], ["--target-device", "gpu"], ["--overflow-fix", "first-layer"], ["--threads", 2]):
            self.works(*self.quantize("--pipeline", "nncf", *more, output=out))
            self.assertTrue(first == out.read_bytes(), more)
        # All activations of this network are positive, so that both presets make the same of them.
        for more in (["--overflow-fix", "none"], ["--samples", 3],
                     ["--model-type", "transformer", "--smooth-quant", "0.5"]):
            self.works(*self.quantize("--pipeline", "nncf", *more, output=out))
            self.assertTrue(first != out.read_bytes(), more)
        self.works(*self.quantize("--pipeline", "nncf", "--preset", "mixed", "--bias-correction", "full", output=out))
        layers = lambda *more: json.loads(self.works(*self.quantize("--pipeline", "nncf", "--json", *more)))["layers"]
        self.assertEqual(layers("--ignore", "type:Conv"), 1)
        self.fails(["ignored name 'absent'"], *self.quantize("--pipeline", "nncf", "--ignore", "absent"))
        # By a configuration file, too.
        config = self.write("nncf.yaml", b"pipeline: nncf\npreset: performance\n")
        self.works(*self.quantize("--config", config, output=out))
        self.assertTrue(first == out.read_bytes())
        # Floats of 8 bits.
        for mode, least in (("fp8-e4m3", 97.0), ("fp8-e5m2", 95.0)):
            self.works(*self.quantize("--pipeline", "nncf", "--mode", mode, output=out))
            accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
            self.assertGreaterEqual(accuracy, least)
            self.wrong_usage([f"--mode {mode} has no --preset mixed"],
                             *self.quantize("--pipeline", "nncf", "--mode", mode, "--preset", "mixed"))
            self.wrong_usage(["--mode " + mode, "--format qoperator"],
                             *self.quantize("--pipeline", "nncf", "--mode", mode, "--format", "qoperator"))
        self.works(*self.quantize("--pipeline", "nncf", "--mode", "int8", output=out))
        self.assertTrue(first == out.read_bytes())
        self.wrong_usage(["--pipeline auto", "--mode"], *self.quantize("--mode", "int8"))
        self.wrong_usage(["--pipeline nncf", "--method"], *self.quantize("--pipeline", "nncf", "--method", "kl"))
        self.works(*self.quantize("--pipeline", "nncf", "--activations", "u8", output=out))
        self.wrong_usage(["--activations s8"], *self.quantize("--pipeline", "nncf", "--activations", "s8"))
        self.wrong_usage(["--compress", "--activations"],
                         *self.quantize("--pipeline", "nncf", "--compress", "int8-sym", "--activations", "u8"))
        self.wrong_usage(["--activations"], "observe", MODEL, "--calib", CALIBRATION, "--pipeline", "nncf", "--activations", "u8",
                         "-o", self.folder / "x.states")
        self.wrong_usage(["--pipeline auto", "--preset"], *self.quantize("--preset", "mixed"))
        self.wrong_usage(["--pipeline"], *self.quantize("--pipeline", "other"))
        self.wrong_usage(["--smooth-quant", "--model-type transformer"], *self.quantize("--pipeline", "nncf", "--smooth-quant"))

    def test_nncf_compression(self):
        out = self.folder / "out.onnx"
        bare = ["quantize", MODEL, "-o", out, "--pipeline", "nncf"]
        for mode in ("int8-asym", "int8-sym"):
            self.assertIn("6 layers: 0 of 4 bits, 6 of 8 bits, ", self.works(*bare, "--compress", mode))
        self.warns(["no layer has weights of 4 bits", "--all-layers"], *bare, "--compress", "int4-sym")
        int4 = [*bare, "--compress", "int4-asym", "--group-size", 16, "--all-layers"]
        self.assertIn("6 layers: 1 of 4 bits, 5 of 8 bits, ", self.works(*int4))
        first = out.read_bytes()
        self.assertIn(b"MatMulNBits", first)
        self.assertIn("1 layer: 1 of 4 bits, 0 of 8 bits, ", self.works(*int4, "--backup", "none"))
        self.assertIn("5 layers: 0 of 4 bits", self.warns(["no layer has weights of 4 bits: only MatMul, Gemm and embeddings"],
                                                          *int4, "--ignore", "type:Gemm"))
        facts = json.loads(self.works(*int4, "--json"))
        self.assertEqual((facts["approach"], facts["format"], facts["granularity"], facts["weights"]),
                         ("compression", None, None, {"of_4_bits": 1, "of_8_bits": 5, "mode": "int4-asym"}))
        # The only layer that may have 4 bits is all of what the ratio divides.
        self.warns(["no layer has weights of 4 bits: --ratio allows none"], *int4, "--ratio", "0.5")
        self.assertNotIn(b"MatMulNBits", out.read_bytes())
        self.warns(["no layer has weights of 4 bits"], *int4, "--ratio", "0.5", "--sensitivity", "mean-activation-variance",
                   "--calib", CALIBRATION)
        self.assertNotIn(b"MatMulNBits", out.read_bytes())
        self.works(*int4, "--scale-estimation", "--calib", CALIBRATION)
        self.assertNotEqual(first, out.read_bytes())
        self.warns(["--awq has scaled nothing"], *int4, "--awq")
        config = self.write("compress.yaml", b"pipeline: nncf\ncompress: int4-asym\ngroup-size: 16\nall-layers: true\n")
        self.works("quantize", MODEL, "-o", out, "--config", config)
        self.assertTrue(first == out.read_bytes())
        self.fails(["group size 48", "64 inputs"], *bare, "--compress", "int4-sym", "--all-layers", "--group-size", 48)
        for more in (["--ratio", "0.5"], ["--group-size", 16], ["--all-layers"], ["--awq"], ["--backup", "none"],
                     ["--sensitivity", "weight-quantization-error"], ["--scale-estimation"], ["--group-size-fallback", "adjust"],
                     ["--calib", CALIBRATION]):
            self.wrong_usage(["--compress int8-asym has no " + more[0]], *bare, "--compress", "int8-asym", *more)
        for more in (["--group-size", 0], ["--group-size", -2], ["--ratio", 0]):
            self.wrong_usage([" ".join(map(str, more)) + ": expected"], *bare, "--compress", "int4-sym", *more)
        self.wrong_usage(["--sensitivity max-activation-variance", "--calib"],
                         *int4, "--ratio", "0.5", "--sensitivity", "max-activation-variance")
        self.wrong_usage(["--scale-estimation", "--calib"], *int4, "--scale-estimation")
        self.wrong_usage(["--ratio", "--compress"], *bare, "--ratio", "0.5")
        self.wrong_usage(["--compress", "--preset"], *int4, "--preset", "mixed")
        self.wrong_usage(["--pipeline auto", "--compress"], "quantize", MODEL, "-o", out, "--compress", "int8-asym")
        self.wrong_usage(["--compress", "nf4"], *bare, "--compress", "nf4")

    def test_weights_that_stay_or_are_shared(self):
        out, random = self.folder / "out.onnx", np.random.default_rng(9)
        matrix, cube = random.normal(size=(32, 32)), random.normal(size=(1, 32, 32))

        def saved(name, *nodes, w=matrix, v=cube):
            return self.write(name, model(list(nodes), [value_info("x", 4, 32)], [value_info("y", 4, 32)],
                                          [floats("w", w), floats("v", v)]))

        twice = saved("twice.onnx", node("MatMul", ["x", "w"], ["a"], name="m1"), node("MatMul", ["a", "w"], ["y"], name="m2"))
        nncf = ["-o", out, "--pipeline", "nncf", "--compress", "int8-sym"]
        data = self.array("x.npy", random.normal(size=(20, 32)).astype(np.float32))
        for ignored in ("m1", "m2"):
            self.warns([ignored, "compressed although it is ignored"], "quantize", twice, *nncf, "--ignore", ignored)
            self.warns([ignored, "quantized although it is ignored"], "quantize", twice, "-o", out, "--calib", data, "--pipeline", "nncf",
                       "--ignore", ignored)
        third = saved("third.onnx", node("MatMul", ["x", "w"], ["a"], name="m1"), node("MatMul", ["a", "v"], ["y"], name="m2"))
        text = self.warns(["1 layer stays in float", "'m2'", "[1,32,32]"], "quantize", third, "-o", out, "--approach", "weight-only")
        self.assertIn("1 layer,", text)
        for approach in (["--calib", data, "--method", "minmax"], ["--approach", "dynamic"]):
            self.warns(["1 layer stays in float", "'m2'", "[1,32,32]"], "quantize", third, "-o", out, *approach)
            self.works("quantize", twice, "-o", out, *approach)
        self.warns(["--awq has scaled nothing"], "quantize", twice, "-o", out, "--pipeline", "nncf", "--compress", "int4-sym",
                   "--group-size", 16, "--all-layers", "--awq")
        config = self.write("ignored.yaml", b"approach: weight-only\nignored:\n  names: [m2]\n")
        self.works("quantize", third, "-o", out, "--config", config)
        facts = json.loads(self.warns(["1 layer stays"], "quantize", third, "-o", out, "--approach", "weight-only", "--json",
                                      "--bits", 8, "--block-size", 16))
        self.assertEqual((facts["granularity"], facts["weights"]),
                         (None, {"of_4_bits": 0, "of_8_bits": 1, "algorithm": "rtn", "block_size": 16}))
        tied = saved("tied.onnx", node("MatMul", ["x", "w"], ["a"], name="m1"), node("Transpose", ["w"], ["t"], name="turn"),
                     node("MatMul", ["a", "t"], ["y"], name="m2"))
        out.unlink()
        self.fails(["'m1'", "'turn'", "from opset 21 on"], "quantize", tied, "-o", out, "--pipeline", "nncf", "--compress", "int4-sym",
                   "--group-size", 16, "--all-layers")
        self.assertFalse(out.exists())
        self.works("quantize", tied, *nncf)

    def test_methods(self):
        out = self.folder / "out.onnx"
        refused = self.detent(*self.quantize("--method", "nothing"))
        self.assertEqual(refused.returncode, 2)
        names = re.search(r"there are ([a-z_, .]+)", refused.stderr).group(1).split(", ")
        self.assertGreaterEqual(set(names), {"minmax", "percentile", "kl", "mse", "isotone"})
        for method in names:
            with self.subTest(method=method):
                self.assertNotEqual(method, "constant")  # no way to find a range
                if method == "ppq.isotone":  # as PPQ has it: the best scale for these logits is 0
                    self.fails(["'logits'", "the scale is 0"], *self.quantize("--method", method, output=out))
                    continue
                facts = json.loads(self.works(*self.quantize("--json", "--method", method.upper(), output=out)))
                self.assertEqual(len(facts["activations"]) > 3, True)
                for one in facts["activations"]:
                    self.assertGreater(one["scale"], 0)
                    self.assertLessEqual(one["min"], one["max"])
                    self.assertLessEqual(one["lower_bound"], one["objective"] + 1e-12)
                accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
                self.assertGreaterEqual(accuracy, 97.0)
        narrow, wide = (json.loads(self.works(*self.quantize("--json", "--method", "percentile", "--percentile", p)))
                        for p in (90, 100))
        for a, b in zip(narrow["activations"], wide["activations"]):
            self.assertEqual(a["tensor"], b["tensor"])
            self.assertLessEqual(a["scale"], b["scale"])
        self.assertTrue(any(a["clipped_fraction"] > 0.01 for a in narrow["activations"]))
        self.assertTrue(all(a["clipped_fraction"] == 0 for a in wide["activations"]))

    def test_forms(self):
        """Every form has the accuracy of the network, and the operators that are its own."""
        out = self.folder / "out.onnx"
        for arguments, operator in ((["--format", "qdq"], "QuantizeLinear"), (["--format", "qoperator"], "QLinearConv"),
                                    (["--approach", "dynamic"], "ConvInteger"),
                                    (["--format", "integerops"], "DynamicQuantizeLinear"),
                                    (["--approach", "weight-only", "--bits", "8"], "com.microsoft.MatMulNBits")):
            for activations in ("u8", "s8"):
                if activations == "s8" and operator not in ("QuantizeLinear", "QLinearConv"):
                    continue
                with self.subTest(arguments=arguments, activations=activations):
                    arguments = arguments + ["--activations", "s8"] if activations == "s8" else arguments
                    self.works("quantize", MODEL, "-o", out, *arguments,
                               *([] if "weight-only" in arguments else ["--calib", CALIBRATION]))
                    facts = json.loads(self.works("inspect", out, "--json"))
                    self.assertIn(operator, [o["operator"] for o in facts["operators"]])
                    accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
                    self.assertGreaterEqual(accuracy, 98.0)
                    compared = json.loads(self.works("compare", MODEL, out, "--data", IMAGES, "--json"))
                    self.assertGreater(compared["outputs"][0]["snr_db"], 25)
        # Without samples.
        self.works("quantize", MODEL, "-o", out, "--approach", "dynamic")
        self.works("quantize", MODEL, "-o", out, "--approach", "weight-only", "--weight-algorithm", "hqq")
        compared = json.loads(self.works("compare", MODEL, out, "--data", IMAGES, "--json"))
        self.assertGreater(compared["outputs"][0]["snr_db"], 20)
        by_hqq = out.read_bytes()
        self.works("quantize", MODEL, "-o", out, "--approach", "weight-only")
        self.assertNotEqual(out.read_bytes(), by_hqq)
        self.wrong_usage(["hqq", "bits 8", "rtn"], "quantize", MODEL, "-o", out, "--approach", "weight-only",
                         "--weight-algorithm", "hqq", "--bits", 8)
        self.wrong_usage(["--calib"], "quantize", MODEL, "-o", out, "--approach", "weight-only", "--weight-algorithm", "awq")
        self.wrong_usage(["--bias-correction fast needs calibration samples"], "quantize", MODEL, "-o", out, "--approach", "dynamic",
                         "--bias-correction", "fast")

    def test_the_default_is_no_worse_than_minmax(self):
        """By what the model returns for the samples that both were calibrated with."""
        snr = {}
        for granularity in ("per-channel", "per-tensor"):
            for name, arguments in (("default", []), ("minmax", ["--method", "minmax"])):
                out = self.folder / "out.onnx"
                facts = json.loads(self.works(*self.quantize("--json", "--granularity", granularity, *arguments, output=out)))
                self.assertEqual(len(facts["steps"]) > 5, name == "default")
                compared = json.loads(self.works("compare", MODEL, out, "--data", CALIBRATION, "--samples", "0:64", "--json"))
                snr[name] = compared["outputs"][0]["snr_db"]
            self.assertGreaterEqual(snr["default"], snr["minmax"])

    def test_bias_correction(self):
        plain, corrected = self.folder / "plain.onnx", self.folder / "corrected.onnx"
        self.works(*self.quantize("--bias-correction", "none", output=plain))
        noise = [json.loads(self.works("compare", MODEL, plain, "--data", CALIBRATION, "--json"))["outputs"][0]["snr_db"]]
        for kind in ("fast", "full"):
            facts = json.loads(self.works(*self.quantize("--json", "--bias-correction", kind, output=corrected)))
            self.assertEqual(facts["bias_correction_taken_back"], plain.read_bytes() == corrected.read_bytes())
            noise.append(json.loads(self.works("compare", MODEL, corrected, "--data", CALIBRATION, "--json"))["outputs"][0]["snr_db"])
            self.assertGreaterEqual(noise[-1] + 0.1, noise[0])  # it is judged by 64 of the samples
            accuracy = float(self.works(*self.evaluate(model=corrected)).splitlines()[-1].split()[1])
            self.assertGreaterEqual(accuracy, 98.0)

    def test_budget(self):
        """The best so far is written when the time is up; how much that is depends on the machine."""
        out = self.folder / "out.onnx"
        facts = json.loads(self.works(*self.quantize("--json", "--budget", "0.001", output=out)))
        self.assertTrue(facts["budget_ended"])
        self.assertTrue(any("budget of 0.001 s ended the search" in s["step"] for s in facts["steps"]))
        self.assertIn("the budget of 0.001 s ended the search\n", self.works(*self.quantize("--budget", "0.001", output=out)))
        minmax = self.folder / "minmax.onnx"
        self.works(*self.quantize("--method", "minmax", output=minmax))
        self.assertEqual(out.read_bytes(), minmax.read_bytes())
        whole = json.loads(self.works(*self.quantize("--json", "--budget", "100000", output=out)))
        self.assertFalse(whole["budget_ended"])
        self.works(*self.quantize(output=minmax))
        self.assertEqual(out.read_bytes(), minmax.read_bytes())

    def test_threads(self):
        written = set()
        for threads in (1, 2, 3):
            out = self.folder / f"out{threads}.onnx"
            self.works(*self.quantize("--threads", threads, output=out))
            written.add(out.read_bytes())
        self.assertEqual(len(written), 1)

    def test_report_of_few_bits(self):
        page = self.folder / "page.html"
        self.works(*self.quantize("--method", "minmax", "--activation-bits", 4, "--report", page))
        self.assertIn("uint8, 4 bits", page.read_text())

    def test_report(self):
        page = self.folder / "report.html"
        labels = self.array("labels.npy", np.zeros(100, np.int64))
        for arguments in ([], ["--method", "kl"], ["--format", "qoperator"], ["--approach", "dynamic"]):
            with self.subTest(arguments=arguments):
                self.works(*self.quantize("--report", page, "--labels", labels, *arguments))
                text = page.read_text()
                self.assertTrue(text.startswith("<!DOCTYPE html>"))
                self.assertIn("logits", text)
                self.assertNotIn("http://", text.replace("http://www.w3.org/", ""))
                page.unlink()
        self.wrong_usage(["--calib"], "quantize", MODEL, "-o", self.folder / "x.onnx", "--approach", "dynamic", "--report", page)
        # Samples that only the report uses.
        for arguments in (["--approach", "dynamic", "--bias-correction", "none"], ["--approach", "weight-only"]):
            self.assertEqual(json.loads(self.works(*self.quantize("--report", page, "--json", *arguments)))["samples"], 100)
        missing = self.folder / "missing" / "report.html"
        self.fails([missing], *self.quantize("--report", missing))

    def test_report_that_fails_does_not_take_the_model_away(self):
        out, page = self.folder / "out.onnx", self.folder / "report.html"
        minmax = self.quantize("--method", "minmax", output=out)
        self.works(*minmax)
        expected = out.read_bytes()
        out.unlink()
        for label in (10, -1):  # there are ten classes
            labels = self.array("labels.npy", np.full(100, label, np.int64))
            self.fails(["labels.npy", str(label), "out.onnx is written"], *minmax, "--report", page, "--labels", labels)
            self.assertFalse(page.exists())
            self.assertEqual(out.read_bytes(), expected)
            out.unlink()

    def test_samples_that_nothing_uses(self):
        out = self.folder / "out.onnx"
        self.wrong_usage(["dynamic", "--bias-correction none", "--calib"],
                         *self.quantize("--approach", "dynamic", "--bias-correction", "none"))
        for algorithm in ("rtn", "hqq"):
            self.wrong_usage(["weight-only", "--calib"],
                             *self.quantize("--approach", "weight-only", "--weight-algorithm", algorithm))
        for more in (["--approach", "dynamic", "--bias-correction", "none"], ["--approach", "weight-only"],
                     ["--pipeline", "nncf", "--compress", "int8-sym"]):
            self.wrong_usage(["--samples needs --calib"], "quantize", MODEL, "-o", out, *more, "--samples", 3)
        self.assertFalse(out.exists())
        # Biases are not corrected for a model that cannot be run, which only the model tells.
        path = self.write("around.onnx", model(
            [node("MatMul", ["x", "w"], ["a"]), node("Fancy", ["a"], ["y"])], [value_info("x", "N", 32)],
            [value_info("y", "N", 32)], [floats("w", np.random.default_rng(6).normal(size=(32, 32)))]))
        data = self.array("x.npy", np.zeros((3, 32), np.float32))
        facts = json.loads(self.warns(["nothing has used the samples of --calib"], "quantize", path, "-o", out,
                                      "--approach", "dynamic", "--calib", data, "--json"))
        self.assertEqual((facts["samples"], facts["layers"]), (0, 1))

    def config(self, text):
        path = self.folder / "config.yaml"
        path.write_text(text)
        return path

    # ------------------------------------------------- configuration files of Neural Compressor

    def tuned(self, *more, out=None, **sections):
        """The arguments for a file with these sections; a static QDQ one unless they say otherwise."""
        sections = {"model": {"name": "digits", "framework": "onnxrt_qdqops"}, **sections}
        path = self.folder / "nc.yaml"
        path.write_text(json.dumps(sections))  # JSON is YAML
        return ["quantize", MODEL, "-o", out or self.folder / "out.onnx", "--config", path, *more]

    def dataset(self, inputs=IMAGES, labels=LABELS):
        return {"dataset": {"npy": {"inputs": str(inputs), "labels": str(labels)} if labels else {"inputs": str(inputs)}}}

    def accuracy(self, metric=None, **more):
        return {"accuracy": {"metric": metric or {"topk": 1}, "dataloader": self.dataset(), **more}}

    def test_neural_compressor_file_as_it_stands(self):
        path = self.folder / "conf.yaml"
        path.write_text("""model:                                # comments stay
  name: bert
  framework: onnxrt_integerops
quantization:
  approach: post_training_dynamic_quant
  calibration:
    sampling_size: 8, 16, 32
tuning:
  accuracy_criterion:
    relative:  0.01
  exit_policy:
    timeout: 0
  random_seed: 9527
""")
        out = self.folder / "out.onnx"
        self.assertIn("nothing was tuned", self.works("quantize", MODEL, "-o", out, "--config", path))
        operators = {o["operator"] for o in json.loads(self.works("inspect", out, "--json"))["operators"]}
        self.assertLessEqual({"ConvInteger", "MatMulInteger"} - {"MatMulInteger"}, operators)
        self.assertGreater(float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1]), 98.0)
        self.assertEqual([p.name for p in self.folder.iterdir() if "history" in p.name], [])

    def test_neural_compressor_without_an_evaluation(self):
        calibrated = ["--calib", CALIBRATION]
        fast = {"exit_policy": {"performance_only": True}}
        self.assertIn("performance_only is set, so nothing was tuned",
                      self.works(*self.tuned(*calibrated, evaluation=self.accuracy(), tuning=fast)))
        self.assertIn("--validation", self.works(*self.tuned(*calibrated, "--labels", LABELS)))
        data = {"accuracy": {"dataloader": self.dataset(labels=None)}}
        self.assertIn("neither a metric nor labels", self.works(*self.tuned(*calibrated, evaluation=data)))

    def test_neural_compressor_types_and_rules(self):
        fast = {"exit_policy": {"performance_only": True}}

        def pairs(**quantization):
            self.works(*self.tuned("--calib", CALIBRATION, evaluation=self.accuracy(), tuning=fast, quantization=quantization))
            found = json.loads(self.works("inspect", self.folder / "out.onnx", "--json"))["operators"]
            return sum(o["count"] for o in found if o["operator"] == "DequantizeLinear")

        half = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
        whole = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8"}}
        self.assertLess(pairs(optype_wise={"Conv": half}), pairs(optype_wise={"Conv": half}, op_wise={"conv2_pw": whole}))

    def test_neural_compressor_tunes(self):
        out = self.folder / "out.onnx"
        calibration = {"calibration": {"sampling_size": [20, 50], "dataloader": self.dataset(CALIBRATION, None)}}
        for framework, operator in (("onnxrt_qdqops", "QuantizeLinear"), ("onnxrt_qlinearops", "QLinearConv"),
                                    ("onnxrt_integerops", "ConvInteger")):
            with self.subTest(framework=framework):
                sections = {"model": {"name": "m", "framework": framework}, "evaluation": self.accuracy(),
                            "quantization": calibration if operator != "ConvInteger" else {}}
                facts = json.loads(self.works(*self.tuned("--json", **sections)))
                self.assertTrue(facts["goal_met"])
                self.assertEqual((facts["end"], len(facts["trials"])), ("goal", 1))
                operators = [o["operator"] for o in json.loads(self.works("inspect", out, "--json"))["operators"]]
                self.assertIn(operator, operators)
                exact = float(self.works(*self.evaluate()).splitlines()[-1].split()[1])
                ours = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
                self.assertAlmostEqual(facts["float_metric"] * 100, exact, 2)
                self.assertAlmostEqual(facts["best"]["metric"] * 100, ours, 2)
        for strategy in ("basic", "conservative", "mse", "mse_v2", "hawq_v2", "bayesian", "random", "exhaustive"):
            with self.subTest(strategy=strategy):
                tuning = {"strategy": {"name": strategy}, "accuracy_criterion": {"absolute": -0.5}, "exit_policy": {"max_trials": 4}}
                facts = json.loads(self.warns(["missed"], *self.tuned("--json", "--calib", CALIBRATION, evaluation=self.accuracy(),
                                                                      tuning=tuning)))
                self.assertEqual((facts["goal_met"], facts["strategy"]), (False, strategy))
                self.assertLessEqual(len(facts["trials"]), 4)
                self.assertEqual(max(t["metric"] for t in facts["trials"]), facts["best"]["metric"])
                self.assertAlmostEqual(facts["missed_by"], facts["target"] - facts["best"]["metric"])

    def test_neural_compressor_metrics(self):
        data = {"quantization": {"calibration": {"dataloader": self.dataset(CALIBRATION, None)}}}
        for metric in ({"topk": 5}, {"F1": {}}, {"mAP": {"map_points": 11}}, {"Accuracy": {}}):
            with self.subTest(metric=metric):
                facts = json.loads(self.works(*self.tuned("--json", evaluation=self.accuracy(metric), **data)))
                self.assertTrue(facts["goal_met"])
                self.assertGreater(facts["best"]["metric"], 0.95)
        error = {"accuracy": {"metric": {"MSE": {"compare_label": False}}, "dataloader": self.dataset(labels=None)}}
        goal = {"accuracy_criterion": {"absolute": 1.0}}
        facts = json.loads(self.works(*self.tuned("--json", evaluation=error, tuning=goal, **data)))
        self.assertEqual(facts["float_metric"], 0)
        self.assertTrue(0 < facts["best"]["metric"] < 1)
        several = {"accuracy": {"multi_metrics": {"topk": 1, "F1": {}}, "dataloader": self.dataset()}}
        facts = json.loads(self.works(*self.tuned("--json", evaluation=several, **data)))
        self.assertEqual(str(facts["float_metric"]), "0.0")  # drops are compared, and 0 has no sign
        self.assertGreaterEqual(facts["best"]["metric"], -0.01)
        several["accuracy"]["multi_metrics"]["weight"] = [0.75, 0.25]
        facts = json.loads(self.works(*self.tuned("--json", evaluation=several, **data)))
        self.assertGreater(facts["best"]["metric"], 0.95)

    def test_neural_compressor_history(self):
        work, again = self.folder / "work", self.folder / "again"
        tuning = {"strategy": {"name": "random"}, "accuracy_criterion": {"absolute": -0.5}, "exit_policy": {"max_trials": 3},
                  "workspace": {"path": str(work)}}
        sections = {"evaluation": self.accuracy(), "tuning": tuning}
        self.warns(["missed"], *self.tuned("--calib", CALIBRATION, **sections))
        first = json.loads((work / "history.json").read_text())
        self.assertEqual(len(first["trials"]), 3)
        tuning["exit_policy"]["max_trials"] = 5
        tuning["workspace"] = {"path": str(again), "resume": str(work / "history.json")}
        self.warns(["missed"], *self.tuned("--calib", CALIBRATION, **sections))
        second = json.loads((again / "history.json").read_text())
        self.assertEqual(len(second["trials"]), 5)
        self.assertEqual([t["metric"] for t in second["trials"][:3]], [t["metric"] for t in first["trials"]])
        resumed = (self.folder / "out.onnx").read_bytes()
        tuning["workspace"] = {"path": str(self.folder / "third")}
        self.warns(["missed"], *self.tuned("--calib", CALIBRATION, **sections))
        self.assertEqual(resumed, (self.folder / "out.onnx").read_bytes())
        # A history of something else, and a file that is none.
        tuning["workspace"] = {"resume": str(work)}
        self.fails([work, "another"], *self.tuned("--calib", IMAGES, **sections, out=self.folder / "no.onnx"))
        tuning["workspace"] = {"resume": str(MODEL)}
        error = self.fails([MODEL, "not a history of trials: no JSON at byte 1"], *self.tuned("--calib", CALIBRATION, **sections, out=self.folder / "no.onnx"))
        self.assertTrue(error.isprintable() or error.strip().isprintable(), error)
        for key, value in (("samples", -1), ("samples", 1.5), ("granularity", "per-row"), ("weight_scales", "best"),
                           ("method", 5), ("metric", None)):
            damaged = json.loads((work / "history.json").read_text())
            damaged["trials"][0][key] = value
            if key == "metric":
                del damaged["trials"][0][key]
            tuning["workspace"] = {"resume": str(self.write("damaged.json", json.dumps(damaged).encode()))}
            error = self.fails(["damaged.json", "not a history of trials: "], *self.tuned("--calib", CALIBRATION, **sections, out=self.folder / "no.onnx"))
            self.assertNotIn("exception", error)
        self.assertFalse((self.folder / "no.onnx").exists())

    def perceptron(self, rows="N", outputs=(("y", 4),)):
        """A model of x [rows, 8] with a product for each output, and its weights."""
        random = np.random.default_rng(11)
        weights = {n: random.normal(size=(8, k)).astype(np.float32) for n, k in outputs}
        nodes = [node("MatMul", ["x", "w_" + n], [n], "to_" + n) for n, _ in outputs]
        return weights, self.write("perceptron.onnx", model(
            nodes, [value_info("x", rows, 8)], [value_info(n, rows, k) for n, k in outputs],
            [floats("w_" + n, w) for n, w in weights.items()]))

    def labelled_samples(self):
        return (self.array("x.npy", np.random.default_rng(12).normal(size=(16, 8)).astype(np.float32)),
                self.array("y.npy", np.arange(16, dtype=np.int64) % 4))

    def tuned_model(self, path, *more, out="out.onnx", **sections):
        return ["quantize", path, "-o", self.folder / out, *self.tuned(*more, **sections)[4:]]

    def test_neural_compressor_history_of_something_else(self):
        _, path = self.perceptron()
        data, labels = self.labelled_samples()
        first, again = self.folder / "out.onnx.history.json", self.folder / "again.onnx.history.json"

        def tuned(goal, *more, resume=None, path=path, out="again.onnx", max_trials=2, **sections):
            tuning = {"accuracy_criterion": {"absolute": goal}, "exit_policy": {"max_trials": max_trials}}
            tuning.update({"workspace": {"resume": str(resume)}} if resume else {})
            accuracy = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(data, labels)}}
            return self.tuned_model(path, "--calib", data, *more, evaluation=accuracy, tuning=tuning, out=out, **sections)

        def kept(path):
            return len(json.loads(path.read_text())["trials"])

        self.works(*tuned(1.0, out="out.onnx"))
        # Whether another goal is met is not what the file says.
        facts = json.loads(self.warns(["missed"], *tuned(-2.0, "--json", resume=first)))
        self.assertEqual((facts["goal_met"], [t["meets_goal"] for t in facts["trials"]]), (False, [False, False]))
        # The criterion may be of the other kind: the metric is the same.
        arguments = tuned(0.5, resume=first, out="relative.onnx")
        config = json.loads((self.folder / "nc.yaml").read_text())
        config["tuning"]["accuracy_criterion"] = {"relative": 0.9}
        (self.folder / "nc.yaml").write_text(json.dumps(config))
        self.works(*arguments)
        # Trials that a search does not come to stay in the file.
        self.assertEqual(kept(again), 2)
        self.works(*tuned(1.0, resume=again))
        self.assertEqual(kept(again), 2)
        for quantization in ({"model_wise": {"weight": {"bit": 3}}}, {"model_wise": {"activation": {"dtype": "int8"}}},
                             {"op_wise": {"to_y": {"weight": {"dtype": "fp32"}}}},
                             {"recipes": {"first_conv_or_matmul_quantization": False}}):
            with self.subTest(quantization=quantization):
                self.fails([first, "other options"], *tuned(1.0, resume=first, quantization=quantization))
        # Weights in a file of their own.
        entry = field(13, field(1, "location") + field(2, "w.bin"))
        outside = self.write("outside.onnx", model(
            [node("MatMul", ["x", "w"], ["y"])], [value_info("x", "N", 8)], [value_info("y", "N", 4)],
            [field(1, 8) + field(1, 4) + field(2, 1) + field(8, "w") + entry + field(14, 1)]))
        self.write("w.bin", np.ones((8, 4), np.float32).tobytes())
        self.works(*tuned(1.0, path=outside, out="out.onnx"))
        self.write("w.bin", np.full((8, 4), 2, np.float32).tobytes())
        self.fails([first, "another model"], *tuned(1.0, path=outside, resume=first))

    def test_neural_compressor_history_that_cannot_be_written(self):
        _, path = self.perceptron()
        data, labels = self.labelled_samples()
        accuracy = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(data, labels)}}
        tuning = {"accuracy_criterion": {"absolute": -2.0}, "exit_policy": {"max_trials": 3}}
        (self.folder / "out.onnx.history.json").mkdir()
        done = self.detent(*self.tuned_model(path, "--calib", data, evaluation=accuracy, tuning=tuning))
        self.assertEqual((done.returncode, done.stderr.count("not kept")), (0, 1), done.stderr)
        self.assertTrue((self.folder / "out.onnx").exists())
        # The folder of the output is looked at before anything else.
        arguments = self.tuned_model(path, "--calib", data, evaluation=accuracy, tuning=tuning, out="none/out.onnx")
        self.assertNotIn("history", self.fails(["cannot write", "none/out.onnx"], *arguments))
        missing = self.fails(["cannot open"], *self.tuned_model(self.folder / "missing.onnx"))
        self.assertEqual(missing.count("missing.onnx"), 2, missing)

    def test_neural_compressor_outputs_that_do_not_fit_the_metric(self):
        weights, path = self.perceptron(outputs=(("y", 4), ("z", 3)))
        data, _ = self.labelled_samples()
        # The output that the file names.
        labels = self.array("z.npy", (np.load(data) @ weights["z"]).argmax(1))
        facts = json.loads(self.works(*self.tuned_model(
            path, "--json", "--calib", data, model={"framework": "onnxrt_qdqops", "outputs": ["z"]},
            evaluation={"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(data, labels)}},
            tuning={"accuracy_criterion": {"absolute": 1.0}})))
        self.assertEqual(facts["float_metric"], 1.0)
        # Folders whose samples have several rows of scores, or other numbers of them.
        _, rows = self.perceptron()
        columns = self.write("columns.onnx", model([node("Abs", ["x"], ["y"])], [value_info("x", 1, "K")], [value_info("y", 1, "K")]))
        for path, shapes, words in ((rows, [(3, 8)] * 4, ["3 rows"]), (columns, [(1, 4), (1, 6)], ["4 scores", "6 for sample 1"])):
            folder = self.samples_in_folders(path.stem, [[np.ones(shape, np.float32)] for shape in shapes])
            n = len(shapes)
            for metric, labels in (("MSE", np.zeros((n, 4), np.float32)), ("MAE", np.zeros((n, 4), np.float32)),
                                   ("mAP", np.zeros((n, 4), np.uint8)), ("Accuracy", np.zeros(n, np.int64))):
                with self.subTest(path=path, metric=metric):
                    dataset = self.dataset(folder, self.array("labels.npy", labels))
                    self.fails(words, *self.tuned_model(path, out="no.onnx", evaluation={
                        "accuracy": {"metric": {metric: {}}, "dataloader": dataset}}))

    def test_neural_compressor_several_metrics_and_no_samples(self):
        _, path = self.perceptron()
        data, labels = self.labelled_samples()
        absolute = {"accuracy_criterion": {"absolute": 1.0}}
        for metrics in ({"MSE": {"compare_label": False}, "topk": 1}, {"topk": 1, "MSE": {"compare_label": False}}):
            several = {"accuracy": {"multi_metrics": metrics, "dataloader": self.dataset(data, labels)}}
            self.fails(["MSE", "is 0", "absolute"], *self.tuned_model(path, "--calib", data, evaluation=several, out="no.onnx"))
            facts = json.loads(self.works(*self.tuned_model(path, "--json", "--calib", data, evaluation=several, tuning=absolute)))
            self.assertTrue(-1 < facts["best"]["metric"] <= 0)
        # A metric without a value is the one that is named.
        unlabelled = {"accuracy": {"metric": {"F1": None}, "dataloader": self.dataset(data, None)}}
        self.fails(["F1", "labels"], *self.tuned_model(path, "--calib", data, evaluation=unlabelled, out="no.onnx"))
        # Dynamic quantization corrects biases with the samples of the evaluation.
        accuracy = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(data, labels)}}
        self.warns(["those of the evaluation"], *self.tuned_model(
            path, model={"framework": "onnxrt_integerops"}, quantization={"recipes": {"fast_bias_correction": True}},
            evaluation=accuracy, tuning=absolute))
        # Random samples for a model that fixes the batch, of more and of fewer samples.
        _, fixed = self.perceptron(rows=4)
        for count in (10, 2):
            dummy = {"calibration": {"dataloader": {"dataset": {"dummy": {"shape": [count, 8], "low": -1, "high": 1}}}}}
            self.works(*self.tuned_model(fixed, quantization=dummy))
        # They are made one run at a time, so that no number of them needs memory; one that is too large is an error.
        many = {"calibration": {"sampling_size": 4, "dataloader": {"dataset": {"dummy": {"shape": [1 << 40, 8]}}}}}
        self.works(*self.tuned_model(fixed, "--memory-limit", "100M", quantization=many))
        _, loose = self.perceptron(rows="N")
        wide = {"calibration": {"dataloader": {"dataset": {"dummy": {"shape": [4, 1 << 28]}}}}}
        self.fails(["random sample", "'x'", "1073741824 bytes", "the limit is"],
                   *self.tuned_model(loose, "--memory-limit", "100M", quantization=wide, out="no.onnx"))

    # ---------------------------------------------------------------------------------- training

    def bars(self, count, seed=21):
        """Images of 8 x 8 pixels with a horizontal or a vertical bar, or none, as digits.onnx takes them."""
        random = np.random.default_rng(seed)
        labels = random.integers(0, 3, count)
        images = random.uniform(0, 4, (count, 1, 8, 8)).astype(np.float32)
        for i, label in enumerate(labels):
            at = random.integers(0, 8)
            if label == 1:
                images[i, 0, at] += 12
            elif label == 2:
                images[i, 0, :, at] += 12
        return images, labels

    def train(self, *more, out="trained.onnx", labels=None, images=None):
        x, y = self.bars(120)
        return ["train", MODEL, "-o", self.folder / out, "--data", images or self.array("x.npy", x),
                "--labels", labels or self.array("y.npy", y), *more]

    def test_training_in_float_and_quantized(self):
        x, y = self.bars(60, 22)
        validation = ["--validation", self.array("v.npy", x), "--validation-labels", self.array("w.npy", y.astype(np.uint8))]
        facts = json.loads(self.works(*self.train("--approach", "float", "--epochs", 3, "--lr", 0.01, "--json", *validation)))
        self.assertEqual((facts["approach"], facts["format"], len(facts["epochs"])), ("float", None, 3))
        self.assertEqual((facts["samples"], facts["validation_samples"]), (120, 60))
        self.assertLess(facts["before"]["accuracy"], 0.7)
        self.assertGreater(facts["best"]["accuracy"], 0.9)
        judged = json.loads(self.works("eval", self.folder / "trained.onnx", "--data", self.folder / "v.npy", "--labels",
                                       self.folder / "w.npy", "--json"))
        self.assertAlmostEqual(judged["top1"], 100 * facts["best"]["accuracy"], places=5)
        # The float network is trained as one of 3-bit weights.
        begin = self.folder / "trained.onnx"
        for form in ("qdq", "qoperator"):
            arguments = self.train("--epochs", 2, "--lr", 0.002, "--bits-weights", 3, "--distill", "--format", form, "--json",
                                   "--report", self.folder / "report.html", *validation, out=form + ".onnx")
            arguments[1] = begin
            qat = json.loads(self.works(*arguments))
            self.assertEqual((qat["approach"], qat["format"]), ("qat", form))
            self.assertEqual(qat["float"], facts["best"])
            self.assertGreaterEqual(qat["best"]["accuracy"], qat["before"]["accuracy"])
            judged = json.loads(self.works("eval", self.folder / (form + ".onnx"), "--data", self.folder / "v.npy", "--labels",
                                           self.folder / "w.npy", "--json"))
            self.assertAlmostEqual(judged["top1"], 100 * qat["best"]["accuracy"], places=5)
            page = xml.dom.minidom.parse(str(self.folder / "report.html"))
            headings = [h.firstChild.data for h in page.getElementsByTagName("h3")]
            self.assertEqual(headings, ["Loss", "Accuracy", "Learning rate", "Scales"])
            curves = [p.getAttribute("d") for p in page.getElementsByTagName("path")]
            self.assertEqual({c.count("L") for c in curves}, {1})  # from the first epoch to the second

    def test_training_with_other_rules(self):
        written = set()
        for more in (["straight-through"], ["lsq"], ["lsq-plus"], ["pact"], ["pact", "--clip-penalty", 0.1],
                     ["lsq", "--quantize-after", 1], ["lsq", "--observe-for", 1], ["lsq", "--observe-for", 1, "--averaging", 0.5]):
            with self.subTest(more=more):
                facts = json.loads(self.detent(*self.train("--epochs", 2, "--lr", 0.01, "--bits-activations", 4, "--json", "--hold-out", 0,
                                                           "--rule", *more)).stdout)
                self.assertEqual((len(facts["epochs"]), facts["validation_samples"]), (2, 120))
                self.assertIsNotNone(facts["best_epoch"])
                written.add((self.folder / "trained.onnx").read_bytes())
        self.assertEqual(len(written), 8)
        self.wrong_usage(["--clip-penalty"], *self.train("--clip-penalty", 0.1))
        self.wrong_usage(["--averaging"], *self.train("--averaging", 0.1))
        self.wrong_usage(["--quantize-after"], *self.train("--epochs", 2, "--quantize-after", 2))
        self.wrong_usage(["--rule"], *self.train("--approach", "float", "--rule", "lsq"))

    def test_training_goes_on_from_a_checkpoint(self):
        arguments = ["--epochs", 3, "--bits-weights", 4, "--bits-activations", 4, "--lr", 0.003, "--flip", 0.5, "--shift", 1]
        self.detent(*self.train(*arguments, out="whole.onnx"))
        whole = (self.folder / "whole.onnx").read_bytes()
        folder = self.folder / "kept"
        process = subprocess.Popen(
            [options.detent, *map(str, self.train(*arguments, "--checkpoint", folder, out="part.onnx"))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()  # the first epoch is over
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        self.assertIn(process.returncode, (0, 130), errors)
        self.assertTrue((self.folder / "part.onnx").exists())
        if process.returncode == 130:
            self.assertIn("interrupted in epoch", errors)
        facts = json.loads(self.detent(*self.train(*arguments, "--checkpoint", folder, "--threads", 2, "--json", out="again.onnx")).stdout)
        self.assertGreaterEqual(facts["resumed_epochs"], 1)
        self.assertEqual(len(facts["epochs"]), 3)
        self.assertEqual((self.folder / "again.onnx").read_bytes(), whole)
        # A checkpoint of something else, and a damaged one.
        self.fails(["kept/checkpoint", "other options"], *self.train("--epochs", 4, "--checkpoint", folder, out="no.onnx"))
        path = folder / "checkpoint"
        path.write_bytes(path.read_bytes()[:-20])
        self.fails([path], *self.train(*arguments, "--checkpoint", folder, out="no.onnx"))
        path.write_bytes(b"")
        self.fails([path], *self.train(*arguments, "--checkpoint", folder, out="no.onnx"))
        self.assertFalse((self.folder / "no.onnx").exists())

    def test_training_in_less_memory(self):
        arguments = ["--epochs", 2, "--batch", 60, "--hold-out", 0, "--lr", 0.01, "--bits-weights", 4, "--distill"]
        facts = json.loads(self.detent(*self.train(*arguments, "--memory-limit", "1G", "--json", out="free.onnx")).stdout)
        self.assertEqual(facts["segments"], 1)
        # The error tells the least that is enough.
        error = self.fails(["limit is", "Smaller batches"], *self.train(*arguments, "--memory-limit", "3M", out="no.onnx"))
        least, segments = map(int, re.search(r"take (\d+) bytes with (\d+) segments", error).groups())
        self.assertFalse((self.folder / "no.onnx").exists())
        self.fails(["limit is %d" % (least - 1)], *self.train(*arguments, "--memory-limit", least - 1, out="no.onnx"))
        report = self.folder / "report.html"
        told = self.detent(*self.train(*arguments, "--memory-limit", least, "--report", report, out="divided.onnx")).stdout
        self.assertIn("%d segments, whose values are computed twice: values and gradients of a batch take %d bytes" % (segments, least),
                      told)
        self.assertIn("<td>segments</td><td>%d</td>" % segments, report.read_text())
        self.assertEqual((self.folder / "divided.onnx").read_bytes(), (self.folder / "free.onnx").read_bytes())

    def test_training_with_hidden_values(self):
        hidden = ["conv1_relu_out", "pool_out"]
        arguments = ["--epochs", 1, "--lr", 0.003, "--bits-weights", 3, "--hold-out", 0]
        losses = {}
        for name, more in {"none": [], "light": ["--distill-hidden", *hidden, "--hidden-weight", 0.5],
                           "heavy": ["--distill-hidden", *hidden, "--hidden-weight", 5], "one": ["--distill-hidden", hidden[0]],
                           "no weight": ["--distill-hidden", *hidden, "--hidden-weight", 0]}.items():
            report = self.folder / "report.html"
            facts = json.loads(self.detent(*self.train(*arguments, "--distill", "--json", "--report", report, *more)).stdout)
            losses[name] = facts["epochs"][0]["loss"]
            self.assertEqual("hidden values" in report.read_text(), name != "none")
        self.assertEqual(losses["none"], losses["no weight"])
        self.assertLess(losses["none"], losses["light"])
        self.assertLess(losses["light"], losses["heavy"])
        self.assertLess(losses["none"], losses["one"])
        # The same from a file.
        path = self.write("own.yaml", ("distill: 0.5\ndistill-hidden: [%s]\nhidden-weight: 5\n" % ", ".join(hidden)).encode())
        facts = json.loads(self.detent(*self.train(*arguments, "--config", path, "--json")).stdout)
        self.assertEqual(facts["epochs"][0]["loss"], losses["heavy"])
        none = self.train(*arguments, "--distill-hidden", hidden[0] + "s", out="no.onnx")
        self.fails(["'%ss'" % hidden[0], "nearest", "'%s'" % hidden[0]], *none)
        self.fails(["'conv1_out'", "folding has removed it", "'conv1_bn_out'"],
                   *self.train(*arguments, "--distill-hidden", "conv1_out", out="no.onnx"))
        self.assertFalse((self.folder / "no.onnx").exists())
        self.wrong_usage(["--hidden-weight"], *self.train("--hidden-weight", 2))
        self.wrong_usage(["--hidden-weight", "-1"], *self.train("--distill-hidden", hidden[0], "--hidden-weight", -1))
        self.wrong_usage(["--distill-hidden"], *self.train("--approach", "float", "--distill-hidden", hidden[0]))

    def test_training_that_ends_in_infinity(self):
        folder = self.folder / "kept"
        # Each step multiplies the weights by -99, so that the first epochs are finite.
        rising = ["--approach", "float", "--epochs", 40, "--weight-decay", 1e5, "--schedule", "constant"]
        error = self.fails(["training step", "not finite", "smaller learning rate", "holds the state behind epoch"],
                           *self.train(*rising, "--checkpoint", folder, out="no.onnx"))
        self.assertGreaterEqual(int(re.search(r"behind epoch (\d+)", error)[1]), 2)
        self.assertTrue((folder / "checkpoint").exists())
        self.assertFalse((self.folder / "no.onnx").exists())
        # The checkpoint is good: going on from it ends at the same place.
        again = self.fails(["training step"], *self.train(*rising, "--checkpoint", folder, out="no.onnx"))
        self.assertEqual(again, error)

    def test_training_that_is_refused(self):
        x, y = self.bars(120)
        wrong = np.array(y)
        wrong[7] = 10
        none = {"out": "no.onnx"}
        self.fails(["label", "10"], *self.train("--epochs", 1, labels=self.array("wrong.npy", wrong), **none))
        self.fails(["119 labels for 120 samples"], *self.train(labels=self.array("few.npy", y[1:]), **none))
        self.fails(["holds bool"], *self.train(labels=self.array("bool.npy", y > 1), **none))
        self.fails(["--hold-out"], *self.train("--hold-out", 0.9, images=self.array("one.npy", x[:1]),
                                               labels=self.array("one_label.npy", y[:1]), **none))
        self.fails(["cannot write"], *self.train(out="none/no.onnx"))
        random = np.random.default_rng(4)
        path = self.write("round.onnx", model(
            [node("MatMul", ["x", "w"], ["a"]), node("Round", ["a"], ["y"], "the_round")], [value_info("x", "N", 8)],
            [value_info("y", "N", 4)], [floats("w", random.normal(size=(8, 4)).astype(np.float32))]))
        rows = self.array("rows.npy", random.normal(size=(40, 8)).astype(np.float32))
        classes = self.array("classes.npy", np.arange(40) % 4)
        for approach in ("float", "qat"):
            self.fails(["the_round", "no gradient"], "train", path, "-o", self.folder / "no.onnx", "--data", rows, "--labels",
                       classes, "--approach", approach)
        self.assertFalse((self.folder / "no.onnx").exists())
        self.wrong_usage(["--data"], "train", MODEL, "-o", "x.onnx")
        self.wrong_usage(["--labels"], "train", MODEL, "-o", "x.onnx", "--data", rows)
        self.wrong_usage(["--bits-weights"], *self.train("--approach", "float", "--bits-weights", 4))
        self.wrong_usage(["--bits-activations"], *self.train("--format", "qoperator", "--bits-activations", 4))
        self.wrong_usage(["--validation-labels"], *self.train("--validation", rows))
        self.wrong_usage(["--temperature"], *self.train("--temperature", 3))
        self.wrong_usage(["--step-every"], *self.train("--schedule", "step"))
        self.wrong_usage(["overwrite"], *self.train()[:3], MODEL, *self.train()[4:])
        self.wrong_usage(["'0'", "positive"], *self.train("--lr", 0))

    def test_training_by_a_configuration(self):
        x, y = self.bars(120)
        samples = self.dataset(self.array("x.npy", x), self.array("y.npy", y))
        train = {"epoch": 2, "iteration": 5, "dataloader": {"batch_size": 16, **samples},
                 "optimizer": {"AdamW": {"learning_rate": 0.01, "weight_decay": 0.0}}}
        sections = {"quantization": {"approach": "quant_aware_training", "train": train, "model_wise": {"weight": {"bit": 3}}},
                    "evaluation": {"accuracy": {"metric": {"topk": 1}, "dataloader": samples}}}
        facts = json.loads(self.detent(*self.tuned("--json", **sections)).stdout)
        self.assertEqual((facts["approach"], facts["samples"], len(facts["epochs"])), ("qat", 120, 2))
        judged = json.loads(self.works("eval", self.folder / "out.onnx", "--data", self.folder / "x.npy", "--labels",
                                       self.folder / "y.npy", "--json"))
        self.assertAlmostEqual(judged["top1"], 100 * facts["best"]["accuracy"], places=5)
        goal = {"tuning": {"accuracy_criterion": {"absolute": -2.0}}}
        self.warns(["goal of", "missed by"], *self.tuned("--json", **sections, **goal))
        self.wrong_usage(["--calib"], *self.tuned("--calib", CALIBRATION, **sections))
        path = self.write("own.yaml", b"epochs: 1\nbits-weights: 4\n")
        facts = json.loads(self.detent(*self.train("--config", path, "--json")).stdout)
        self.assertEqual(len(facts["epochs"]), 1)
        self.wrong_usage(["own.yaml:1", "'epoch'"], *self.train("--config", self.write("own.yaml", b"epoch: 1\n")))
        self.tuned(**sections)
        self.wrong_usage(["Neural Compressor"], *self.train("--config", self.folder / "nc.yaml"))

    def test_neural_compressor_interrupted(self):
        tuning = {"strategy": {"name": "random"}, "accuracy_criterion": {"absolute": -0.5}, "exit_policy": {"max_trials": 100000}}
        out = self.folder / "out.onnx"
        command = [options.detent, *map(str, self.tuned("--calib", CALIBRATION, evaluation=self.accuracy(), tuning=tuning))]
        # The last time, interrupts are ignored as nohup has it: they do not end the search.
        for sent, ignored in ((signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGTERM, signal.SIGINT)):
            with self.subTest(sent=sent, ignored=ignored):
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           preexec_fn=lambda: ignored and signal.signal(ignored, signal.SIG_IGN))
                lines = [process.stdout.readline() for _ in range(2)]  # two trials
                if ignored:
                    process.send_signal(ignored)
                    lines += [process.stdout.readline() for _ in range(2)]
                process.send_signal(sent)
                rest, said = process.communicate()
                self.assertEqual(process.returncode, 128 + sent, said)
                self.assertIn("cancelled", rest)
                history = json.loads((self.folder / "out.onnx.history.json").read_text())
                self.assertGreaterEqual(len(history["trials"]), len(lines))
                self.assertGreater(float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1]), 90.0)

    def test_neural_compressor_operator_that_is_not_supported(self):
        random = np.random.default_rng(6)
        weights = [floats(name, random.normal(size=(32, 32))) for name in ("v", "w", "u")]
        nodes = [node("MatMul", ["x", "v"], ["a"], "before"), node("Fancy", ["a"], ["b"], "the_node"),
                 node("MatMul", ["b", "w"], ["y"], "behind"), node("MatMul", ["a", "u"], ["z"], "beside")]
        outputs = [value_info("y", "N", 32), value_info("z", "N", 32)]
        first_lacks, first_known = (
            self.write(name, model(nodes, [value_info("x", "N", 32)], listed, weights))
            for name, listed in (("lacks.onnx", outputs), ("known.onnx", outputs[::-1])))
        data = self.array("x.npy", random.normal(size=(20, 32)).astype(np.float32))
        labels = self.array("y.npy", np.arange(20, dtype=np.int64))
        out = self.folder / "out.onnx"

        def operators():
            return {o["operator"]: o["count"] for o in json.loads(self.works("inspect", out, "--json"))["operators"]}

        def tuned(path, framework, *more, **sections):
            arguments = self.tuned(*more, out=out, model={"name": "m", "framework": framework}, **sections)
            return ["quantize", path, *arguments[2:]]

        # Without an evaluation, whatever the exit policy says.
        slow = {"tuning": {"exit_policy": {"timeout": 100}, "strategy": {"name": "mse"}}}
        for path in (first_lacks, first_known):
            for framework, operator in (("onnxrt_qdqops", "QuantizeLinear"), ("onnxrt_qlinearops", "com.microsoft.QGemm")):
                with self.subTest(path=path, framework=framework):
                    facts = json.loads(self.warns(["2 nodes stay in float", "Fancy", "the_node"],
                                                  *tuned(path, framework, "--json", "--calib", data, **slow)))
                    self.assertFalse(facts["tuned"])
                    self.assertEqual(len(facts["not_run"]), 2)
                    self.assertIn("behind", facts["not_run"][1])
                    self.assertIn(operator, operators())
                    self.assertEqual((operators()["Fancy"], operators()["MatMul"]), (1, 1))
            for more in ([], ["--calib", data]):
                self.works(*tuned(path, "onnxrt_integerops", *more, **slow))
                self.assertEqual((operators()["Fancy"], operators()["MatMulInteger"]), (1, 3))
            out.unlink()
        # With an evaluation: of an output that can be computed, and of one that cannot.
        several = {"evaluation": {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(data, labels)}},
                   "tuning": {"accuracy_criterion": {"absolute": 1.0}}}
        for framework, operator in (("onnxrt_qdqops", "QuantizeLinear"), ("onnxrt_integerops", "MatMulInteger")):
            with self.subTest(framework=framework):
                arguments = ["--json", "--calib", data]
                self.fails(["output 'y'", "Fancy", "the_node", "without an evaluation"],
                           *tuned(first_lacks, framework, *arguments, **several))
                self.assertFalse(out.exists())
                done = self.detent(*tuned(first_known, framework, *arguments, **several))
                facts = json.loads(done.stdout)
                self.assertEqual((done.returncode, facts["tuned"], facts["goal_met"]), (0, True, True))
                self.assertIn(operator, operators())
                out.unlink()
        several["tuning"]["exit_policy"] = {"timeout": 100}
        self.fails(["latency", "Fancy", "the_node", "model_size"],
                   *tuned(first_known, "onnxrt_qdqops", "--calib", data, **several))

    def test_neural_compressor_errors(self):
        out = self.folder / "no.onnx"
        good = {"evaluation": self.accuracy(), "out": out}
        self.wrong_usage(["nc.yaml:1", "'aproach'", "'approach'"], *self.tuned(quantization={"aproach": "static"}, out=out))
        self.wrong_usage(["--method"], *self.tuned("--method", "kl", **good))
        self.fails(["calibration samples", "--calib"], *self.tuned(out=out))
        self.fails(["input 'nothing'", "'image'"], *self.tuned("--calib", CALIBRATION, out=out, model={
            "framework": "onnxrt_qdqops", "inputs": ["nothing"]}))
        missing = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset("none.npy")}}
        self.fails(["none.npy"], *self.tuned(evaluation=missing, out=out))
        short = self.array("short.npy", np.load(LABELS)[:7])
        other = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(labels=short)}}
        self.fails([short, "7 labels"], *self.tuned(evaluation=other, out=out))
        unlabelled = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(labels=None)}}
        self.fails(["top-1", "labels"], *self.tuned(evaluation=unlabelled, out=out))
        self.fails(["ROC", "10 classes"], *self.tuned(evaluation=self.accuracy({"ROC": {}}), out=out))
        self.fails(["MSE", "float32"], *self.tuned(evaluation=self.accuracy({"MSE": {}}), out=out))
        big = self.array("big.npy", np.load(LABELS).astype(np.int64) + 5)
        wrong = {"accuracy": {"metric": {"topk": 1}, "dataloader": self.dataset(labels=big)}}
        self.fails(["label", "10 classes"], *self.tuned(evaluation=wrong, out=out))
        self.fails(["nc.yaml:1:", "nobody"], *self.tuned("--calib", CALIBRATION, out=out, quantization={
            "op_wise": {"nobody": {"weight": {"dtype": "fp32"}}}}))
        self.fails(["nc.yaml:1:", "regular expression"], *self.tuned("--calib", CALIBRATION, out=out, quantization={
            "optype_wise": {"(Conv": {"weight": {"dtype": "fp32"}}}}))
        self.wrong_usage(["op_type_dict", "2.x", "optype_wise"], *self.tuned(quantization={"op_type_dict": {}}, out=out))
        self.fails(["top-11", "10"], *self.tuned(evaluation=self.accuracy({"topk": 11}), out=out))
        damaged = self.array("nan.npy", np.full((len(np.load(LABELS)), 10), np.nan, np.float32))
        unknown = {"accuracy": {"metric": {"MSE": {}}, "dataloader": self.dataset(labels=damaged)}}
        self.fails(["metric of the float model", "NaN"], *self.tuned(evaluation=unknown, out=out), lines=2)
        shape = {"calibration": {"dataloader": {"dataset": {"dummy": {"shape": [[10, 3], [10, 2]]}}}}}
        self.fails(["2 shapes", "1 inputs"], *self.tuned(quantization=shape, out=out))
        self.assertEqual([p.name for p in self.folder.iterdir() if p.suffix == ".onnx" or "history" in p.name], [])

    def test_configuration(self):
        """What a file says is what flags say; rules for operators and tensors come on top."""
        out, other = self.folder / "out.onnx", self.folder / "other.onnx"
        path = self.config("method: KL\nbias-correction: fast\ngranularity: per-tensor\nsamples: 50\n")
        self.works(*self.quantize("--config", path, output=out))
        flags = ["--method", "kl", "--bias-correction", "fast", "--granularity", "per-tensor", "--samples", "50"]
        self.works(*self.quantize(*flags, output=other))
        self.assertEqual(out.read_bytes(), other.read_bytes())
        self.works(*self.quantize("--config", path, "--method", "minmax", output=out))  # the flag goes before
        self.works(*self.quantize(*flags[2:], "--method", "minmax", output=other))
        self.assertEqual(out.read_bytes(), other.read_bytes())
        # Without a single flag; lists are several values.
        path = self.config(f"calib: [{CALIBRATION}]\nreduce-range: true\nmethod: minmax\nsymmetric-activations: false\n")
        self.works("quantize", MODEL, "-o", out, "--config", path)
        self.works(*self.quantize("--reduce-range", "--method", "minmax", output=other))
        self.assertEqual(out.read_bytes(), other.read_bytes())

        example = options.digits.parent / "quantize.yaml"
        self.works(*self.quantize("--config", example, output=out))
        path = self.config("""
            ignored: {names: [conv1], last-layer: true}
            operators:
              types: {Conv: {granularity: per-tensor, bits: 5}}
              names: {conv3_.*: {quantize: false}, conv2_pw: {method: mse}}
            tensors:
              conv1_relu_out: {scale: 0.05, zero-point: 0}
              conv2_dw_relu_out: {method: percentile}
        """)
        for method in ([], ["--method", "minmax"]):
            facts = json.loads(self.works(*self.quantize("--config", path, "--json", *method, output=out)))
            methods = {a["tensor"]: a["method"] for a in facts["activations"]}
            self.assertEqual(facts["layers"], 2)  # conv2_dw and conv2_pw
            self.assertEqual([a["scale"] for a in facts["activations"] if a["tensor"] == "conv1_relu_out"],
                             [float(np.float32(0.05))])
            self.assertEqual(methods["conv1_relu_out"], "given")
            self.assertNotIn("conv3_pw_relu_out", methods)
            self.assertEqual(methods["conv2_dw_relu_out"], "percentile")
            accuracy = float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
            self.assertGreaterEqual(accuracy, 95.0)
        # The pipelines, too.
        self.works(*self.quantize("--config", self.config("pipeline: ppq\nplatform: TRT_INT8\n"), output=out))
        self.works(*self.quantize("--pipeline", "ppq", "--platform", "TRT_INT8", output=other))
        self.assertEqual(out.read_bytes(), other.read_bytes())
        self.works(*self.quantize("--config", self.config("pipeline: nncf\nignored: {names: [conv1], types: [Gemm]}\n"), output=out))
        self.works(*self.quantize("--pipeline", "nncf", "--ignore", "conv1", "--ignore", "type:Gemm", output=other))
        self.assertEqual(out.read_bytes(), other.read_bytes())
        self.fails(["16777217 bytes"], *self.quantize("--config", self.write("long.yaml", b"#" * ((16 << 20) + 1))))

        self.works("quantize", MODEL, "-o", out, "--config",
                   self.config("approach: dynamic\noperators: {types: {Gemm: {bits: 4}}}\n"))
        self.works("quantize", MODEL, "-o", out, "--config",
                   self.config("format: matmulnbits\noperators: {types: {Gemm: {bits: 8, block-size: 16}}}\n"))

    def test_configuration_that_is_wrong(self):
        for text, words in (("methods: kl", [":1:", "'methods'", "the nearest is 'method'"]),
                            ("\nmethod: best", [":2:", "method", "minmax"]),
                            ("method: [kl, mse]", [":1:", "method"]),
                            ("output: x.onnx", [":1:", "'output'", "command line"]),
                            ("json: true", [":1:", "'json'", "command line"]),
                            ("bits: 4\nmethod:\n", [":2:", "method has no value"]),
                            ("version: 2.0\nquant: {approach: static}", [":2:", "'quant'", "op_type_dict", "1.x"]),
                            ("bits: 4\n---\nbits: 5", [":2:", "second YAML document"]),
                            ("operators: {types: {Conv: {<<: {bits: 4}}}}", [":1:", "merge keys"]),
                            ("- method", ["map"]),
                            ("method: {a: b}", [":1:", "'method'", "single value", "sections"]),
                            ("method: kl\nmethod: mse", [":2:", "twice"]),
                            ("ignored: {name: x}", [":1:", "'name'"]),
                            ("ignored: {first-layer: perhaps}", ["first-layer", "true or false", "'perhaps'"]),
                            ("operators: {layers: {}}", ["operators", "'layers'", "'names'"]),
                            ("operators: {types: {Conv: {bit: 4}}}", ["'bit'", "bits"]),
                            ("operators: {types: {Conv: {bits: four}}}", ["bits", "'four'"]),
                            ("operators: {types: {Conv: {granularity: some}}}", ["'some'", "per-tensor"]),
                            ("tensors: {image: {scale: 1}}", ["'image'", "zero-point"]),
                            ("tensors: {image: {range: [0]}}", ["range"]),
                            ("tensors: {image: {range: [0, one]}}", ["range", "'one'"]),
                            ("approach: dynamic\ntensors: {image: {range: [0, 1]}}", ["dynamic", "tensors"]),
                            ("approach: dynamic\noperators: {types: {Conv: {bits: 4, method: kl}}}",
                             ["config.yaml", "dynamic", "method", "'Conv'"]),
                            ("approach: weight-only\noperators: {names: {fc: {method: kl}}}", ["weight-only", "method", "'fc'"]),
                            ("approach: weight-only\noperators: {types: {Gemm: {granularity: per-tensor}}}",
                             ["weight-only", "granularity", "'Gemm'"]),
                            ("method: kl\noperators: {types: {Gemm: {block-size: 16}}}", ["static", "block-size", "'Gemm'"]),
                            ("plugin: ./plugin.so", [":1:", "load code", "--plugin"]),
                            ("reduce-range: []", [":1:", "reduce-range", "no value"]),
                            ("symmetric-activations: [true, false]", [":1:", "one value"]),
                            ("pipeline: neural-compressor", ["no configuration of Neural Compressor"]),
                            ("platform: TRT_INT8", ["--platform", "--pipeline ppq"]),
                            ("pipeline: ppq\nbits: 4", ["--pipeline ppq", "--bits"]),
                            ("pipeline: ppq\nignored: {names: [conv1]}", ["--pipeline ppq", "'ignored'"]),
                            ("pipeline: nncf\noperators: {types: {Conv: {bits: 4}}}", ["--pipeline nncf", "'operators'"]),
                            ("pipeline: nncf\ntensors: {image: {range: [0, 1]}}", ["--pipeline nncf", "'tensors'"]),
                            ("pipeline: nncf\nformat: integerops", ["--pipeline nncf", "--format integerops"]),
                            ("method: [", [":1"])):
            with self.subTest(text=text):
                self.wrong_usage(words, *self.quantize("--config", self.config(text)))
        for text, words in (("ignored: {names: [nobody]}", ["'nobody'"]),
                            ("operators:\n  names:\n    nobody: {bits: 4}", ["config.yaml:3:", "'nobody'"]),
                            ("operators: {names: {'(': {bits: 4}}}", ["config.yaml:1:", "'('", "regular expression"]),
                            (f"ignored: {{patterns: ['{'(' * 600}a{')' * 600}']}}", ["'((((", "1201 characters"]),
                            ("pipeline: nncf\nignored: {names: [nobody]}", ["'nobody'"]),
                            ('report: "x\\0y"', ["x?y", "null character"]),
                            ("operators: {types: {Conv: {bits: 9}}}", ["9 bits"]),
                            ("operators: {types: {Conv: {method: best}}}", ["'best'"]),
                            ("tensors: {nowhere: {range: [0, 1]}}", ["'nowhere'"]),
                            ("tensors: {image: {scale: -1, zero-point: 0}}", ["image", "-1"])):
            with self.subTest(text=text):
                self.fails(words, *self.quantize("--config", self.config(text)))
        self.fails(["missing.yaml"], *self.quantize("--config", self.folder / "missing.yaml"))
        self.assertFalse((self.folder / "out.onnx").exists())

    def test_accuracy_control(self):
        """Coarse weights lose accuracy; layers stay in float until it is back."""
        out = self.folder / "out.onnx"
        path = self.config("operators: {names: {'conv[23]_dw': {bits: 2, granularity: per-tensor}}}\nmethod: minmax\n")
        self.works(*self.quantize("--config", path, output=out))
        top1 = lambda: float(self.works(*self.evaluate(model=out)).splitlines()[-1].split()[1])
        real = float(self.works(*self.evaluate()).splitlines()[-1].split()[1])
        self.assertLess(top1(), real - 5)
        control = ["--config", path, "--max-drop", "2", "--validation", IMAGES, "--labels", LABELS]
        facts = json.loads(self.works(*self.quantize(*control, "--json", output=out)))["accuracy"]
        self.assertAlmostEqual(facts["float"], real, places=1)
        self.assertAlmostEqual(facts["quantized"], top1(), places=1)
        self.assertGreaterEqual(facts["quantized"], real - 2)
        self.assertGreaterEqual(len(facts["left_in_float"]), 1)
        page = self.folder / "page.html"
        text = self.works(*self.quantize(*control, "--report", page, output=out))
        self.assertRegex(text, r"top-1 \d+\.\d\d % in float, ")
        self.assertIn("Left in float", page.read_text())
        self.fails([LABELS], *self.quantize("--max-drop", "2", "--labels", LABELS))  # of other samples
        # Where all layers stay in float, no activation has a scale.
        coarse = ["--method", "minmax", "--bits", "2", "--activation-bits", "2", "--max-drop", "0"]
        done = self.detent(*self.quantize(*coarse, "--validation", IMAGES, "--labels", LABELS, "--json"))
        facts = json.loads(done.stdout)
        self.assertEqual((facts["layers"], facts["quantized_tensors"], facts["activations"]), (0, 0, []))

    def test_nothing_to_quantize(self):
        path = self.write("net.onnx", model([node("Relu", ["x"], ["y"])], [value_info("x", 1, 4)], [value_info("y", 1, 4)]))
        data = self.array("x.npy", np.ones((3, 4), np.float32))
        done = self.detent(*self.quantize(model=path, calib=data))
        self.assertEqual(done.returncode, 0)
        self.assertIn("warning", done.stderr)
        self.assertTrue((self.folder / "out.onnx").exists())

    def test_open_sizes_and_batches_that_samples_do_not_fill(self):
        """A window larger than 1 over sizes that are left open; a batch of 4 with 6 samples, of which none counts twice."""
        weights = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3) - 4
        tensor = field(1, 1) + field(1, 1) + field(1, 3) + field(1, 3) + field(2, 1) + field(8, b"w") + field(9, weights.tobytes())
        out = self.folder / "out.onnx"
        for batch, height in (("N", "H"), (4, 8)):
            net = model([node("Conv", ["x", "w"], ["y"])], [value_info("x", batch, 1, height, 8)],
                        [value_info("y", batch, 1, "OH", 6)], [tensor])
            path = self.write("net.onnx", net)
            images = np.random.default_rng(1).uniform(-1, 1, (6, 1, 8, 8)).astype(np.float32)
            images[5] = 100  # in the last batch, which is not full
            data = self.array("images.npy", images)
            facts = json.loads(self.works(*self.quantize("--json", "--method", "minmax", model=path, calib=data, output=out)))
            (scale,) = [a["scale"] for a in facts["activations"] if a["tensor"] == "x"]
            self.assertEqual(scale > 0.1, batch == "N")
            self.works("compare", path, out, "--data", data)

    def test_calibration_that_tells_little(self):
        minmax = ["--method", "minmax"]
        few = self.array("few.npy", np.load(CALIBRATION)[:1])
        self.warns(["warning: 1 calibration sample:", "fewer than 8"], *self.quantize(*minmax, calib=few))
        self.warns(["fewer than 8"], *self.quantize(calib=few))
        zeros = self.array("zeros.npy", np.zeros((8, 1, 8, 8), np.float32))
        self.warns(["warning: input 'image' is 0 in all calibration samples"], *self.quantize(*minmax, calib=zeros))
        self.assertEqual(self.detent(*self.quantize(*minmax)).stderr, "")
        for given, words in (("range: [0, 1]", "0 .. 1,"), ("{scale: 0.001, zero-point: 0}", "0 .. 0.255")):
            given = given if given[0] == "{" else "{" + given + "}"
            config = self.write("given.yaml", f"method: minmax\ntensors:\n  image: {given}\n".encode())
            facts = json.loads(self.warns(["the range given for 'image' is " + words, "from 0 to 16"],
                                          *self.quantize("--json", "--config", config)))
            image = next(a for a in facts["activations"] if a["tensor"] == "image")
            self.assertEqual((image["method"], image["clipped_fraction"]), ("given", None))

    def test_the_configuration_of_the_examples(self):
        out = self.folder / "out.onnx"
        done = self.detent(*self.quantize("--config", options.digits.parent / "quantize.yaml", output=out))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        last = self.works(*self.evaluate(model=out)).splitlines()[-1]
        self.assertGreater(float(last.split()[1]), 98)

    def test_calibration_that_is_wrong(self):
        out = self.folder / "out.onnx"
        self.fails(["empty.npy", "no samples"],
                   *self.quantize(calib=self.array("empty.npy", np.zeros((0, 1, 8, 8), np.float32)), output=out))
        self.wrong_usage(["--calib"], "quantize", MODEL, "-o", out)
        images = np.load(CALIBRATION)
        for value in (np.nan, np.inf, -np.inf):
            bad = images.copy()
            bad[3, 0, 2, 2] = value
            self.fails(["'image'", "sample 4"], *self.quantize(calib=self.array("bad.npy", bad), output=out))
        self.assertFalse(out.exists())

    def test_links_and_devices_stay(self):
        real, link = self.folder / "real.onnx", self.folder / "link.onnx"
        real.write_bytes(b"older")
        link.symlink_to(real)
        self.works(*self.quantize("--method", "minmax", output=link))
        self.assertTrue(link.is_symlink())
        self.assertGreater(real.stat().st_size, 1000)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        self.works(*self.quantize("--method", "minmax", output=pipe))
        self.assertEqual(len(reader.communicate(timeout=60)[0]), real.stat().st_size)
        self.assertFalse(pipe.is_file())

    def test_output_that_cannot_be_written(self):
        missing = self.folder / "missing" / "out.onnx"
        self.fails([missing], *self.quantize(output=missing))
        self.assertFalse(missing.parent.exists())
        folder = self.folder / "folder"
        folder.mkdir()
        self.fails([folder], *self.quantize(output=folder))
        file = self.write("file", b"older")
        self.fails([file], "run", MODEL, "--input", IMAGES, "-o", file)
        self.assertEqual(file.read_bytes(), b"older")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["file", "folder"])
        if pathlib.Path("/dev/full").exists():
            out = self.folder / "out"
            out.mkdir()
            (out / "logits.npy").mkdir()  # a folder has the name
            (out / "logits.npy" / "x").write_bytes(b"")
            self.fails(["logits.npy"], "run", MODEL, "--input", IMAGES, "-o", out)
            self.assertEqual([p.name for p in out.iterdir()], ["logits.npy"])

    def test_standard_output_that_cannot_be_written(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("no /dev/full here")
        for arguments in (["inspect", MODEL], ["targets", "--json"], ["--help"], ["--version"], self.evaluate()):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                done = subprocess.run([options.detent, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn("standard output", done.stderr)

    def test_files_that_are_read_are_not_overwritten(self):
        """By whatever name a file is called: nothing is read and written, or written twice."""
        copy = self.write("digits.onnx", MODEL.read_bytes())
        link = self.folder / "link.onnx"
        link.symlink_to(copy)
        hard = self.folder / "hard.onnx"
        hard.hardlink_to(copy)
        samples = self.write("x.npy", CALIBRATION.read_bytes())
        labels = self.write("y.npy", LABELS.read_bytes())
        rules = self.write("rules.yaml", b"method: minmax\n")
        before = {p.name: p.read_bytes() for p in self.folder.iterdir()}
        out = self.folder / "out.onnx"
        again = self.folder / "." / "out.onnx"
        for words, arguments in (
                (["--report", "MODEL"], self.quantize("--report", copy, model=link)),
                (["--report", "MODEL"], self.quantize("--report", link, model=copy)),
                (["--report", "MODEL"], self.quantize("--report", hard, model=copy)),
                (["--report", "--output"], self.quantize("--report", os.path.relpath(self.folder / "new.onnx"),
                                                         output=self.folder / "new.onnx")),
                (["--report", "--output"], self.quantize("--report", str(self.folder) + "/./out.onnx")),
                (["--output", "--calib"], self.quantize(calib=f"image={samples}:axis=0", output=samples)),
                (["--output", "--labels"], self.quantize("--labels", labels, "--max-drop", 1, output=labels)),
                (["--output", "--config"], self.quantize("--config", rules, output=rules)),
                (["--export", "--output"], self.quantize("--pipeline", "ppq", "--export", f"setting={again}")),
                (["--error-report", "--export"], self.quantize("--pipeline", "ppq", "--export", f"setting={samples}2",
                                                               "--error-report", f"{samples}2")),
                (["--output", "MODEL"], ["observe", link, "--calib", CALIBRATION, "-o", copy]),
                (["--output", "MODEL"], ["train", copy, "--data", samples, "--labels", labels, "-o", copy]),
                (["--output", "--data"], ["train", MODEL, "--data", samples, "--labels", labels, "-o", samples])):
            with self.subTest(arguments=arguments):
                self.wrong_usage([*words, "would overwrite"], *arguments)
        outputs = self.folder / "outputs"
        outputs.mkdir()
        data = self.write("outputs/logits.npy", IMAGES.read_bytes())
        self.wrong_usage(["logits.npy", "--input", "would overwrite"], "run", MODEL, "--input", data, "-o", outputs)
        self.assertEqual(data.read_bytes(), IMAGES.read_bytes())
        self.assertEqual({p.name: p.read_bytes() for p in self.folder.iterdir() if p.is_file()}, before)
        self.works(*self.quantize("--method", "minmax", model=copy, output=copy))  # the model in its own place
        # Data of the model that is read, where those of the other one would come.
        path, _ = self.two_layers("out.onnx.data")
        self.wrong_usage(["out.onnx", "external data", path.name], "quantize", path, "-o", out, "--approach", "weight-only")

    def test_output_that_cannot_be_written_is_named_before_the_work(self):
        missing = self.folder / "missing" / "file"
        for arguments in (self.quantize("--method", "minmax", "--report", missing),
                          self.quantize("--pipeline", "ppq", "--export", f"setting={missing}"),
                          self.quantize("--pipeline", "ppq", "--error-report", missing),
                          ["train", MODEL, "--data", IMAGES, "--labels", LABELS, "-o", self.folder]):
            with self.subTest(arguments=arguments):
                self.fails(["cannot write"], *arguments)
                self.assertEqual(list(self.folder.iterdir()), [])
        self.fails(["cannot write", "empty"], "quantize", MODEL, "-o", "", "--calib", CALIBRATION)

    def test_numbers_are_decimal(self):
        one = self.write("one.onnx", model([node("Neg", ["x"], ["y"])], [value_info("x", 1)], [value_info("y", 1)],
                                           [floats("c", np.zeros(3, np.float32))]))
        self.fails(["12 bytes", "limit is 10"], "inspect", one, "--memory-limit", "010")  # not octal: 8
        self.works("inspect", one, "--memory-limit", "0012")
        for text in ("5.0", "-1", "0x8", "1e2", "", "18446744073709551617"):
            with self.subTest(text=text):
                self.wrong_usage(["--threads", "whole number"], *self.quantize("--threads", text))
        train = ["train", MODEL, "--data", IMAGES, "--labels", LABELS, "-o", self.folder / "t.onnx"]
        for flag in ("--warmup", "--quantize-after", "--observe-for", "--freeze-statistics-after", "--seed", "--epochs"):
            for text in ("-1", "18446744073709551616"):
                with self.subTest(flag=flag, text=text):
                    self.wrong_usage([flag, "whole number"], *train, flag, text)

    def test_files_beside_the_output_stay(self):
        mine = self.write("out.onnx.tmp", b"mine")
        out = self.write("out.onnx", b"older")
        out.chmod(0o600)
        self.works(*self.quantize("--method", "minmax"))
        self.assertEqual(mine.read_bytes(), b"mine")
        self.assertEqual(out.stat().st_mode & 0o777, 0o600)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["out.onnx", "out.onnx.tmp"])

    def test_memory_limit(self):
        self.works(*self.evaluate("--memory-limit", "64M"))
        self.fails(["bytes", "limit"], *self.evaluate("--memory-limit", "100"))  # the constants of the model
        grows = model([node("ConstantOfShape", ["many"], ["c"]), node("Add", ["x", "c"], ["y"])], [value_info("x", 1)],
                      [value_info("y", 1 << 20)], [int64s("many", 1 << 20)])
        path = self.write("grows.onnx", grows)
        data = self.array("x.npy", np.zeros(1, np.float32))
        self.works("run", path, "--input", data, "-o", self.folder / "out")
        self.fails(["Add node", "limit"], "run", path, "--input", data, "-o", self.folder / "out", "--memory-limit", "1M")
        for value in ("0", "-1", "many", ""):
            with self.subTest(value=value):
                done = self.detent("inspect", path, "--memory-limit", value)
                self.assertEqual(done.returncode, 2)
                self.assertLess(len(done.stderr), 300)

    def test_winograd(self):
        random = np.random.default_rng(1)
        weights = random.standard_normal((16, 16, 3, 3)).astype(np.float32)
        path = self.write("conv.onnx", model([node("Conv", ["x", "w"], ["y"])], [value_info("x", 1, 16, 14, 14)],
                                             [value_info("y", 1, 16, 12, 12)], [floats("w", weights)]))
        data = self.array("x.npy", random.standard_normal((1, 16, 14, 14)).astype(np.float32))
        results = {}
        for tile in ("", "2", "4"):
            out = self.folder / ("out" + tile)
            self.works("run", path, "--input", data, "-o", out, *(["--winograd", tile] if tile else []))
            results[tile] = np.load(out / "y.npy")
        for tile in ("2", "4"):
            self.assertFalse(np.array_equal(results[tile], results[""]))
            np.testing.assert_allclose(results[tile], results[""], atol=3e-4)
        self.assertIn("snr", self.works("compare", path, path, "--data", data, "--winograd", "4").lower())
        self.wrong_usage(["--winograd"], "run", path, "--input", data, "-o", self.folder / "out", "--winograd", "3")

    def test_pipes_that_never_answer(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        out = self.folder / "out"
        self.fails([pipe], "inspect", pipe)
        self.fails([pipe], "run", MODEL, "--input", pipe, "-o", out)
        self.fails([pipe], *self.quantize("--config", pipe))
        self.fails([pipe], *self.evaluate(labels=pipe))

    def test_outputs_of_several_runs_that_do_not_fit_together(self):
        # As many of the constant's four values as the sample says, in rows of one, or in one row.
        constants = [int64s("values", 1, 2, 3, 4), int64s("flat", -1), int64s("begin", 0), int64s("rows", -1, 1), int64s("row", 1, -1)]
        nodes = [node("Reshape", ["x", "flat"], ["end"]), node("Slice", ["values", "begin", "end"], ["part"])]
        for form, words in (("rows", ["output 'y'", "[3,1]"]), ("row", ["output 'y'", "[1,1]", "[1,3]"])):
            path = self.write(form + ".onnx", model([*nodes, node("Reshape", ["part", form], ["y"])], [value_info("x", 1, 1, element=7)],
                                                    [value_info("y", "n", "m", element=7)], constants))
            data = self.array("x.npy", np.array([[1], [3], [2]], np.int64))
            message = self.fails(words, "run", path, "--input", data, "-o", self.folder / "out")
            self.assertNotIn("nan", message)

    # ---------------------------------------------------------------------------------- the others

    def test_eval(self):
        last = self.works(*self.evaluate()).splitlines()[-1]
        self.assertRegex(last, r"^top1 99\.44 top5 \d+\.\d\d n 360 seconds \d+\.\d\d$")
        last = self.works(*self.evaluate("--samples", "100:200", "--batch", 8, "--threads", 2)).splitlines()[-1]
        self.assertRegex(last, r"^top1 \d+\.\d\d top5 \d+\.\d\d n 100 seconds \d+\.\d\d$")
        facts = json.loads(self.works(*self.evaluate("--json", "--samples", ":10")))
        self.assertEqual(facts["n"], 10)
        self.assertEqual(set(facts), {"model", "top1", "top5", "n", "seconds", "batch", "threads", "target"})
        for samples in ("5", "9:5", "5:5", "a:b", "-1:5"):
            with self.subTest(samples=samples):
                self.wrong_usage(["--samples"], *self.evaluate("--samples=" + samples))
        self.fails(["--samples"], *self.evaluate("--samples=360:"))
        self.wrong_usage(["nonsense", "targets"], *self.evaluate("--target", "nonsense"))
        targets = [t for t in json.loads(self.works("targets", "--json"))["targets"] if t["supported"]]
        for target in targets:
            text = self.works(*self.evaluate("--target", target["target"]))
            self.assertIn("target " + target["target"], text)
            self.assertIn("top1 99.44 ", text)

    def test_images_of_whole_numbers(self):
        folder = options.digits
        last = self.works(*self.evaluate(data=folder / "training_images.npy", labels=folder / "training_labels.npy")).splitlines()[-1]
        self.assertTrue(last.startswith("top1 100.00 "), last)

    def test_scores_that_are_no_rows(self):
        path = self.write("rows.onnx", model([node("Relu", ["x"], ["y"])], [value_info("x", "N", 6, 4)], [value_info("y", "N", 6, 4)]))
        data = self.array("x.npy", np.ones((5, 6, 4), np.float32))
        labels = self.array("labels.npy", np.zeros(5, np.int64))
        self.fails(["[1,6,4]", "no row of scores"], *self.evaluate(model=path, data=data, labels=labels))
        # Axes of one element do no harm.
        path = self.write("rows.onnx", model([node("Relu", ["x"], ["y"])], [value_info("x", "N", 4, 1, 1)],
                                             [value_info("y", "N", 4, 1, 1)]))
        data = self.array("x.npy", np.arange(20, 0, -1, dtype=np.float32).reshape(5, 4, 1, 1))
        self.assertIn("top1 100.00 ", self.works(*self.evaluate(model=path, data=data, labels=labels)))

    def test_top5_and_ties(self):
        # Scores of a model that gives its input back: sample i has rank i for label 0.
        path = self.write("same.onnx", model([node("Relu", ["x"], ["y"])], [value_info("x", "N", 8)], [value_info("y", "N", 8)]))
        scores = np.zeros((7, 8), np.float32)
        for i in range(7):
            scores[i, 1 : 1 + i] = 2
            scores[i, 0] = 1
        data = self.array("x.npy", scores)
        labels = self.array("l.npy", np.zeros(7, np.int64))
        last = self.works(*self.evaluate(model=path, data=data, labels=labels)).splitlines()[-1]
        self.assertTrue(last.startswith(f"top1 {100 / 7:.2f} top5 {500 / 7:.2f} n 7 "), last)
        ties = self.array("t.npy", np.ones((2, 8), np.float32))
        labels = self.array("l.npy", np.array([0, 1]))
        last = self.works(*self.evaluate(model=path, data=ties, labels=labels)).splitlines()[-1]
        self.assertTrue(last.startswith("top1 50.00 top5 100.00 n 2 "), last)
        nan = self.array("n.npy", np.full((2, 8), np.nan, np.float32))
        last = self.works(*self.evaluate(model=path, data=nan, labels=labels)).splitlines()[-1]
        self.assertTrue(last.startswith("top1 0.00 top5 0.00 n 2 "), last)

    def test_run(self):
        out = self.folder / "a" / "b"
        self.works("run", MODEL, "--input", IMAGES, "-o", out)
        self.assertEqual([p.name for p in out.iterdir()], ["logits.npy"])
        logits = np.load(out / "logits.npy")
        self.assertEqual((logits.shape, logits.dtype), ((360, 10), np.float32))
        self.assertGreater((logits.argmax(1) == np.load(LABELS)).mean(), 0.99)
        facts = json.loads(self.works("run", MODEL, "--input", IMAGES, "-o", out, "--json"))
        self.assertEqual(facts["outputs"][0]["shape"], [360, 10])
        clash = self.write("clash.onnx", model([node("Relu", ["x"], ["a/b"]), node("Neg", ["x"], ["a_b"])],
                                               [value_info("x", "N")], [value_info("a/b", "N"), value_info("a_b", "N")]))
        data = self.array("x.npy", np.ones(3, np.float32))
        self.fails(["a_b"], "run", clash, "--input", data, "-o", self.folder / "clash")
        # Batches of a fixed size: the last one is filled up.
        fixed = self.write("fixed.onnx", model([node("Neg", ["x"], ["y"])], [value_info("x", 2, 3)], [value_info("y", 2, 3)]))
        values = np.arange(15, dtype=np.float32).reshape(5, 3)
        self.works("run", fixed, "--input", self.array("v.npy", values), "-o", out)
        self.assertTrue((np.load(out / "y.npy") == -values).all())

    def test_a_name_that_leaves_the_folder(self):
        odd = self.write("odd.onnx", model([node("Neg", ["x"], ["../../y"])], [value_info("x", "N")], [value_info("../../y", "N")]))
        data = self.array("x.npy", np.ones(3, np.float32))
        out = self.folder / "a" / "b" / "c"
        self.works("run", odd, "--input", data, "-o", out)
        self.assertEqual([p.name for p in out.iterdir()], [".._.._y.npy"])
        # The system would end a name at the null character.
        names = ["a\0b", "a\0c"]
        odd = self.write("odd.onnx", model([node("Neg", ["x"], [y]) for y in names], [value_info("x", "N")],
                                           [value_info(y, "N") for y in names]))
        out = self.folder / "null"
        for _ in range(2):
            self.works("run", odd, "--input", data, "-o", out)
            self.assertEqual(sorted(p.name for p in out.iterdir()), ["a_b.npy", "a_c.npy"])

    def test_compare(self):
        quantized = self.folder / "q.onnx"
        self.works(*self.quantize(output=quantized))
        lines = self.works("compare", MODEL, quantized, "--data", IMAGES).splitlines()
        self.assertRegex(lines[-1], r"^agreement \d+\.\d\d n 360$")
        facts = json.loads(self.works("compare", MODEL, quantized, "--data", IMAGES, "--json", "--samples", "0:50"))
        self.assertEqual(facts["n"], 50)
        self.assertGreater(facts["outputs"][0]["snr_db"] if "snr_db" in facts["outputs"][0] else 20, 15)
        images = np.load(IMAGES)[:4]
        images[1] = np.nan
        lost = self.works("compare", MODEL, MODEL, "--data", self.array("nan.npy", images)).splitlines()
        self.assertIn(" nan ", lost[-2])
        self.assertNotIn(" 0 ", lost[-2])
        self.assertEqual(lost[-1], "agreement 75.00 n 4")  # NaN ranks no class
        _, other = self.perceptron()
        self.fails(["perceptron.onnx", "'x'", MODEL], "compare", MODEL, other, "--data", IMAGES)
        same = json.loads(self.works("compare", MODEL, MODEL, "--data", IMAGES, "--json"))
        self.assertEqual(same["agreement"], 100.0)
        self.assertEqual({t["rescaled_snr_db"] for t in same["tensors"]}, {None})

    def test_compare_rescaled_channels(self):
        random = np.random.default_rng(11)
        first, second = random.normal(size=(6, 5)), random.normal(size=(5, 3))
        factors = np.array([1.0, 0.25, 2.0, 3.0, 0.5])

        def perceptron(name, factors, noise=0.0):
            weights = [floats("v", first * factors * (1 + noise)), floats("w", second / factors[:, None])]
            nodes = [node("MatMul", ["x", "v"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
            return self.write(name, model(nodes, [value_info("x", "N", 6)], [value_info("y", "N", 3)], weights))

        plain = perceptron("plain.onnx", np.ones(5))
        rescaled = perceptron("rescaled.onnx", factors, 1e-3 * random.normal(size=(6, 5)))
        data = self.array("x.npy", random.normal(size=(64, 6)).astype(np.float32))
        lines = self.works("compare", plain, rescaled, "--data", data).splitlines()
        # The product runs together with its Relu.
        self.assertEqual(["its channels were rescaled: " in line for line in lines[1:-1]], [True, False])
        facts = json.loads(self.works("compare", plain, rescaled, "--data", data, "--json"))
        for t in facts["tensors"]:
            self.assertLess(t["snr_db"], 10)
            self.assertTrue(50 < t["rescaled_snr_db"] < 70, t)
            self.assertTrue(t["is_rescaled"])
        # Channels that are wrong are not rescaled: one of garbage, a sign, all with one factor.
        for wrong in (np.array([1.0, 0.25, 2.0, 3.0, 1e6]), np.array([1.0, 0.25, 2.0, 3.0, -0.5]), 3 * np.ones(5)):
            noise = np.zeros((6, 5))
            noise[:, 4] = 100 * random.normal(size=6) if wrong[4] == 1e6 else 0
            facts = json.loads(self.works("compare", plain, perceptron("wrong.onnx", wrong, noise), "--data", data, "--json"))
            self.assertEqual({(t["is_rescaled"], t["rescaled_snr_db"]) for t in facts["tensors"]}, {(False, None)}, wrong)
        # A few samples fit any factor.
        few = json.loads(self.works("compare", plain, rescaled, "--data", data, "--samples", ":5", "--json"))
        self.assertEqual({t["rescaled_snr_db"] for t in few["tensors"]}, {None})

    def test_inspect(self):
        self.assertIn("Conv", self.works("inspect", MODEL))
        facts = json.loads(self.works("inspect", MODEL, "--json"))
        self.assertEqual(facts["opset"], 17)
        self.assertEqual(facts["unsupported_nodes"], [])
        self.assertEqual(facts["inputs"][0]["name"], "image")
        quantized = self.folder / "q.onnx"
        self.works(*self.quantize(output=quantized))
        self.assertGreater(len(json.loads(self.works("inspect", quantized, "--json"))["quantization"]), 5)
        # Zero points of 4 bits (0x80: 0, then 8), which are shown if they are the same for all channels.
        for zero_points, expected in ((0x88, 8), (0x80, None)):
            def packed(name, data, *dims):
                return b"".join(field(1, d) for d in dims) + field(2, 21) + field(8, name) + field(9, data)
            path = self.write("u4.onnx", model(
                [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
                [value_info("x", 1, 1)], [value_info("y", 1, 2)],
                [packed("q", b"\x21", 1, 2), floats("s", np.ones(2)), packed("z", bytes([zero_points]), 2)]))
            facts = json.loads(self.works("inspect", path, "--json"))
            self.assertEqual([(q["type"], q["zero_point"]) for q in facts["quantization"]], [("uint4", expected)])

    def test_targets(self):
        lines = self.works("targets").splitlines()
        self.assertEqual(sum("active" in line for line in lines), 1)
        self.assertTrue(lines[0].startswith("portable"))
        targets = json.loads(self.works("targets", "--json"))["targets"]
        self.assertEqual(len(targets), len(lines))
        self.assertEqual(sum(t["active"] for t in targets), 1)

    def test_conformance(self):
        def case(name, content, result):
            folder = self.folder / name
            (folder / "test_data_set_0").mkdir(parents=True)
            (folder / "model.onnx").write_bytes(content)
            for kind, values in (("input", [-1.0, 2.0]), ("output", result)):
                raw = np.array(values, np.float32).tobytes()
                tensor = field(1, len(values)) + field(2, 1) + field(9, raw)
                (folder / "test_data_set_0" / f"{kind}_0.pb").write_bytes(tensor)

        relu = model([node("Relu", ["x"], ["y"])], [value_info("x", 2)], [value_info("y", 2)])
        fancy = model([node("Fancy", ["x"], ["y"])], [value_info("x", 2)], [value_info("y", 2)])
        case("good/one", relu, [0.0, 2.0])
        case("good/two", fancy, [0.0, 2.0])
        last = self.works("conformance", self.folder / "good").splitlines()
        self.assertEqual(last[-1], "1 passed, 0 failed, 1 skipped")
        self.assertTrue(any("skipped" in line and "Fancy" in line for line in last[:-1]))
        case("bad/wrong", relu, [0.0, 3.0])
        case("bad/shape", relu, [0.0, 2.0, 0.0])
        done = self.detent("conformance", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 2 failed, 1 skipped")
        facts = json.loads(self.detent("conformance", self.folder, "--json").stdout)
        self.assertEqual((facts["passed"], facts["failed"], facts["skipped"]), (1, 2, 1))
        self.assertEqual(self.detent("conformance", self.folder / "good" / "one").returncode, 0)
        self.fails(["missing"], "conformance", self.folder / "missing")
        self.fails(["'' is not a folder"], "conformance", "")
        (self.folder / "empty").mkdir()
        self.fails(["empty"], "conformance", self.folder / "empty")
        # Links that lead back, and names that are not UTF-8.
        case("odd/one", relu, [0.0, 2.0])
        (self.folder / "odd" / "back").symlink_to(self.folder / "odd")
        (self.folder / "odd" / "loop").symlink_to(self.folder / "odd" / "loop")
        case(os.fsdecode(b"odd/\xff"), fancy, [0.0, 2.0])
        facts = json.loads(self.works("conformance", self.folder / "odd", "--json"))
        self.assertEqual((facts["passed"], facts["failed"], facts["skipped"]), (1, 0, 1))
        # Files that hold no tensor of the value's type, and files that belong to no value.
        for name, content, words in (("input_0.pb", b"", "undefined"),
                                     ("output_0.pb", b"", "undefined"),
                                     ("output_0.pb", field(1, 2) + field(2, 14) + field(9, bytes(16)), "type 14"),
                                     ("input_0.pb", field(1, 2) + field(2, 7) + field(9, bytes(16)), "a tensor of int64, expected float32"),
                                     ("output_1.pb", field(1, 1) + field(2, 1) + field(9, bytes(4)), "the model has 1 output"),
                                     ("input_1.pb", b"", "the model has 1 input")):
            case("files/one", relu, [0.0, 2.0])
            (self.folder / "files/one/test_data_set_0" / name).write_bytes(content)
            done = self.detent("conformance", self.folder / "files")
            self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "0 passed, 1 failed, 0 skipped"), name)
            self.assertIn(name, done.stdout)
            self.assertIn(words, done.stdout)
            shutil.rmtree(self.folder / "files")
        # A type that tensors cannot hold is one that the library does not support.
        complex_value = functools.partial(value_info, element=14)
        case("complex/one", model([node("Identity", ["x"], ["y"])], [complex_value("x", 2)], [complex_value("y", 2)]), [0.0, 2.0])
        self.assertIn("0 passed, 0 failed, 1 skipped", self.works("conformance", self.folder / "complex"))

    def test_conformance_of_large_integers(self):
        """2^53 + 1, which a double does not hold, is not 2^53."""
        integer = functools.partial(value_info, element=7)
        (self.folder / "case" / "test_data_set_0").mkdir(parents=True)
        (self.folder / "case" / "model.onnx").write_bytes(
            model([node("Identity", ["x"], ["y"])], [integer("x", 1)], [integer("y", 1)]))
        for kind, value in (("input", 2**53 + 1), ("output", 2**53)):
            (self.folder / "case" / "test_data_set_0" / f"{kind}_0.pb").write_bytes(
                field(1, 1) + field(2, 7) + field(9, value.to_bytes(8, "little")))
        done = self.detent("conformance", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("element 0 is 9007199254740993, expected 9007199254740992", done.stdout)

    # -------------------------------------------------------------------------------------- usage

    def test_wrong_usage(self):
        self.wrong_usage([])
        self.wrong_usage(["'nonsense'"], "nonsense")
        self.wrong_usage(["there is no option '--bogus'", "nearest"], *self.quantize("--bogus"))
        self.wrong_usage(["there is no option '--aproach'; the nearest is '--approach'"], *self.quantize("--aproach", "dynamic"))
        self.wrong_usage(["there is no option '--aproach'"], *self.quantize("--aproach=dynamic"))
        self.wrong_usage(["there is no option '-v'"], "-v")
        self.wrong_usage(["there is no option '--version'"], "quantize", "--version")
        self.wrong_usage(["there is no option '-x'"], *self.quantize("-xy"))
        self.wrong_usage(["MODEL is required", f"--input has taken '{MODEL}'", "detent run MODEL --input"],
                         "run", "--input", IMAGES, MODEL, "-o", self.folder / "out")
        self.wrong_usage([" is required"], "compare", "--data", IMAGES, MODEL)
        for arguments in (["quantize", MODEL, "--calib", CALIBRATION], ["eval", MODEL, "--data", IMAGES], ["quantize", "--calib", CALIBRATION]):
            self.assertNotIn("has taken", self.detent(*arguments).stderr)
        # A value may begin with -.
        self.wrong_usage(["--bits"], "quantize", MODEL, "--calib", CALIBRATION, "-o", "-out.onnx", "--bits", 99)
        self.wrong_usage(["MODEL is required", f"--calib has taken '{MODEL}'"],
                         "quantize", "--calib", CALIBRATION, MODEL, "-o", self.folder / "out.onnx")
        self.wrong_usage(["MODEL"], "inspect")
        self.wrong_usage(["-o"], "quantize", MODEL, "--calib", CALIBRATION)
        self.wrong_usage(["--labels"], "eval", MODEL, "--data", IMAGES)
        self.wrong_usage(["--threads"], *self.evaluate("--threads", "0"))
        self.wrong_usage(["--threads"], *self.evaluate("--threads", "many"))
        for option in ("--threads", "--batch"):
            for value in ("0", "-1", "100000000000"):
                with self.subTest(option=option, value=value):
                    done = self.detent(*self.evaluate(option, value))
                    self.assertEqual(done.returncode, 2)
                    self.assertLess(len(done.stderr), 200)
        self.wrong_usage(["--config"], *self.quantize("--config", ""))
        self.wrong_usage(["--granularity"], *self.quantize("--granularity", "per-group"))
        for option, values in (("--approach", ["x"]), ("--format", ["onnx", "QDQ"]), ("--activations", ["u4"]),
                               ("--method", ["entropy", ""]), ("--percentile", ["0", "101"]),
                               ("--bias-correction", ["some"]), ("--bits", ["1"]), ("--block-size", ["24"]),
                               ("--weight-algorithm", ["best"])):
            for value in values:
                with self.subTest(option=option, value=value):
                    self.wrong_usage([option], *self.quantize(option, value))
        self.wrong_usage(["dynamic", "qdq"], *self.quantize("--approach", "dynamic", "--format", "qdq"))
        self.wrong_usage(["static", "integerops"], *self.quantize("--approach", "static", "--format", "integerops"))
        self.wrong_usage(["dynamic", "s8"], *self.quantize("--approach", "dynamic", "--activations", "s8"))
        self.wrong_usage(["--labels", "--report"], *self.quantize("--labels", LABELS))
        for option in (["--block-size", "32"], ["--weight-algorithm", "hqq"]):
            self.wrong_usage(["static", option[0]], *self.quantize(*option))
        self.wrong_usage(["overwrite"], *self.quantize("--report", self.folder / "out.onnx"))
        self.wrong_usage(["auto", "--bias-correction"], *self.quantize("--method", "auto", "--bias-correction", "full"))
        self.wrong_usage(["mse", "--percentile"], *self.quantize("--method", "mse", "--percentile", "99"))
        self.wrong_usage(["dynamic", "full"], *self.quantize("--approach", "dynamic", "--bias-correction", "full"))
        self.wrong_usage(["dynamic", "--method"], *self.quantize("--approach", "dynamic", "--method", "kl"))
        self.wrong_usage(["weight-only", "--granularity"], *self.quantize("--approach", "weight-only", "--granularity", "per-tensor"))
        self.wrong_usage(["weight-only", "--activations"], *self.quantize("--approach", "weight-only", "--activations", "s8"))
        self.wrong_usage(["--max-drop", "--labels"], *self.quantize("--max-drop", "1"))
        self.wrong_usage(["--validation", "--labels"], *self.quantize("--validation", IMAGES))
        self.wrong_usage(["dynamic", "--max-drop"],
                         *self.quantize("--approach", "dynamic", "--max-drop", "1", "--labels", LABELS))
        self.wrong_usage(["auto", "--weight-scales"], *self.quantize("--weight-scales", "absmax"))
        self.wrong_usage(["--samples"], *self.quantize("--samples", "0"))
        for option, values in (("--budget", ["0", "-1", "nan", "inf", "1e999", "soon", "", "5s"]), ("--threads", ["0", "-1", "many"])):
            for value in values:
                with self.subTest(option=option, value=value):
                    self.wrong_usage([option], *self.quantize(option, value))
        self.wrong_usage(["minmax", "--budget"], *self.quantize("--method", "minmax", "--budget", "1"))
        self.wrong_usage(["dynamic", "--budget"], *self.quantize("--approach", "dynamic", "--budget", "1"))
        self.assertEqual(list(self.folder.iterdir()), [])

    # ------------------------------------------------------------------------------------- states

    def observe(self, name, *more, model=MODEL, calib=CALIBRATION):
        """Observes samples; the file with the state."""
        state = self.folder / name
        self.works("observe", model, "--calib", calib, "-o", state, *more)
        return state

    def test_states_of_shards(self):
        out, expected = self.folder / "out.onnx", self.folder / "expected.onnx"
        for options_of_both in (["--method", "mse"], ["--method", "Percentile", "--percentile", "99.5"],
                                ["--method", "kl", "--activations", "s8", "--symmetric-activations"],
                                ["--method", "moving_average"], []):
            with self.subTest(options=options_of_both):
                states = [self.observe(f"{a}.states", "--samples", f"{a}:{b}", *options_of_both)
                          for a, b in ((37, 61), (0, 37), (61, 100))]
                method = options_of_both or ["--method", "minmax"]
                self.works(*self.quantize(*method, "--granularity", "per-tensor", output=expected))
                for more in (method, []):  # what is not said is taken from the states
                    text = self.works("quantize", MODEL, "--states", *states, *more, "--granularity", "per-tensor", "-o", out)
                    self.assertIn("100 calibration samples", text)
                    self.assertEqual(out.read_bytes(), expected.read_bytes())
                merged = self.folder / "merged.states"
                self.works("observe", MODEL, "--states", *states[::-1], "-o", merged)
                self.works("quantize", MODEL, "--states", merged, "--granularity", "per-tensor", "-o", out)
                self.assertEqual(out.read_bytes(), expected.read_bytes())

    def test_states_of_files_of_their_own(self):
        images = np.load(CALIBRATION)
        files = [self.array("a.npy", images[:40]), self.array("b.npy", images[40:])]
        states = [self.observe("b.states", "--method", "nncf.mean_minmax", "--first-sample", "40", calib=files[1]),
                  self.observe("a.states", "--method", "nncf.mean_minmax", calib=files[0])]
        out, expected = self.folder / "out.onnx", self.folder / "expected.onnx"
        self.works("quantize", MODEL, "--states", *states, "-o", out)
        self.works(*self.quantize("--method", "nncf.mean_minmax", output=expected))
        self.assertEqual(out.read_bytes(), expected.read_bytes())
        # Without numbers, the samples of both files meet.
        other = self.observe("c.states", "--method", "nncf.mean_minmax", calib=files[1])
        self.fails(["c.states", "sample 0", "twice"], "quantize", MODEL, "--states", states[1], other, "-o", out)

    def test_states_of_two_rounds(self):
        out, expected = self.folder / "out.onnx", self.folder / "expected.onnx"
        first = [self.observe(f"first{a}.states", "--samples", f"{a}:{a + 50}", "--method", "isotone") for a in (0, 50)]
        self.fails(["second round"], "quantize", MODEL, "--states", *first, "-o", out)
        second = [self.observe(f"second{a}.states", "--samples", f"{a}:{b}", "--states", *first) for a, b in ((0, 30), (30, 100))]
        self.fails(["second round has 30 samples, the first 100"], "quantize", MODEL, "--states", second[0], "-o", out)
        self.fails([first[0], "round 1"], "quantize", MODEL, "--states", *second, first[0], "-o", out)
        self.works("quantize", MODEL, "--states", *second, "-o", out)
        self.works(*self.quantize("--method", "isotone", output=expected))
        self.assertEqual(out.read_bytes(), expected.read_bytes())
        one = self.observe("one.states", "--method", "minmax")
        self.fails(["no second round"], "observe", MODEL, "--calib", CALIBRATION, "--states", one, "-o", out)

    def test_states_with_bias_correction_rules_and_formats(self):
        config = self.write("c.yaml", b"method: mse\ngranularity: per-tensor\nignored:\n  types: [Gemm]\n")
        state = self.observe("a.states", "--config", config)
        out = self.folder / "out.onnx"
        expected = self.folder / "expected.onnx"
        self.works("quantize", MODEL, "--states", state, "--config", config, "-o", out)
        self.works(*self.quantize("--config", config, output=expected))
        self.assertEqual(out.read_bytes(), expected.read_bytes())
        self.fails([state, "tensors", "rules"], "quantize", MODEL, "--states", state, "-o", out)
        state = self.observe("b.states")
        self.works("quantize", MODEL, "--states", state, "--bias-correction", "fast", "-o", out)
        self.works("quantize", MODEL, "--states", state, "-o", expected)
        self.assertNotEqual(out.read_bytes(), expected.read_bytes())
        self.works("quantize", MODEL, "--states", state, "--format", "qoperator", "--bits", "6", "--threads", "2", "-o", out)
        without = self.observe("c.states", "--bias-correction", "none")
        self.assertLess(without.stat().st_size, state.stat().st_size)
        self.fails([without, "no means"], "quantize", MODEL, "--states", without, "--bias-correction", "fast", "-o", out)

    def test_states_of_the_pipeline_of_nncf(self):
        out, expected = self.folder / "out.onnx", self.folder / "expected.onnx"
        nncf, transformer = ["--pipeline", "nncf"], ["--model-type", "transformer", "--smooth-quant", "0.5"]
        state = self.observe("a.states", *nncf)
        for more in (["--preset", "mixed"], ["--mode", "fp8-e4m3"], ["--overflow-fix", "none", "--format", "qoperator"],
                     ["--bias-correction", "none"], ["--threads", 2]):
            text = self.works("quantize", MODEL, "--states", state, *nncf, *more, "-o", out)
            self.assertIn("100 calibration samples", text)
            self.works(*self.quantize(*nncf, *more, output=expected))
            self.assertEqual(out.read_bytes(), expected.read_bytes(), more)
        # What is not said is taken from the state.
        smooth = self.observe("b.states", *nncf, *transformer, "--samples", "10:30", "--ignore", "type:Gemm")
        images = self.array("part.npy", np.load(CALIBRATION)[10:30])
        self.works("quantize", MODEL, "--calib", images, *nncf, *transformer, "--ignore", "type:Gemm", "-o", expected)
        for more in ([], ["--model-type", "transformer"], ["--smooth-quant", "0.5"]):
            self.works("quantize", MODEL, "--states", smooth, *nncf, "--ignore", "type:Gemm", *more, "-o", out)
            self.assertEqual(out.read_bytes(), expected.read_bytes(), more)
        # Options of quantize in the file of both are passed over.
        config = self.write("c.yaml", b"pipeline: nncf\npreset: mixed\noverflow-fix: none\n")
        both = self.observe("c.states", "--config", config)
        self.assertEqual(both.read_bytes(), state.read_bytes())
        facts = json.loads(self.works("observe", MODEL, "--calib", CALIBRATION, *nncf, "--json", "-o", both))
        self.assertEqual((facts["pipeline"], facts["samples"], facts["bytes"], facts["method"]), ("nncf", 100, both.stat().st_size, None))

        from_states = ["quantize", MODEL, "-o", out, *nncf, "--states"]
        self.fails([smooth, "SmoothQuant"], *from_states, smooth, "--ignore", "type:Gemm", "--model-type", "none")
        self.fails([smooth, "no range", "other nodes were ignored"], *from_states, smooth)
        self.fails([state, "SmoothQuant"], *from_states, state, "--model-type", "transformer")
        self.wrong_usage(["--smooth-quant", "--model-type transformer"], *from_states, state, "--smooth-quant", "0.5")
        without = self.observe("d.states", *nncf, "--bias-correction", "none")
        self.fails([without, "no means"], *from_states, without)
        self.works(*from_states, without, "--bias-correction", "none")
        other = self.observe("e.states")
        self.wrong_usage(["one state"], *from_states, state, smooth)
        self.wrong_usage([str(other), "no state of --pipeline nncf"], *from_states, other)
        self.wrong_usage([str(state), "state of --pipeline nncf"], "quantize", MODEL, "-o", out, "--states", state)
        self.wrong_usage([str(state), "cannot be merged"], "observe", MODEL, "--states", state, "-o", out)
        self.wrong_usage(["--bias-correction full"], *from_states, state, "--bias-correction", "full")
        self.wrong_usage(["--compress", "--states"], *from_states, state, "--compress", "int8-sym")
        self.wrong_usage(["--states has no --calib"], *from_states, state, "--calib", CALIBRATION)
        observed = ["observe", MODEL, "-o", out, "--calib", CALIBRATION, *nncf]
        self.wrong_usage(["--bias-correction full"], *observed, "--bias-correction", "full")
        self.wrong_usage(["--first-sample"], *observed, "--first-sample", "3")
        self.wrong_usage(["--method"], *observed, "--method", "kl")
        self.wrong_usage(["--states"], *observed, "--states", state)
        self.wrong_usage(["--pipeline auto", "--mode"], "observe", MODEL, "-o", out, "--calib", CALIBRATION, "--mode", "int8")

    def test_states_of_weight_only_quantization(self):
        out, expected = self.folder / "out.onnx", self.folder / "expected.onnx"
        for algorithm in ("awq", "gptq"):
            chosen = ["--approach", "weight-only", "--weight-algorithm", algorithm]
            states = [self.observe(f"{a}.states", "--samples", f"{a}:{b}", "--approach", "weight-only")
                      for a, b in ((80, 100), (0, 3), (3, 80))]
            self.works("quantize", MODEL, "--states", *states, *chosen, "-o", out)
            self.works(*self.quantize(*chosen, output=expected))
            self.assertEqual(out.read_bytes(), expected.read_bytes())
        merged = self.folder / "merged.states"
        self.works("observe", MODEL, "--states", *states, "-o", merged)
        self.works("quantize", MODEL, "--states", merged, *chosen, "-o", out)
        self.assertEqual(out.read_bytes(), expected.read_bytes())
        self.wrong_usage(["rtn"], "quantize", MODEL, "--states", merged, "-o", out)
        self.fails([states[0], "approach is weight-only, expected static"], "quantize", MODEL, "--states", *states,
                   "--method", "minmax", "--approach", "static", "-o", out)
        self.wrong_usage(["rtn"], "observe", MODEL, "--calib", CALIBRATION, "--approach", "weight-only", "--weight-algorithm", "rtn",
                         "-o", out)

    def test_states_that_are_wrong(self):
        good = self.observe("good.states", "--samples", ":50", "--method", "kl")
        out = self.folder / "out.onnx"
        content = good.read_bytes()
        other_model = self.folder / "other.onnx"
        weights = bytearray(MODEL.read_bytes())
        at = len(weights) // 2
        weights[at] ^= 1
        other_model.write_bytes(weights)
        version = bytearray(content)
        version[8] = 2
        files = {"empty": b"", "cut": content[:-9], "half": content[: len(content) // 2], "text": b"minmax\n" * 40,
                 "longer": content + b"\0", "flipped": content[:100] + bytes([content[100] ^ 4]) + content[101:],
                 "version": bytes(version)}
        for name, damaged in files.items():
            with self.subTest(name=name):
                path = self.write(f"{name}.states", damaged)
                for order in ([path, good], [good, path]):
                    message = self.fails([path], "quantize", MODEL, "--states", *order, "-o", out)
                    self.assertIn("version 2" if name == "version" else path.name, message)
        self.fails(["missing.states"], "quantize", MODEL, "--states", good, self.folder / "missing.states", "-o", out)
        self.fails([good, "another model"], "quantize", other_model, "--states", good, "-o", out)
        self.fails([good, "method is kl, expected mse"], "quantize", MODEL, "--states", good, "--method", "mse", "-o", out)
        mse = self.observe("mse.states", "--samples", "50:", "--method", "mse")
        self.fails([mse, "method is mse, expected kl"], "quantize", MODEL, "--states", good, mse, "-o", out)
        self.fails([good, "bits of activations is 8, expected 6"], "quantize", MODEL, "--states", good, "--activation-bits", "6", "-o", out)
        self.fails([good, "another state as well"], "quantize", MODEL, "--states", good, good, "-o", out)
        self.assertFalse(out.exists())

    def test_observe_wrong_usage(self):
        out = self.folder / "out.states"
        good = ["observe", MODEL, "-o", out]
        self.wrong_usage(["--calib"], *good)
        self.wrong_usage(["--samples"], *good, "--states", "a.states", "--samples", "0:2")
        self.wrong_usage(["--method auto"], *good, "--calib", CALIBRATION, "--method", "auto")
        self.wrong_usage(["--bias-correction full"], *good, "--calib", CALIBRATION, "--bias-correction", "full")
        self.wrong_usage(["dynamic"], *good, "--calib", CALIBRATION, "--approach", "dynamic")
        self.wrong_usage(["mse", "--percentile"], *good, "--calib", CALIBRATION, "--method", "mse", "--percentile", "99")
        self.wrong_usage(["--samples 5:5"], *good, "--calib", CALIBRATION, "--samples", "5:5")
        self.fails(["there are only 100"], *good, "--calib", CALIBRATION, "--samples", "100:")
        self.fails(["missing.states"], *good, "--states", self.folder / "missing.states")
        self.fails(["nowhere"], "observe", MODEL, "--calib", CALIBRATION, "-o", self.folder / "nowhere" / "a.states")
        for option, value in (("--calib", CALIBRATION), ("--samples", "5"), ("--report", "r.html"), ("--max-drop", "1"),
                              ("--validation", IMAGES), ("--labels", LABELS)):
            with self.subTest(option=option):
                self.wrong_usage(["--states", option], "quantize", MODEL, "--states", "a.states", option, value, "-o", out)
        state = self.observe("a.states")
        for more in (["--method", "auto"], ["--bias-correction", "full"], ["--budget", "1"], ["--approach", "dynamic"]):
            with self.subTest(more=more):
                self.wrong_usage([more[0]], "quantize", MODEL, "--states", state, *more, "-o", out)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["a.states"])

    def test_observe_output(self):
        state = self.folder / "a.states"
        first = self.folder / "first.states"
        text = self.works("observe", MODEL, "--calib", CALIBRATION, "--method", "isotone", "--samples", "10:20", "-o", first)
        self.assertRegex(text, rf"^{re.escape(str(first))}: 10 samples observed, round 1 of 2, {first.stat().st_size} bytes\n$")
        text = self.works("observe", MODEL, "--calib", CALIBRATION, "--states", first, "--samples", "10:13", "-o", state)
        self.assertIn(": 3 samples observed, round 2 of 2, ", text)
        facts = json.loads(self.works("observe", MODEL, "--calib", CALIBRATION, "-o", state, "--json"))
        self.assertEqual({key: facts[key] for key in ("samples", "round", "rounds", "bytes", "approach", "method")},
                         {"samples": 100, "round": 1, "rounds": 1, "bytes": state.stat().st_size, "approach": "static",
                          "method": "minmax"})
        facts = json.loads(self.works("quantize", MODEL, "--states", state, "-o", self.folder / "out.onnx", "--json"))
        self.assertEqual((facts["samples"], facts["method"]), (100, "minmax"))
        # The size does not depend on the number of samples.
        more = self.observe("more.states", calib=IMAGES)
        self.assertEqual(more.stat().st_size, state.stat().st_size)

    def test_help_and_version(self):
        self.assertRegex(self.works("--version"), r"^\d+\.\d+\.\d+\n$")
        self.assertIn("quantize", self.works("--help"))
        training = " ".join(self.works("train", "--help").split())
        for default in ("Passes over the samples (10)", "Samples of a step (32)", "Learning rate (0.001)", "sgd|adam|adamw (adamw)"):
            self.assertIn(default, training)
        self.assertIn("observe", self.works("--help"))
        for command in ("quantize", "observe", "eval", "run", "compare", "inspect", "conformance", "targets"):
            self.assertIn("--json", self.works(command, "--help"))
        for command in ("quantize", "observe", "eval", "run", "compare"):
            self.assertIn("[:axis=K|:fixed]", " ".join(self.works(command, "--help").split()))


if __name__ == "__main__":
    # Tests send interrupts to programs, which would inherit that they are ignored, as they are in a shell's background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(argv=sys.argv[:1])
