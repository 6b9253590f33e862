#!/bin/sh
# setup.sh [--tests] [--onnxruntime] [--python] [--onednn] BUILD_DIR: gets what the build needs on Debian and its kin.
#
# Installs the missing packages with apt-get.  If the system has no Highway >= 1.2
# and xsimd >= 13, the header packages of a newer Debian suite (DETENT_SUITE, by
# default trixie) are unpacked into BUILD_DIR/deps, leaving the system alone; if
# DETENT_SUITE is set, that is done in any case.  --onnxruntime unpacks the headers
# of ONNX Runtime from a still newer suite into BUILD_DIR/onnxruntime; where no
# mirror has them, the provider for ONNX Runtime is not built, unless CI=true.
# --tests does so, too, and adds the packages that the tests need.  --python makes a Python environment with ONNX Runtime
# and Dask, BUILD_DIR/venv, and nothing else (it needs the packages of --tests), with older
# releases of ONNX Runtime in BUILD_DIR/venv/onnxruntime and NNCF in BUILD_DIR/venv/nncf; where it cannot be had,
# there is none and all goes on, unless CI=true.
# --onednn unpacks the newest oneDNN, with the C and C++ libraries that it runs on, into BUILD_DIR/onednn,
# and nothing else: for bench/tables.py.
# A second run finds everything in place and does nothing.
# shellcheck disable=SC2015,SC2016,SC2086
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH="$PATH:/usr/sbin:/sbin"

packages="g++ cmake ninja-build libeigen3-dev libprotozero-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev"
test_packages="doctest-dev libbenchmark-dev clang git ca-certificates python3 python3-venv libopenmpi-dev openmpi-bin doxygen dpkg-dev file pkgconf"
wheels="numpy onnx onnxruntime dask distributed"
runtimes="1.18.1 1.20.1 1.23.2 1.26.0" # older ONNX Runtimes that must load what is written
nncf="nncf==3.4.0 onnx onnxruntime" # in an environment of its own, BUILD_DIR/venv/nncf: it wants older packages
hwy_min=1.2 xsimd_min=13 onnxruntime_min=1.23
suite=${DETENT_SUITE:-trixie}
onnxruntime_suites="forky sid" onednn_suites="forky sid trixie"

say() { echo "detent: $*"; }
die() { echo "detent: $*" >&2; exit 1; }
die_log() { cat "$tmp/log" >&2; die "$*"; }

with_onnxruntime="" python="" with_onednn=""
while :; do
  case "${1-}" in
  --onnxruntime) with_onnxruntime=1; shift ;;
  --tests) with_onnxruntime=1; packages="$packages $test_packages"; shift ;;
  --python) python=1; shift ;;
  --onednn) with_onednn=1; shift ;;
  *) break ;;
  esac
done
[ $# = 1 ] && [ -n "$1" ] || die "usage: setup.sh [--tests] [--onnxruntime] [--python] [--onednn] BUILD_DIR"
mkdir -p -- "$1"
build=$(CDPATH='' cd -- "$1" && pwd)
deps=$build/deps venv=$build/venv onnxruntime=$build/onnxruntime onednn=$build/onednn
tmp=$(mktemp -d)
: >"$tmp/log"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

# The version of a package: the installed one, what apt-get would install, what
# was downloaded.  Empty if there is none.
installed() {
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' | head -n 1
}
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: \([0-9]\)/\1/p'; }
downloaded() { dpkg-deb -f "$tmp/debs/$1"_*.deb Version; }

# new_enough WHICH: whether those versions (see above) of Highway and xsimd will do.
new_enough() {
  hwy=$("$1" libhwy-dev) xsimd=$("$1" libxsimd-dev)
  [ -n "$hwy" ] && [ -n "$xsimd" ] &&
    dpkg --compare-versions "$hwy" ge $hwy_min && dpkg --compare-versions "$xsimd" ge $xsimd_min
}

# apt-get with sources, package lists, cache and preferences of its own in $tmp.  A mirror
# may be a snapshot, whose lists have expired; they are signed all the same.
private_apt_get() {
  apt-get -qq -o Acquire::Check-Valid-Until=false -o Dir::Etc::SourceList="$tmp/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
    -o Dir::State="$tmp" -o Dir::State::Lists="$tmp/lists" -o Dir::State::Status="$tmp/status" \
    -o Dir::Cache="$tmp/cache" -o APT::Sandbox::User=root -o APT::Default-Release= \
    -o Acquire::Languages=none "$@" </dev/null
}

# download URI SUITE PACKAGE...: these packages of a suite from a mirror, into $tmp/debs.
download() {
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed_by=""
  [ ! -f $keyring ] || signed_by="signed-by=$keyring"
  rm -rf "$tmp/lists" "$tmp/cache" "$tmp/debs"
  mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial" "$tmp/debs"
  : >"$tmp/status"
  echo "deb [arch=$(dpkg --print-architecture) $signed_by] $1 $2 main" >"$tmp/sources.list"
  shift 2
  private_apt_get update --error-on=any &&
    (cd "$tmp/debs" && private_apt_get download "$@")
}

# download_from_any SUITE PACKAGE...: the same, from any mirror that apt-get uses here; most often the first has the
# suite.  Leaves its address in $uri, or nothing there if apt-get knows no mirrors.
download_from_any() {
  for uri in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '!seen[$0]++'); do
    if download "$uri" "$@" >>"$tmp/log" 2>&1; then return 0; fi
  done
  return 1
}

