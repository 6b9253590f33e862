#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""one_file.py ROOT HIGHWAY_DIR COMPILER FOLDER: the file that amalgamate.py --with-highway writes works by itself.

Compiles a program with nothing on the include path but that file, and runs it: the kernels of all targets are in it.
"""
import subprocess
import sys
from pathlib import Path

PROGRAM = """
#include "one_file.hpp"
#include <cstdio>
int main() {
  const std::vector<float> x(1000, 0.5F);
  std::vector<std::uint8_t> q(x.size());
  for (const detent::target t : detent::available_targets()) {
    detent::set_target(t);
    detent::quantize(x, q, {.scale = 0.1F, .zero_point = 3});
    if (q != std::vector<std::uint8_t>(x.size(), 8)) return 1;
  }
  std::printf("%zu targets\\n", detent::compiled_targets().size());
}
"""


def main():
    root, highway, compiler, folder = sys.argv[1:]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.cpp").write_text(PROGRAM)
    subprocess.run([sys.executable, f"{root}/single_include/amalgamate.py", "--with-highway", highway, "-o",
                    folder / "one_file.hpp"], check=True)
    subprocess.run([compiler, "-std=c++20", "-DDETENT_WITH_XSIMD=0", "-DDETENT_WITH_EIGEN=0", "-w", "main.cpp", "-pthread",
                    "-o", "program"], cwd=folder, check=True)
    printed = subprocess.run([folder / "program"], capture_output=True, text=True, check=True).stdout
    print(printed, end="")
    sys.exit(0 if printed in ("5 targets\n", "6 targets\n") else 1)


if __name__ == "__main__":
    main()
