"""The benchmark: time, memory and longest sequence of every way to attend with relative positions, on this machine."""
