#!/usr/bin/env bash
# The experiments on the method that need a CUDA device and more than one sitting. The images lie in data/ (vaihingen_fragment,
# potsdam_fragment, dubai), where the configs look for them:
#
#   benchmarks/method_on_gpu.sh WORK OUT share ready confirm rivals
#
# share     lets processes share the GPU at once (CUDA MPS), where that works
# ready     two steps of crisp_SIZE and its scores, so that kernels are compiled once and not by every process that begins
# confirm   what decided with crisp_nano, with SIZE (tiny): CONFIRM_SEEDS (0 1), five splits
# rivals    eleven networks, RIVALS_SEEDS (0 1), the same splits
# watch     waits for them, WATCH_SECONDS (500) at most, and says how far each run is
#
# confirm and rivals train STEPS (3000) steps; of the tables' rows these alone: ROWS="CRISP|VSSD + UPerHead", of the splits: SPLITS="ablation_dubai". They begin no run after
# MINUTES (8), and save what is under way after STOP_SECONDS (570). What stands after the word `behind` begins at once, goes on when the
# command has returned and has no such limits: `share ready`, then `behind confirm rivals`, then `watch` again and again, on a machine that is lent
# for minutes and takes one command at a time. Runs that ended are in OUT/STEP.json: put it to benchmarks/results/STEP/results.json and the
# next sitting goes on from there. Runs that were cut off go on where WORK is still there.
# One H200 made 100 steps a second of the tiny models' rows in all, or 80 beside 100 of ABCNet's and UNetFormer's; of CRISP's row
# alone 115 (TOGETHER=3 SHARING=1: where time may end, few runs at a time are some that ended).
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/steps.sh
WORK=$1 OUT=$2
shift 2
mkdir -p "$WORK" "$OUT"
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
SPLITS=${SPLITS:-ablation_vaihingen ablation_vaihingen_fold1 ablation_vaihingen_fold2 ablation_potsdam ablation_dubai}
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
  bring_home
}
bring_home() {
  local kept
  for kept in "$WORK"/*/results.json; do cp "$kept" "$OUT/$(basename "$(dirname "$kept")").json"; done
}
run_ready() {
  "$PYTHON" -m crispseg.cli.main train ablation_vaihingen "model=crisp_${SIZE:-tiny}" model.weights=none schedule.steps=2 \
    schedule.warmup=1 ema=0.995 samples=0 out="$WORK/ready"
}
run_confirm() { ablate confirm --size "${SIZE:-tiny}" --seeds ${CONFIRM_SEEDS:-0 1}; }
run_rivals() { ablate rivals --seeds ${RIVALS_SEEDS:-0 1}; }
run_watch() {
  local end=$((SECONDS + ${WATCH_SECONDS:-500})) run
  while pgrep -f "method_on_gpu.sh $WORK $WORK" >/dev/null && [ $SECONDS -lt $end ]; do sleep 1; done
  for run in "$WORK"/*/runs/*/metrics.jsonl; do
    echo "$(basename "$(dirname "$run")"): $(grep -o '"step": [0-9]*' "$run" | tail -n 1)"
  done
  bring_home
}

here=()
while [ $# -gt 0 ] && [ "$1" != behind ]; do here+=("$1") && shift; done
for step in "${@:2}"; do  # in sessions of their own: what a command leaves in its own is ended with it
  MINUTES=100000 STOP_SECONDS=6000000 setsid "benchmarks/$(basename "$0")" "$WORK" "$WORK" "$step" >/dev/null 2>&1 </dev/null &
done
run_steps "$OUT" "${here[@]}"
