#!/bin/sh
# Calibration as a job array of Slurm: each task observes one part of the samples and writes a state.
#
#   sbatch --array=0-7 observe_with_slurm.sh DETENT MODEL.onnx SAMPLES.npy COUNT FOLDER [OPTIONS...]
#
# COUNT is the number of samples in SAMPLES.npy; OPTIONS go to `detent observe`. When all tasks have
# ended:
#
#   detent quantize MODEL.onnx --states FOLDER/*.states -o OUT.onnx
#
# The states are files that appear as a whole or not at all, so a task that died is run again by
# the same sbatch command: those that are done end at once. Without Slurm, a loop does the same:
#
#   for i in 0 1 2; do SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=3 sh observe_with_slurm.sh ...; done
#
#SBATCH --job-name=detent-observe
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
set -eu
[ $# -ge 5 ] || { echo "usage: observe_with_slurm.sh DETENT MODEL.onnx SAMPLES.npy COUNT FOLDER [OPTIONS...]" >&2; exit 2; }
detent=$1 model=$2 samples=$3 count=$4 folder=$5
shift 5
task=${SLURM_ARRAY_TASK_ID:?this is a task of a job array: sbatch --array=0-7 ...}
tasks=${SLURM_ARRAY_TASK_COUNT:?this is a task of a job array: sbatch --array=0-7 ...}
first=$((count * task / tasks)) last=$((count * (task + 1) / tasks))
if [ "$first" -eq "$last" ]; then
  echo "task $task: there are no samples for it"
  exit 0
fi
state=$folder/part_${task}_of_$tasks.states
if [ -s "$state" ]; then
  echo "task $task: $state is there"
  exit 0
fi
mkdir -p "$folder"
exec "$detent" observe "$model" --calib "$samples" --samples "$first:$last" \
  --threads "${SLURM_CPUS_PER_TASK:-1}" -o "$state" "$@"
