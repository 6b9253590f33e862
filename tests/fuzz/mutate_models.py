#!/usr/bin/env python3
"""Changes ONNX models in ways that keep them ONNX models, and runs a fuzz target on them.

    mutate_models.py TARGET CORPUS [--count N] [--seed S] [--batch N] [--keep FOLDER]

TARGET is tests/fuzz's onnx_fuzz, built with sanitizers (preset fuzz, or with driver.cpp); CORPUS is the folder of models that
make_corpus.py made. Attributes, dimensions, types, names, the numbers of inputs and outputs, initializers, opsets and sub-graphs
are changed. Models run in batches, in one process for each; what crashes, hangs, takes too much memory or gives a message of
several lines is a finding: its model is kept, and the batch goes on behind it. The last line counts models and findings; the
exit code is 1 if there is a finding.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx import AttributeProto as A, TensorProto as T, helper as h, numpy_helper
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

INTEGERS = [0, 1, -1, 2, 3, 7, -2, 4, 64, 65, 255, 256, -128, 1 << 16, 1 << 28, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 40, (1 << 63) - 1,
            -(1 << 63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan")]
TYPES = [T.FLOAT, T.UINT8, T.INT8, T.UINT16, T.INT16, T.INT32, T.INT64, T.STRING, T.BOOL, T.FLOAT16, T.DOUBLE, T.UINT32, T.UINT64, T.BFLOAT16,
         T.INT4, T.UINT4]
STRINGS = ["", "NOTSET", "SAME_UPPER", "VALID", "linear", "nearest", "cubic", "reflect", "edge", "wrap", "a\nb", "\x1b[2J", "x" * 300]
DTYPES = [np.float32, np.uint8, np.int8, np.int32, np.int64, np.bool_, np.float16, np.float64]


def graphs_of(graph):
    """The graph and all of its sub-graphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for g in ([attribute.g] if attribute.type == A.GRAPH else attribute.graphs):
                yield from graphs_of(g)


