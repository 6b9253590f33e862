#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Records what ONNX Runtime computes for the small models of operator_cases.py.

    record_operators.py OUT

recorded_operators_test.cpp compares it with the executor, on machines that have no Python. Of each case the newest operator set
counts, and an older one if its definition of the operator was another; cases that ONNX Runtime refuses are left out. OUT holds, for each case, the number of its bytes (32 bits, little endian)
and an ONNX model: what it is called stands in its producer_name, its inputs and the expected outputs are initializers with the
names given/NAME and expected/NAME.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import operator_cases

LARGEST = 16384  # bytes of a case: more would say little about corners
LARGEST_OLD = 1024  # the same for old definitions, most of which differ by the types that they take


def run(case):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # With more threads, DynamicQuantizeLSTM divides the sequences among them and quantizes each part by itself.
    options.intra_op_num_threads = 1
    # The operators as they are: optimizations may change what a corner gives.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, case.inputs)))


def versions(case):
    """When the definitions of the case's operators were made, for those of ONNX."""
    return tuple(onnx.defs.get_schema(node.op_type, case.opset).since_version for node in case.model.graph.node
                 if not node.domain and onnx.defs.has(node.op_type))


def main():
    newest, cases = {}, {}
    for case in operator_cases.all_cases():
        newest[case.label] = case
        cases[case.label, versions(case)] = case
    recorded, refused, large = bytearray(), 0, 0
    for (label, _), case in cases.items():
        try:
            expected = run(case)
        except Exception:  # of classes of its own
            refused += 1
            continue
        model = case.model
        model.producer_name = f"{label} (opset {case.opset})"
        for kind, values in (("given", case.inputs), ("expected", expected)):
            for name, array in values.items():
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"{kind}/{name}"))
        data = model.SerializeToString()
        if len(data) > (LARGEST if case is newest[label] else LARGEST_OLD):
            large += 1
            continue
        recorded += len(data).to_bytes(4, "little") + data
    pathlib.Path(sys.argv[1]).write_bytes(recorded)
    print(f"{len(cases) - refused - large} cases, {len(recorded)} bytes; {refused} refused by ONNX Runtime, {large} too large")


if __name__ == "__main__":
    main()
