"""The fast way to evaluate a model: BatchNorms folded, weights packed and cast, kernels picked, CUDA graphs replayed.

`model.fused()` makes one, by `model.py`. `graphs.py` records and replays; `fold.py` folds BatchNorms in any model;
`convolutions.py` prepares any model's for a CPU. `backbone.py`, `neck.py` and `head.py` are CRISP's own path, from the
pieces in `layers.py`, `side_stream.py`, `strips.py` (for CPUs) and `crispseg.ops`.
"""
