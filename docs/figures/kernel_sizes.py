"""Sizes of the native kernels, read from their sources, as they are for AVX-512."""

import re

import relattn.backends.cpu.operator as native
from relattn.backends.cpu import library

FORWARD_BLOCKS, BACKWARD_BLOCKS = native.FORWARD_BLOCKS, native.BACKWARD_BLOCKS
"""How many queries and keys meet at a time."""
SOURCES = "".join(path.read_text() for path in sorted(library.SOURCES.glob("*.h")))


def size(name: str) -> int:
    """A constant; where instruction sets differ, the first, AVX-512's."""
    found = re.search(rf"\b{name} = (\d+(?: \* \d+)*)[;,]", SOURCES)
    assert found, f"the kernels have no {name}"
    product = 1
    for factor in found[1].split(" * "):
        product *= int(factor)
    return product


LANES = native.ALIGNED // 4
ROWS, PANEL, NN_ROWS, NN_VECTORS = size("ROWS"), size("PANEL_VECTORS") * LANES, size("NN_ROWS"), size("NN_VECTORS")
SLOTS, MOST_COPIED, CHUNK = size("SLOTS"), size("MOST_COPIED"), size("CHUNK")
