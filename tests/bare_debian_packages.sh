#!/bin/sh
# bare_debian_packages.sh SUITE: makes the Debian packages in a bare Debian, installs them in another one that has only
# them, and uses what they hold (tests/build_modes/installed_packages.sh). SUITE is trixie or later: older Debians have
# no Highway and xsimd that are new enough. Needs what bare_debian.sh needs. The packages stay in build/packages/SUITE.
set -eu
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: bare_debian_packages.sh SUITE" >&2; exit 2; }
packages=$PWD/build/packages/$1
rm -rf "$packages"
mkdir -p "$packages"
sh tests/bare_debian.sh --exchange "$packages" "$1" sh cmake/packages/debian.sh /exchange
ls -l "$packages"
sh tests/bare_debian.sh --exchange "$packages" "$1" sh tests/build_modes/installed_packages.sh /exchange
cat "build/bare_debian/$1/command.log"
