"""The options of `relattn bench`, read before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
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


def chosen(
    encodings: Text, lengths: Text, causal: Text, modes: Text, head_dims: Text, heads: Text, batches: Text,
    dtype: Text, device: Text, seconds: Number, patience: Number,
) -> dict[str, Any]:  # fmt: skip
    """What was given, by the names of the settings.

    Raises ValueError: where numbers are expected and something else came.
    """
    given = {
        "encodings": names(encodings),
        "lengths": None if lengths is None else numbers("lengths", lengths, "512,1024"),
        "causal": names(causal),
        "modes": names(modes),
        "head_dims": None if head_dims is None else numbers("head_dims", head_dims, "64,128"),
        "heads": None if heads is None else numbers("heads", heads, "4,8"),
        "batches": None if batches is None else numbers("batches", batches, "1,4"),
        "dtype": dtype,
        "device": device,
        "seconds": seconds,
        "patience": patience,
    }
    return {name: value for name, value in given.items() if value is not None}


def asked(given: Mapping[str, Any]) -> str:
    """What will be measured, in words."""
    encodings = ",".join(given.get("encodings", ())) or ENCODINGS
    lengths = ",".join(map(str, given.get("lengths", ()))) or LENGTHS
    return f"benchmark: {encodings} at {lengths} tokens"
