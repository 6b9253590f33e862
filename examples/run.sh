#!/bin/sh
# Builds the command line tool and does the main job: quantizes the digits network that comes with the
# project, and compares it with its float original. Installs what is missing (Debian 12 or 13, as root).
set -eu
cd "$(dirname "$0")/.."
build=$PWD/build
sh cmake/setup.sh "$build"
# The tests need more packages; their command switches them on in the same build folder.
cmake -S . -B "$build/release" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$build/deps/usr" \
  -DDETENT_WERROR="${DETENT_WERROR:-OFF}" -DDETENT_BUILD_TESTS=OFF -DDETENT_BUILD_BENCHMARKS=OFF >"$build/release.log" 2>&1 ||
  { cat "$build/release.log" >&2; exit 1; }
echo "detent: building the command line tool (build/release)"
cmake --build "$build/release" --target detent_cli --parallel "$(nproc)" >"$build/release.log" 2>&1 ||
  { cat "$build/release.log" >&2; exit 1; }

detent=$build/release/examples/detent
digits=examples/digits
say() {
  echo
  echo "\$ detent $*"
  "$detent" "$@"
}
say targets
say quantize $digits/digits.onnx -o build/digits.int8.onnx --calib $digits/calibration_images.npy
say eval $digits/digits.onnx --data $digits/test_images.npy --labels $digits/test_labels.npy
say eval build/digits.int8.onnx --data $digits/test_images.npy --labels $digits/test_labels.npy
say compare $digits/digits.onnx build/digits.int8.onnx --data $digits/test_images.npy
