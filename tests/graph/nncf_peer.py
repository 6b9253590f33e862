#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Judges `detent quantize --pipeline nncf` by NNCF's own package: the same model and data must give the same quantizers.

    nncf_peer.py --detent BINARY --digits FOLDER [--shared FOLDER] [--only NAME]... [--every-form]

For each model, preset and model type, and for the modes of floats of 8 bits (of these forms, the small models of nncf_cases.py
have one in turn, networks from files the plain one and every second other one, or all with --every-form), it compares the set of quantized tensors (equal), their types
and zero points (equal), the scales (those of inputs and, without SmoothQuant, of weights equal to the bit; each other one within 1e-6), and the
signal-to-noise ratio of the outputs in ONNX Runtime, without its optimizations (at most 0.1 dB lower than NNCF's; ALLOWED names the exceptions).
NNCF takes its statistics from the values of our executor for that. For the networks from files, the scales are compared with those of statistics in
ONNX Runtime, too (within 4e-6 of the largest one of the tensor), whose sums round in another order. For the models of NNCF's own tests of bias correction, and some of more
layers, it compares the corrected biases of both methods (within 1e-5), with the values that those tests expect, too. It prints a table.

NNCF's package is needed (3.4.0 is known to work): in this Python, in the one that DETENT_NNCF_PYTHON names, or in the
environment that cmake/setup.sh --python makes inside that of this Python.
Exit codes: 0 agrees, 1 disagrees, 77 skipped.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import logging
import os
import pathlib
import sys
import tempfile


def skip(message):
    print("skipped: " + message)
    sys.exit(77)


try:
    import nncf
    import numpy as np
    import onnx
    import onnxruntime
    from nncf.common.logging.logger import set_log_level
    from onnx import numpy_helper
except ImportError as missing:
    other = os.environ.get("DETENT_NNCF_PYTHON", str(pathlib.Path(sys.prefix) / "nncf/bin/python"))
    if os.access(other, os.X_OK) and os.environ.get("DETENT_NNCF_TRIED") != other:
        os.environ["DETENT_NNCF_TRIED"] = other
        os.execv(other, [other, *sys.argv])
    skip(f"no Python with NNCF here ({missing}); cmake/setup.sh --python installs one, or DETENT_NNCF_PYTHON may name one")

import nncf.common.tensor_statistics.aggregator as aggregator
import nncf.onnx.engine as onnx_engine

import interoperability
import nncf_cases

PRESETS, TYPES = ("performance", "mixed"), ("none", "transformer")
# Floats of 8 bits, with the presets and model types that NNCF takes for them.
FLOATS = (("fp8_e4m3", "none"), ("fp8_e4m3", "transformer"), ("fp8_e5m2", "none"))
FLOAT_OPSET = 21  # that NNCF asks for
# The dB that a model may lose where it is not 0.1. lone_normalization is so small that its output depends on one mean,
# which lies exactly between two floats of 8 bits: the last bit of a scale decides where it goes. With NNCF's scales in our
# model, the outputs are NNCF's.
ALLOWED = {("lone_normalization", "fp8_e5m2"): 0.3}
# The right sides of products that are no matrices, by the results and the inputs of the products: ONNX Runtime takes one
# scale, and does not run NNCF's models.
NO_MATRIX = {("y3", 1)}
# NNCF's SmoothQuant stops with an error at weights that a Reshape makes of a constant.
NNCF_FAILS = {("mnist8", "transformer")}


def run(model, samples):
    """All float outputs for each sample, one after the other."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.concatenate([np.ravel(v).astype(np.float64) for s in samples for v in session.run(None, s)])


def snr(exact, other):
    noise = np.sum((exact - other) ** 2)
    return 10 * np.log10(np.sum(exact**2) / noise) if noise > 0 else 999.0


def upgraded(path):
    """NNCF refuses opsets below 10."""
    model = onnx.load(str(path))
    return model if model.opset_import[0].version >= 10 else onnx.version_converter.convert_version(model, 13)


def models_of(options):
    """Name, model, samples for calibration, samples to judge by; each sample has a batch of one."""
    found = []

    def add(name, model, calibration, judged):
        constants = {t.name for t in model.graph.initializer}
        (key,) = [v.name for v in model.graph.input if v.name not in constants]
        found.append((name, model, [{key: x[None]} for x in calibration], [{key: x[None]} for x in judged]))

    digits = options.digits
    add("digits", onnx.load(str(digits / "digits.onnx")), np.load(digits / "calibration_images.npy")[:32],
        np.load(digits / "test_images.npy")[:64])
    if options.shared is not None:
        for name, file, calibration, judged in interoperability.load_models(options.shared):
            if name != "autoencoder":
                add(name, upgraded(file), calibration[:16], judged[:16])
    for name, (make, low, high) in nncf_cases.CASES.items():
        model = make()
        found.append((name, model, nncf_cases.samples_of(model, 4, low, high),
                      nncf_cases.samples_of(model, 16, low, high, seed=1000)))
    return found


TOLERANCE, ORT_TOLERANCE = 1e-6, 4e-6  # of scales
FIXES = {"none": nncf.OverflowFix.DISABLE, "enable": nncf.OverflowFix.ENABLE, "first-layer": nncf.OverflowFix.FIRST_LAYER}
BIAS_TOLERANCE = 1e-5  # a tenth of that of NNCF's tests


class OurActivations:
    """Lets NNCF collect statistics of the values that our executor makes, in place of those of ONNX Runtime, whose sums
    round in another order. All else, bias correction for example, runs in ONNX Runtime as before.

    Each model is run once for each sample, and gives all of its float values; its opset does not count, for the same
    nodes and constants make the same values."""

    def __init__(self, tool):
        self.tool, self.seen, self.collecting = tool, {}, False
        self.collect, self.engine = aggregator.StatisticsAggregator.collect_statistics, onnx_engine.ONNXEngine

    def __enter__(self):
        def collect_statistics(statistics, model, graph):
            self.collecting = True
            try:
                self.collect(statistics, model, graph)
            finally:
                self.collecting = False

        def make_engine(model):
            return OurEngine(self, model) if self.collecting else self.engine(model)

        aggregator.StatisticsAggregator.collect_statistics = collect_statistics
        onnx_engine.ONNXEngine = make_engine
        return self

    def __exit__(self, *unused):
        aggregator.StatisticsAggregator.collect_statistics, onnx_engine.ONNXEngine = self.collect, self.engine


class OurEngine:
    """The engine that NNCF's aggregators ask for values; in place of nncf.onnx.engine.ONNXEngine."""

    def __init__(self, activations, model):
        self.activations, self.model = activations, model
        self.wanted = [v.name for v in model.graph.output]
        content = hashlib.sha256()
        for n in model.graph.node:
            content.update(n.SerializeToString(deterministic=True))
        for t in model.graph.initializer:
            content.update(t.SerializeToString(deterministic=True))
        self.key = content.digest()
        self.weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in self.wanted}

    def infer(self, feeds):
        sample = hashlib.sha256(b"".join(v.tobytes() for v in feeds.values())).digest()
        values = self.activations.seen.setdefault((self.key, sample), {})
        known = {**self.weights, **feeds}
        if not values.keys() >= set(self.wanted) - known.keys():
            values.update(self.run(feeds))
        return {name: known[name] if name in known else values[name] for name in self.wanted}

    def run(self, feeds):
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        made = {o for n in model.graph.node for o in n.output}
        names = {v.name for v in [*model.graph.value_info, *model.graph.output] if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
        names = sorted((names | set(self.wanted)) & made)
        del model.graph.output[:]
        for name in names:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        file = self.activations.tool.folder / "observed.onnx"
        onnx.save(model, str(file))
        return self.activations.tool.run(file, feeds)


class Judge:
    def __init__(self, tool):
        self.tool, self.failures = tool, 0
        self.activations, self.exact = OurActivations(tool), {}
        print(f"{'model':18} {'form':11} {'type':11} {'theirs':>6} {'ours':>5} {'sets':>5} {'types':>5} {'scales':>7} {'in ORT':>7} {'SNR':>7} {'ours':>7}")

    def theirs(self, model, samples, form, kind):
        """`form`: a preset, or a mode of floats."""
        how = {"preset": nncf.QuantizationPreset(form)} if form in PRESETS else {"mode": nncf.QuantizationMode(form)}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return nncf.quantize(model, nncf.Dataset(samples), **how,
                                 model_type=nncf.ModelType.TRANSFORMER if kind == "transformer" else None)

    def ours(self, model, samples, form, kind):
        file, out = self.tool.folder / "model.onnx", self.tool.folder / "quantized.onnx"
        onnx.save(model, str(file))
        feeds = {key: np.concatenate([s[key] for s in samples]) for key in samples[0]}
        self.tool("quantize", file, "-o", out, "--pipeline", "nncf", "--model-type", kind,
                  *(("--preset", form) if form in PRESETS else ("--mode", form.replace("_", "-"))),
                  *(x for a in self.tool.save("calibration", feeds) for x in ("--calib", a)))
        return onnx.load(str(out))

    def float_outputs(self, model, judged):
        """The outputs of a float model, which several forms share."""
        key = hashlib.sha256(model.SerializeToString()).digest()
        if key not in self.exact:
            self.exact = {key: run(model, judged)}
        return self.exact[key]

    @staticmethod
    def differences(a, b, inputs, kind, tolerance, of_largest=False):
        """The quantizers that both have and that differ, and the largest difference of two scales, relative to NNCF's
        or to the largest one of the tensor."""
        worst, other_types, other_scales = 0.0, [], []
        for key in a.keys() & b.keys():
            (value, kind_a, scales_a, zeros_a), (_, kind_b, scales_b, zeros_b) = a[key], b[key]
            if value == "weight" and kind_a == kind_b and key in NO_MATRIX and scales_b.size == 1:
                continue
            if kind_a != kind_b or scales_a.shape != scales_b.shape or (zeros_a != zeros_b).any():
                other_types.append(key)
                continue
            error = float(np.max(np.abs(scales_a.astype(np.float64) - scales_b) / (np.max(scales_a) if of_largest else scales_a)))
            worst = max(worst, error)
            exact = value in inputs or (value == "weight" and kind == "none")
            if error > (0.0 if exact else tolerance):
                other_scales.append(key)
        return other_types, other_scales, worst

    def check(self, name, model, calibration, judged, form, kind):
        with self.activations:
            theirs = self.theirs(model, calibration, form, kind)
        ours = self.ours(model, calibration, form, kind)
        a, b = nncf_cases.quantizers_of(theirs, model), nncf_cases.quantizers_of(ours, model)
        inputs = {v.name for v in model.graph.input}
        same_set = {k: v[0] for k, v in a.items()} == {k: v[0] for k, v in b.items()}
        types, scales, worst = self.differences(a, b, inputs, kind, TOLERANCE)
        in_ort = "-"
        if name not in nncf_cases.CASES and (form, kind) == ("performance", "none"):
            other = nncf_cases.quantizers_of(self.theirs(model, calibration, form, kind), model)
            more_types, more_scales, apart = self.differences(other, b, inputs, kind, ORT_TOLERANCE, of_largest=True)
            types, scales, in_ort = types + more_types, scales + more_scales, f"{apart:.0e}"
        exact = self.float_outputs(model, judged)
        quality = snr(exact, run(theirs, judged)), snr(exact, run(ours, judged))
        good = same_set and not types and not scales and quality[1] > quality[0] - ALLOWED.get((name, form), 0.1)
        self.failures += not good
        count = [sum(n.op_type == "QuantizeLinear" for n in m.graph.node) for m in (theirs, ours)]
        print(f"{name:18} {form:11} {kind:11} {count[0]:6} {count[1]:5} {'yes' if same_set else 'NO':>5} "
              f"{'NO' if types else 'yes':>5} {worst:7.0e} {in_ort:>7} {quality[0]:7.2f} {quality[1]:7.2f}{'' if good else '  FAILED'}", flush=True)
        if not good:
            print("   only NNCF:", {k: v[0] for k, v in a.items() if k not in b or b[k][0] != v[0]},
                  "only ours:", {k: v[0] for k, v in b.items() if k not in a or a[k][0] != v[0]}, "differ:", sorted(types + scales)[:8])

    def check_biases(self, name, model, fix, published):
        """Corrects the biases of a model by both methods, for one sample."""
        samples = [nncf_cases.published_sample()]
        for method in ("fast", "full"):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                theirs = nncf.quantize(model, nncf.Dataset(samples), fast_bias_correction=method == "fast",
                                       advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=FIXES[fix]))
            file, out = self.tool.folder / "biased.onnx", self.tool.folder / "corrected.onnx"
            onnx.save(model, str(file))
            calibration = [x for a in self.tool.save("biased", samples[0]) for x in ("--calib", a)]
            self.tool("quantize", file, "-o", out, "--pipeline", "nncf", "--overflow-fix", fix, "--bias-correction", method, *calibration)
            before, a, b = (nncf_cases.biases_of(m) for m in (model, theirs, onnx.load(str(out))))
            moved = max(float(np.max(np.abs(a[key] - before[key]))) for key in a)
            apart = max(float(np.max(np.abs(a[key] - b[key]))) for key in a) if a.keys() == b.keys() else np.inf
            if published and method == "fast":
                (values,) = b.values()
                apart = max(apart, float(np.max(np.abs(values - published))))
            good = moved > 0 and apart <= BIAS_TOLERANCE
            self.failures += not good
            print(f"{name:18} {method:11} moved by {moved:7.0e}, apart by {apart:7.0e}{'' if good else '  FAILED'}", flush=True)


