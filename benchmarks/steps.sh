# What the scripts for a GPU share; sourced by them.

run_share() {  # lets processes share the GPU at once (CUDA MPS), where that works
  nvidia-cuda-mps-control -d && timeout 60 "$PYTHON" -c "import torch; print(torch.zeros(1, device='cuda'))" ||
    echo quit | nvidia-cuda-mps-control
}

run_steps() {  # OUT, and the names of steps: each with its log in OUT, its last lines shown
  local out=$1 status=0 step began word
  shift
  for step in "$@"; do
    began=$SECONDS
    "run_$step" >"$out/$step.log" 2>&1 && word=done || { word=FAILED && status=1; }
    echo "$step: $word in $((SECONDS - began)) s; $out/$step.log"
    tail -n 12 "$out/$step.log"
  done
  return $status
}
