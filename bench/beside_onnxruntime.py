#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The speed of detent's C interface beside ONNX Runtime's operators: one thread each, in one process, in turns.

    beside_onnxruntime.py --library build/release/libdetent_c.so [--target NAME] [--seconds S] [--offset BYTES]
                          [PATTERN...]

    s32      u8 x s8 -> s32                             MatMulInteger
    u8       u8 x s8 -> u8, a scale for each column     QLinearMatMul
    dynamic  f32 x s8 -> f32, one range for all rows    DynamicQuantizeMatMul (com.microsoft)
    nhwc     u8 convolutions, channels last             QLinearConv (com.microsoft)
    nchw     the same, channels first                   QLinearConv

PATTERN is a part of "operation/shape"; without one everything is measured. What both compute is compared first, and
detent's integers with NumPy's. Prints CSV: GOPS from the medians of all samples, the ratio of these and that of the
best samples. Both sides are called from Python; `net_ratio` is that of the medians less a call with one element, which
counts where a product takes microseconds only."""

import argparse
import ctypes
import functools
import pathlib
import statistics
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

U8, S8, S32, F32 = 0, 1, 2, 3
A_ZERO_POINT, Y_ZERO_POINT = 7, 3

GEMMS = [(1, 768, 768), (1, 4096, 4096), (8, 4096, 4096), (32, 4096, 4096), (128, 768, 768), (128, 3072, 768),
         (128, 768, 3072), (512, 3072, 768), (3136, 64, 576), (784, 128, 1152), (196, 256, 2304), (127, 513, 333),
         (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)]  # M, N, K

# Name, input and output channels, groups, kernel, stride, height and width.
CONVOLUTIONS = [("3x3_64_64_56", 64, 64, 1, 3, 1, 56), ("3x3_128_128_28", 128, 128, 1, 3, 1, 28),
                ("1x1_256_64_56", 256, 64, 1, 1, 1, 56), ("1x1_64_256_56", 64, 256, 1, 1, 1, 56),
                ("3x3_512_512_7", 512, 512, 1, 3, 1, 7), ("7x7s2_3_64_224", 3, 64, 1, 7, 2, 224),
                ("dw3x3_32_112", 32, 32, 32, 3, 1, 112), ("dw3x3_144_56", 144, 144, 144, 3, 1, 56)]


def structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("size", ctypes.c_size_t), *fields]})


POINTER, SIZE, INT32, FLOAT, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_float, ctypes.c_int
WeightOptions = structure("detent_weight_options", ("scales", POINTER), ("scale_count", SIZE), ("zero_points", POINTER),
                          ("zero_point_count", SIZE), ("bias", POINTER), ("bias_count", SIZE), ("parallel", POINTER))
Epilogue = structure("detent_epilogue", ("lhs_scale", FLOAT), ("lhs_zero_point", INT32), ("output_scale", FLOAT),
                     ("output_zero_point", INT32), ("qmin", INT32), ("qmax", INT32), ("lower", FLOAT), ("upper", FLOAT),
                     ("lhs_scales", POINTER), ("lhs_zero_points", POINTER), ("bias", POINTER), ("residual", POINTER),
                     ("residual_stride", SIZE), ("addend", POINTER), ("addend_stride", SIZE),
                     ("first_level_cache", SIZE), ("second_level_cache", SIZE), ("third_level_cache", SIZE))
LinearOptions = structure("detent_dynamic_linear_options", ("per_row", INT), ("qmin", INT32), ("qmax", INT32),
                          ("symmetric", INT), ("lower", FLOAT), ("upper", FLOAT), ("bias", POINTER),
                          ("residual", POINTER), ("residual_stride", SIZE))
FilterShape = structure("detent_filter_shape", ("out_channels", SIZE), ("in_channels", SIZE), ("groups", SIZE),
                        ("kernel_height", SIZE), ("kernel_width", SIZE))
Window = structure("detent_window", *((name, SIZE) for name in
                                      ("batch", "in_height", "in_width", "stride_height", "stride_width",
                                       "dilation_height", "dilation_width", "pad_top", "pad_left", "pad_bottom",
                                       "pad_right")), ("input_layout", INT), ("output_layout", INT))


class Detent:
    """detent's C library. Arrays and structures that are passed to a call must outlive it; calls keep them."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        for name in ("detent_version", "detent_active_target", "detent_last_error"):
            getattr(self.library, name).restype = ctypes.c_char_p

    def text(self, name):
        return getattr(self.library, "detent_" + name)().decode()

    def options(self, kind, **fields):
        o = kind()
        getattr(self.library, kind.__name__ + "_init")(ctypes.byref(o))
        if o.size != ctypes.sizeof(kind):
            sys.exit(f"{kind.__name__} has {o.size} bytes in the library, {ctypes.sizeof(kind)} here")
        for name, value in fields.items():
            setattr(o, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
        o.kept = fields
        return o

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.text("last_error"))

    def call(self, name, *arguments):
        """A call of a function of the library as a function without arguments, which costs Python the least time."""
        given, kept = [], []
        for a in arguments:
            kept.append(a)
            given.append(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else
                         ctypes.byref(a) if isinstance(a, ctypes.Structure) else
                         ctypes.c_size_t(a) if isinstance(a, int) else a)
        run = functools.partial(getattr(self.library, "detent_" + name), *given)
        run.kept = kept
        return run

    def handle(self, name, *arguments):
        h = ctypes.c_void_p()
        self.check(self.call(name, *arguments, ctypes.byref(h))())
        return h

    def pack(self, w, scales=None):
        o = self.options(WeightOptions)
        if scales is not None:
            o = self.options(WeightOptions, scales=scales, scale_count=scales.size)
        k, n = w.shape
        return self.handle("pack_weights", INT(S8), w, k, n, ctypes.c_ssize_t(n), ctypes.c_ssize_t(1), o)


