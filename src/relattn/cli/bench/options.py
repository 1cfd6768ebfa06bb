"""The options of `relattn bench`, read before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from relattn.cli.commands import names, numbers

ENCODINGS, LENGTHS = "relative,shaw,t5,alibi", "512,1024,2048"
"""What is measured unless told otherwise; `settings.py` has the same."""

Text = str | None
Number = float | None
Encodings = Annotated[Text, typer.Option(help="Encodings, separated by commas.", show_default=ENCODINGS)]
Lengths = Annotated[Text, typer.Option(help="Sequence lengths, separated by commas.", show_default=LENGTHS)]
Causal = Annotated[Text, typer.Option(help="no, yes, or both: no,yes.", show_default="no,yes")]
Modes = Annotated[
    Text,
    typer.Option(
        help="forward, training (forward and gradients), decoding (one query and a cache), separated by commas.",
        show_default="forward,training",
    ),
]
HeadDims = Annotated[Text, typer.Option(help="Widths of a head.", show_default="64")]
Heads = Annotated[Text, typer.Option(help="Numbers of heads.", show_default="8")]
Batches = Annotated[Text, typer.Option(help="Numbers of sequences.", show_default="1")]
Dtype = Annotated[Text, typer.Option(help="float32, bfloat16, float16 or float64.", show_default="float32")]
Device = Annotated[Text, typer.Option(help="cpu or cuda.", show_default="cuda where there is a GPU")]
Seconds = Annotated[
    Number, typer.Option(help="Time for the pairs of one candidate in one cell; 15 pairs at least.", show_default="0.5")
]
Patience = Annotated[
    Number, typer.Option(help="Seconds one step may take; slower candidates are given up.", show_default="5")
]


READ: dict[str, Callable[[Any], object]] = {
    "encodings": names,
    "lengths": partial(numbers, "lengths", such_as="512,1024"),
    "causal": names,
    "modes": names,
    "head_dims": partial(numbers, "head_dims", such_as="64,128"),
    "heads": partial(numbers, "heads", such_as="4,8"),
    "batches": partial(numbers, "batches", such_as="1,4"),
} | dict.fromkeys(("dtype", "device", "seconds", "patience"), lambda value: value)
"""What is made of each option, by the names of the settings."""


def chosen(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the names of the settings; arguments: those of the command by name.

    Raises ValueError: where numbers are expected and something else came.
    """
    return {name: read(arguments[name]) for name, read in READ.items() if arguments[name] is not None}


def asked(given: Mapping[str, Any]) -> str:
    """What will be measured, in words."""
    encodings = ",".join(given.get("encodings", ())) or ENCODINGS
    lengths = ",".join(map(str, given.get("lengths", ()))) or LENGTHS
    return f"benchmark: {encodings} at {lengths} tokens"
