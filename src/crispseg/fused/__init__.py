"""The fast way to evaluate a model: BatchNorms folded, weights packed and cast, kernels picked, CUDA graphs replayed.

`model.fused()` makes one, by `model.py`: the forward pass stays the model's own, and parts that declare what takes
their place (`for_evaluation`) are exchanged. `graphs.py` records and replays; `fold.py` folds BatchNorms in any model;
`convolutions.py` prepares any model's for a CPU. `backbone.py`, `neck.py` and `head.py` are the forms of VSSD and of
the OMP head, from the pieces in `layers.py`, `stages.py`, `side_stream.py`, `onednn_mixer.py` (for CPUs) and
`crispseg.ops`.
"""
