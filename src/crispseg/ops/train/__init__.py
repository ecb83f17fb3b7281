"""Operators with gradients that training alone uses, each formula beside its kernels."""
