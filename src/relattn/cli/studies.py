"""`relattn bench STUDY`: a study of the catalogue, announced before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from measure.studies.catalogue import CATALOGUE, GRIDS
from relattn.arguments import check_choice
from relattn.cli.console import err


def check(name: str, given: Mapping[str, object]) -> None:
    """`name` is a study, and no option is given with it.

    Raises ValueError: for another name, and for an option.
    """
    check_choice("study", name, [*GRIDS, *CATALOGUE])
    if given:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise ValueError(
            f"study: got {name!r} with {options}; expected a study alone, for it has its own settings; leave one of "
            "the two out"
        )


def run(name: str, given: Mapping[str, object], out: Path) -> None:
    """Carry out the study `name`.

    Raises ValueError: as `check`.
    """
    check(name, given)
    err.print(f"{name}: {(GRIDS | CATALOGUE)[name].answers}; loading PyTorch", soft_wrap=True)
    from relattn.cli import bench

    if name in GRIDS:
        bench.run_grid(name, out)
    else:
        bench.run_study(name, out)
