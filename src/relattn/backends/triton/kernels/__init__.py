"""The kernels, and the functions that launch them."""
