#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What quantizing costs in accuracy: `detent quantize` (its default and --method minmax) beside ONNX Runtime's
quantize_static and quantize_dynamic, on the same calibration samples. All models are run by ONNX Runtime, on other samples.

    quantizers.py --detent BINARY --digits FOLDER --shared FOLDER [MODEL...]

SNR is the mean over the outputs of 10 log10(sum float^2 / sum (float - quantized)^2), in dB."""

import argparse
import itertools
import logging
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "graph"))
import interoperability as judge  # noqa: E402

from onnxruntime import quantization as q  # noqa: E402
from onnxruntime.quantization import shape_inference  # noqa: E402

TYPES = {"u8": q.QuantType.QUInt8, "s8": q.QuantType.QInt8}


class Reader(q.CalibrationDataReader):
    def __init__(self, name, samples):
        self.name, self.samples = name, iter(samples)

    def get_next(self):
        sample = next(self.samples, None)
        return None if sample is None else {self.name: sample[None]}


def snr(expected, actual):
    ratios = []
    for name, values in expected.items():
        noise = ((values.astype(float) - actual[name]) ** 2).sum()
        ratios.append(10 * np.log10((values.astype(float) ** 2).sum() / max(noise, 1e-30)))
    return float(np.mean(ratios))


def top1(outputs, labels):
    scores = next(iter(outputs.values()))
    return 100.0 * float((scores.reshape(len(labels), -1).argmax(1) == labels).mean())


def theirs(prepared, path, form, activations, per_channel, name, calibration):
    if form == "integerops":
        q.quantize_dynamic(str(prepared), str(path), per_channel=per_channel, weight_type=q.QuantType.QUInt8
                           if any(n.op_type == "Conv" for n in judge.onnx.load(str(prepared)).graph.node)
                           else q.QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm", "Conv"])
        return
    q.quantize_static(str(prepared), str(path), Reader(name, calibration),
                      quant_format=q.QuantFormat.QDQ if form == "qdq" else q.QuantFormat.QOperator,
                      per_channel=per_channel, activation_type=TYPES[activations], weight_type=q.QuantType.QInt8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detent", required=True)
    parser.add_argument("--digits", required=True, type=pathlib.Path)
    parser.add_argument("--shared", required=True, type=pathlib.Path)
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    digits = options.digits
    models = [("digits", digits / "digits.onnx", np.load(digits / "calibration_images.npy"),
               np.load(digits / "test_images.npy"))] + judge.load_models(options.shared, times=4)
    kws_labels = np.loadtxt(options.shared / "data/kws01/labels.txt", dtype=np.int64)
    labels = {"digits": np.load(digits / "test_labels.npy"), "kws": kws_labels}
    rows = better = never_worse = 0
    with tempfile.TemporaryDirectory() as folder:
        tool = judge.Tool(options.detent, folder)
        print(f"{'model':12} {'form':28} {'default':>16} {'minmax':>16} {'ONNX Runtime':>16}")
        for name, model, calibration, samples in models:
            if options.models and name not in options.models:
                continue
            if name == "kws":  # leave out the samples that calibration has seen
                samples, labels[name] = samples[len(calibration):], kws_labels[len(calibration):]
            prepared = tool.folder / f"{name}.prepared.onnx"
            shape_inference.quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
            (input_name,) = judge.with_input_name(model, samples)
            feeds = {input_name: samples}
            expected = judge.run_ort(model, feeds)
            calib = [a for text in tool.save("calib", {input_name: calibration}) for a in ("--calib", text)]
            for (form, activations), granularity in itertools.product(judge.FORMS, ("per-channel", "per-tensor")):
                results = []
                # Activations of integerops have no ranges to choose: the plain form leaves out bias correction.
                plain = ["--bias-correction", "none"] if form == "integerops" else ["--method", "minmax"]
                for who in ("default", "minmax", "theirs"):
                    path = tool.folder / f"{name}.{form}.{activations}.{granularity}.{who}.onnx"
                    try:
                        if who == "theirs":
                            theirs(prepared, path, form, activations, granularity == "per-channel", input_name,
                                   calibration)
                        else:
                            given = [*calib] if who == "default" else [*plain, *([] if form == "integerops" else calib)]
                            tool("quantize", model, "-o", path, "--format", form, "--activations", activations,
                                 "--granularity", granularity, *given)
                        outputs = judge.run_ort(path, feeds)
                        results.append((snr(expected, outputs),
                                        top1(outputs, labels[name]) if name in labels else None))
                    except Exception as e:  # ONNX Runtime raises errors of its own classes
                        results.append((float("nan"), str(e).splitlines()[0][:60]))
                cells = [f"{db:7.2f}" + (f" {t:7.2f} %" if isinstance(t, float) else " " * 9) for db, t in results]
                (ours, ours_top1), _, (other, other_top1) = results
                print(f"{name:12} {form + ' ' + activations + ' ' + granularity:28} " + " ".join(cells), flush=True)
                if other == other:
                    rows += 1
                    better += ours > other
                    worse = ours < other - 1 or (isinstance(ours_top1, float) and isinstance(other_top1, float)
                                                 and ours_top1 < other_top1 - 0.5)
                    never_worse += not worse
                else:
                    print(f"{'':12} not made by ONNX Runtime: {other_top1}")
    print(f"{rows} rows: better SNR in {better}, within 1 dB and 0.5 points in {never_worse}")


if __name__ == "__main__":
    main()