class Mutator:
    def __init__(self, seed, corpus):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.models = [(p.name, p.read_bytes()) for p in sorted(corpus.iterdir())]
        self.changes = [getattr(self, name) for name in dir(self) if name.startswith("change_")]

    def model(self):
        """A changed model as bytes, and a line that says what it was made from."""
        name, data = self.random.choice(self.models)
        model = onnx.load_from_string(data)
        done = [name]
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 5))):
            change = self.random.choice(self.changes)
            try:
                if change(model, self.random.choice(list(graphs_of(model.graph)))):
                    done.append(change.__name__[7:])
            except (ValueError, TypeError, OverflowError, NotImplementedError):
                pass  # the change does not fit this model
        return model.SerializeToString(), " ".join(done)

    def node(self, graph):
        return self.random.choice(graph.node) if graph.node else None

    def name(self, graph):
        names = [v.name for v in graph.input] + [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output]
        return self.random.choice(names + ["", "nothing", "a\nb"])

    def dims(self):
        return [self.random.choice((0, 1, 1, 2, 3, 4, 5, 8, -1)) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 4, 5, 9)))]

    def array(self):
        dims = [abs(d) for d in self.dims()]
        kind = self.random.choice(DTYPES)
        values = self.numbers.integers(-3, 9, dims)
        if self.random.random() < 0.3:
            values = np.full(dims, self.random.choice(INTEGERS[:12]))
        if np.issubdtype(kind, np.floating) and self.random.random() < 0.3:
            values = np.full(dims, self.random.choice(FLOATS))
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(kind)

    def change_integer_attribute(self, model, graph):
        node = self.node(graph)
        found = [a for a in node.attribute if a.type in (A.INT, A.INTS)] if node else []
        if not found:
            return False
        a = self.random.choice(found)
        if a.type == A.INT:
            a.i = self.random.choice(INTEGERS)
        elif a.ints and self.random.random() < 0.7:
            a.ints[self.random.randrange(len(a.ints))] = self.random.choice(INTEGERS)
        elif self.random.random() < 0.5:
            a.ints.append(self.random.choice(INTEGERS))
        else:
            del a.ints[:]
        return True

    def change_other_attribute(self, model, graph):
        node = self.node(graph)
        if node is None or not node.attribute:
            return False
        i = self.random.randrange(len(node.attribute))
        a = node.attribute[i]
        kind = self.random.randrange(5)
        if kind == 0:
            del node.attribute[i]
        elif kind == 1:
            key = a.name
            node.attribute[i].CopyFrom(h.make_attribute(key, self.random.choice((
                self.random.choice(INTEGERS), self.random.choice(FLOATS), self.random.choice(STRINGS), [1, 2], [0.5]))))
        elif kind == 2 and a.type == A.FLOAT:
            a.f = self.random.choice(FLOATS)
        elif kind == 3 and a.type == A.STRING:
            a.s = self.random.choice(STRINGS).encode()
        else:
            a.name = self.random.choice(("axis", "axes", "to", "perm", "pads", "mode", "group", "block_size", "body"))
        return True

    def change_inputs(self, model, graph):
        node = self.node(graph)
        if node is None:
            return False
        kind = self.random.randrange(5)
        if kind == 0 and node.input:
            node.input[self.random.randrange(len(node.input))] = self.name(graph)
        elif kind == 1 and node.input:
            del node.input[self.random.randrange(len(node.input))]
        elif kind == 2:
            node.input.append(self.name(graph))
        elif kind == 3 and len(node.input) > 1:
            i, j = self.random.sample(range(len(node.input)), 2)
            node.input[i], node.input[j] = node.input[j], node.input[i]
        else:
            del node.input[:]
        return True

    def change_outputs(self, model, graph):
        node = self.node(graph)
        if node is None:
            return False
        kind = self.random.randrange(4)
        if kind == 0 and node.output:
            del node.output[self.random.randrange(len(node.output))]
        elif kind == 1:
            node.output.append(f"more{self.random.randrange(99)}")
        elif kind == 2 and node.output:
            node.output[self.random.randrange(len(node.output))] = self.name(graph)
        elif graph.output:
            graph.output[self.random.randrange(len(graph.output))].name = self.name(graph)
        return True

    def change_operator(self, model, graph):
        node = self.node(graph)
        if node is None:
            return False
        other = onnx.load_from_string(self.random.choice(self.models)[1])
        from_node = self.node(other.graph)
        node.op_type, node.domain = from_node.op_type, from_node.domain
        if self.random.random() < 0.5:
            del node.attribute[:]
            node.attribute.extend(from_node.attribute)
        return True

    def change_declared(self, model, graph):
        values = list(graph.input) + list(graph.output)
        if not values:
            return False
        v = self.random.choice(values)
        kind = self.random.randrange(4)
        if kind == 0:
            v.CopyFrom(h.make_tensor_value_info(v.name, self.random.choice(TYPES), self.dims()))
        elif kind == 1:
            v.type.tensor_type.elem_type = self.random.choice(TYPES)
        elif kind == 2 and v.type.tensor_type.shape.dim:
            v.type.tensor_type.shape.dim[0].dim_value = self.random.choice(INTEGERS)
        else:
            v.type.tensor_type.ClearField("shape")
        return True

    def change_constant(self, model, graph):
        tensors = list(graph.initializer) + [a.t for n in graph.node for a in n.attribute if a.type == A.TENSOR]
        if not tensors:
            return False
        t = self.random.choice(tensors)
        kind = self.random.randrange(5)
        if kind == 0:
            t.CopyFrom(numpy_helper.from_array(self.array(), t.name))
        elif kind == 1:
            t.data_type = self.random.choice(TYPES)
        elif kind == 2 and t.dims:
            t.dims[self.random.randrange(len(t.dims))] = self.random.choice(INTEGERS)
        elif kind == 3 and t.raw_data:
            data = bytearray(t.raw_data)
            data[self.random.randrange(len(data))] = self.random.randrange(256)
            t.raw_data = bytes(data)
        else:
            t.dims.append(1)
        return True

    def change_input_to_constant(self, model, graph):
        if not graph.input:
            return False
        v = self.random.choice(graph.input)
        dims = [d.dim_value or 2 for d in v.type.tensor_type.shape.dim]
        if np.prod(dims, dtype=np.float64) > 1000:
            return False
        try:
            kind = h.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            values = np.asarray(self.numbers.integers(-2, 4, dims)).astype(kind)
        except (KeyError, ValueError, TypeError):
            return False
        graph.initializer.append(numpy_helper.from_array(values, v.name))
        return True

    def change_order(self, model, graph):
        nodes = list(graph.node)
        self.random.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
        return True

    def change_names(self, model, graph):
        old, new = self.name(graph), self.name(graph)
        for node in graph.node:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new
        return True

    def change_opset(self, model, graph):
        model.opset_import[0].version = self.random.choice((1, 6, 7, 10, 11, 12, 13, 17, 18, 19, 21, 22, 23, 27, 28, -1))
        return True

    def change_repeat(self, model, graph):
        """A copy of a node behind it, from the value that it makes."""
        node = self.node(graph)
        if node is None or not node.output or not node.input:
            return False
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for i in range(len(copy.output)):
            copy.output[i] = f"{copy.output[i]}_again{self.random.randrange(99)}"
        copy.input[0] = node.output[0]
        graph.node.append(copy)
        if graph.output:
            graph.output[0].name = copy.output[0]
            graph.output[0].type.tensor_type.ClearField("shape")
        return True

    def change_nest(self, model, graph):
        """A node in the branches of an If."""
        node = self.node(graph)
        if node is None or not node.output or len(node.output) > 1:
            return False
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[0] = "nested"
        body = h.make_graph([inner], "body", [], [h.make_value_info("nested", onnx.TypeProto())])
        graph.initializer.append(numpy_helper.from_array(np.array(self.random.random() < 0.5), "condition"))
        outputs = list(node.output)
        node.CopyFrom(h.make_node("If", ["condition"], outputs, then_branch=body, else_branch=body))
        return True


