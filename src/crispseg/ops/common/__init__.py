"""What several kernels share: precisions, the hardware, launches, sums. Nothing of the network."""
