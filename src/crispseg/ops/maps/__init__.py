"""Operators on channels-last maps (B, H, W, C), for training and evaluation, each formula beside its kernels."""