class Runner:
    def __init__(self, target, keep, seconds):
        self.target, self.keep, self.seconds = target, keep, seconds
        self.findings = 0
        # libFuzzer's main takes files without further arguments; driver.cpp prints their names with --names.
        text = subprocess.run([target, "-help=1"], capture_output=True, text=True).stdout
        self.is_libfuzzer = "libFuzzer" in text or "rss_limit_mb" in text

    def run(self, files):
        """Runs the target on files, in as many processes as it takes to get behind findings."""
        while files:
            options = ["-rss_limit_mb=2048", f"-timeout={self.seconds}"] if self.is_libfuzzer else ["--names"]
            try:
                done = subprocess.run([self.target, *options, *map(str, files)], capture_output=True, errors="replace", text=True,
                                      timeout=self.seconds * 20 + len(files))
                if done.returncode == 0:
                    return
                output, reason = done.stdout + done.stderr, f"exit code {done.returncode}"
            except subprocess.TimeoutExpired as e:
                output = "".join((x or b"").decode(errors="replace") for x in (e.stdout, e.stderr))
                reason = "it hangs"
            last = 0
            for i, f in enumerate(files):
                if str(f) in output:
                    last = i
            self.findings += 1
            kept = self.keep / files[last].name
            kept.write_bytes(files[last].read_bytes())
            lines = [line for line in output.splitlines() if "ERROR" in line or "FINDING" in line or "runtime error" in line]
            print(f"{kept}: {reason}: {lines[0] if lines else output[-300:]}", flush=True)
            (self.keep / (files[last].name + ".txt")).write_text(output[-20000:])
            files = files[last + 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--seconds", type=int, default=25, help="what one model may take")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("findings"))
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1:max_allocation_size_mb=1024:detect_leaks=0")
    mutator = Mutator(options.seed, options.corpus)
    runner = Runner(options.target, options.keep, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        made = 0
        while made < options.count:
            files = []
            for _ in range(min(options.batch, options.count - made)):
                data, how = mutator.model()
                path = pathlib.Path(folder) / f"{options.seed}_{made:07d}.onnx"
                path.write_bytes(data)
                files.append(path)
                made += 1
            runner.run(files)
            for path in files:
                path.unlink()
    print(f"{made} models of seed {options.seed}, {runner.findings} findings")
    sys.exit(1 if runner.findings else 0)


if __name__ == "__main__":
    main()