# unpack FOLDER SUITE [--libraries]: the downloaded packages take the place of FOLDER, at once, so that what is there is
# complete.
unpack() {
  rm -rf "$1.new"
  mkdir "$1.new"
  for deb in "$tmp"/debs/*.deb; do dpkg -x "$deb" "$1.new"; done
  [ "${3-}" ] || rm -rf "$1.new/usr/lib" "$1.new/usr/share/cmake" # these want the libraries too
  echo "$2" >"$1.new/suite"
  rm -rf "$1"
  mv "$1.new" "$1"
}

fetch_headers() {
  say "fetching the headers of Highway and xsimd from $suite (here: Highway ${hwy:-none}, xsimd ${xsimd:-none})"
  uri=""
  download_from_any "$suite" libhwy-dev libxsimd-dev || {
    [ "$uri" ] || die_log "apt-get knows no mirrors; run as root: apt-get update"
    die_log "none of apt's mirrors has libhwy-dev and libxsimd-dev of $suite"
  }
  new_enough downloaded || die "$suite is too old: need Highway >= $hwy_min, xsimd >= $xsimd_min (it has $hwy, $xsimd)"
  unpack "$deps" "$suite"
  say "Highway $hwy and xsimd $xsimd are in $deps"
}

# The headers of ONNX Runtime's C interface, for the provider.
setup_onnxruntime() {
  [ ! -f "$onnxruntime/suite" ] || return 0
  for from in $onnxruntime_suites; do
    if download_from_any "$from" libonnxruntime-dev &&
      dpkg --compare-versions "$(downloaded libonnxruntime-dev)" ge $onnxruntime_min; then
      unpack "$onnxruntime" "$from"
      say "the headers of ONNX Runtime $(downloaded libonnxruntime-dev) are in $onnxruntime"
      return
    fi
  done
  [ "${CI:-}" != true ] || die_log "none of apt's mirrors has libonnxruntime-dev >= $onnxruntime_min"
  say "there are no headers of ONNX Runtime >= $onnxruntime_min: its provider is not built"
}

# oneDNN with its C and C++ libraries. The package of its shared library is named after the version of the interface;
# libdnnl-dev depends on it.
setup_onednn() {
  [ ! -f "$onednn/suite" ] || return 0
  for from in $onednn_suites; do
    download_from_any "$from" libdnnl-dev || continue
    library=$(dpkg-deb -f "$tmp/debs/"libdnnl-dev_*.deb Depends | sed -n 's/.*\(libdnnl[0-9][0-9.]*\).*/\1/p')
    if download_from_any "$from" libdnnl-dev "$library" libc6 libstdc++6 libgcc-s1 libgomp1; then
      unpack "$onednn" "$from" --libraries
      say "oneDNN $(downloaded libdnnl-dev) is in $onednn"
      return
    fi
  done
  die_log "none of apt's mirrors has oneDNN"
}

