"""The commands of `relattn-lab` and their options; each does its work in a module of its own beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relattn.cli.commands import command_of, names, new_app, numbers
from relattn.cli.console import one_sentence
from relattn_lab import __version__

app = new_app(
    "relattn-lab",
    __version__,
    "Relative positional attention on music and text: train a model under several position encodings, compare them, "
    "and compose with the models.",
)
_command = command_of(app)


@_command
def compare(
    out: Annotated[Path, typer.Option(help="Folder for report.html, results.json and the trained models.")] = Path(
        "runs/compare"
    ),
    data: Annotated[
        str | None,
        typer.Option(
            help="'chorales', the Bach chorales that music21 carries; a .json file in the JSB-Chorales format; a "
            "folder of MIDI files; or a text file, read as bytes.",
            show_default="chorales",
        ),
    ] = None,
    encodings: Annotated[
        str | None,
        typer.Option(
            help="Encodings, separated by commas; relative+pitch+time and sinusoid+voice are for chorales alone.",
            show_default="relative-heads,rope,sinusoid",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="A limit for all encodings and seeds together, evaluation included, once the data are read and the "
            "n-gram is fitted.",
            show_default="5",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A .toml file of options, such as config.toml beside earlier results; what is named here goes before."
        ),
    ] = None,
    report_to: Annotated[
        str | None,
        typer.Option(help="Whom to tell of the curves as they grow: tensorboard, wandb, or both, with a comma."),
    ] = None,
    at_least: Annotated[
        bool, typer.Option("--at-least", help="Take twenty steps in every run even where --minutes do not suffice.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Training steps of every run, in place of --minutes.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds, separated by commas: one run of each encoding per seed.", show_default="0"),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a training window, in four-part music four to a 16th note; evaluated at 1, 2 and 4 times "
            "that.",
            show_default="256",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model.", show_default="96")] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks of the model.", show_default="3")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of each block.", show_default="4")] = None,
    context_parallel: Annotated[
        int | None,
        typer.Option(
            help="Split every window over so many of the processes that torchrun has started.", show_default="1"
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on without those MIDI files of a folder that cannot be used.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison that --out holds, after Ctrl-C or a kill.")
    ] = False,
) -> None:
    """Train the same model under several position encodings and compare them on held-out data.

    Encodings: relative-heads, relative, relative+pitch+time, shaw, shaw-keys, transformer-xl, t5, alibi, kerple,
    kerple-power, sandwich, rope, none, sinusoid, sinusoid+voice; relattn bench names them alike. Relative tables
    hold their edge row beyond the trained length, Shaw's clip at 64 tokens of the past. All are trained for the same
    number of steps on the same windows; an n-gram is always among the rows. Ctrl-C keeps what was done.

    Several processes share the work: torchrun --nproc-per-node 2 -m relattn_lab compare ...
    """
    with one_sentence():
        given = {
            "data": data,
            "encodings": names(encodings),
            "minutes": minutes,
            "steps": steps,
            "seeds": None if seeds is None else numbers("seeds", seeds, "0,1,2"),
            "length": length,
            "width": width,
            "depth": depth,
            "heads": heads,
            "context_parallel": context_parallel,
            "skip_bad": skip_bad or None,
        }
        from relattn_lab.cli.compare import run

        named = {name: value for name, value in given.items() if value is not None}
        run(named, out, resume, config=config, at_least=at_least, report_to=names(report_to) or ())


@_command
def reproduce(
    experiment: Annotated[str, typer.Argument(help="Which one: jsb or lengths.")],
    data: Annotated[str, typer.Option(help="The data set: a .json file in the JSB-Chorales format.")],
    out: Annotated[Path, typer.Option(help="Folder for table.md, results.json and the trained models.")] = Path(
        "runs/jsb"
    ),
    encodings: Annotated[
        str | None, typer.Option(help="Rows of the table, separated by commas.", show_default="all")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.", show_default="0,1,2")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of every run.", show_default="2500")] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens in a window, four to a 16th note.", show_default="256")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model.", show_default="128")] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks of the model.", show_default="4")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of each block.", show_default="4")] = None,
    dropout: Annotated[float | None, typer.Option(help="Probability of dropout.", show_default="0")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the experiment that --out holds, after Ctrl-C or a kill.")
    ] = False,
) -> None:
    """Carry out the experiment of a paper again, on the paper's data.

    jsb: the table of Huang et al. 2018 (Music Transformer) on the JSB chorales, four voices at sixteenth notes, with
    rotary, T5's, ALiBi's and key-and-query positions beside the paper's rows. The table is written anew after every
    run. Ctrl-C keeps what was done. lengths: the models of jsb in --out on windows twice, four and eight times as long
    as those trained on, with tables clamped, zeroed and interpolated.
    """
    with one_sentence():
        given = {
            "data": data,
            "encodings": names(encodings),
            "seeds": None if seeds is None else numbers("seeds", seeds, "0,1,2"),
            "steps": steps,
            "length": length,
            "width": width,
            "depth": depth,
            "heads": heads,
            "dropout": dropout,
        }
        from relattn_lab.cli.reproduce import run

        run(experiment, {name: value for name, value in given.items() if value is not None}, out, resume)


@_command
def compose(
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a trained model, such as runs/compare/runs/relative-heads-seed0/model.",
            show_default="a model of Bach chorales that comes with the lab",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the MIDI file and the picture, or the text.")] = Path(
        "runs/compose"
    ),
    prompt_steps: Annotated[
        int | None,
        typer.Option(
            help="How much of the held-out piece the model is given: 16th notes of a chorale, bytes of a text, events "
            "of a MIDI file.",
            show_default="32, 64 or 128",
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Words for a model of text to go on from.")] = None,
    from_nothing: Annotated[bool, typer.Option("--from-nothing", help="Start without a prompt.")] = False,
    steps: Annotated[
        int | None,
        typer.Option(help="16th notes, bytes or events to compose.", show_default="128, 512 or 512"),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Below 1: safer, favours likely tokens. Above 1: more varied.")
    ] = 0.9,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that together have this probability.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Fixes the choice of the piece and every token.")] = 0,
) -> None:
    """Continue the opening of a held-out piece, or words, or start from nothing, with a trained model.

    Without --checkpoint it is one of Bach chorales that comes with the lab; `relattn-lab compare` trains others.

    Music becomes a MIDI file and a piano roll, text a text file that is shown too.
    """
    with one_sentence():
        asked = {"prompt_steps": prompt_steps, "prompt": prompt, "from_nothing": from_nothing, "steps": steps}
        drawn = {"temperature": temperature, "top_p": top_p, "seed": seed}
        from relattn_lab.cli.compose import run

        run(checkpoint, out, asked, drawn)
