"""Functions of Triton that several kernels share."""
