#!/bin/sh
# packages.sh BUILD WORK: makes the Debian packages of the build folder BUILD in WORK and tries what they hold, unpacked.
set -eu
rm -rf "$2"
mkdir -p "$2/debs"
(cd "$2" && cpack -G DEB --config "$1/CPackConfig.cmake" -B "$2/work") >"$2/log" 2>&1 || { cat "$2/log" >&2; exit 1; }
cp "$2"/work/*.deb "$2/debs"
sh "$(dirname "$0")/installed_packages.sh" "$2/debs" "$2/root"
