"""`python -m measure`: a study of the catalogue, or the benchmark of a grid; announced before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from measure.studies.catalogue import CATALOGUE, GRIDS
from relattn.checks.values import check_choice
from relattn.cli.bench import options
from relattn.cli.commands import Command, unwrapped
from relattn.cli.console import err, one_sentence

SCRIPTS = {
    "gpu": "The Triton kernels on a CUDA GPU",
    "triton_compiled": "The Triton kernels as compiled for six generations of GPUs",
    "triton_launch": "What a launch of them costs the host",
    "triton_rotation": "A tile's rotation in them, in three ways",
    "distributed_model": "A model of 8 to 1,024 devices",
    "frames": "Frames of Python in a call",
    "pages": "Writes the figures of README and docs",
    "ship_model": "Puts a trained model of the lab into its package",
}
"""Modules of their own, run as python -m measure.NAME."""

HELP = """Measure time and memory of attention with relative positions, ours and others', on this machine.

Without a study: the workloads of the options, as `relattn bench` has them, for every backend and for what one would use
instead. Every candidate is first checked against float64; one that is wrong gets no figure. Ctrl-C keeps what was
measured, and the same command goes on. A study has settings of its own.

Studies:
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _help() -> str:
    """HELP, with a line for each study and each script."""
    studies = [f"{name}: {entry.answers}" for name, entry in (GRIDS | CATALOGUE).items()]
    scripts = [f"measure.{name}: {answers}" for name, answers in SCRIPTS.items()]
    return "\n\n".join([unwrapped(HELP), *studies, "Scripts, each run as python -m measure.NAME:", *scripts])


@app.command(cls=Command, help=_help())
def measure(
    study: Annotated[
        str | None, typer.Argument(help="One of the studies above; without one, the workloads of the options.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for results.json, table.md and the pictures. A study writes STUDY.json and STUDY.md, or a "
            "folder STUDY."
        ),
    ] = Path("runs/bench"),
    encodings: options.Encodings = None,
    lengths: options.Lengths = None,
    causal: options.Causal = None,
    modes: options.Modes = None,
    head_dims: options.HeadDims = None,
    heads: options.Heads = None,
    batches: options.Batches = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    seconds: options.Seconds = None,
    patience: options.Patience = None,
    max_length: Annotated[
        float | None,
        typer.Option(help="Also look for the longest training step within this many GiB.", metavar="BUDGET_GB"),
    ] = None,
) -> None:
    """Carry out a study, or the benchmark of the options."""
    arguments = locals()
    with one_sentence():
        given = options.chosen(arguments)
        given |= {} if max_length is None else {"max_length": max_length}
        if study is None:
            err.print(f"{options.asked(given)}; loading PyTorch", soft_wrap=True)
            from measure.command import run

            run(given, out)
            return
        check_study(study, given)
        err.print(f"{study}: {(GRIDS | CATALOGUE)[study].answers}; loading PyTorch", soft_wrap=True)
        from measure.command import run_grid, run_study

        (run_grid if study in GRIDS else run_study)(study, out)


def check_study(name: str, given: Mapping[str, object]) -> None:
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


if __name__ == "__main__":
    app(prog_name="python -m measure")
