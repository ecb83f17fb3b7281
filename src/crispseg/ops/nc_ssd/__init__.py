"""NC-SSD with DCO: its formulas (`reference`, `formula`), and the Triton kernels that take their place on CUDA."""
