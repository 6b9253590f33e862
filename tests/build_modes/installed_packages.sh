#!/bin/sh
# installed_packages.sh PACKAGES [ROOT]: installs the Debian packages in the folder PACKAGES and uses what they hold.
#
# Without ROOT they are installed by apt-get, with compilers and CMake, which needs root: for a bare system. With ROOT
# they are unpacked into that folder, and everything else is the system's; DETENT_DEPENDENCIES may name folders, with
# colons between them, that hold Highway, xsimd and Eigen, and DETENT_PYTHON a Python with ONNX Runtime. C and C++
# programs are built by pkg-config and run, without ROOT by CMake, too; the tool quantizes and runs a model; ONNX
# Runtime loads the provider.
set -eu
packages=$(cd "$1" && pwd)
root=${2:-}
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "installed_packages: $*"; }
die() { echo "installed_packages: $*" >&2; exit 1; }

for name in libdetent-dev libdetent-c libdetent-graph-c detent-tools detent-onnxruntime; do
  ls "$packages/$name"*.deb >/dev/null 2>&1 || die "there is no package $name in $packages"
done
if [ -n "$root" ]; then
  rm -rf "$root"
  mkdir -p "$root"
  for package in "$packages"/*.deb; do dpkg -x "$package" "$root"; done
  prefix=$root/usr
  libraries=$(dirname "$(find "$prefix/lib" -name libdetent_c.so)")
  export PATH="$prefix/bin:$PATH" LD_LIBRARY_PATH="$libraries" PKG_CONFIG_PATH="$libraries/pkgconfig"
  sed -i "s|^prefix=.*|prefix=$prefix|" "$libraries"/pkgconfig/*.pc
else
  apt-get -q update >/dev/null
  # Alone first: what the packages need must be in them or be their dependencies.
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$packages"/*.deb
  detent --version || die "the tool does not run with what its package asks for"
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends g++ cmake make pkgconf python3-venv >/dev/null
  prefix=/usr
  libraries=$(dirname "$(find /usr/lib -name libdetent_c.so)")
fi
includes=""
for folder in $(echo "${DETENT_DEPENDENCIES:-}" | tr ':' ' '); do includes="$includes -isystem $folder/include"; done

# flags MODULE: what pkg-config says of it, with the folders of other libraries.
flags() { echo "$includes $(pkg-config --cflags --libs "$1")"; }

say "pkg-config: detent $(pkg-config --modversion detent)"
cd "$source/tests"
# shellcheck disable=SC2046
cc -std=c11 c_api_test.c -o "$work/c" $(flags detent-c) -lm
"$work/c" >/dev/null || die "the C program fails"
# shellcheck disable=SC2046
cc -std=c11 c_api_graph_test.c -o "$work/c_graph" $(flags detent-graph-c) -lm
"$work/c_graph" "$source/examples/digits/digits.onnx" "$work/c_graph.onnx" >/dev/null || die "the C program that reads a model fails"
for program in detent:main detent-kernels:main detent-graph:graph; do
  # shellcheck disable=SC2046
  c++ -std=c++20 -O0 "build_modes/consumers/${program#*:}.cpp" -o "$work/cpp" $(flags "${program%:*}")
  "$work/cpp" >/dev/null || die "the C++ program of ${program%:*} fails"
done
say "programs built by pkg-config run"

if [ -z "$root" ]; then
  cmake -S build_modes/consumers/find_package -B "$work/cmake" -DCMAKE_BUILD_TYPE=Debug -DNEEDS_ONNXRUNTIME=ON \
    -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "CMake fails"; }
  cmake --build "$work/cmake" -j 2 >"$work/log" 2>&1 || { cat "$work/log" >&2; die "the build by CMake fails"; }
  ctest --test-dir "$work/cmake" --output-on-failure >"$work/log" 2>&1 || { cat "$work/log" >&2; die "a program built by CMake fails"; }
  say "programs built by CMake run"
fi

digits=$source/examples/digits
detent quantize "$digits/digits.onnx" -o "$work/digits.onnx" --calib "$digits/calibration_images.npy" --method minmax >/dev/null
detent eval "$work/digits.onnx" --data "$digits/test_images.npy" --labels "$digits/test_labels.npy"
say "the tool quantizes and runs a model"
# Packages that were not configured for /usr have the script for zsh in site-functions.
for file in "$prefix/share/bash-completion/completions/detent" "$prefix"/share/zsh/*/_detent \
  "$prefix/share/fish/vendor_completions.d/detent.fish" "$prefix"/share/man/man1/detent.1*; do
  [ -s "$file" ] || die "there is no $file"
done
bash -n "$prefix/share/bash-completion/completions/detent" || die "the completion for bash is no script"
say "completion and the manual page are there"

python=${DETENT_PYTHON:-}
if [ -z "$python" ] && [ -z "$root" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip -q install onnxruntime numpy
fi
if [ -n "$python" ]; then
  "$python" "$source/examples/onnxruntime/run.py" "$work/digits.onnx" --provider "$libraries/libdetent_onnxruntime.so"
  say "ONNX Runtime loads the provider"
else
  nm -D --defined-only "$libraries/libdetent_onnxruntime.so" | grep -q CreateEpFactories || die "the provider has no CreateEpFactories"
fi
