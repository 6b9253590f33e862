#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The tuner beside that of Intel Neural Compressor 2.x: the same model, samples, strategy and goal; one thread each.

    tuners.py --detent BINARY --digits FOLDER --shared FOLDER [--runs N] [--trials N] [--forms FORM,...]
              [--strategies NAME,...] [--goals F,...] [--memory GB] [--seconds S] [MODEL...]

Needs a Python with neural-compressor, onnx and onnxruntime, e.g.

    pip install neural-compressor==2.6 onnxruntime==1.18.1 onnx==1.16.2 "numpy<2" "pandas<2.3" "protobuf<5" six

A goal is the share of the float model's accuracy that may be lost; one of -0.5 cannot be met, so all trials are made.
Each tuner has a process of its own; runs take turns, and the table shows medians, "ours / theirs". Seconds (of the
processor, and of the clock) are for our whole process, but for Neural Compressor without start of Python and imports.
It makes no model if the goal is missed: the one that its evaluation found to be the best is judged then. A note in the
last column says where it ended with an error, or needs more than --seconds of the processor or --memory GB.

Both models are judged by ONNX Runtime on the samples of the evaluation: top-1; the share of samples of which the class
is that of the float model; SNR, the mean over the outputs of 10 log10(sum float^2 / sum (float - quantized)^2), in dB.
Dynamic models run sample by sample, here and in both tuners, because the range of a batch depends on all its samples;
Neural Compressor evaluates other models in one batch, which is the fastest."""

import argparse
import itertools
import json
import os
import pathlib
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "graph"))
import interoperability as judge  # noqa: E402

# Name; framework of our configuration; approach and format of Neural Compressor.
FORMS = {"qdq": ("onnxrt_qdqops", "static", "QDQ"), "qoperator": ("onnxrt_qlinearops", "static", "default"),
         "dynamic": ("onnxrt_integerops", "dynamic", "default")}

CONFIGURATION = """model: {{name: {name}, framework: {framework}}}
quantization:
  approach: post_training_{approach}_quant
  calibration:
    sampling_size: {count}
    dataloader: {{dataset: {{npy: {{inputs: {calibration}}}}}}}
evaluation:
  accuracy:
    metric: {{topk: 1}}
    dataloader: {{dataset: {{npy: {{inputs: {samples}, labels: {labels}}}}}}}
tuning:
  strategy: {{name: {strategy}}}
  accuracy_criterion: {{relative: {goal}}}
  exit_policy: {{timeout: 0, max_trials: {trials}}}
