"""Triton kernels and their launches, for CUDA devices. The rooms of `ops` import them when they are first needed."""
