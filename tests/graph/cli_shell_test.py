#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The command line tool in a shell: help and its examples, completion, the manual page; plugins; PPQ's pipeline.

    cli_shell_test.py --detent BINARY --digits FOLDER --plugin LIBRARY

Exit codes: 0 ok, 1 something is wrong, 77 skipped: numpy is missing (with CI=true that is 1).
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: no Python with numpy here")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

parser = argparse.ArgumentParser()
parser.add_argument("--detent", required=True)
parser.add_argument("--digits", required=True, type=pathlib.Path)
parser.add_argument("--plugin", required=True, type=pathlib.Path)
parser.add_argument("--cc", default="cc")
parser.add_argument("--include", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "include")
parser.add_argument("--shared", type=pathlib.Path, help="folder with conformance/*/*, ONNX's test data")
options = parser.parse_args()

MODEL = options.digits / "digits.onnx"
CALIBRATION = options.digits / "calibration_images.npy"
COMMANDS = ["quantize", "observe", "train", "eval", "run", "compare", "inspect", "conformance", "targets", "completion", "man", "help"]


class Shell(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def detent(self, *arguments, **more):
        return subprocess.run([options.detent, *map(str, arguments)], capture_output=True, text=True, **more)

    def works(self, *arguments):
        done = self.detent(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def fails(self, code, words, *arguments):
        done = self.detent(*arguments)
        self.assertEqual(done.returncode, code, (arguments, done.stderr))
        for word in words:
            self.assertIn(str(word), done.stderr)

    def quantize(self, *more, output="out.onnx"):
        return ["quantize", MODEL, "-o", self.folder / output, "--calib", CALIBRATION, *more]

    # ----------------------------------------------------------------------------------- help

    def write_node_test(self, folder):
        """A test in ONNX's form: the model with one image, and what the tool itself computes of it."""

        def tensor(values):
            def varint(n):
                return (bytes([n & 0x7F | 0x80]) + varint(n >> 7)) if n >= 0x80 else bytes([n])

            raw = values.astype("<f4").tobytes()
            return b"".join(b"\x08" + varint(d) for d in values.shape) + b"\x10\x01\x4a" + varint(len(raw)) + raw

        image = np.load(options.digits / "test_images.npy")[:1]
        np.save(self.folder / "one.npy", image)
        self.works("run", MODEL, "--input", self.folder / "one.npy", "-o", self.folder / "one")
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        shutil.copy(MODEL, folder / "model.onnx")
        (data / "input_0.pb").write_bytes(tensor(image))
        (data / "output_0.pb").write_bytes(tensor(np.load(next((self.folder / "one").iterdir()))))

    def test_every_example_of_the_help_works(self):
        for file in options.digits.resolve().iterdir():
            os.symlink(file, self.folder / file.name)
        (self.folder / "bin").mkdir()
        os.symlink(pathlib.Path(options.detent).resolve(), self.folder / "bin" / "detent")
        self.write_node_test(self.folder / "node_tests" / "test_one")
        environment = dict(os.environ, PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}")
        count = 0
        for command in COMMANDS:
            text = self.works("help", command)
            self.assertEqual(text, self.works(command, "--help"))
            examples = [line.strip() for line in text.splitlines() if line.startswith("  detent ")]
            self.assertTrue(examples, command)
            for example in examples:
                self.assertTrue(example.startswith("detent " + command), example)
                done = subprocess.run(example, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True)
                # Training may say that no epoch made the model better.
                errors = "" if command == "train" and done.stderr.startswith("detent: warning: ") else done.stderr
                self.assertEqual((done.returncode, errors), (0, ""), example)
                count += 1
        self.assertGreaterEqual(count, 12)
        for name in ("int8.onnx", "dynamic.onnx", "nncf.onnx", "int4.onnx", "trt.onnx", "trt.json", "all.states", "nncf.states", "trained.onnx", "outputs", "detent.bash", "detent.1"):
            self.assertTrue((self.folder / name).exists(), name)
        self.assertIn("act_quant_info", json.loads((self.folder / "trt.json").read_text()))

    def test_help(self):
        text = self.works("help")
        for command in COMMANDS:
            self.assertIn(command, text)
        self.assertEqual(text, self.works("--help"))
        quantize = self.works("help", "quantize")
        headings = [line[:-1] for line in quantize.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
        for heading in ("Files", "Samples", "What is made", "Static quantization", "Dynamic quantization",
                        "Weight-only quantization", "NNCF (--pipeline nncf)",
                        "NNCF's compression of weights (--pipeline nncf --compress)", "PPQ (--pipeline ppq)"):
            self.assertIn(heading, headings)
        ppq = quantize.split("PPQ (--pipeline ppq):")[1]
        self.assertIn("--platform", ppq)
        self.fails(2, ["nonsense"], "help", "nonsense")

    # ------------------------------------------------------------------------------ completion

    def complete(self, line):
        """What bash offers at the end of a command line, split into words as bash does it ("=" is a word)."""
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
        script = f"""
            source {shlex.quote(str(self.script))}
            COMP_WORDS=({' '.join(shlex.quote(w) for w in words)})
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _detent
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout != "\n" else []

    def test_completion_in_bash(self):
        self.script = self.folder / "detent.bash"
        self.script.write_text(self.works("completion", "bash"))
        subprocess.run(["bash", "-n", self.script], check=True)
        (self.folder / "my model.onnx").touch()
        self.assertEqual(self.complete("detent "), sorted(COMMANDS))
        self.assertEqual(self.complete("detent co"), ["compare", "completion", "conformance"])
        self.assertEqual(self.complete("detent --v"), ["--version"])
        self.assertEqual(self.complete("detent quantize --appr"), ["--approach"])
        self.assertEqual(self.complete("detent quantize --approach "), ["dynamic", "static", "weight-only"])
        self.assertEqual(self.complete("detent quantize m.onnx --approach=st"), ["static"])
        self.assertEqual(self.complete("detent quantize --approach="), ["dynamic", "static", "weight-only"])
        self.assertEqual(self.complete("detent quantize --platform TRT"), ["TRT_INT8"])
        self.assertEqual(self.complete("detent quantize --method mse"), ["mse"])
        self.assertEqual(self.complete("detent quantize --export trt"), ["trt-json="])
        self.assertEqual(self.complete("detent quantize -o my"), ["my model.onnx"])
        self.assertEqual(self.complete("detent quantize my"), ["my model.onnx"])
        self.assertEqual(self.complete("detent quantize --json my"), ["my model.onnx"])
        self.assertEqual(self.complete("detent quantize --calib x=my"), ["my model.onnx"])
        self.assertEqual(self.complete("detent completion z"), ["zsh"])
        self.assertEqual(self.complete("detent help ins"), ["inspect"])
        self.assertEqual(self.complete("detent nonsense --x"), [])
        # Every option of every command's help is offered.
        for command in COMMANDS:
            offered = self.complete(f"detent {command} -")
            named = set(re.findall(r"^  (?:(-\w),)?(--[\w-]+)", self.works(command, "--help"), re.M))
            expected = {name for pair in named for name in pair if name}
            self.assertTrue(expected <= set(offered), (command, expected - set(offered)))

    def test_completion_in_other_shells(self):
        zsh, fish = self.works("completion", "zsh"), self.works("completion", "fish")
        self.assertTrue(zsh.startswith("#compdef detent\n"))
        for option in ("--approach", "--platform", "--error-report"):
            self.assertIn(option, zsh)
            self.assertIn(f"-l {option[2:]} ", fish)
        self.assertIn(":value:(static dynamic weight-only)", zsh)
        self.assertIn("-l approach -x -a 'static dynamic weight-only'", fish)
        for shell, text in (("zsh", zsh), ("fish", fish)):
            path = self.folder / shell
            path.write_text(text)
            if shutil.which(shell):
                subprocess.run([shell, "-n", path], check=True)
        self.fails(2, ["tcsh"], "completion", "tcsh")
        self.fails(2, ["SHELL"], "completion")

    def test_manual_page(self):
        page = self.works("man")
        self.assertIn("\n.SH EXIT STATUS\n", page)
        for command in COMMANDS:
            self.assertIn(f".SH DETENT {command.upper()}\n", page)
        for option in ("pipeline", "approach", "plugin", "calib\\-steps"):
            self.assertIn(f"\\fB\\-\\-{option}\\fR", page)
        for line in page.splitlines():
            self.assertRegex(line, r"^(\.(SH|SS|TP|PP|TH|nf|fi|\\\")( .*)?|[^.'].*|)$")
        path = self.folder / "detent.1"
        path.write_text(page)
        if shutil.which("man"):
            done = subprocess.run(["man", "-l", "--warnings", path], capture_output=True, text=True,
                                  env=dict(os.environ, MANPAGER="cat", MANWIDTH="100", LC_ALL="C.UTF-8"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("--pipeline", done.stdout)
        elif shutil.which("mandoc"):
            done = subprocess.run(["mandoc", "-T", "lint", "-W", "error", path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)
        elif shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    # --------------------------------------------------------------------------------- plugins

    def trimmed(self, values):
        """Scale on 0..255 and objective of the example's observer, by its description."""
        magnitudes = np.abs(values.astype(np.float32).ravel())
        largest = magnitudes.max()
        bins = np.minimum((magnitudes.astype(np.float64) / float(largest) * 1024).astype(int), 1023)
        kept = np.cumsum(np.bincount(bins, minlength=1024))
        count = int(np.argmax(kept * 1000 >= values.size * 999)) + 1
        upper = np.float32(float(largest) * count / 1024)
        lower = min(max(np.float32(values.min()), -upper), np.float32(0))
        return np.float32((float(upper) - float(lower)) / 255), 1 - kept[count - 1] / values.size

    def test_plugin(self):
        facts = json.loads(self.works(*self.quantize("--plugin", options.plugin, "--method", "Trimmed", "--json")))
        name = json.loads(self.works("inspect", MODEL, "--json"))["inputs"][0]["name"]
        first = next(a for a in facts["activations"] if a["tensor"] == name)
        self.assertEqual(first["method"], "trimmed")
        values = np.load(CALIBRATION)
        self.assertEqual(first["count"], values.size)
        self.assertEqual((first["min"], first["max"]), (values.min(), values.max()))
        expected, objective = self.trimmed(values)
        self.assertLessEqual(abs(np.float32(first["scale"]) - expected), np.spacing(expected))
        self.assertEqual(first["objective"], objective)
        plain = json.loads(self.works(*self.quantize("--method", "minmax", "--json")))
        self.assertNotEqual([a["scale"] for a in plain["activations"]], [a["scale"] for a in facts["activations"]])
        # The same through PPQ's passes.
        setting = self.folder / "setting.json"
        setting.write_text(json.dumps({"quantize_activation_setting": {"calib_algorithm": "trimmed"}}))
        self.works(*self.quantize("--plugin", options.plugin, "--pipeline", "ppq", "--setting", setting))
        self.fails(1, ["trimmed"], *self.quantize("--pipeline", "ppq", "--setting", setting))
        self.fails(2, ["'trimmed'"], *self.quantize("--method", "trimmed"))

    def build(self, name, source):
        (self.folder / (name + ".c")).write_text(source)
        library = self.folder / (name + ".so")
        done = subprocess.run([options.cc, "-shared", "-fPIC", "-I", options.include, self.folder / (name + ".c"), "-o", library],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("no C compiler: " + done.stderr)
        return library

    def test_plugins_that_are_wrong(self):
        self.fails(2, ["missing.so"], *self.quantize("--plugin", self.folder / "missing.so"))
        self.fails(2, ["digits.onnx"], *self.quantize("--plugin", MODEL))
        template = """
            #include <stdio.h>
            #include <detent/c_api_plugin.h>
            static int state;
            static int create(const detent_observer_options* o, void** s, char* e, size_t n) {{ *s = &state; return 0; }}
            static int copy(const void* o, void** s, char* e, size_t n) {{ *s = &state; return 0; }}
            static void destroy(void* s) {{}}
            static int observe(void* s, const float* x, size_t count, char* e, size_t n) {{ {observe} }}
            static int finalize(const void* s, detent_scheme c, detent_plugin_result* r, char* e, size_t n) {{ {finalize} }}
            static const detent_plugin_observer o = {{sizeof o, "{name}", {phases}, create, copy, destroy, 0, {use}, 0, finalize}};
            static const detent_plugin_observer* const all[] = {{&o}};
            static const detent_plugin p = {{sizeof p, {version}, 1, all}};
            const detent_plugin* detent_plugin_get(void) {{ return {result}; }}
        """
        defaults = dict(observe="return 0;", finalize="r->upper = 1; return 0;", name="mine", phases=1, use="observe",
                        version=1, result="&p")
        cases = [
            ("version", dict(version=2), 2, ["version 2, not 1"]),
            ("null", dict(result="0"), 2, ["returned null"]),
            ("taken", dict(name="minmax"), 2, ["'minmax'", "taken"]),
            ("auto", dict(name="auto"), 2, ["'auto'", "taken"]),
            ("nameless", dict(name=""), 2, ["no name"]),
            ("phases", dict(phases=3), 2, ["3 phases"]),
            ("second", dict(phases=2), 2, ["lacks a function"]),
            ("lacking", dict(use="0"), 2, ["lacks a function"]),
            ("failing", dict(observe='snprintf(e, n, "out of\\nink"); return 7;'), 1, ["'mine'", "out of?ink"]),
            ("silent", dict(finalize="return 1;"), 1, ["'mine'", "without a reason"]),
            ("range", dict(finalize="r->lower = 2; r->upper = 1; return 0;"), 1, ["'mine'", "range 2..1"]),
            ("scale", dict(finalize="r->scale = -1; return 0;"), 1, ["'mine'", "scale -1"]),
            ("zero", dict(finalize="r->scale = 1; r->zero_point = 256; return 0;"), 1, ["'mine'", "zero point 256"]),
        ]
        for name, changes, code, words in cases:
            with self.subTest(name):
                library = self.build(name, template.format(**dict(defaults, **changes)))
                self.fails(code, [library, *words], *self.quantize("--plugin", library, "--method", "mine" if code == 1 else "minmax"))
        good = self.build("good", template.format(**defaults))
        facts = json.loads(self.works(*self.quantize("--plugin", good, "--method", "mine", "--json")))
        self.assertIn(np.float32(1) / np.float32(255), {np.float32(a["scale"]) for a in facts["activations"]})
        fixed = self.build("fixed", template.format(**dict(defaults, finalize="r->scale = 0.5f; r->zero_point = 7; return 0;")))
        facts = json.loads(self.works(*self.quantize("--plugin", fixed, "--method", "mine", "--json")))
        self.assertIn((0.5, 7), {(a["scale"], a["zero_point"]) for a in facts["activations"]})
        self.fails(2, ["taken"], *self.quantize("--plugin", good, "--plugin", fixed))

    # ------------------------------------------------------------------------------------- PPQ

    def ppq(self, *more, output="out.onnx"):
        return self.quantize("--pipeline", "ppq", *more, output=output)

    def test_ppq(self):
        setting = self.folder / "setting.json"
        report, errors = self.folder / "errors.json", self.folder / "errors.txt"
        files = {kind: self.folder / f"{kind}.out" for kind in ("trt-json", "ppl-json", "onnx", "setting")}
        facts = json.loads(self.works(*self.ppq(
            "--platform", "TargetPlatform.TRT_INT8", "--calib-steps", 16, "--samples", 16, "--json", "--error-report", report,
            "--threads", 2, *[word for kind, path in files.items() for word in ("--export", f"{kind}={path}")])))
        self.assertEqual((facts["pipeline"], facts["platform"], facts["calib_steps"], facts["samples"], facts["warnings"]),
                         ("ppq", "tensorrt", 16, 16, []))
        self.assertGreater(facts["layers"], 1)
        self.assertGreater(facts["states"]["ACTIVATED"], 0)
        self.assertEqual(facts["states"]["BAKED"], facts["layers"])
        judge = ["--data", options.digits / "test_images.npy", "--labels", options.digits / "test_labels.npy", "--json"]
        float_top1 = json.loads(self.works("eval", MODEL, *judge))["top1"]
        top1 = json.loads(self.works("eval", self.folder / "out.onnx", *judge))["top1"]
        self.assertGreater(top1, float_top1 - 3)
        ranges = json.loads(files["trt-json"].read_text())["act_quant_info"]
        tensors = json.loads(files["ppl-json"].read_text())["quant_info"]
        name = json.loads(self.works("inspect", MODEL, "--json"))["inputs"][0]["name"]
        self.assertEqual(ranges[name], 127 * float(np.float32(tensors[name]["scale"])))
        self.works("inspect", files["onnx"])
        errors_found = json.loads(report.read_text())
        self.assertEqual(len(errors_found["layerwise"]), facts["layers"])
        self.assertEqual(errors_found["method"], "snr")
        self.assertTrue(0 < errors_found["output"] < 1)

        # The setting that was written gives the same model, and so does the same call without threads.
        first = (self.folder / "out.onnx").read_bytes()
        text = self.works(*self.ppq("--platform", "trt_int8", "--calib-steps", 16, "--samples", 16, "--setting", files["setting"],
                                    "--error-report", errors, "--error-method", "COSINE".lower(), output="again.onnx"))
        self.assertEqual((self.folder / "again.onnx").read_bytes(), first)
        self.assertIn("platform       tensorrt\n", text)
        self.assertRegex(text.splitlines()[-1], r"again\.onnx: \d+ layers, \d+ of \d+ operators quantized, 16 of 16 calibration samples used$")
        self.assertIn("only this layer quantized (cosine)", errors.read_text())
        self.works(*self.ppq("--platform", "trt_int8", "--calib-steps", 16, "--samples", 16, "--ppq-observers", output="theirs.onnx"))
        self.assertNotEqual((self.folder / "theirs.onnx").read_bytes(), first)

        setting.write_text(json.dumps({"bias_correct": True, "dispatching_table": {"dispatchings": {"no such node": 0}}}))
        done = self.detent(*self.ppq("--setting", setting, "--samples", 4))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'no such node'", done.stderr)
        self.assertIn("4 calibration samples", done.stderr)
        table = self.folder / "table"
        self.works(*self.ppq("--platform", "NCNN_INT8", "--export", f"ncnn-table={table}"))
        lines = [line.split() for line in table.read_text().splitlines()]
        self.assertEqual(len(lines), 2 * facts["layers"])
        self.assertTrue(all(float(number) > 0 for line in lines for number in line[1:]))

    def test_ppq_errors(self):
        self.fails(2, ["'trt_int8'"], *self.ppq("--platform", "TRT_INT"))
        self.fails(2, ["TRT_FP8"], *self.ppq("--platform", "TRT_FP8"))
        self.fails(2, ["--calib-steps"], *self.ppq("--calib-steps", 7))
        self.fails(2, ["--calib-steps"], *self.ppq("--calib-steps", 513))
        self.fails(2, ["ppq", "--method"], *self.ppq("--method", "kl"))
        self.fails(1, ["x.yaml"], *self.ppq("--config", "x.yaml"))
        self.fails(2, ["--platform", "--pipeline ppq"], *self.quantize("--platform", "TRT_INT8"))
        self.fails(2, ["--pipeline"], *self.quantize("--pipeline", "other"))
        self.fails(2, ["--config"], *self.quantize("--pipeline", "neural-compressor"))
        config = self.folder / "config.yaml"
        config.write_text("method: minmax\n")
        self.fails(2, ["no configuration of Neural Compressor"],
                   *self.quantize("--pipeline", "neural-compressor", "--config", config))
        self.fails(2, ["--error-method"], *self.ppq("--error-method", "mse"))
        for text, word in (("trt-json", "KIND=FILE"), ("trt-json=", "KIND=FILE"), ("trt=x", "ncnn-table")):
            self.fails(2, ["--export", word], *self.ppq("--export", text))
        self.fails(2, ["would overwrite"], *self.ppq("--export", f"trt-json={self.folder / 'out.onnx'}"))
        self.fails(2, ["would overwrite"], *self.ppq("--export", "trt-json=a", "--export", "ppl-json=a"))
        setting = self.folder / "setting.json"
        for text, words, code in (('{"equalisation": true}', [":1", "'equalization'"], 2), ("[", [":1"], 2),
                                  ('{"extension": true}', ["extension"], 1),
                                  ('{"quantize_activation_setting": {"calib_algorithm": "abacus"}}', ["abacus"], 1)):
            setting.write_text(text)
            self.fails(code, words, *self.ppq("--setting", setting))
        self.fails(1, ["missing.json"], *self.ppq("--setting", self.folder / "missing.json"))
        self.fails(2, ["--calib"], "quantize", MODEL, "-o", self.folder / "o.onnx", "--pipeline", "ppq")
        self.fails(1, ["symmetric"], *self.ppq("--platform", "SNPE_INT8", "--export", f"ncnn-table={self.folder / 't'}"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
