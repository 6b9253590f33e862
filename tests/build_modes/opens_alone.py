#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Shows that each file of kernels opens alone, as an editor opens it: it is parsed as a main file, without errors.

    opens_alone.py INCLUDE_DIR COMPILER OPTION...
"""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PARTS = ("for_each_target-inl.hpp", "for_each_pass-inl.hpp", "end_pass-inl.hpp", "end_text-inl.hpp")  # not files of their own


def main():
    folder, compiler, *options = sys.argv[1:]
    # Those in definitions/ are included first by public headers, which are tested themselves.
    files = [path for path in sorted(Path(folder).glob("detent/kernels/**/*.hpp"))
             if path.name not in PARTS and path.parent.name != "definitions"]

    def parse(path):
        command = [compiler, "-x", "c++", "-std=c++20", "-fsyntax-only", "-w", f"-I{folder}", *options, str(path)]
        return path, subprocess.run(command, capture_output=True, text=True)

    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, result in pool.map(parse, files):
            if result.returncode != 0:
                print(f"{path}\n{result.stderr}")
                failed += 1
    print(f"{len(files) - failed} of {len(files)} files of kernels open alone")
    sys.exit(1 if failed or not files else 0)


if __name__ == "__main__":
    main()
