#!/usr/bin/env bash
# Everything that only a CUDA device can prove or measure, step by step, each with its log in OUT:
#
#   benchmarks/on_gpu.sh OUT warm bars training compiled scaling rivals profile tests operator depthwise blocks maps head
#
# Steps can be left out or given in any order. Nothing is installed; where the package is not, src/ is used.
#
# warm       compiles the kernels of the steps after it, side by side; half a minute instead of two
# tests      the tests marked gpu, a few files at a time
# operator, depthwise, head   our kernels against torch.compile's code for the same formulas
# blocks, maps   those of half blocks, stem, norms and resizes against torch's operations, and how to cut their work
# profile    where a fused crisp_tiny spends its time
# bars       crisp_tiny beside a compiled UNetFormer, and without DCO
# scaling    time and memory per pixel from 512 to 4096 px
# compiled   training steps of crisp_tiny under torch.compile; two minutes to compile
# training   images per second of training steps, and of plain VSSD + UPerHead's: torch's operations, one by one
# rivals     the speed columns of configs/tables/rivals.yaml, from the runs kept in benchmarks/results/ablations
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=$1
shift
mkdir -p "$OUT"
export PYTHONPATH=src PYTHONUNBUFFERED=1
# Else torch.compile gives Triton another cache, and kernels that were compiled before are compiled again.
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
TRAINING="batch_size=16 crop=512 precision=bf16 --steps-alone --warm-up 6"
crisp() { "$PYTHON" -m crispseg.cli.main "$@"; }

run_warm() {
  for batch in 1 16; do
    "$PYTHON" benchmarks/profile_fused.py --batch "$batch" --out "$OUT/warm-$batch.md" &
  done
  "$PYTHON" benchmarks/training.py model=crisp_tiny $TRAINING --steps 1 &
  wait
}
run_tests() {
  local waiting=()
  for files in "tests/ops/test_gpu.py" "tests/ops/test_depthwise_gpu.py" "tests/fused/test_gpu.py" "tests/bench/test_gpu.py" \
    "tests/ops/test_block_gpu.py" "tests/ops/test_maps_gpu.py" \
    "tests/train/test_gpu.py tests/evaluate/test_gpu.py tests/metrics/test_gpu.py tests/analysis/test_gpu.py" \
    "tests/predict/test_gpu.py tests/exact/test_exact.py"; do
    # shellcheck disable=SC2086
    "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider $files >"$OUT/tests-$(echo "$files" | cut -d/ -f2-3 | tr / -).log" 2>&1 &
    waiting+=($!)
  done
  local failed=0
  for process in "${waiting[@]}"; do wait "$process" || failed=1; done
  tail -n 3 "$OUT"/tests-*.log
  return $failed
}
run_operator() { "$PYTHON" benchmarks/operator_kernels.py --out "$OUT/operator_kernels.json"; }
run_depthwise() { "$PYTHON" benchmarks/depthwise_kernels.py --out "$OUT/depthwise_kernels.json"; }
run_blocks() { "$PYTHON" benchmarks/block_kernels.py --out "$OUT/block_kernels.json"; }
run_maps() { "$PYTHON" benchmarks/map_kernels.py; }
run_head() { "$PYTHON" benchmarks/head_kernels.py --out "$OUT/head_kernels.json"; }
run_profile() { "$PYTHON" benchmarks/profile_fused.py --model crisp_tiny --batch 1 16 --out "$OUT/profile_fused.md"; }
run_bars() {
  crisp bench crisp_tiny crisp_tiny:dco=false unetformer_r18 --modes fused compiled \
    --skip crisp_tiny@compiled crisp_tiny:dco=false@compiled --precision bf16 --sizes 512 --batch 1 16 \
    --relative-to unetformer_r18@compiled --out "$OUT/bars" &&
    crisp bench compare "$OUT/bars/bench.json" --relative-to crisp_tiny:dco=false
}
run_scaling() { crisp bench scaling crisp_tiny --modes fused --precision bf16 --sizes 512 4096 --out "$OUT/scaling"; }
run_training() {
  "$PYTHON" benchmarks/training.py model=crisp_tiny $TRAINING --steps 20 --out "$OUT/training-crisp_tiny.json" \
    --profile "$OUT/profile_training.md" &&
    CRISPSEG_OPS_BACKEND=torch "$PYTHON" benchmarks/training.py model=vssd_tiny_upernet graph=false $TRAINING --steps 20 \
      --out "$OUT/training-vssd_tiny_upernet.json"
}
run_compiled() {
  "$PYTHON" benchmarks/training.py model=crisp_tiny compile=true $TRAINING --steps 20 \
    --out "$OUT/training-crisp_tiny-compiled.json" --profile "$OUT/profile_training_compiled.md"
}
run_rivals() {
  mkdir -p "$OUT/rivals"
  cp benchmarks/results/ablations/results.json "$OUT/rivals/"
  crisp ablate configs/tables/rivals.yaml --data configs/ablation_dubai.yaml configs/ablation_vaihingen.yaml --seeds 0 1 2 \
    --out "$OUT/rivals"
}

status=0
for step in "$@"; do
  began=$SECONDS
  "run_$step" >"$OUT/$step.log" 2>&1 && word=done || { word=FAILED && status=1; }
  echo "$step: $word in $((SECONDS - began)) s; $OUT/$step.log"
  tail -n 12 "$OUT/$step.log"
done
exit $status
