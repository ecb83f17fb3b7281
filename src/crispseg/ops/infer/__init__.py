"""Operators without gradients, for evaluation alone, each formula beside its kernels."""
