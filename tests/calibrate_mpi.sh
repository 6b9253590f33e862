#!/bin/sh
# calibrate_mpi.sh PROGRAM SAMPLES.npy: 1, 2 and 4 processes must say the same to the last bit.
# Skipped where there is no mpirun; with CI=true that is a failure.
set -eu
program=$1 samples=$2
if [ ! -x "$program" ] || ! command -v mpirun >/dev/null; then
  echo "skipped: no MPI here (Debian: libopenmpi-dev)"
  [ "${CI-}" = true ] && exit 1
  exit 77
fi
# All on this machine, more processes than processors, as root in containers, without a network.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none \
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# UCX prints complaints about a missing /sys on standard output, where the results are.
export UCX_LOG_LEVEL=fatal
# A program built with AddressSanitizer would report what Open MPI itself never frees.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for n in 1 2 4; do
  timeout 120 mpirun -n $n "$program" "$samples" >"$tmp/$n"
  echo "--- $n"
  cat "$tmp/$n"
  [ "$(wc -l <"$tmp/$n")" -eq 6 ]
  cmp "$tmp/1" "$tmp/$n"
done
if timeout 120 mpirun -n 2 "$program" "$samples" nothing >"$tmp/out" 2>&1; then
  echo "an unknown method was taken"
  exit 1
fi
grep -q "there is no observer 'nothing'" "$tmp/out"
