"""The same numbers as other libraries, forward and gradients, in float32 and float64: one file per peer.

Each file opens with the compared classes and their version, and how their notation maps to the score equation. Where
a peer is wrong, or does what its paper does not, a test says so by name and holds us to the oracle.

compare     the comparison, and its tolerance
"""
