#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Puts PPQ's observers beside those of detent that reproduce them: the same batches, in turns, on one thread. Prints for
each observer and kind of data both scales, whether they are equal (or how far apart), and the milliseconds of both, the
least of all rounds. A check by hand, in a Python with PPQ 0.6.6 (pip install ppq==0.6.6 torch onnx==1.14.1
protobuf==3.20.3 "numpy<2"):

  OMP_NUM_THREADS=1 python bench/ppq_observers.py build/release/libdetent_c.so [ROUNDS]
"""

import ctypes
import sys
import time

import numpy as np
import torch
from ppq.core import QuantizationPolicy, QuantizationProperty, RoundingPolicy, TensorQuantizationConfig
from ppq.IR import Variable
from ppq.quantization.observer import TensorObserverFactroy

F32 = 3  # DETENT_F32
BATCHES = 8
SHAPE = (1, 64, 56, 56)


class Scheme(ctypes.Structure):
    _fields_ = [("qmin", ctypes.c_int32), ("qmax", ctypes.c_int32), ("symmetric", ctypes.c_int)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("scheme", Scheme), ("percentile", ctypes.c_double),
                ("exact_percentile", ctypes.c_int), ("moving_constant", ctypes.c_double), ("p", ctypes.c_double),
                ("top_k", ctypes.c_size_t), ("repaired", ctypes.c_int), ("sparse", ctypes.c_int)]


def check(status):
    if status != 0:
        sys.exit(library.detent_last_error().decode())


def ours(name, scheme, batches):
    """Scale, zero point and seconds."""
    options, observer = Options(), ctypes.c_void_p()
    library.detent_observer_options_init(ctypes.byref(options))
    options.scheme = scheme
    start = time.perf_counter()
    check(library.detent_observer_create(f"ppq.{name}".encode(), ctypes.byref(options), ctypes.byref(observer)))
    for phase in range(library.detent_observer_phases(observer)):
        check(library.detent_observer_begin_phase(observer, ctypes.c_size_t(phase)))
        for batch in batches:
            shape = (ctypes.c_size_t * batch.ndim)(*batch.shape)
            check(library.detent_observer_observe(observer, F32, batch.ctypes.data_as(ctypes.c_void_p), shape, None,
                                                  ctypes.c_size_t(batch.ndim), None))
    scale, zero = ctypes.c_float(), ctypes.c_int32()
    check(library.detent_observer_finalize(observer, scheme, ctypes.byref(scale), ctypes.byref(zero), None,
                                           ctypes.c_size_t(1), None))
    seconds = time.perf_counter() - start
    library.detent_observer_free(observer)
    return scale.value, zero.value, seconds


def theirs(name, scheme, batches):
    symmetry = QuantizationProperty.SYMMETRICAL if scheme.symmetric else QuantizationProperty.ASYMMETRICAL
    config = TensorQuantizationConfig(
        policy=QuantizationPolicy(QuantizationProperty.LINEAR + QuantizationProperty.PER_TENSOR + symmetry),
        rounding=RoundingPolicy.ROUND_HALF_EVEN, num_of_bits=8, quant_min=scheme.qmin, quant_max=scheme.qmax,
        observer_algorithm=name, detail={"OBSERVER_ISOTONE_OBSERVER_AXIS": -1})
    tensors = [torch.from_numpy(batch) for batch in batches]
    start = time.perf_counter()
    observer = TensorObserverFactroy.build_observer(Variable(name="x", value=None), config)
    for _ in range(2 if name in ("kl", "mse") else 1):
        for tensor in tensors:
            observer.observe(tensor)
        observer.render_quantization_config()
    seconds = time.perf_counter() - start
    return float(config.scale), int(config.offset), seconds


def main():
    global library
    library = ctypes.CDLL(sys.argv[1])
    library.detent_last_error.restype = ctypes.c_char_p
    library.detent_observer_phases.restype = ctypes.c_size_t
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    data = {
        "normal": [random.standard_normal(SHAPE, dtype=np.float32) for _ in range(BATCHES)],
        "relu": [np.maximum(random.standard_normal(SHAPE, dtype=np.float32), 0) for _ in range(BATCHES)],
        "laplace": [random.laplace(size=SHAPE).astype(np.float32) for _ in range(BATCHES)],
        "scores": [random.standard_normal((64, 1000), dtype=np.float32) * 3 for _ in range(BATCHES)],
    }
    print("observer,scheme,data,ppq_scale,detent_scale,difference_ulp,zero_points_equal,ppq_ms,detent_ms,ratio")
    for name in ("minmax", "percentile", "kl", "mse", "isotone"):
        for label, scheme in (("s8", Scheme(-128, 127, 1)), ("u8", Scheme(0, 255, 0))):
            if name in ("kl", "isotone") and label == "u8":
                continue  # symmetric only
            for kind, batches in data.items():
                if (name == "isotone") != (kind == "scores"):
                    continue
                best = [1e9, 1e9]
                for _ in range(rounds):
                    mine = ours(name, scheme, batches)
                    other = theirs(name, scheme, batches)
                    best = [min(best[0], other[2]), min(best[1], mine[2])]
                a, b = np.float32(other[0]), np.float32(mine[0])
                apart = abs(int(a.view(np.int32)) - int(b.view(np.int32)))
                print(f"{name},{label},{kind},{a:.9g},{b:.9g},{apart},{other[1] == mine[1]},{1e3 * best[0]:.2f},"
                      f"{1e3 * best[1]:.2f},{best[0] / best[1]:.1f}", flush=True)


main()
