"""Our kernels beside torch.compile's code: `python -m benchmarks.kernels --help`."""