"""


def seconds(usage):
    return usage.ru_utime + usage.ru_stime


def snr(expected, actual):
    ratios = []
    for name, values in expected.items():
        noise = ((values.astype(float) - actual[name]) ** 2).sum()
        ratios.append(10 * np.log10((values.astype(float) ** 2).sum() / max(noise, 1e-30)))
    return float(np.mean(ratios))


def classes(outputs):
    scores = next(iter(outputs.values()))
    return scores.reshape(len(scores), -1).argmax(1)


def outputs_of(model, samples, step):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feed, names = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]
    runs = [session.run(None, {feed: samples[i:i + step]}) for i in range(0, len(samples), step)]
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*runs))}


# ---------------------------------------------------------------------------------- Neural Compressor


def theirs(task):
    """Runs in a process of its own. Prints JSON on the last line."""
    class one_thread(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            self.intra_op_num_threads = self.inter_op_num_threads = 1

    class session(onnxruntime.InferenceSession):
        def __init__(self, model, sess_options=None, **rest):
            super().__init__(model, sess_options or one_thread(), **rest)

    onnxruntime.SessionOptions, onnxruntime.InferenceSession = one_thread, session
    try:
        from neural_compressor import PostTrainingQuantConfig, quantization
        from neural_compressor.config import AccuracyCriterion, TuningCriterion
    except ImportError as missing:
        sys.exit(f"no Python with neural_compressor here ({missing})")
    calibration, samples, labels = (np.load(task[key]) for key in ("calibration", "samples", "labels"))

    class loader:
        batch_size = len(calibration) // 2  # one batch is not enough: the strategy mse looks at the second one

        def __iter__(self):
            for i in range(0, len(calibration), self.batch_size):
                yield calibration[i:i + self.batch_size], None

    step = 1 if task["form"] == "dynamic" else len(samples)
    metrics, best = [], [None]

    def evaluate(model):
        run = session(model.SerializeToString(), providers=["CPUExecutionProvider"])
        feed = run.get_inputs()[0].name
        scores = np.concatenate([run.run(None, {feed: samples[i:i + step]})[0] for i in range(0, len(samples), step)])
        accuracy = float((scores.reshape(len(labels), -1).argmax(1) == labels).mean())
        if len(metrics) > 0 and accuracy > max(metrics[1:], default=-1.0):
            best[0] = model.SerializeToString()
        metrics.append(accuracy)  # the first is that of the float model
        return accuracy

    _, approach, form = FORMS[task["form"]]
    options = PostTrainingQuantConfig(
        approach=approach, quant_format=form, quant_level=1, calibration_sampling_size=[len(calibration)],
        tuning_criterion=TuningCriterion(strategy=task["strategy"], max_trials=task["trials"], timeout=0),
        accuracy_criterion=AccuracyCriterion(criterion="relative", tolerable_loss=task["goal"]))
    model = onnx.load(task["model"])
    clock, cpu = time.perf_counter(), time.process_time()
    made = quantization.fit(model, options, calib_dataloader=loader(), eval_func=evaluate)
    if made is not None:
        made.save(task["output"])
    elif best[0] is not None:
        pathlib.Path(task["output"]).write_bytes(best[0])
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - clock,
                      "trials": len(metrics) - 1, "met": made is not None, "best": max(metrics[1:], default=-1.0)}))


def run_theirs(task, folder, options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--theirs", json.dumps(task)]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (options.memory << 30, options.memory << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds + 1))

    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, preexec_fn=limit)
    if done.returncode == -signal.SIGXCPU:
        return {"note": f"over {options.seconds} s"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        if said and "no Python with" in said[-1]:
            sys.exit(said[-1])
        return {"note": said[-1][:60] if said else f"exit code {done.returncode}"}
    told = json.loads(done.stdout.strip().splitlines()[-1])
    failed = re.search(r"Unexpected exception (.*) happened", done.stderr)
    return {**told, "note": failed[1][:60]} if failed else told


# ----------------------------------------------------------------------------------------------- ours


def run_ours(binary, task, folder):
    framework, approach, _ = FORMS[task["form"]]
    file = folder / "ours.yaml"
    file.write_text(CONFIGURATION.format(**task, framework=framework, approach=approach))
    before, clock = seconds(resource.getrusage(resource.RUSAGE_CHILDREN)), time.perf_counter()
    done = subprocess.run([binary, "quantize", task["model"], "-o", task["output"], "--config", str(file), "--threads",
                           "1", "--json"], capture_output=True, text=True)
    wall = time.perf_counter() - clock
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    told = json.loads(done.stdout)
    return {"cpu": seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - before, "wall": wall,
            "trials": len(told["trials"]), "met": told["goal_met"], "best": told["best"]["metric"]}


# ---------------------------------------------------------------------------------------------- table


def load(options, folder):
    """Name, model, number of calibration samples, and files of these, of samples to evaluate, of labels."""
    kws = judge.kws_features(options.shared)
    kws_labels = np.loadtxt(options.shared / "data/kws01/labels.txt", dtype=np.int64)
    digits = options.digits
    models = [("digits", digits / "digits.onnx", np.load(digits / "calibration_images.npy"),
               np.load(digits / "test_images.npy"), np.load(digits / "test_labels.npy")),
              ("kws", options.shared / "models/kws_dscnn_mlperf.onnx", kws[:100], kws[100:], kws_labels[100:])]
    for name, model, *arrays in models:
        if options.models and name not in options.models:
            continue
        task = {"name": name, "model": str(model), "count": len(arrays[0])}
        for kind, values in zip(("calibration", "samples", "labels"), arrays):
            task[kind] = str(folder / f"{name}_{kind}.npy")
            np.save(task[kind], np.ascontiguousarray(values))
        yield task, arrays[1], arrays[2]


def measure(options, task, samples, labels, expected, folder):
    """One line of the table. Returns for both tuners what the models are worth and the processor time of a trial, or
    nothing where Neural Compressor made no model."""
    step = 1 if task["form"] == "dynamic" else len(samples)
    runs, cells, note = ([], []), ([], []), ""
    for turn in range(options.runs):
        for side, name in enumerate(("ours", "theirs")):
            output = folder / f"{name}.onnx"
            output.unlink(missing_ok=True)
            task["output"] = str(output)
            runs[side].append(run_ours(options.detent, task, folder) if side == 0 else
                              run_theirs(task, folder, options))
            if turn == 0 and output.exists():
                actual = outputs_of(output, samples, step)
                cells[side].extend([100 * float((classes(actual) == labels).mean()),
                                    100 * float((classes(actual) == classes(expected)).mean()), snr(expected, actual),
                                    output.stat().st_size])
        note = runs[1][-1].get("note", note)
        if "cpu" not in runs[1][-1]:
            break
    done = [[r for r in all_runs if "cpu" in r] for all_runs in runs]
    times = [[statistics.median(r[kind] for r in side) for kind in ("cpu", "wall")] if side else [] for side in done]
    facts = [[side[-1]["trials"], "yes" if side[-1]["met"] else "no"] if side else [] for side in done]
    text = [f"{task['name']:6} {task['form']:9} {task['strategy']:12} {task['goal']:5}"]
    for width, form, pair in ((3, "{}", [f[:1] for f in facts]), (3, "{}", [f[1:] for f in facts]),
                              (5, "{:.2f}", [c[:1] for c in cells]), (6, "{:.2f}", [c[1:2] for c in cells]),
                              (5, "{:.2f}", [c[2:3] for c in cells]), (5, "{}", [c[3:] for c in cells]),
                              (6, "{:.3f}", [t[:1] for t in times]), (6, "{:.3f}", [t[1:] for t in times])):
        text.append(" / ".join(form.format(*value).rjust(width) if value else "-".rjust(width) for value in pair))
    print(" | ".join([*text, note]), flush=True)
    return [(c, t[0] / f[0]) for c, t, f in zip(cells, times, facts)] if cells[1] else None


def texts(option):
    return [text for text in option.split(",") if text]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    parser.add_argument("--detent", type=os.path.abspath)
    parser.add_argument("--digits", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--shared", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--memory", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--forms", type=texts, default=list(FORMS))
    parser.add_argument("--strategies", type=texts, default=["basic", "mse", "bayesian", "random"])
    parser.add_argument("--goals", type=texts, default=["0.01", "-0.5"])
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    if options.theirs:
        theirs(json.loads(options.theirs))
        return
    if not (options.detent and options.digits and options.shared):
        parser.error("--detent, --digits and --shared are needed")
    rows = worse_top1 = worse_snr = slower = 0
    print("model  form      strategy     goal | trials | goal met | top-1 % | as in float % | SNR dB | bytes | CPU s | s")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for task, samples, labels in load(options, folder):
            expected = outputs_of(task["model"], samples, len(samples))
            print(f"{task['name']}: {100 * float((classes(expected) == labels).mean()):.2f} % in float", flush=True)
            for form, goal, strategy in itertools.product(options.forms, options.goals, options.strategies):
                both = measure(options, {**task, "form": form, "goal": float(goal), "strategy": strategy,
                                         "trials": options.trials}, samples, labels, expected, folder)
                if both is not None:
                    (ours, our_cpu), (other, other_cpu) = both
                    rows += 1
                    worse_top1 += ours[0] < other[0]
                    worse_snr += ours[2] < other[2]
                    slower += our_cpu > other_cpu
    print(f"{rows} rows with two models; ours: worse top-1 in {worse_top1}, worse SNR in {worse_snr}, more processor "
          f"time for a trial in {slower}")


if __name__ == "__main__":
    main()
