"""In Python, around a launch: a problem as a call, the arguments and the tiles of a kernel, and PyTorch's operators."""
