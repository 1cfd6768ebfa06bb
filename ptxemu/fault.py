"""Fault: what a GPU need not do as it is meant."""


class Fault(Exception):
    """What a kernel does that no GPU owes a meaning, or that is not modelled; one sentence."""
