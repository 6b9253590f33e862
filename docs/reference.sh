#!/bin/sh
# reference.sh [FOLDER]: builds the reference of the public headers with Doxygen (Debian: doxygen) into FOLDER, by default
# build/reference. Fails if a public entity has no comment.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build/reference}
command -v doxygen >/dev/null || { echo "reference.sh: doxygen is not installed" >&2; exit 77; }
mkdir -p "$folder"
{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = \"$folder\""; } | doxygen -
echo "$folder/html/index.html"
