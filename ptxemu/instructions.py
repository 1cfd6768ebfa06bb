"""Every instruction that is modelled, by its name and all that follows with dots: another ending is another one."""

from ptxemu import (
    access,
    arithmetic,
    atomics,
    bits,
    comparisons,
    control,
    conversions,
    copies,
    lanes,
    matrices,
    moves,
)
from ptxemu.program import Step

FAMILIES = (access, arithmetic, atomics, bits, comparisons, control, conversions, copies, lanes, matrices, moves)
STEPS: dict[str, Step] = {name: step for family in FAMILIES for name, step in family.STEPS.items()}
