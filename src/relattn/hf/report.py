"""Report: what `patch` did, module by module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["changed", "remains", "left"]
"""What can be done with an attention module."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Report:
    """What `patch` did with each attention module. Prints as a list.

    changed[name of a module]: how it was changed. The model makes no bias of queries x keys for it. If the model may
    ask for a mask that must be written down pair by pair, the text says so. remains[name]: relattn computes it, but the
    model's bias of queries x keys remains, and why. left[name]: unchanged, with the reason.
    """

    changed: dict[str, str]
    remains: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        kinds = {"changed": self.changed, "remains": self.remains, "left": self.left}
        return "\n".join(
            f"{kind:<8} {name or '(the whole)'}: {how}"
            for kind, modules in kinds.items()
            for name, how in modules.items()
        )
