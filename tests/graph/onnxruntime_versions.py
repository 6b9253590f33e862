# SPDX-License-Identifier: BSD-3-Clause
"""Runs models in other releases of ONNX Runtime than the one that is imported.

cmake/setup.sh --python puts these releases into folders beside the Python environment's own packages. Each runs in a
process of its own; `run_all` returns what it computed.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np

# Each with the newest Python that it was made for.
RELEASES = {"1.18.1": (3, 12), "1.20.1": (3, 13), "1.23.2": (3, 13), "1.26.0": (3, 14)}
FOLDER = pathlib.Path(sys.prefix) / "onnxruntime"


def available():
    """(releases that are there, releases that should be there and are not)"""
    there = [release for release in RELEASES if (FOLDER / release / "onnxruntime").is_dir()]
    return there, [r for r, newest in RELEASES.items() if r not in there and sys.version_info[:2] <= newest]


def run_all(release, jobs, folder):
    """Runs (model, inputs) pairs in a release, or, if it is None, in the one that is imported; returns for each its outputs
    by name, or the text of an error."""
    described = []
    for i, (model, feeds) in enumerate(jobs):
        np.savez(folder / f"feeds_{i}.npz", **feeds)
        described.append({"model": str(model), "feeds": str(folder / f"feeds_{i}.npz"),
                          "outputs": str(folder / f"outputs_{i}.npz")})
    environment = {**os.environ, **({"PYTHONPATH": str(FOLDER / release)} if release else {})}
    done = subprocess.run([sys.executable, __file__], input=json.dumps(described), capture_output=True, text=True,
                          env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"ONNX Runtime {release or 'that is imported'}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    assert release in (None, answer["version"]), answer["version"]
    return [dict(np.load(job["outputs"])) if error is None else error
            for job, error in zip(described, answer["errors"])]


def product_case(folder):
    """A product of u8 by s8 that some releases compute wrongly on some processors: (model, inputs, exact product).

    Without VNNI, sums of two products saturate at 16 bits. With AMX, the 32nd row is wrong in 1.23.2 unless the number of
    columns of the left side is a multiple of 64."""
    import onnx

    random = np.random.default_rng(307)
    left, right = random.integers(0, 256, (40, 20), np.uint8), random.integers(-128, 128, (20, 24), np.int8)
    left[0], right[:, 0] = 255, 127
    node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "product", [value("a", onnx.TensorProto.UINT8, left.shape)],
                                   [value("y", onnx.TensorProto.INT32, (40, 24))],
                                   [onnx.numpy_helper.from_array(right, "b")])
    path = folder / "product.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7), path)
    return path, {"a": left}, left.astype(np.int32) @ right.astype(np.int32)


def multiplies_exactly(release, folder):
    """Whether a release multiplies 8-bit integers exactly on this processor: if not, it is no judge of quantized models."""
    model, feeds, exact = product_case(folder)
    (found,) = run_all(release, [(model, feeds)], folder)
    if isinstance(found, str):
        raise RuntimeError(f"ONNX Runtime {release or 'that is imported'} does not multiply: {found}")
    return np.array_equal(found["y"], exact)


def main():
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    errors = []
    for job in json.load(sys.stdin):
        try:
            session = onnxruntime.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
            names = [output.name for output in session.get_outputs()]
            feeds = dict(np.load(job["feeds"]))
            count = max(len(v) if v.ndim else 1 for v in feeds.values())
            if any(i.shape[:1] == [1] for i in session.get_inputs()) and count > 1:
                runs = [session.run(None, {k: v[i : i + 1] for k, v in feeds.items()}) for i in range(count)]
                values = [np.concatenate(parts) for parts in zip(*runs)]
            else:
                values = session.run(None, feeds)
            np.savez(job["outputs"], **dict(zip(names, values)))
            errors.append(None)
        except Exception as e:  # of classes of its own
            errors.append(str(e).splitlines()[0])
    print(json.dumps({"version": onnxruntime.__version__, "errors": errors}))


if __name__ == "__main__":
    main()
