#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Calibration over many processes, by the scripts of examples/distributed.

    distributed_test.py PART --detent BINARY --digits FOLDER

PART is slurm (a job array, whose tasks this test runs itself) or dask (a cluster of processes on this machine).

Exit codes: 0 ok, 1 something is wrong, 77 skipped: numpy or Dask is missing (with CI=true that is 1).
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest


def skip(reason):
    print(f"skipped: {reason}; cmake/setup.sh --python installs it")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)


try:
    import numpy as np
except ImportError:
    skip("no Python with numpy here")

parser = argparse.ArgumentParser()
parser.add_argument("part", choices=["slurm", "dask"])
parser.add_argument("--detent", required=True, type=pathlib.Path)
parser.add_argument("--digits", required=True, type=pathlib.Path)
parser.add_argument("--shared", type=pathlib.Path)
options = parser.parse_args()

if options.part == "dask":
    try:
        import dask.distributed  # noqa: F401
    except ImportError:
        skip("this Python has no dask and distributed")

MODEL = options.digits / "digits.onnx"
SAMPLES = options.digits / "calibration_images.npy"
EXAMPLES = options.digits.parent / "distributed"
COUNT = np.load(SAMPLES).shape[0]

# A program that dies at the first run of a task, and is detent in all others.
MORTAL = """#!/bin/sh
case "$1 $*" in
"observe "*" {samples} "*) if mkdir "{marker}" 2>/dev/null; then kill -9 $$; fi ;;
esac
exec "{detent}" "$@"
"""


class Distributed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def runs(self, *command, environment=None):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))
        return done.stdout

    def expected(self, method, *more):
        """The model that one process makes."""
        path = self.folder / f"expected.{method}.onnx"
        self.runs(options.detent, "quantize", MODEL, "--calib", SAMPLES, "--method", method, *more, "-o", path)
        return path.read_bytes()

    def mortal(self, samples):
        """A program that dies once, in the task of these samples."""
        path = self.folder / "mortal"
        path.write_text(MORTAL.format(samples=samples, marker=self.folder / "died", detent=options.detent.resolve()))
        path.chmod(0o755)
        return path

    # ------------------------------------------------------------------------------------------ Slurm

    def task(self, folder, i, n, *more, program=None):
        return subprocess.run(["sh", EXAMPLES / "observe_with_slurm.sh", program or options.detent, MODEL, SAMPLES,
                               str(COUNT), folder, *map(str, more)], capture_output=True, text=True,
                              env={**os.environ, "SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_COUNT": str(n)})

    def job_array(self, folder, n, *more):
        """All tasks, in another order."""
        for i in random.Random(n).sample(range(n), n):
            done = self.task(folder, i, n, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(folder.glob("*.states"))

    def slurm_any_number_of_tasks(self):
        for method in ("minmax", "percentile", "kl", "nncf.mean_minmax"):
            expected = self.expected(method)
            for n in (1, 3, 8):
                with self.subTest(method=method, tasks=n):
                    states = self.job_array(self.folder / f"{method}.{n}", n, "--method", method)
                    self.assertEqual(len(states), n)
                    out = self.folder / "out.onnx"
                    for order in (states, states[::-1]):
                        self.runs(options.detent, "quantize", MODEL, "--states", *order, "-o", out)
                        self.assertEqual(out.read_bytes(), expected)

    def slurm_two_rounds(self):
        for method in ("isotone", "ort.entropy", "torch.histogram"):
            expected = self.expected(method)
            for n in (1, 3):
                with self.subTest(method=method, tasks=n):
                    first = self.job_array(self.folder / f"{method}.{n}", n, "--method", method)
                    second = self.job_array(self.folder / f"{method}.{n}.second", n, "--states", *first)
                    out = self.folder / "out.onnx"
                    self.runs(options.detent, "quantize", MODEL, "--states", *second, "-o", out)
                    self.assertEqual(out.read_bytes(), expected)

    def slurm_more_tasks_than_samples(self):
        few = self.folder / "few.npy"
        np.save(few, np.load(SAMPLES)[:3])
        folder = self.folder / "few"
        for i in range(5):
            self.runs("sh", EXAMPLES / "observe_with_slurm.sh", options.detent, MODEL, few, 3, folder,
                      environment={"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_COUNT": "5"})
        self.assertEqual(len(list(folder.glob("*.states"))), 3)

    def slurm_task_that_dies(self):
        expected = self.expected("kl")
        folder = self.folder / "states"
        first, last = COUNT // 3, COUNT * 2 // 3
        program = self.mortal(f"{first}:{last}")
        ended = [self.task(folder, i, 3, "--method", "kl", program=program).returncode for i in range(3)]
        self.assertEqual([code == 0 for code in ended], [True, False, True])
        self.assertEqual(len(list(folder.iterdir())), 2)  # and no half of a file
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        self.assertEqual([self.task(folder, i, 3, "--method", "kl", program=program).returncode for i in range(3)], [0] * 3)
        for path, time in before.items():  # those that were done are left alone
            self.assertEqual(path.stat().st_mtime_ns, time)
        out = self.folder / "out.onnx"
        self.runs(options.detent, "quantize", MODEL, "--states", *folder.glob("*.states"), "-o", out)
        self.assertEqual(out.read_bytes(), expected)

    def slurm_without_slurm(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        done = subprocess.run(["sh", EXAMPLES / "observe_with_slurm.sh", options.detent, MODEL, SAMPLES, "100", self.folder],
                              capture_output=True, text=True, env=environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("job array", done.stderr)
        done = subprocess.run(["sh", EXAMPLES / "observe_with_slurm.sh"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)

    # ------------------------------------------------------------------------------------------- Dask

    def dask(self, output, *more):
        return self.runs(sys.executable, EXAMPLES / "quantize_with_dask.py", MODEL, SAMPLES, output, "--workers", 2,
                         "--detent", options.detent, *more)

    def dask_any_number_of_parts(self):
        out = self.folder / "out.onnx"
        expected = self.expected("kl")
        for n in (1, 3, 8):
            with self.subTest(parts=n):
                self.assertIn(f"{COUNT} calibration samples", self.dask(out, "--method", "kl", "--parts", n))
                self.assertEqual(out.read_bytes(), expected)

    def dask_two_rounds(self):
        out = self.folder / "out.onnx"
        self.dask(out, "--method", "ort.entropy", "--parts", 3)
        self.assertEqual(out.read_bytes(), self.expected("ort.entropy"))

    def dask_task_that_dies(self):
        out = self.folder / "out.onnx"
        program = self.mortal(f"{COUNT // 2}:{COUNT}")
        self.dask(out, "--method", "minmax", "--parts", 2, "--detent", program)
        self.assertTrue((self.folder / "died").is_dir())
        self.assertEqual(out.read_bytes(), self.expected("minmax"))

    def dask_wrong_method(self):
        done = subprocess.run([sys.executable, EXAMPLES / "quantize_with_dask.py", MODEL, SAMPLES, self.folder / "out.onnx",
                               "--workers", "1", "--detent", options.detent, "--method", "nothing", "--retries", "0"],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("'nothing'", done.stderr)
        self.assertFalse((self.folder / "out.onnx").exists())


if __name__ == "__main__":
    suite = unittest.TestSuite(Distributed(name) for name in dir(Distributed) if name.startswith(options.part + "_"))
    result = unittest.TextTestRunner().run(suite)
    sys.exit(0 if result.wasSuccessful() else 1)
