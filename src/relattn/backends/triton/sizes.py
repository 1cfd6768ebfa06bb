"""How large a kernel's tiles are, and how many warps and stages compute one."""

from __future__ import annotations

from typing import Any

from relattn.backends.triton.bands import INTERPRETED
from relattn.backends.triton.call import Call


def sizes(call: Call, kernel: str) -> dict[str, Any]:
    """A kernel's constants and launch options."""
    relative = call.query if call.relative_query is None else call.relative_query
    widths = {"D": call.query.shape[3], "DV": call.value.shape[3], "DR": relative.shape[3]}
    return widths | {"TILE": 16 if INTERPRETED else 64, "num_warps": 4, "num_stages": 2}