def session(operator, domain, inputs, initializers, output, attributes):
    """A function that runs one operator. inputs are the arrays, by name, that are given with each run; initializers are
    the other arguments, by name, which are constants of the model."""
    names = [*inputs, *initializers]
    node = helper.make_node(operator, order(operator, names), ["y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                        for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(output.dtype), output.shape)],
        [numpy_helper.from_array(a, n) for n, a in initializers.items()])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = made.io_binding()  # inputs and outputs are in the same kind of memory as those of detent
    for n, array in inputs.items():
        binding.bind_input(n, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, output.dtype, output.shape, output.ctypes.data)
    run = functools.partial(made.run_with_iobinding, binding)
    run.kept = [inputs, output]
    return run


ARGUMENTS = {"MatMulInteger": ("a", "b", "a_zp"),
             "QLinearMatMul": ("a", "a_scale", "a_zp", "b", "b_scale", "b_zp", "y_scale", "y_zp"),
             "DynamicQuantizeMatMul": ("a", "b", "b_scale"),
             "QLinearConv": ("a", "a_scale", "a_zp", "b", "b_scale", "b_zp", "y_scale", "y_zp", "bias")}


def order(operator, names):
    assert set(names) == set(ARGUMENTS[operator])
    return ARGUMENTS[operator]


def normal_weights(random, columns, depth):
    """Weights of depth x columns, normally distributed, with each column scaled to -127..127."""
    w = random.standard_normal((depth, columns), dtype=np.float32)
    return np.rint(w / np.abs(w).max(axis=0) * 127).astype(np.int8)


def column_scales(columns):
    return (1e-3 + 1e-4 * (np.arange(columns) % 7)).astype(np.float32)


def require_close(ours, theirs, what):
    """Raises an error unless 8-bit results differ by at most 1, in at most 0.1 % of the elements. They may differ where
    ties fall elsewhere, because the runtime's own multiplier may be another float."""
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    if difference.max(initial=0) > 1 or (difference != 0).mean() > 1e-3:
        raise RuntimeError(f"{what}: {100 * (difference != 0).mean():.3f} % differ, by up to {difference.max()}")


class Memory:
    """Makes arrays that begin at a cache line, as those of runtimes do, or `offset` bytes after the begin of one."""
    line, offset = 64, 0

    @classmethod
    def array(cls, shape, kind, value):
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        memory = np.full(size + 2 * cls.line, value, np.uint8)  # written, so that the system provides its pages now
        first = -memory.ctypes.data % cls.line + cls.offset
        return memory[first:first + size].view(kind).reshape(shape)

    @classmethod
    def copy(cls, values):
        array = cls.array(values.shape, values.dtype, 0)
        array[...] = values
        return array

    @classmethod
    def outputs(cls, shape, kind):
        """The output arrays of both sides, with different contents."""
        return cls.array(shape, kind, 1), cls.array(shape, kind, 2)


def integers(random, detent, m, n, k, to_bytes):
    a = Memory.copy(random.integers(0, 256, (m, k), dtype=np.uint8))
    w = normal_weights(random, n, k)
    scales = column_scales(n)
    out, result = Memory.outputs((m, n), np.uint8 if to_bytes else np.int32)
    rows = np.unique(random.integers(0, m, 5))
    sums = (a[rows].astype(np.int64) - A_ZERO_POINT) @ w.astype(np.int64)
    y_scale = np.float32((sums * scales).std() / 40 + 1e-6)
    epilogue = detent.options(Epilogue, lhs_zero_point=A_ZERO_POINT, output_scale=float(y_scale),
                              output_zero_point=Y_ZERO_POINT)
    weights = detent.pack(w, scales)
    ours = detent.call("gemm", INT(U8), a, k, m, weights, INT(U8 if to_bytes else S32), out, n, epilogue, POINTER())
    initializers = {"b": w, "a_zp": np.uint8(A_ZERO_POINT)}
    if to_bytes:
        initializers |= {"a_scale": np.float32(1), "b_scale": scales, "b_zp": np.zeros(n, np.int8), "y_scale": y_scale,
                         "y_zp": np.uint8(Y_ZERO_POINT)}
    theirs = session("QLinearMatMul" if to_bytes else "MatMulInteger", "", {"a": a},
                     {name: np.asarray(v) for name, v in initializers.items()}, result, {})

    def validate():
        if to_bytes:
            expected = np.clip(np.rint(sums * (scales / y_scale)) + Y_ZERO_POINT, 0, 255)
            require_close(out[rows], expected, "detent and NumPy")
            require_close(out, result, "detent and ONNX Runtime")
        elif (out[rows] != sums).any() or (out != result).any():
            raise RuntimeError("the integers differ")

    return detent, ours, theirs, validate, 2 * m * n * k, weights


def dynamic(random, detent, m, n, k):
    a = Memory.copy(random.standard_normal((m, k), dtype=np.float32))
    w = normal_weights(random, n, k)
    scales = column_scales(n)
    out, result = Memory.outputs((m, n), np.float32)
    options = detent.options(LinearOptions, per_row=0)
    weights = detent.pack(w, scales)
    ours = detent.call("dynamic_linear", a, k, m, weights, out, n, options, POINTER())
    theirs = session("DynamicQuantizeMatMul", "com.microsoft", {"a": a}, {"b": w, "b_scale": scales}, result, {})

    def validate():
        rows = np.unique(random.integers(0, m, 5))
        step = (max(a.max(), 0) - min(a.min(), 0)) / np.float32(255)
        exact = a[rows] @ (w * scales)
        error = 5 * step * np.sqrt((np.square(w * scales)).sum(axis=0) / 12)  # five standard deviations of the rounding
        for name, c in (("detent", out[rows]), ("ONNX Runtime", result[rows])):
            if k > 1 and (np.abs(c - exact) > error + 1e-6).mean() > 1e-3:
                raise RuntimeError(f"{name} is further from the float product than quantizing explains")

    return detent, ours, theirs, validate, 2 * m * n * k, weights


def convolution(random, detent, layer, planar):
    _, channels, filters, groups, kernel, stride, size = layer
    padding = kernel // 2
    extent = (size + 2 * padding - kernel) // stride + 1
    depth = channels // groups * kernel * kernel
    w = np.ascontiguousarray(normal_weights(random, filters, depth).T)
    w = w.reshape(filters, channels // groups, kernel, kernel)
    bias = random.integers(-1000, 1001, filters, dtype=np.int32)
    scales = column_scales(filters)
    pixels = (lambda c, s: (1, c, s, s)) if planar else (lambda c, s: (1, s, s, c))
    x = Memory.copy(random.integers(0, 256, pixels(channels, size), dtype=np.uint8))
    out, result = Memory.outputs(pixels(filters, extent), np.uint8)

    # The sums of all filters at a few pixels.
    padded = np.pad(x[0].transpose(1, 2, 0) if planar else x[0], ((padding, padding), (padding, padding), (0, 0)),
                    constant_values=A_ZERO_POINT).astype(np.int64) - A_ZERO_POINT
    points = random.integers(0, extent, (8, 2))
    patches = np.stack([padded[y * stride:y * stride + kernel, v * stride:v * stride + kernel] for y, v in points])
    sums = bias + np.einsum("phwgc,gochw->pgo", patches.reshape(8, kernel, kernel, groups, -1),
                            w.reshape(groups, -1, *w.shape[1:]).astype(np.int64)).reshape(8, filters)
    y_scale = np.float32((sums * scales).std() / 40 + 1e-6)

    f = detent.handle("pack_filters",
                      detent.options(FilterShape, out_channels=filters, in_channels=channels, groups=groups,
                                     kernel_height=kernel, kernel_width=kernel), w, w.size,
                      detent.options(WeightOptions, scales=scales, scale_count=filters, bias=bias, bias_count=filters))
    window = detent.options(Window, in_height=size, in_width=size, stride_height=stride, stride_width=stride,
                            pad_top=padding, pad_left=padding, pad_bottom=padding, pad_right=padding,
                            input_layout=int(planar), output_layout=int(planar))
    epilogue = detent.options(Epilogue, lhs_zero_point=A_ZERO_POINT, output_scale=float(y_scale),
                              output_zero_point=Y_ZERO_POINT)
    ours = detent.call("convolve", f, window, INT(U8), x, x.size, INT(U8), out, out.size, epilogue, POINTER())
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4, "group": groups}
    initializers = {"a_scale": np.float32(1), "a_zp": np.uint8(A_ZERO_POINT), "b": w, "b_scale": scales,
                    "b_zp": np.zeros(filters, np.int8), "y_scale": y_scale, "y_zp": np.uint8(Y_ZERO_POINT),
                    "bias": bias}
    theirs = session("QLinearConv", "" if planar else "com.microsoft", {"a": x},
                     {name: np.asarray(v) for name, v in initializers.items()}, result,
                     attributes if planar else attributes | {"channels_last": 1})

    def validate():
        y, v = points.T
        expected = np.clip(np.rint(sums * (scales / y_scale)) + Y_ZERO_POINT, 0, 255)
        require_close(out[0, :, y, v] if planar else out[0, y, v], expected, "detent and NumPy")
        require_close(out, result, "detent and ONNX Runtime")

    return detent, ours, theirs, validate, 2 * out.size * depth, f


def samples(run, calls, seconds):
    """The seconds that a call takes, measured again and again; each sample is the mean of `calls` calls."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        times.append((time.perf_counter_ns() - start) * 1e-9 / calls)
    return times


def measure(case, seconds):
    """The times of calls of both sides, which take ten turns, and the number of operations of a call."""
    detent, ours, theirs, validate, operations, packed = case
    for _ in range(2):  # the first calls also do the work that is done only once
        detent.check(ours())
        theirs()
    validate()
    calls = [max(1, int(2e-4 / min(samples(run, 1, 0.005)))) for run in (ours, theirs)]
    times = [[], []]
    turns = 10
    for _ in range(turns):
        for side, run in enumerate((ours, theirs)):
            run()  # not measured: at first, the caches hold the data of the other side
            times[side] += samples(run, calls[side], seconds / turns / 2)
    detent.check(ours())
    validate()
    free = detent.library.detent_filters_free if case[1].func.__name__ == "detent_convolve" else \
        detent.library.detent_weights_free
    free(packed)
    return times, operations


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path)
    parser.add_argument("--target")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line, both sides together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0, metavar="BYTES",
                        help="of all inputs and outputs from the beginning of a cache line: a multiple of 4 below 64")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    if options.offset % 4 != 0 or not 0 <= options.offset < Memory.line:
        parser.error(f"an offset of {options.offset} bytes")
    Memory.offset = options.offset
    detent = Detent(options.library.resolve())
    if options.target:
        detent.check(detent.library.detent_set_target(options.target.encode()))
    random = np.random.default_rng(options.seed)
    print(f"# detent {detent.text('version')} on {detent.text('active_target')}, ONNX Runtime {ort.__version__}, "
          f"one thread, seed {options.seed}, offset {options.offset}")

    one = ("one", 1, 1, 1, 1, 1, 1)
    operations = {
        "s32": (lambda s: integers(random, detent, *s, False), GEMMS, (1, 1, 1)),
        "u8": (lambda s: integers(random, detent, *s, True), GEMMS, (1, 1, 1)),
        "dynamic": (lambda s: dynamic(random, detent, *s), GEMMS, (1, 1, 1)),
        "nhwc": (lambda s: convolution(random, detent, s, False), CONVOLUTIONS, one),
        "nchw": (lambda s: convolution(random, detent, s, True), CONVOLUTIONS, one)}
    print("operation,shape,detent_gops,onnxruntime_gops,ratio,best_ratio,net_ratio")
    for operation, (make, shapes, smallest) in operations.items():
        names = ["x".join(map(str, s)) if isinstance(s[0], int) else s[0] for s in shapes]
        chosen = [(n, s) for n, s in zip(names, shapes)
                  if not options.patterns or any(p in f"{operation}/{n}" for p in options.patterns)]
        if not chosen:
            continue
        empty = [statistics.median(t) for t in measure(make(smallest), options.seconds / 2)[0]]
        print(f"# a call of {operation}: {empty[0] * 1e6:.1f} us, {empty[1] * 1e6:.1f} us")
        for name, shape in chosen:
            times, count = measure(make(shape), options.seconds)
            ours, theirs = (statistics.median(t) for t in times)
            net = (theirs - empty[1]) / (ours - empty[0]) if ours > empty[0] and theirs > empty[1] else float("nan")
            print(f"{operation},{name},{count * 1e-9 / ours:.0f},{count * 1e-9 / theirs:.0f},{theirs / ours:.2f},"
                  f"{min(times[1]) / min(times[0]):.2f},{net:.2f}", flush=True)


if __name__ == "__main__":
    main()