setup_packages() {
  missing="" headers=""
  for package in $packages; do [ "$(installed "$package")" ] || missing="$missing $package"; done
  if [ -z "${DETENT_SUITE:-}" ] && new_enough installed; then
    rm -rf "$deps" # it would hide the system's
  elif [ "$(cat "$deps/suite" 2>/dev/null)" != "$suite" ]; then
    headers=fetch
  fi
  [ "$missing$headers" ] || return 0

  if [ "$(id -u)" = 0 ]; then
    say "updating the package lists"
    # One broken source need not matter; if it does, the next step shows this log.
    apt-get -q update >>"$tmp/log" 2>&1 </dev/null || :
    if [ "$headers" ] && new_enough candidate && [ -z "${DETENT_SUITE:-}" ]; then
      missing="$missing libhwy-dev libxsimd-dev" headers=
    fi
    # The first point releases of Debian 12 do not know trixie's keys.
    keyring=$(installed debian-archive-keyring)
    if [ "$headers" ] && [ "$keyring" ] && dpkg --compare-versions "$keyring" lt 2023.3+deb12u2; then
      missing="$missing debian-archive-keyring"
    fi
  elif [ "$missing" ]; then
    die "missing packages; run as root: apt-get install$missing"
  fi
  if [ "$missing" ]; then
    say "installing$missing"
    apt-get -q install -y --no-install-recommends -o DPkg::Lock::Timeout=300 $missing \
      >>"$tmp/log" 2>&1 </dev/null || die_log "apt-get could not install$missing"
  fi
  [ -z "$headers" ] || fetch_headers
}

# Most modules are never imported: Python compiles those that are.
pip_options="-q --progress-bar off --disable-pip-version-check --only-binary=:all: --no-compile"

# Releases that the Python here is too new for are left out.
setup_runtimes() {
  for version in $runtimes; do
    numpy="" # releases before 1.19 were made for numpy 1
    [ "$version" != 1.18.1 ] || numpy="numpy<2"
    "$venv/bin/python" -m pip install $pip_options --no-deps --target "$venv/onnxruntime/$version" \
      "onnxruntime==$version" ${numpy:+"$numpy"} >"$tmp/log" 2>&1 </dev/null || say "there is no ONNX Runtime $version for this Python"
  done
}

setup_nncf() {
  if { python3 -m venv "$venv/nncf" && "$venv/nncf/bin/python" -m pip install $pip_options $nncf; } \
    >"$tmp/log" 2>&1 </dev/null; then return; fi
  rm -rf "$venv/nncf"
  say "there is no NNCF for this Python: its test will be skipped"
}

setup_venv() {
  complete="$wheels $runtimes $nncf"
  [ "$(cat "$venv/complete" 2>/dev/null)" != "$complete" ] || return 0
  say "installing $wheels into $venv"
  if { python3 -m venv --clear "$venv" && "$venv/bin/python" -m pip install $pip_options $wheels; } >"$tmp/log" 2>&1 </dev/null; then
    setup_runtimes
    setup_nncf
    echo "$complete" >"$venv/complete"
    return
  fi
  rm -rf "$venv"
  [ "${CI:-}" != true ] || die_log "could not install $wheels"
  tail -n 1 "$tmp/log"
  say "could not install $wheels: the tests that need them will be skipped"
}

if [ "$python$with_onednn" ] && [ -z "$with_onnxruntime" ]; then
  [ -z "$with_onednn" ] || setup_onednn
elif command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  setup_packages
  [ -z "$with_onnxruntime" ] || setup_onnxruntime
  [ -z "$with_onednn" ] || setup_onednn
else
  needs="a C++20 compiler, CMake >= 3.25, Ninja, Highway >= $hwy_min, xsimd >= $xsimd_min, Eigen >= 3.4, protozero, CLI11, nlohmann-json, yaml-cpp, doctest"
  say "no apt-get here; please see to it that these are installed: $needs"
  command -v cmake >/dev/null && command -v c++ >/dev/null || exit 1
fi
[ -z "$python" ] || setup_venv
