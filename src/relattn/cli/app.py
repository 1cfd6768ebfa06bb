"""The commands and their options; each does its work in `relattn.lab`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relattn.cli.console import one_sentence

app = typer.Typer(
    help="Relative positional attention at work: compare position encodings on four-part music, and compose with them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def compare(
    out: Annotated[Path, typer.Option(help="Folder for report.html, results.json and the trained models.")] = Path(
        "runs/compare"
    ),
    data: Annotated[
        str | None,
        typer.Option(
            help="'chorales', the Bach chorales that music21 carries, or a JSON file in the JSB-Chorales format.",
            show_default="chorales",
        ),
    ] = None,
    encodings: Annotated[
        str | None, typer.Option(help="Encodings, separated by commas.", show_default="relative,rope,sinusoid")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Time for all encodings and seeds together, evaluation included, once the data are read.",
            show_default="5",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of every run, in place of --minutes.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds, separated by commas: one run of each encoding per seed.", show_default="0"),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a training window, four to a 16th note; evaluated at 1, 2 and 4 times that.",
            show_default="256",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model.", show_default="96")] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks of the model.", show_default="3")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of each block.", show_default="4")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison that --out holds, after Ctrl-C or a kill.")
    ] = False,
) -> None:
    """Train the same model under several position encodings and compare them on held-out music.

    Encodings: relative, shaw, transformer-xl, t5, alibi, rope, none, sinusoid. All are trained for the same number of
    steps on the same windows; an n-gram is always among the rows. Ctrl-C keeps what was done.
    """
    with one_sentence():
        given = {
            "data": data,
            "encodings": None if encodings is None else tuple(name.strip() for name in encodings.split(",")),
            "minutes": minutes,
            "steps": steps,
            "seeds": None if seeds is None else _numbers("seeds", seeds),
            "length": length,
            "width": width,
            "depth": depth,
            "heads": heads,
        }
        from relattn.cli.compare import run

        run({name: value for name, value in given.items() if value is not None}, out, resume)


@app.command()
def compose(
    checkpoint: Annotated[
        Path, typer.Option(help="Folder of a trained model, such as runs/compare/runs/relative-seed0/model.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the MIDI file and the picture.")] = Path("runs/compose"),
    prompt_steps: Annotated[
        int, typer.Option(help="16th notes of the held-out piece that the model is given; 16 are a bar of 4/4.")
    ] = 32,
    from_nothing: Annotated[bool, typer.Option("--from-nothing", help="Start without a prompt.")] = False,
    steps: Annotated[int, typer.Option(help="16th notes to compose.")] = 128,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder in the likely, above 1 in the unlikely.")] = 0.9,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that together have this probability.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Fixes the choice of the piece and every note.")] = 0,
) -> None:
    """Continue the opening of a held-out chorale, or start from nothing; writes a MIDI file and a piano roll."""
    with one_sentence():
        from relattn.cli.compose import run

        run(checkpoint, out, None if from_nothing else prompt_steps, steps, temperature, top_p, seed)


@app.command()
def doctor() -> None:
    """Show versions, devices, and which backends are usable and, for each that is not, why."""
    from relattn.cli.doctor import run

    run()


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, expected whole numbers separated by commas, such as 0,1,2") from None
