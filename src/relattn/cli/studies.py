"""`relattn bench STUDY`: a study of the catalogue, announced before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relattn.arguments import check_choice
from relattn.bench.studies.catalogue import CATALOGUE, GRIDS
from relattn.cli.console import err


def run(name: str, given: Mapping[str, object], out: Path) -> None:
    """Carry out the study `name`. given: options of the command, of which a study takes none.

    Raises ValueError: for a name that is not in the catalogue, and for an option.
    """
    check_choice("study", name, [*GRIDS, *CATALOGUE])
    for option, value in given.items():
        raise ValueError(
            f"{option}: got {value!r} beside the study {name!r}; expected none, for a study has its own settings; leave "
            "one of the two out"
        )
    err.print(f"{name}: {(GRIDS | CATALOGUE)[name].answers}; loading PyTorch", soft_wrap=True)
    from relattn.cli import bench

    if name in GRIDS:
        bench.run(GRIDS[name].settings, out / name, GRIDS[name].candidates)
    else:
        bench.run_study(name, out)
