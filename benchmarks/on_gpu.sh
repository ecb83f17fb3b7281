#!/usr/bin/env bash
# Everything that only a CUDA device can prove or measure, step by step, each with its log in OUT:
#
#   benchmarks/on_gpu.sh OUT warm bars training compiled scaling huge rivals profile tests kernels
#
# Steps can be left out or given in any order. Nothing is installed; where the package is not, src/ is used.
#
# warm       compiles the kernels of the steps after it, side by side; half a minute instead of two
# tests      the tests marked gpu, by SHARES processes side by side, each on its core (all), TESTS_SECONDS at most (400); the
#            registered models' kernels are compiled first, in PRECOMPILE_SECONDS at most (200). All take 10 to 12 minutes on 16
#            cores; BEFORE=LOG leaves out what passed in the log of a call that was cut off; OUT/failures.log says why tests
#            failed as soon as they do
# kernels    each of our kernels against torch.compile's code for the same formula: ten processes compile side by side,
#            then one measures
# profile    where a fused crisp_tiny spends its time
# bars       crisp_tiny, crisp_micro and crisp_nano beside a compiled UNetFormer and a compiled ABCNet, and without DCO
# scaling    time and memory per pixel from 256 to 8192 px; huge: of one image of 16384 px
# compiled   training steps of crisp_tiny under torch.compile; two minutes to compile
# training   images per second of training steps, and of plain VSSD + UPerHead's: torch's operations, one by one
# rivals     the speed columns of the table rivals, from the runs kept in benchmarks/results/ablations
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/steps.sh
OUT=$1
shift
mkdir -p "$OUT"
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Else torch.compile gives Triton another cache, and kernels that were compiled before are compiled again.
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
SHARES=${SHARES:-$(nproc)} TESTS_SECONDS=${TESTS_SECONDS:-400}
TRAINING="model.weights=none batch_size=16 crop=512 precision=bf16 --steps-alone --warm-up 6"
crisp() { "$PYTHON" -m crispseg.cli.main "$@"; }

run_warm() {  # two compiling threads each, as they share the cores; one that hangs must not hold up the rest
  local OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=2 limit="timeout -k 5 ${WARM_SECONDS:-150}"
  export OMP_NUM_THREADS TORCHINDUCTOR_COMPILE_THREADS
  for batch in 1 16; do
    for model in crisp_tiny crisp_micro crisp_nano; do
      $limit "$PYTHON" benchmarks/profile_fused.py --model "$model" --batch "$batch" \
        --out "$OUT/warm-$model-$batch.md" &
    done
    for model in unetformer_r18 abcnet_r18; do
      $limit "$PYTHON" -m crispseg.cli.main bench "$model" --modes compiled --precision bf16 --sizes 512 \
        --batch "$batch" --repeats 1 --warmup 1 \
        --existing replace --out "$OUT/warm-$model-$batch" &
    done
  done
  $limit "$PYTHON" benchmarks/training.py model=crisp_tiny $TRAINING --steps 1 &
  wait
}
run_tests() {
  local tests
  # the large models first: the last tests to end should be short ones; others than these may need what is not installed
  tests="tests/models/test_registered_gpu.py $(grep -rl "mark\.gpu" tests --include='*.py' | grep -v test_registered_gpu)"
  mapfile -t tests < <(tr ' ' '\n' <<<"$tests")
  if [ -n "${BEFORE:-}" ]; then
    mapfile -t tests < <("$PYTHON" -m pytest --collect-only -q -m gpu "${tests[@]}" | grep :: |
      grep -vxFf <(sed -n 's/.*PASSED \(tests.*[^ ]\) *$/\1/p' "$BEFORE"))
  else
    timeout -k 5 "${PRECOMPILE_SECONDS:-200}" "$PYTHON" -m tests.models.precompile
  fi
  # without timm most rivals would be passed over, and the run would look complete
  CRISPSEG_TEST_FAILURES="$OUT/failures.log" CRISPSEG_TEST_ALL_MODELS=1 OMP_NUM_THREADS=1 timeout -s INT -k 20 "$TESTS_SECONDS" "$PYTHON" -m pytest -n "$SHARES" --dist worksteal -v --tb=short \
    -m gpu -p no:cacheprovider --durations=30 "${tests[@]}"
}
run_kernels() {
  for i in $(seq 0 9); do  # a compiling thread each, as they share the cores
    OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 timeout -k 5 200 \
      "$PYTHON" -m benchmarks.kernels --warm --share "$i/10" >"$OUT/kernels-$i.log" 2>&1 &
  done
  wait
  "$PYTHON" -m benchmarks.kernels --out "$OUT/kernels.json"
}
run_profile() { "$PYTHON" benchmarks/profile_fused.py --model crisp_tiny --batch 1 16 --out "$OUT/profile_fused.md"; }
run_bars() {
  local ours="crisp_tiny crisp_micro crisp_nano crisp_tiny:dco=false"
  crisp bench $ours unetformer_r18 abcnet_r18 --modes fused compiled --skip $(printf '%s@compiled ' $ours) \
    --precision bf16 --sizes 512 --batch 1 16 --relative-to unetformer_r18@compiled --out "$OUT/bars" &&
    crisp bench compare "$OUT/bars/bench.json" --relative-to abcnet_r18@compiled &&
    crisp bench compare "$OUT/bars/bench.json" --relative-to crisp_tiny:dco=false
}
run_scaling() {
  crisp bench scaling crisp_tiny crisp_micro crisp_nano --modes fused --precision bf16 \
    --sizes 256 512 1024 2048 4096 8192 --out "$OUT/scaling"
}
run_huge() {
  crisp bench scaling crisp_nano crisp_tiny --modes fused --precision bf16 --sizes 512 16384 --repeats 5 --warmup 2 \
    --out "$OUT/huge"
}
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
  crisp ablate rivals --data ablation_dubai ablation_vaihingen --seeds 0 1 2 \
    --out "$OUT/rivals"
}

run_steps "$OUT" "$@"
