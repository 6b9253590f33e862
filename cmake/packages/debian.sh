#!/bin/sh
# debian.sh FOLDER: builds the Debian packages and puts them into FOLDER. For Debian 13 or later, as root: what the
# packages depend on is installed from Debian itself.
set -eu
mkdir -p "$1"
packages=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
build=$PWD/build
sh cmake/setup.sh --onnxruntime "$build"
[ ! -d "$build/deps" ] || { echo "debian.sh: this Debian has no Highway and xsimd that are new enough to depend on" >&2; exit 1; }
[ -d "$build/onnxruntime" ] || { echo "debian.sh: without the headers of ONNX Runtime there is no package of its provider" >&2; exit 1; }
apt-get -q install -y --no-install-recommends dpkg-dev file >/dev/null
cmake -S . -B "$build/packages/work" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
  -DCMAKE_PREFIX_PATH="$build/onnxruntime/usr" -DDETENT_BUILD_TESTS=OFF -DDETENT_BUILD_BENCHMARKS=OFF \
  -DDETENT_BUILD_EXAMPLES=OFF -DDETENT_BUILD_TOOLS=ON
cmake --build "$build/packages/work"
cd "$build/packages/work"
cpack -G DEB
cp -- *.deb "$packages"
