#!/usr/bin/env bash
# The experiments on the method that need a CUDA device and more than one sitting; data (tools/pack_data.py) lies in DATA:
#
#   benchmarks/method_on_gpu.sh DATA WORK OUT share confirm rivals
#
# share     lets processes share the GPU at once (CUDA MPS), where that works
# confirm   what decided with crisp_nano, with SIZE (tiny): five rows, CONFIRM_STEPS (3000) steps, CONFIRM_SEEDS (0 1), five
#           splits
# rivals    eleven networks, RIVALS_STEPS (2000) steps, RIVALS_SEEDS (0 1 2), both ISPRS fragments and Dubai
# Each takes MINUTES (8) at most to begin runs, and STOP_SECONDS (570) in all: what is under way then is saved. Runs that ended are in
# OUT/STEP.json; put it to benchmarks/results/STEP/results.json and the next sitting goes on from there. Runs that were cut off go on
# where WORK is still there. On a new machine the kernels of the first rows take a minute or two: let nothing
# else that compiles or decodes run beside them, and begin a sitting with fewer steps rather than with runs that do not end.
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/steps.sh
DATA=$1 WORK=$2 OUT=$3
shift 3
mkdir -p "$WORK" "$OUT"
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
FRAGMENTS="ablation_vaihingen=$DATA/vaihingen_fragment ablation_potsdam=$DATA/potsdam_fragment ablation_dubai=$DATA/dubai"
FOLDS="ablation_vaihingen_fold1=$DATA/vaihingen_fragment ablation_vaihingen_fold2=$DATA/vaihingen_fragment"

ablate() {  # STEP, its words
  local step=$1 known=benchmarks/results/$1/results.json
  shift
  mkdir -p "$WORK/$step"
  [ -f "$WORK/$step/results.json" ] || { [ ! -f "$known" ] || cp "$known" "$WORK/$step/"; }
  timeout -s TERM -k 60 "${STOP_SECONDS:-570}" "$PYTHON" -m crispseg.cli.main ablate "$step" "$@" --no-bench --keep results --together "${TOGETHER:-8}" --sharing "${SHARING:-6}" \
    --minutes "${MINUTES:-8}" --out "$WORK/$step"
  cp "$WORK/$step/results.json" "$OUT/$step.json"
  cp "$WORK/$step/$step.md" "$OUT/"
}
run_confirm() {
  local steps=${CONFIRM_STEPS:-3000}
  ablate confirm "schedule.steps=$steps" "schedule.warmup=$((steps / 20))" ema=0.995 --size "${SIZE:-tiny}" \
    --data $FRAGMENTS $FOLDS --seeds ${CONFIRM_SEEDS:-0 1}
}
run_rivals() {
  local steps=${RIVALS_STEPS:-2000}
  ablate rivals "schedule.steps=$steps" "schedule.warmup=$((steps / 20))" ema=0.995 --data $FRAGMENTS --seeds ${RIVALS_SEEDS:-0 1 2}
}

run_steps "$OUT" "$@"
