#!/usr/bin/env bash
# The experiments on the method that need a CUDA device and more than one sitting. The images lie in data/ (vaihingen_fragment,
# potsdam_fragment, dubai), where the configs look for them:
#
#   benchmarks/method_on_gpu.sh WORK OUT share confirm rivals
#
# share     lets processes share the GPU at once (CUDA MPS), where that works
# confirm   what decided with crisp_nano, with SIZE (tiny): CONFIRM_SEEDS (0 1), five splits
# rivals    eleven networks, RIVALS_SEEDS (0 1), the same splits
# Each trains STEPS (3000) steps, or of all rows these alone: ROWS="CRISP|VSSD + UPerHead"; takes MINUTES (8) at most to begin runs,
# and STOP_SECONDS (570) in all: what is under way then is saved. Runs that ended are in OUT/STEP.json; put it to
# benchmarks/results/STEP/results.json and the next sitting goes on from there. Runs that were cut off go on where WORK is still there.
# One H200 made 100 steps a second of the tiny models' rows in all, or 80 beside 100 of ABCNet's and UNetFormer's.
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/steps.sh
WORK=$1 OUT=$2
shift 2
mkdir -p "$WORK" "$OUT"
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
SPLITS="ablation_vaihingen ablation_vaihingen_fold1 ablation_vaihingen_fold2 ablation_potsdam ablation_dubai"
STEPS=${STEPS:-3000}
rows=()
[ -z "${ROWS:-}" ] || { IFS='|' read -ra rows <<<"$ROWS"; rows=(--rows "${rows[@]}"); }

ablate() {  # STEP, its words
  local step=$1 known=benchmarks/results/$1/results.json
  shift
  mkdir -p "$WORK/$step"
  [ -f "$WORK/$step/results.json" ] || { [ ! -f "$known" ] || cp "$known" "$WORK/$step/"; }
  timeout -s TERM -k 60 "${STOP_SECONDS:-570}" "$PYTHON" -m crispseg.cli.main ablate "$step" \
    "schedule.steps=$STEPS" "schedule.warmup=$((STEPS / 20))" ema=0.995 "$@" --data $SPLITS "${rows[@]}" \
    --no-bench --keep results --together "${TOGETHER:-8}" --sharing "${SHARING:-6}" --minutes "${MINUTES:-8}" --out "$WORK/$step"
  cp "$WORK/$step/results.json" "$OUT/$step.json"
  cp "$WORK/$step/$step.md" "$OUT/"
}
run_confirm() { ablate confirm --size "${SIZE:-tiny}" --seeds ${CONFIRM_SEEDS:-0 1}; }
run_rivals() { ablate rivals --seeds ${RIVALS_SEEDS:-0 1}; }

run_steps "$OUT" "$@"