PLAIN = ("performance", "none")


def some_forms(name, forms, turn):
    """One form of a small model, which is the next one for the next model; of a network from a file, the plain form and every
    second other one, which are the others for the next network."""
    if name in nncf_cases.CASES:
        return [forms[list(nncf_cases.CASES).index(name) % len(forms)]]
    return [PLAIN] + [form for form in forms if form != PLAIN][turn % 2::2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detent", required=True)
    parser.add_argument("--digits", type=pathlib.Path, required=True)
    parser.add_argument("--shared", type=pathlib.Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--every-form", action="store_true", help="all presets, model types and modes for the small models, too")
    options = parser.parse_args()
    if "DETENT_SHARED" in os.environ:
        options.shared = pathlib.Path(os.environ["DETENT_SHARED"])
    if options.shared is not None and not (options.shared / "models").is_dir():
        print("the shared models are not here; DETENT_SHARED may say where they are")
        options.shared = None
    set_log_level(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(interoperability.Tool(options.detent, folder))
        for turn, (name, model, *rest) in enumerate(models_of(options)):
            if options.only and name not in options.only:
                continue
            forms = [form for form in (*FLOATS, *itertools.product(PRESETS, TYPES)) if (name, form[1]) not in NNCF_FAILS]
            if not options.every_form:
                forms = some_forms(name, forms, turn)
            for form, kind in forms:
                is_old = form.startswith("fp8") and model.opset_import[0].version < FLOAT_OPSET
                newer = onnx.version_converter.convert_version(model, FLOAT_OPSET) if is_old else model
                judge.check(name, newer, *rest, form, kind)
        for name, (make, fix, published) in nncf_cases.BIASED.items():
            if not options.only or name in options.only:
                judge.check_biases(name, make(), fix, published)
    sys.exit(1 if judge.failures else 0)


if __name__ == "__main__":
    main()
