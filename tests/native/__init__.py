"""The native kernels, on every instruction set that this machine runs.

`tests.contract` draws the calls and holds them to the oracles; here they are held to what the kernels take: float32 and
half precision.
"""
