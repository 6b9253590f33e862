#!/bin/sh
# calibrate_mpi.sh PROGRAM MODEL.onnx SAMPLES.npy: 1, 2 and 5 processes must write the same model to the last bit.
# Skipped where there is no mpirun; with CI=true that is a failure.
set -eu
program=$1 model=$2 samples=$3
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
# Methods whose states merge, that keep something of each sample, and that need two rounds.
for method in minmax nncf.mean_minmax isotone ort.entropy; do
  for n in 1 2 5; do
    timeout 120 mpirun -n $n "$program" "$model" "$samples" "$tmp/$method.$n.onnx" "$method" >"$tmp/out"
    echo "--- $n processes: $(cat "$tmp/out")"
    grep -q "method $method, 100 samples" "$tmp/out"
    cmp "$tmp/$method.1.onnx" "$tmp/$method.$n.onnx"
  done
done
if cmp -s "$tmp/minmax.1.onnx" "$tmp/ort.entropy.1.onnx"; then
  echo "two methods made the same model"
  exit 1
fi
if timeout 120 mpirun -n 2 "$program" "$model" "$samples" "$tmp/no.onnx" nothing >"$tmp/out" 2>&1; then
  echo "an unknown method was taken"
  exit 1
fi
grep -q "there is no observer 'nothing'" "$tmp/out"
[ ! -e "$tmp/no.onnx" ]
