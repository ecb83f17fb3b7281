#!/usr/bin/env bash
# Everything the shipped weights need a CUDA device for, in minutes; data (tools/pack_data.py) lies in DATA:
#
#   benchmarks/weights_on_gpu.sh DATA WORK OUT share pretrain store tune long
#
# share      lets processes share the GPU at once (CUDA MPS), where that works
# pretrain   vssd_nano and vssd_tiny (and ALSO, to compare with) side by side, PRETRAIN_MINUTES (4.2) and a trial before; teacher's package in DATA/packages
# store      both in half precision, in parts of 15 MiB, to OUT
# bars       fine-tuned beside scratch on all sets, three seeds, BARS_MINUTES (5)
# aerial     crisp_nano_aerial and crisp_tiny_aerial (AERIAL, with AERIAL_WORDS) from the new backbones, to OUT
# tune       bars and aerial side by side
# long       scratch for 3,000 steps beside 750 fine-tuned ones, LONG_MINUTES (3)
# Steps can be left out; WORK keeps what they leave for each other.
set -uo pipefail
cd "$(dirname "$0")/.."
. benchmarks/steps.sh
DATA=$1 WORK=$2 OUT=$3
shift 3
mkdir -p "$WORK" "$OUT"
export PYTHONPATH=src:$DATA/packages PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.triton/cache}
PYTHON=${PYTHON:-python3}
MODELS=${MODELS:-vssd_nano vssd_tiny}
AERIAL=${AERIAL:-nano tiny}

# the one pretrained before, else the one that comes along
backbone() { if [ -d "$WORK/int8/$1" ]; then echo "$WORK/int8/$1"; else echo "$1"; fi; }

run_pretrain() {
  "$PYTHON" benchmarks/pretraining.py "$DATA" "$WORK/pretrained" $MODELS ${ALSO:-} --minutes "${PRETRAIN_MINUTES:-4.2}" \
    --words ema=0.998 ${PRETRAIN_WORDS:-}
  cp "$WORK/pretrained/pretraining.json" "$OUT"
  tail -n 3 "$WORK"/pretrained/*.log
}
run_store() {
  for model in $MODELS; do
    "$PYTHON" tools/store_backbone.py "$WORK/pretrained/$model/backbone" "$WORK/half/$model" --storage half
    "$PYTHON" tools/store_backbone.py "$WORK/pretrained/$model/backbone" "$WORK/int8/$model" --storage int8
    tar cf - -C "$WORK/half" "$model" | split -b 15728640 -d - "$OUT/$model.tar."
  done
}
run_bars() {
  local backbones=()
  for model in $MODELS; do backbones+=(--backbone "crisp_${model#vssd_}=$(backbone "$model")"); done
  "$PYTHON" benchmarks/finetuning.py "$DATA" "$WORK/bars" "${backbones[@]}" --slots "${SLOTS:-6}" \
    --minutes "${BARS_MINUTES:-5}" ${BARS_WORDS:-}
  cp "$WORK/bars/finetuning.json" "$WORK/bars/finetuning.md" "$OUT"
}
run_long() {
  "$PYTHON" benchmarks/finetuning.py "$DATA" "$WORK/long" --backbone "crisp_nano=$(backbone vssd_nano)" --steps 750 \
    --scratch-steps 3000 --slots "${SLOTS:-6}" --seeds 0 --minutes "${LONG_MINUTES:-3}"
  cp "$WORK/long/finetuning.json" "$OUT/long.json"
}
run_aerial() {
  [ -d "$DATA/scenes" ] || "$PYTHON" tools/scenes_as_labels.py "$DATA/ucmerced" "$DATA/scenes"
  local link=$WORK/here
  mkdir -p "$link" && ln -sfn "$DATA" "$link/data"
  for size in $AERIAL; do
    (cd "$link" && PYTHONPATH="$OLDPWD/src" "$PYTHON" -m crispseg.cli.main train "crisp_${size}_aerial" \
      model.weights="$(backbone "vssd_$size")" workers=6 samples=0 out="$WORK/aerial_$size" ${AERIAL_WORDS:-} \
      >"$WORK/aerial_$size.log" 2>&1) &
  done
  wait
  for size in $AERIAL; do
    tail -n 4 "$WORK/aerial_$size.log"
    "$PYTHON" tools/halve_model.py "$WORK/aerial_$size/best" "$WORK/aerial_half_$size" &&
      tar cf - -C "$WORK" "aerial_half_$size" "aerial_$size/config.yaml" "aerial_$size/result.json" \
        "aerial_$size/metrics.jsonl" "aerial_$size/protocol.json" "aerial_$size/environment.json" |
      split -b 15728640 -d - "$OUT/aerial_$size.tar."
  done
}

run_tune() {
  run_aerial &
  run_bars
  wait
}

for step in "$@"; do  # OUT holds weights and results alone, so no logs go there
  began=$SECONDS
  echo "== $step"
  "run_$step"
  echo "== $step ended ($?) after $((SECONDS - began)) s"
done
