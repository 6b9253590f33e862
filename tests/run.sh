#!/bin/sh
# Builds and runs the tests. Installs what is missing (Debian 12 or 13, as root). Arguments go to ctest.
# DETENT_WERROR=ON in the environment makes warnings errors, DETENT_FUZZ=ON adds a short run of the fuzz targets.
set -eu
cd "$(dirname "$0")/.."
build=$PWD/build
sh cmake/setup.sh --tests "$build"
# Made while the compiler works: the tests are the first to need it.
sh cmake/setup.sh --python "$build" &
python=$!
cmake -S . -B "$build/release" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$build/deps/usr;$build/onnxruntime/usr" \
  -DDETENT_WERROR="${DETENT_WERROR:-OFF}" -DDETENT_FUZZ="${DETENT_FUZZ:-OFF}" -DDETENT_BUILD_TESTS=ON -DDETENT_BUILD_BENCHMARKS=ON >"$build/release.log" 2>&1 ||
  { cat "$build/release.log" >&2; exit 1; }
echo "detent: building the tests (build/release)"
# Ninja by itself starts more jobs than there are cores: some need 3 GB each, and all together they take longer.
cmake --build "$build/release" --parallel "$(nproc)" >"$build/release.log" 2>&1 || { cat "$build/release.log" >&2; exit 1; }
wait "$python"
ctest --test-dir "$build/release" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
